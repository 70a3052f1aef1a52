"""What of this machine a cluster needs, changes, and gives back."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.settings import CGROUP

_HIERARCHIES = Path("/sys/fs/cgroup")
_PACKAGES = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "openssl": "openssl",
    "debootstrap": "debootstrap",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
}
# A kubelet sets these for the whole machine.
_SYSCTLS = (
    "vm.overcommit_memory",
    "vm.panic_on_oom",
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.keys.root_maxkeys",
    "kernel.keys.root_maxbytes",
)


def why_not_here() -> str | None:
    """What this machine lacks to run a cluster; None when it lacks nothing."""
    if os.geteuid() != 0:
        return "a cluster needs root"
    lacking = [package for program, package in _PACKAGES.items() if shutil.which(program) is None]
    if lacking:
        return f"a cluster needs packages: apt-get install {' '.join(lacking)}"
    if not (_HIERARCHIES / "memory").is_dir():
        # The kubelet would want its own part of the one hierarchy, with controllers handed down.
        return "a cluster needs control groups of version 1"
    return None


@contextlib.contextmanager
def borrowed() -> Iterator[None]:
    """Control groups for the cluster; the machine's settings are as before afterwards."""
    read = subprocess.run(["sysctl", *_SYSCTLS], capture_output=True, text=True, check=True)
    _make_groups()
    try:
        yield
    finally:
        _remove_groups()
        subprocess.run(
            ["sysctl", "--quiet", "--load", "-"], input=read.stdout, text=True, check=True
        )


def processes(word: str) -> list[int]:
    """Of all processes those whose control group has the word in its name, such as a pod's UID."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word in (folder / "cgroup").read_text():
                found.append(int(folder.name))
    return found


def command_line(pid: int) -> str:
    """Empty where the process has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""


def _groups() -> list[Path]:
    # Hybrid machines mount the hierarchy of version 2 as `unified`, without controllers.
    return [path / CGROUP for path in _HIERARCHIES.iterdir() if path.name != "unified"]


def _make_groups() -> None:
    for group in _groups():
        group.mkdir(exist_ok=True)
    for name in ("cpuset.cpus", "cpuset.mems"):
        given = (_HIERARCHIES / "cpuset" / name).read_text()
        (_HIERARCHIES / "cpuset" / CGROUP / name).write_text(given)


def _remove_groups() -> None:
    # runc makes some in the hierarchy of version 2, too.
    for group in (*_groups(), _HIERARCHIES / "unified" / CGROUP):
        for folder in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):  # a process is in it for a moment still
                folder.rmdir()
        with contextlib.suppress(OSError):
            group.rmdir()
