#!/opt/compactord/bin/python
"""Decommissions an executor before its pod ends: running merges finish, no new one starts.

Spark on Kubernetes calls it. As in Spark's own images SIGPWR informs the executor, which ends after
its last merge. The kubelet kills an executor that takes longer than the pod's grace period.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

EXECUTOR = b"KubernetesExecutorBackend"


def executors(processes: Path) -> list[int]:
    """Process ids of executors' JVMs; `processes` has the layout of /proc."""
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
    notified = executors(Path("/proc"))
    for pid in notified:
        os.kill(pid, signal.SIGPWR)
    while set(notified) & set(executors(Path("/proc"))):
        time.sleep(0.5)


if __name__ == "__main__":
    main()
