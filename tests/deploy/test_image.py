"""The image, built without a container engine, and what runs in it.

Where that cannot be done the tests' names say `locked-packages-only`: then the same commands run on
the locked packages alone, and what is about the image's own files is left out with a reason.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import compactord
from compactord.config.load import load_config
from compactord.paimon.snapshot import snapshot_ids
from tests.deploy import imaging
from tests.deploy.containers import USER, Containers
from tests.deploy.dockerfile import Run, read_dockerfile
from tests.deploy.rendering import ROOT
from tests.e2e import tables
from tests.spark.cluster import SPARK_HOME, free_port, is_listening
from tests.spark.remote import descendants, find_process, is_alive
from tests.spark.subcompactions import eventually
from tests.tools.obtain import tool_path

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]
DOCKERFILE = ROOT / "Dockerfile"


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """A folder that the image's user can reach, as it can a volume."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)
    path = tmp_path / "warehouse"
    path.mkdir()
    return path


@pytest.fixture
def image(containers: Containers) -> imaging.Image:
    if containers.image is None:
        why = imaging.why_not_here(Path.cwd())
        pytest.skip(f"the image is not built here ({why}): run `make test-deploy` as root")
    return containers.image


# -- the image's files and settings


def test_hadolint_finds_nothing() -> None:
    done = subprocess.run([tool_path("hadolint"), DOCKERFILE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_all_packages_are_fixed_by_checksum() -> None:
    for name in ("build.txt", "runtime.txt"):
        text = (ROOT / "requirements" / name).read_text().replace("\\\n", "")
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert lines
        for line in lines:
            assert re.match(r"[\w.-]+==[\w.]+ .*--hash=sha256:[0-9a-f]{64}", line), line
    installs = [
        step.command
        for stage in read_dockerfile(DOCKERFILE, {})
        for step in stage.steps
        if isinstance(step, Run) and re.search(r"pip .*(install|wheel)", step.command)
    ]
    for command in " && ".join(installs).split("&&"):
        if re.search(r"-m pip .*(install|wheel)", command):
            assert "--require-hashes" in command or "--no-index" in command, command


def test_the_locked_packages_are_those_that_the_package_asks_for() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    from packaging.requirements import Requirement

    locked = {
        name.replace("_", "-"): version
        for name, version in re.findall(
            r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements" / "runtime.txt").read_text(), re.M
        )
    }
    extras = project["optional-dependencies"]
    for text in (*project["dependencies"], *extras["jdbc"], *extras["rest"], *extras["stores"]):
        wanted = Requirement(text)
        name = wanted.name.replace(".", "-")
        assert name in locked, "run `make lock`"
        assert wanted.specifier.contains(locked[name]), "run `make lock`"


def test_the_image_says_what_it_is() -> None:
    final = read_dockerfile(DOCKERFILE, {"REVISION": "abc"})[-1]
    assert final.labels["org.opencontainers.image.version"] == compactord.__version__
    assert final.labels["org.opencontainers.image.revision"] == "abc"
    assert {name.rsplit(".", 1)[1] for name in final.labels} == {
        *("title", "description", "version", "revision", "created", "source", "licenses")
    }
    assert (final.user, final.stop_signal) == (f"{USER}:{USER}", "SIGTERM")
    assert (
        int(final.port)
        == load_config(
            str(ROOT / "config" / "compactord.yaml"), environ={}
        ).config.service.http.port
    )
    assert final.entrypoint[0] == "/usr/bin/tini"


def test_the_context_holds_what_is_copied_and_no_secrets() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*", "what is not named stays out"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        source
        for stage in read_dockerfile(DOCKERFILE, {})
        for step in stage.steps
        if not isinstance(step, Run) and step.stage is None
        for source in step.sources
    }
    assert all(any(Path(path).is_relative_to(rule) for rule in allowed) for path in copied)
    assert all(any(Path(path).is_relative_to(rule) for path in copied) for rule in allowed)


def test_a_container_has_no_rights_and_writes_only_into_its_volumes(
    containers: Containers, image: imaging.Image, warehouse: Path
) -> None:
    program = (ROOT / "tests" / "deploy" / "inside.py").read_text()
    done = containers.run_python(program, warehouse)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    writing = found.pop("writing")
    assert found == {
        "user": [USER, USER],
        "other_groups": [],
        "name": "compactord",
        "capabilities": 0,
        "no_new_privileges": "1",
        "programs": [],
        "has_pip": False,
        "gaining": [],
    }
    refused = {place for place, why in writing.items() if why == "Read-only file system"}
    assert refused == {"/", "/etc/", "/opt/compactord/", "/var/"}
    assert [writing[f"{place}/"] for place in image.stage.volumes] == [None, None]


# -- compactord in a container


def test_compact_works_in_a_container(containers: Containers, warehouse: Path) -> None:
    expected = tables.small_keyed(warehouse)
    snapshots = snapshot_ids(tables.LOCAL, tables.location(warehouse))
    done = containers.run("compact", "--warehouse", "/srv", "--table", "db.t", data=warehouse)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(snapshot_ids(tables.LOCAL, tables.location(warehouse))) > len(snapshots)
    rows = tables.rows_of(warehouse).to_pydict()
    assert dict(zip(rows["k"], rows["v"], strict=True)) == expected
    assert tables.leftovers(warehouse) == set()
    if containers.image is not None:
        owners = {path.stat().st_uid for path in warehouse.rglob("*")}
        assert owners == {USER}


@pytest.fixture
def served(containers: Containers, warehouse: Path, tmp_path: Path) -> Iterator[Served]:
    config = tmp_path / "config"
    config.mkdir()
    served = Served(containers, warehouse, config)
    try:
        yield served
    finally:
        served.kill()


class Served:
    """`compactord serve` in a container, its configuration laid out as in a ConfigMap volume."""

    def __init__(self, containers: Containers, warehouse: Path, folder: Path) -> None:
        self._containers = containers
        self._warehouse = warehouse
        self._folder = folder
        self._versions = 0
        self.port = free_port()
        self.process: subprocess.Popen[str]
        self._family: set[int] = set()

    def configure(self, **settings: Any) -> None:
        """Write a version and point `..data` at it, as the kubelet does."""
        config = {
            "catalogs": {"lake": {"warehouse": "/srv"}},
            "service": {"http": {"port": self.port}},
            "reload": {"interval": "1 s"},
            "discovery": {"catalog_list_interval": "1 s"},
            "shutdown": {"grace": "60 s"},
            **settings,
        }
        if self._containers.image is None:
            config["catalogs"] = {"lake": {"warehouse": str(self._warehouse)}}
        self._versions += 1
        version = self._folder / f"..version_{self._versions}"
        version.mkdir()
        (version / "compactord.yaml").write_text(yaml.safe_dump(config))
        link = self._folder / "..data_tmp"
        link.symlink_to(version.name)
        link.replace(self._folder / "..data")
        if self._versions == 1:
            (self._folder / "compactord.yaml").symlink_to("..data/compactord.yaml")
        for old in self._folder.glob("..version_*"):
            if old != version:
                (old / "compactord.yaml").unlink()
                old.rmdir()

    def start(self) -> None:
        self.process = self._containers.start(
            *("serve", "--config", "/etc/compactord/compactord.yaml"),
            data=self._warehouse,
            config=self._folder,
        )
        eventually(lambda: self.answer("/readyz") is not None, "it is ready")

    def answer(self, path: str) -> str | None:
        """What it answers; None unless it answers well."""
        assert self.process.poll() is None, self.process.communicate()
        self._family |= descendants(self.process.pid)
        address = f"http://127.0.0.1:{self.port}{path}"
        with (
            contextlib.suppress(OSError, urllib.error.HTTPError),
            urllib.request.urlopen(address, timeout=180) as answer,
        ):
            return str(answer.read().decode())
        return None

    def config(self) -> Any:
        return json.loads(self.answer("/config") or "{}")

    def stop(self) -> tuple[int, str]:
        """SIGTERM to process 1, as a kubelet stops a container; its end and its log."""
        self._family |= descendants(self.process.pid)
        os.kill(self._containers.first_program(self.process), signal.SIGTERM)
        out, err = self.process.communicate(timeout=300)
        return self.process.returncode, out + err

    def java(self) -> int:
        self._family |= descendants(self.process.pid)
        return find_process("org.apache.spark.api.python.PythonGatewayServer", self._family)

    def kill(self) -> None:
        if hasattr(self, "process") and self.process.stdout is not None:
            for pid in (*descendants(self.process.pid), self.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not self.process.stdout.closed:
                self.process.communicate()

    def survivors(self) -> list[int]:
        return [pid for pid in self._family if is_alive(pid)]


def test_sigterm_to_process_1_drains_and_leaves_no_process(
    served: Served, containers: Containers, warehouse: Path
) -> None:
    tables.large_keyed(warehouse)
    before = tables.rows_of(warehouse)
    # Slow enough to be met in the middle.
    served.configure(defaults={"options": {"file.compression.zstd-level": "19"}})
    served.start()
    java = served.java()
    eventually(lambda: _is_writing(warehouse), "a merge writes")
    code, log = served.stop()
    assert code == 0, log
    assert not is_alive(java)
    eventually(lambda: served.survivors() == [], "all processes have ended")
    assert "service_stopped" in log
    # What ran was finished and published, and nothing else was left behind.
    assert tables.leftovers(warehouse) == set()
    assert _compact_snapshots(warehouse) > 0
    assert tables.rows_of(warehouse).equals(before)


def _is_writing(warehouse: Path) -> bool:
    return bool(tables.leftovers(warehouse))


def _compact_snapshots(warehouse: Path) -> int:
    folder = Path(tables.location(warehouse), "snapshot")
    return sum(
        json.loads(path.read_text())["commitKind"] == "COMPACT"
        for path in folder.glob("snapshot-*")
    )


def test_a_configuration_that_is_swapped_as_a_volume_swaps_it_is_read_again(
    served: Served, warehouse: Path
) -> None:
    tables.small_keyed(warehouse, commits=6)
    served.configure(defaults={"mode": "paused"})
    served.start()
    time.sleep(2)
    assert _compact_snapshots(warehouse) == 0
    # Templates and runbooks are files of the installed package.
    assert "CompactordTablePaused" in (served.answer("/runbooks") or "")
    served.configure(defaults={"mode": "auto"})
    eventually(lambda: _compact_snapshots(warehouse) > 0, "it works on the table again")
    # A wrong one changes nothing, and is told.
    served.configure(defaults={"mode": "sometimes"})
    told = "compactord_config_last_reload_successful 0"
    eventually(lambda: told in (served.answer("/metrics") or ""), "the gauge falls")
    code, log = served.stop()
    assert code == 0, log


# -- executors of Spark on Kubernetes


def _program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "deploy" / "image" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_EXECUTOR = {
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-0",
    "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
    "SPARK_EXECUTOR_POD_NAME": "executor-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}


def test_an_executor_is_started_with_all_that_spark_says_in_the_environment() -> None:
    environment = {
        **_EXECUTOR,
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
        "SPARK_CONF_DIR": "/opt/spark/conf",
        **{f"SPARK_JAVA_OPT_{number}": f"-Dx={number}" for number in range(12)},
    }
    command = _program("entrypoint").executor_command(environment, Path("/jars"))
    backend = command.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    assert command[:13] == ["java", *(f"-Dx={number}" for number in range(12))]
    assert command[13:backend] == ["-Xms512m", "-Xmx512m", "-cp", "/opt/spark/conf:/jars/*"]
    words = command[backend + 1 :]
    assert dict(zip(words[::2], words[1::2], strict=True)) == {
        "--driver-url": "spark://CoarseGrainedScheduler@driver:7078",
        "--executor-id": "1",
        "--cores": "2",
        "--app-id": "spark-0",
        "--hostname": "127.0.0.1",
        "--resourceProfileId": "0",
        "--podName": "executor-1",
    }


def test_decommissioning_finds_executors_and_nothing_else(tmp_path: Path) -> None:
    backend = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    for pid, words in {
        "1": ["/usr/bin/tini", "--", "/opt/compactord/bin/entrypoint", "executor"],
        "7": ["java", "-cp", "/opt/spark/jars/*", backend, "--cores", "2"],
        "9": ["/opt/compactord/bin/python", "-m", "pyspark.daemon"],
    }.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes("\0".join([*words, ""]).encode())
    assert _program("decommission").executors(tmp_path) == [7]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A Spark master without workers: a driver of it takes whichever executor comes."""
    port = free_port()
    process = subprocess.Popen(
        [
            SPARK_HOME / "bin" / "spark-class",
            "org.apache.spark.deploy.master.Master",
            *("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"),
        ],
        env=os.environ | {"SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "256m"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    try:
        eventually(lambda: is_listening(port), "the master listens")
        yield f"spark://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


_DRIVER = """
import sys
from compactord.engine.spark import start_spark
master, port = sys.argv[1:]
conf = {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.port": port, "spark.pyspark.python": "PYTHON", "spark.executor.cores": "2",
    "spark.decommission.enabled": "true",
}
with start_spark(master, conf) as engine:
    print("capacity", engine.capacity, flush=True)
    sys.stdin.read()
"""


def test_the_image_is_an_executor_that_a_driver_can_use(
    containers: Containers, image: imaging.Image, master: str, warehouse: Path
) -> None:
    """The check of workers at the engine's start runs compactord's code in the executor."""
    port = free_port()
    driver = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _DRIVER.replace("PYTHON", "/opt/compactord/bin/python"),
            master,
            str(port),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    executor: subprocess.Popen[str] | None = None
    try:
        eventually(lambda: is_listening(port), "the driver listens")
        environment = {
            **_EXECUTOR,
            "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{port}",
            "SPARK_JAVA_OPT_0": f"-Dspark.driver.port={port}",
            "SPARK_LOCAL_DIRS": "/tmp",
        }
        executor = containers.start("executor", data=warehouse, environment=environment)
        assert driver.stdout is not None
        assert driver.stdout.readline() == "capacity 2\n"
        _decommission(containers.first_program(executor))
        executor.communicate(timeout=300)
    finally:
        driver.communicate("")
        if executor is not None:
            executor.kill()
            executor.communicate()
    assert image.stage.workdir in image.stage.volumes, "it unpacks there what the driver sends"


def _decommission(first: int) -> None:
    """The program that a kubelet runs in the container before it ends the pod."""
    done = subprocess.run(
        [
            *("nsenter", "--target", str(first), "--pid", "--mount", "--root", "--wd"),
            *("--setuid", str(USER), "--setgid", str(USER)),
            "/opt/compactord/bin/decommission",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # It may be ended together with the container whose executor it told.
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
