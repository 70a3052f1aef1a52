"""The cluster itself: its start, commands in it, its end.

It runs in network, mount and PID namespaces of its own: no port, link, mount or rule of this
machine's is touched, and with process 1 of them everything ends, however a test run ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import images, machine
from tests.cluster.settings import DNS, NODE_NAME, REGISTRY, write_settings
from tests.deploy import imaging
from tests.deploy.rendering import ROOT
from tests.tools.obtain import cache_root, tool_path

Object = dict[str, Any]
CACHE = cache_root().parent / "cluster"
MANIFESTS = Path(__file__).parent / "manifests"
# The machine may be crowded.
PATIENCE_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """`pid` is process 1 of its namespaces; `state` has its keys and logs; `image` is ours."""

    pid: int
    state: Path
    image: str

    def run(
        self, *command: str | Path, stdin: str = "", seconds: float = PATIENCE_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """A command inside the namespaces, as the cluster's administrator."""
        return subprocess.run(
            self._inside(*command),
            env=self._environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    @contextlib.contextmanager
    def running(self, output: Path, *command: str | Path) -> Iterator[None]:
        """Beside a command of which a file receives the output; it is killed at the end."""
        with (
            output.open("wb") as file,
            subprocess.Popen(
                self._inside(*command),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            ) as process,
        ):
            try:
                yield
            finally:
                process.kill()

    @property
    def _environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.state / "home"),
            "KUBECONFIG": str(self.state / "admin.conf"),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        }

    def _inside(self, *command: str | Path) -> list[str | Path]:
        spaces = ("--net", "--mount", "--pid")
        return ["nsenter", f"--target={self.pid}", *spaces, f"--wd={ROOT}", "--", *command]

    def kubectl(self, *arguments: str | Path, stdin: str = "") -> str:
        """Its output. Fails the test with its errors when it fails."""
        return _succeeded(self.run(tool_path("kubectl"), *arguments, stdin=stdin))

    def helm(self, *arguments: str | Path) -> str:
        return _succeeded(self.run(tool_path("helm"), *arguments))

    def get(self, kind: str, namespace: str, *arguments: str) -> list[Object]:
        told = self.kubectl("get", kind, "-n", namespace, "-o", "json", *arguments)
        items: list[Object] = json.loads(told)["items"]
        return items

    def make_namespace(self, name: str) -> None:
        """One that admits only pods of the strictest PodSecurity."""
        self.kubectl("create", "namespace", name)
        levels = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
        self.kubectl("label", "namespace", name, *levels)

    def values(self, *more: str) -> list[str]:
        """Arguments of helm for the project's image, and `key=value` settings."""
        sets = (f"image.registry={REGISTRY}", f"image.tag={self.image.rpartition(':')[2]}", *more)
        return [word for one in sets for word in ("--set", one)]


def _succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"{done.args[-6:]}: {done.stderr}{done.stdout}"
    return done.stdout


def eventually(holds: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """The first true answer; fails the test when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"within {seconds:.0f} s: {what}"
        time.sleep(0.3)
    return found


@contextlib.contextmanager
def running_cluster(state: Path) -> Iterator[Cluster]:
    """A cluster of one ready node with DNS. One at a time on a machine: the next one waits."""
    CACHE.mkdir(parents=True, exist_ok=True)
    image = imaging.build(imaging.CONTEXT, cache_root().parent / "image", {})
    with contextlib.ExitStack() as ending:
        lock = ending.enter_context((CACHE / "lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_settings(state, CACHE / "containerd")
        ending.enter_context(machine.borrowed())
        first = ending.enter_context(_first_process(state))
        cluster = Cluster(pid=first, state=state, image=images.name_of(image))
        _wait_until_ready(cluster)
        _import_images(cluster, image)
        _start_dns(cluster)
        yield cluster


@contextlib.contextmanager
def _first_process(state: Path) -> Iterator[int]:
    """Process 1 of new namespaces, as this machine numbers it; killed at the end, or with us."""
    new = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = ["setpriv", "--pdeathsig=KILL", "--", *new, "--propagation=private", "--"]
    inside = [sys.executable, "-u", "-m", "tests.cluster.inside", str(state)]
    with (state / "log" / "inside.log").open("wb") as log:
        outer = subprocess.Popen(
            [*command, *inside],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        yield int(eventually(lambda: children.read_text().split(), "namespaces are made")[0])
    finally:
        outer.kill()
        outer.wait()
        # All that was in the namespaces ends a moment later.
        eventually(
            lambda: not machine.processes("compactord-cluster"), "the cluster's pods end", 60
        )


def _wait_until_ready(cluster: Cluster) -> None:
    def node_is_ready() -> bool:
        asked = ("get", "node", NODE_NAME, "-o", "json")
        done = cluster.run(tool_path("kubectl"), *asked)
        conditions = json.loads(done.stdout)["status"]["conditions"] if not done.returncode else []
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    eventually(node_is_ready, f"the node is ready (logs are in {cluster.state}/log)")


def _import_images(cluster: Cluster, image: imaging.Image) -> None:
    """Bring ours in, once; earlier versions of it are forgotten."""
    ctr = ("ctr", "--address", cluster.state / "run" / "containerd.sock", "--namespace", "k8s.io")
    there = set(_succeeded(cluster.run(*ctr, "images", "ls", "--quiet")).split())
    archive = cluster.state / "image.tar"
    if images.PAUSE not in there:
        images.pack_pause(archive)
        _succeeded(cluster.run(*ctr, "images", "import", archive))
    if cluster.image not in there:
        images.pack(image, archive)
        _succeeded(cluster.run(*ctr, "images", "import", archive, seconds=1800))
        old = [name for name in there if name.startswith(f"{REGISTRY}/compactord:")]
        if old:
            cluster.run(*ctr, "images", "rm", *old)
    archive.unlink(missing_ok=True)


def _start_dns(cluster: Cluster) -> None:
    program = Path(__file__).with_name("dns.py")
    cluster.kubectl("create", "configmap", "dns", "-n", "kube-system", f"--from-file={program}")
    text = (MANIFESTS / "dns.yaml").read_text()
    text = text.replace("clusterIP: DNS", f"clusterIP: {DNS}").replace("IMAGE", cluster.image)
    cluster.kubectl("apply", "-f", "-", stdin=text)
    wait = ("rollout", "status", "daemonset/dns", "-n", "kube-system", "--timeout=600s")
    cluster.kubectl(*wait)
