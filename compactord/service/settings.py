"""The settings in effect: reloads, periodic events, the engine's capacity.

APScheduler keeps the timetable; it only posts events to the loop's queue.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from zlib import crc32

import structlog
from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

from compactord.clock import Clock
from compactord.config.load import LoadedConfig
from compactord.config.model import Limits, ServiceConfig
from compactord.config.policy import cold_differences
from compactord.engine.masters import is_embedded, shown_master
from compactord.engine.worker import IDLE_WORKER_BYTES
from compactord.errors import CompactordError, UsageError
from compactord.model import SubcompactionOutcome, SubcompactionResult
from compactord.service.view import ConfigView, EngineView

_log = structlog.get_logger()


class Settings:
    """The configuration and its reloads. Only the loop uses it, except `loaded` and `read_again`.

    These two are thread-safe. `read` raises `UsageError` for an invalid configuration.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        *,
        read: Callable[[], LoadedConfig],
        apply_logs: Callable[[LoadedConfig], None],
        now_ms: int,
    ) -> None:
        self.loaded = loaded
        self.view = ConfigView(path=loaded.path, last_reload_success_ms=now_ms)
        self._read = read
        self._apply_logs = apply_logs

    @property
    def config(self) -> ServiceConfig:
        return self.loaded.config

    def read_again(self) -> LoadedConfig | CompactordError:
        try:
            return self._read()
        except CompactordError as error:
            return error

    def take_in(
        self, result: LoadedConfig | CompactordError, *, is_requested: bool, now_ms: int
    ) -> bool:
        """Apply a configuration; returns whether it is now in effect: valid, and new or requested.

        Only values that can change at run time are applied; others take effect after a restart.
        """
        if isinstance(result, CompactordError):
            if self.view.error != str(result) or is_requested:
                _log.error("config_reload_failed", path=self.loaded.path, error=str(result))
            self.view = replace(self.view, last_reload_successful=False, error=str(result))
            return False
        self.view = replace(self.view, last_reload_successful=True, error="")
        if result.digest == self.loaded.digest and not is_requested:
            return False
        old = self.config
        required = cold_differences(old, result.config)
        # Catalog options whose references have new values. Credentials are exempt: they are read
        # again once a server refuses them.
        before = self.loaded.late
        others = (key for key, value in result.late.items() if before.get(key, value) != value)
        required += tuple(key for key in others if key not in required)
        self.view = replace(self.view, last_reload_success_ms=now_ms, restart_required=required)
        keep = {"service": old.service, "spark": old.spark, "catalogs": old.catalogs}
        config = result.config.model_copy(update=keep)
        # Catalogs keep the values that they were opened with.
        self.loaded = replace(result, config=config, late=self.loaded.late)
        if self.config.log != old.log:
            self._apply_logs(self.loaded)
        if required:
            _log.warning("config_restart_required", keys=list(required))
        _log.info("config_loaded", path=result.path)
        return True


# Names of one interval share this many instants: a call for each name would cost too much.
_SLOT_MS = 500
_SLOTS_MAX = 60

# Milliseconds: the interval, and the delay of the first call.
_Group = tuple[int, int]
_Call = Callable[[], None]


class Timetable:
    """Posts functions at intervals, from a thread of its own.

    Names of the same interval are spread over it, so tables are not all due at once. Names due
    together are posted as one event: waking the loop for each costs more than a poll.
    """

    def __init__(self, post: Callable[[_Call], None]) -> None:
        self._post = post
        # Posting takes no time, so no pool is needed; missed runs become one.
        self._scheduler = BackgroundScheduler(
            timezone=timezone.utc,
            executors={"default": DebugExecutor()},
            job_defaults={"coalesce": True, "misfire_grace_time": None, "max_instances": 1},
        )
        self._lock = threading.Lock()
        self._group_of: dict[str, _Group] = {}
        self._calls: dict[_Group, dict[str, _Call]] = {}

    def start(self) -> None:
        self._scheduler.start()

    def every(self, name: str, interval_ms: int, call: _Call) -> None:
        """Post the event at this interval from now on; replaces an earlier interval."""
        slots = max(1, min(_SLOTS_MAX, interval_ms // _SLOT_MS))
        slot = crc32(name.encode(errors="surrogatepass")) % slots
        group = (interval_ms, interval_ms * slot // slots)
        if self._group_of.get(name) == group:
            return
        self.stop_calling(name)
        self._group_of[name] = group
        with self._lock:
            is_new = group not in self._calls
            self._calls.setdefault(group, {})[name] = call
        if is_new:
            self._schedule(group)

    def stop_calling(self, name: str) -> None:
        """Forget a name; ignores unknown names."""
        group = self._group_of.pop(name, None)
        if group is None:
            return
        with self._lock:
            del self._calls[group][name]
            is_empty = not self._calls[group]
            if is_empty:
                del self._calls[group]
        if is_empty:
            self._scheduler.remove_job(str(group))

    def clock_jumped(self) -> None:
        """Recompute all due times: after the wall clock was set they may be hours away."""
        for group in list(self._calls):
            self._schedule(group)

    def close(self) -> None:
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)

    def _schedule(self, group: _Group) -> None:
        interval_ms, delay_ms = group
        start = datetime.now(timezone.utc) + timedelta(milliseconds=delay_ms)
        self._scheduler.add_job(
            partial(self._call, group),
            IntervalTrigger(seconds=interval_ms / 1000, start_date=start, timezone=timezone.utc),
            id=str(group),
            replace_existing=True,
        )

    def _call(self, group: _Group) -> None:
        with self._lock:
            calls = tuple(self._calls.get(group, {}).values())
        self._post(partial(_run, calls))


def _run(calls: Sequence[_Call]) -> None:
    for call in calls:
        call()


_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
# Share of the machine's memory for all merges.
_SHARE = 0.75


class Capacity:
    """The engine's slots and memory. Only the loop uses it.

    Raises `UsageError` if no merge fits into the memory. `memory_budget_bytes` is the budget of all
    merges, or None if executors have their own memory.
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
        # Merges that the engine's cores can run at once; 0 while it is not up.
        self._cores = 0
        self._peak_rss_bytes = 0
        # Seconds that slots were in use, and the time up to which these are counted.
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
        """Set other limits; ignores a memory limit into which no merge fits."""
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
        """The engine has died, or did not start."""
        if not self._was_up:
            _log.error("spark_unavailable", error=why)
        self._cores, self.error = 0, why

    def subcompaction_ended(self, outcome: SubcompactionOutcome) -> None:
        if isinstance(outcome, SubcompactionResult):
            self._peak_rss_bytes = max(self._peak_rss_bytes, outcome.stats.peak_rss_bytes)

    def count_busy(self, running: int) -> None:
        """Add the slot time since the last call, while `running` subcompactions ran."""
        now_s = self._clock.monotonic_s()
        self._busy_s += (now_s - self._counted_s) * running
        self._counted_s = now_s

    def view(self, running: int, hung: int) -> EngineView:
        """The view; `hung` subcompactions did not answer in time: their slots are lost for now."""
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
    """The memory that all merges may use together, or None if compactord sets no limit.

    On a cluster executors have memory of their own: without `limits.memory`, only their cores
    limit merges. Raises `UsageError` if the budget is not enough for one merge.
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
    """Merges at once: the smallest limit of engine, configuration and memory; at least 1."""
    by_memory = capacity
    if budget_bytes is not None:
        by_memory = budget_bytes // (task_memory_bytes + IDLE_WORKER_BYTES)
    return max(1, min(capacity, by_memory, limits.task_slots or capacity))


def _machine_bytes() -> int:
    """The memory of the machine, or of the container if it has less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _CGROUP_LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total
