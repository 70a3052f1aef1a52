"""The engine's capacity: slots, memory, time in use; how much may run at once."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import structlog

from compactord.clock import Clock
from compactord.config.model import Limits, ServiceConfig
from compactord.engine.masters import is_embedded, shown_master
from compactord.errors import UsageError
from compactord.model import SubcompactionOutcome, SubcompactionResult
from compactord.service.view import EngineView

_log = structlog.get_logger()


_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
# Share of the machine's memory for all merges together.
_SHARE = 0.75
# Memory of an idle worker, in addition to its task's.
IDLE_WORKER_BYTES = 90 << 20


class Capacity:
    """Used by the loop alone. Raises `UsageError` where no merge fits into the memory.

    `memory_budget_bytes` is for all merges together, None where executors have their own.
    """

    def __init__(self, config: ServiceConfig, clock: Clock) -> None:
        self.task_memory_bytes = config.spark.task_memory_bytes
        self.error = ""
        self._master = config.spark.master
        self._limits = config.limits
        self.memory_budget_bytes = self._budget_bytes(config.limits)
        self._clock = clock
        self._was_up = False
        self._restarts = 0
        # Merges that its cores can run at once; 0 while it is not up.
        self._cores = 0
        self._peak_rss_bytes = 0
        # Seconds that slots were in use, and the time up to which they are counted.
        self._busy_s, self._counted_s = 0.0, clock.monotonic_s()

    @property
    def slots(self) -> int:
        """Merges at once; 0 while there is no engine."""
        if not self._cores:
            return 0
        return slots_for(
            self._cores, self._limits, self.memory_budget_bytes, self.task_memory_bytes
        )

    def configure(self, limits: Limits) -> None:
        """Set other limits; a memory limit in which no merge fits is ignored."""
        self._limits = limits
        with contextlib.suppress(UsageError):
            self.memory_budget_bytes = self._budget_bytes(limits)

    def engine_up(self, cores: int) -> None:
        begins, event = not self._cores, "spark_restarted" if self._was_up else "spark_started"
        self._restarts += begins and self._was_up
        self._was_up, self._cores, self.error = True, cores, ""
        if begins:
            _log.info(event, slots=self.slots, cores=cores)

    def engine_failed(self, why: str) -> None:
        """The engine is gone, or did not start."""
        if not self._was_up:
            _log.error("spark_unavailable", error=why)
        self._cores, self.error = 0, why

    def subcompaction_ended(self, outcome: SubcompactionOutcome) -> None:
        if isinstance(outcome, SubcompactionResult):
            self._peak_rss_bytes = max(self._peak_rss_bytes, outcome.stats.peak_rss_bytes)

    def count_busy(self, running: int) -> None:
        """Count the slots in use since the last call; `running` subcompactions ran meanwhile."""
        now_s = self._clock.monotonic_s()
        self._busy_s += (now_s - self._counted_s) * running
        self._counted_s = now_s

    def view(self, running: int, hung: int) -> EngineView:
        """`hung` subcompactions did not answer in time: their slots are lost for now."""
        one_merge = self.task_memory_bytes + IDLE_WORKER_BYTES
        budget = self.memory_budget_bytes
        return EngineView(
            is_up=self._cores > 0,
            master=shown_master(self._master or "local"),
            restarts=self._restarts,
            error=self.error,
            slots=self.slots,
            running=running,
            lost_slots=hung,
            memory_budget_bytes=self.slots * one_merge if budget is None else budget,
            memory_reserved_bytes=(running + hung) * one_merge,
            task_peak_memory_bytes=self._peak_rss_bytes,
            slot_busy_seconds=self._busy_s,
        )

    def _budget_bytes(self, limits: Limits) -> int | None:
        return memory_budget_bytes(limits, self.task_memory_bytes, self._master)


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


def slots_for(
    capacity: int, limits: Limits, budget_bytes: int | None, task_memory_bytes: int
) -> int:
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
