"""How much may run at once: slots of the engine, configured cores and memory."""

from __future__ import annotations

import os
from pathlib import Path

from compactord.config.model import Limits
from compactord.errors import UsageError

_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
# Share of the machine's memory for all merges together.
_SHARE = 0.75
# Memory of an idle worker, in addition to its task's.
IDLE_WORKER_BYTES = 90 << 20


def memory_budget_bytes(limits: Limits, task_memory_bytes: int, master: str | None) -> int | None:
    """The memory that all merges may use together; None where compactord sets no limit.

    On a cluster executors have memory of their own: without `limits.memory` their cores alone
    decide. Raises UsageError when the budget is not enough for one merge.
    """
    budget = limits.memory_bytes
    origin = "limits.memory"
    if budget is None and not is_embedded(master):
        return None
    if budget is None:
        budget, origin = int(_machine_bytes() * _SHARE), "3/4 of this machine's memory"
    if budget < task_memory_bytes + IDLE_WORKER_BYTES:
        raise UsageError(
            f"no merge fits into the memory budget: {origin} is {budget >> 20} mb, one merge takes "
            f"spark.task_memory = {task_memory_bytes >> 20} mb and {IDLE_WORKER_BYTES >> 20} mb "
            "for its worker; lower spark.task_memory or raise limits.memory"
        )
    return budget


def is_embedded(master: str | None) -> bool:
    """Whether merges run on this machine, in the daemon's own Spark."""
    return master is None or master.startswith("local")


def slots(capacity: int, limits: Limits, budget_bytes: int | None, task_memory_bytes: int) -> int:
    """Merges at once: what the engine, the configuration and the memory all allow; at least 1."""
    by_memory = capacity
    if budget_bytes is not None:
        by_memory = budget_bytes // (task_memory_bytes + IDLE_WORKER_BYTES)
    return max(1, min(capacity, by_memory, limits.task_slots or capacity))


def _machine_bytes() -> int:
    """The machine's memory, or the container's when that has less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _CGROUP_LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total
