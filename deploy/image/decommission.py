#!/opt/compactord/bin/python
"""What Spark on Kubernetes calls before an executor's pod ends: no new merge, finish the running.

The executor is told by SIGPWR, as Spark's own images do it, and ends when it has nothing left. The
kubelet ends whoever takes longer than the pod's grace period.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

EXECUTOR = b"KubernetesExecutorBackend"


def executors(processes: Path) -> list[int]:
    """Processes that are executors' JVMs; `processes` is laid out as /proc."""
    found = []
    for path in processes.glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended since
        if any(word.endswith(EXECUTOR) for word in words):
            found.append(int(path.parent.name))
    return found


def main() -> None:
    told = executors(Path("/proc"))
    for pid in told:
        os.kill(pid, signal.SIGPWR)
    while set(told) & set(executors(Path("/proc"))):
        time.sleep(0.5)


if __name__ == "__main__":
    main()
