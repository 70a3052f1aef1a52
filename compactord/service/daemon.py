"""The service: one loop that owns all state, and threads that post events to it.

An event is a function that the loop calls; whatever blocks happens elsewhere (`effects_runner`,
`engine_host`, chores) and ends by posting one. After each event the scheduler decides what begins.
Once a second the loop records a heartbeat and publishes the view that all readers use.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import tzinfo
from functools import partial

import structlog

from compactord import __version__
from compactord.catalog.base import Catalog
from compactord.clock import Clock, WallTime
from compactord.config.load import LoadedConfig
from compactord.config.model import Catalog as CatalogSection
from compactord.config.model import ServiceConfig
from compactord.engine.base import Engine
from compactord.errors import CompactordError
from compactord.ids import Owner
from compactord.maintenance.expire import Expired
from compactord.model import SubcompactionResult, TableName, TaskOutcome
from compactord.scheduler import accounting
from compactord.scheduler.scheduled_table import HUNG_JOB_MS
from compactord.scheduler.scheduler import Scheduler
from compactord.service.capacity import Capacity, time_limit
from compactord.service.discovery import Discovery, Listing
from compactord.service.effects_runner import Answers, EffectsRunner
from compactord.service.engine_host import EngineHost
from compactord.service.metrics import Metrics
from compactord.service.observer import LoggingObserver
from compactord.service.registry import TableRegistry
from compactord.service.settings import Settings
from compactord.service.silent_stores import SilentStores
from compactord.service.status_source import Facts, StatusKeeper
from compactord.service.timetable import Timetable
from compactord.service.view import ServiceView, TableDetail
from compactord.storage.breaker import Breakers
from compactord.table.cycle import Cycle, Dispatch, Outrun, Phase
from compactord.table.detail import bucket_details
from compactord.table.subcompactions import WorkerSpec

_log = structlog.get_logger()
_TICK_S = 1.0
_BEAT_MS = 5_000
# The wall clock counts as set once it has moved this far against the monotonic clock.
_JUMP_MS = 2_000
# Cycles and dispatches that run at once, over all tables: mostly they wait for stores. A quiet poll
# is three requests: a thousand tables are polled in ten seconds at 50 ms a request.
JOBS_MAX = 16
# Least time between two expiries of a table, unless the last one left something to do.
_EXPIRE_INTERVAL_MS = 10_000
# Before that the engine is started again, which is better than the whole process.
_SLOTS_STALE_MS = 300_000
_LOOP_STALE_MS = 60_000
_NO_ENGINE = 69
# How long, after the grace period, running calls may take to return.
_CLOSE_S = 20.0
# The same of listings, which leave nothing behind.
_LISTING_CLOSE_S = 1.0

Event = Callable[[], None]


class Daemon:
    """`run` is called once, by the thread that owns the daemon. A `StatusSource` for readers.

    `start_engine` is called again whenever the engine has died. `reload` reads the configuration
    again; it raises `UsageError` for one that cannot be used.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        *,
        clock: Clock,
        zone: tzinfo,
        owner: Owner,
        open_catalog: Callable[[CatalogSection], Catalog],
        start_engine: Callable[[], Engine],
        reload: Callable[[], LoadedConfig],
        apply_logs: Callable[[LoadedConfig], None],
        metrics: Metrics,
        breakers: Breakers,
        instance: str,
    ) -> None:
        config = loaded.config
        self._settings = Settings(
            loaded, read=reload, apply_logs=apply_logs, now_ms=clock.steady_ms()
        )
        self._clock = clock
        # Opened once: a catalog that cannot be opened ends the start.
        catalogs = {name: open_catalog(catalog) for name, catalog in config.catalogs.items()}
        self._discovery = Discovery(
            catalogs,
            loaded=lambda: self._settings.loaded,
            post=lambda listing: self._events.put(partial(self._listed, listing)),
            clock=clock,
        )
        self._metrics = metrics
        self._capacity = Capacity(config, clock)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._observer = LoggingObserver(metrics)
        self._scheduler = self._make_scheduler(config, zone)
        found = {name: breakers.of(catalog.storage) for name, catalog in catalogs.items()}
        self._silent_stores = SilentStores(
            {name: breaker for name, breaker in found.items() if breaker is not None},
            self._scheduler,
        )
        self._engine = EngineHost(start_engine, self, clock=clock)
        worker = WorkerSpec(owner=owner, memory_bytes=self._capacity.task_memory_bytes, zone=zone)
        self._runner = self._make_effects_runner(worker, config.recovery.orphan_grace_ms)
        # Reading the configuration, and cancelling at the end.
        self._chores = ThreadPoolExecutor(2, thread_name_prefix="chore")
        self._timetable = Timetable(self._events.put)
        self._registry = TableRegistry(
            loaded,
            self._scheduler,
            self._runner.specs,
            timetable=self._timetable,
            clock=clock,
        )
        self._facts = Facts(
            instance=instance,
            version=__version__,
            started_ms=clock.steady_ms(),
            config=self._settings.view,
            engine=self._capacity.view(0, 0),
            catalogs=self._registry.catalogs,
            silent_since_ms=self._silent_stores.since_ms,
            unmatched=self._registry.unmatched,
        )
        self._next_tick_s = clock.monotonic_s()
        self._start_deadline_s = clock.monotonic_s() + config.startup.timeout_ms / 1000
        self._drain_s: float | None = None
        self._stops_asked = 0
        self._has_cancelled = False
        self._exit_code = 0
        # Whether threads still run that would keep the process from ending.
        self.has_stragglers = False
        self._status = StatusKeeper(self._scheduler, config.metrics.top_n)
        self._view = self._status.update(self._facts, {}, {}, clock.steady_ms())

    def _make_scheduler(self, config: ServiceConfig, zone: tzinfo) -> Scheduler:
        return Scheduler(
            retry=config.retry,
            wall=WallTime(zone),
            observer=self._observer,
            jobs_max=JOBS_MAX,
            max_commit_delay_ms=config.limits.max_commit_delay_ms,
            time_limit=time_limit(config.limits),
            sweep_interval_ms=config.recovery.interval_ms,
            expire_interval_ms=_EXPIRE_INTERVAL_MS,
        )

    def _make_effects_runner(self, worker: WorkerSpec, orphan_grace_ms: int) -> EffectsRunner:
        return EffectsRunner(
            post=self._events.put,
            answers=Answers(
                cycle_ended=self._cycle_ended,
                dispatched=self._dispatched,
                expired=self._expired,
                swept=self._swept,
                discarded=self._discarded,
            ),
            engine=self._engine,
            clock=self._clock,
            worker=worker,
            orphan_grace_ms=orphan_grace_ms,
            jobs_max=JOBS_MAX,
        )

    # -- for any thread

    def view(self) -> ServiceView:
        """The newest view."""
        return self._view

    def detail(self, name: TableName) -> TableDetail | None:
        """One table with its worst buckets, from memory."""
        view = next((table for table in self._view.tables if table.name == name), None)
        if view is None:
            return None
        compactor = self._runner.compactors.get(name)
        seen = compactor.seen if compactor is not None else None
        buckets = bucket_details(*seen) if seen is not None else ()
        return TableDetail(view=view, buckets=buckets, bucket_count=view.shape.buckets)

    def effective(self) -> LoadedConfig:
        """The configuration in effect."""
        return self._settings.loaded

    def stop(self) -> None:
        """Drain and end. A second call cancels running work; every table stays consistent."""
        self._events.put(self._stop_asked)

    def reload(self) -> None:
        """Read the configuration again, end halts that wait for an operator, try what failed."""
        self._events.put(partial(self._begin_reload, asked=True))

    def engine_up(self, slots: int) -> None:
        self._events.put(partial(self._engine_is_up, slots))

    def engine_down(self, why: str) -> None:
        self._events.put(partial(self._engine_is_down, why))

    def engine_failed(self, why: str) -> None:
        self._events.put(partial(self._engine_has_failed, why))

    def subcompaction_ended(self, outcome: TaskOutcome) -> None:
        self._events.put(partial(self._subcompaction_has_ended, outcome))

    # -- the loop

    def run(self) -> int:
        """Serve until told to stop; the exit code."""
        loaded = self._settings.loaded
        _log.info(
            "service_started",
            config=loaded.path,
            catalogs=sorted(loaded.config.catalogs),
            memory_budget_bytes=self._capacity.memory_budget_bytes,
            timezone=str(self._scheduler.wall.zone),
        )
        try:
            self._engine.start()
            self._timetable.start()
            self._timetable.every("beat", _BEAT_MS, self._scheduler_beat)
            self._set_intervals()
            self._begin_listing()
            while not self._is_over():
                self._step()
        finally:
            self._close()
        _log.info("service_stopped", exit_code=self._exit_code)
        return self._exit_code

    def _step(self) -> None:
        """Wait for an event or the tick, handle all queued events, run the effects that follow."""
        wait_s = max(0.0, self._next_tick_s - self._clock.monotonic_s())
        with contextlib.suppress(queue.Empty):
            self._events.get(timeout=wait_s)()
            while True:
                self._events.get_nowait()()
        start_s, now_ms = self._clock.monotonic_s(), self._clock.steady_ms()
        is_tick = start_s >= self._next_tick_s
        self._capacity.count_busy(self._scheduler.running_subcompactions)
        if is_tick:
            self._watch_clock(now_ms)
        effects = self._scheduler.tick(now_ms) if is_tick else self._scheduler.decide(now_ms)
        for effect in effects:
            self._runner.run(effect)
        if is_tick:
            late_s = start_s - self._next_tick_s
            self._facts.overruns["dispatcher"] += late_s > _TICK_S
            self._next_tick_s = start_s + _TICK_S
            self._lead_out()
            self._look_at_catalogs(now_ms)
            self._publish_view(now_ms)
            self._metrics.loop_ran("dispatcher", self._clock.monotonic_s() - start_s)

    def _publish_view(self, now_ms: int) -> None:
        facts, scheduler = self._facts, self._scheduler
        facts.config = self._settings.view
        running, hung = scheduler.running_subcompactions, scheduler.hung_subcompactions
        facts.engine = self._capacity.view(running, hung)
        facts.beats["dispatcher"] = (now_ms, _LOOP_STALE_MS)
        facts.beats["slots"] = (scheduler.all_hung_since_ms(now_ms), _SLOTS_STALE_MS)
        facts.beats["jobs"] = (scheduler.last_progress_ms(now_ms), HUNG_JOB_MS)
        for phase in Phase:
            at_work = [
                scheduled
                for scheduled in scheduler.tables.values()
                if scheduled.job is not None and self._runner.phase(scheduled.name) is phase
            ]
            since_ms = min((each.job_since_ms for each in at_work), default=now_ms)
            facts.beats[phase.value] = (since_ms, HUNG_JOB_MS)
            facts.hung_jobs[phase.value] = sum(each.is_job_hung(now_ms) for each in at_work)
        facts.hung_jobs["maintenance"] = sum(
            each.is_maintenance_hung(now_ms) for each in scheduler.tables.values()
        )
        # Of no catalog it waits for the answer: the tables of the others are to be served.
        facts.is_started = facts.is_started or facts.engine.is_up
        self._view = self._status.update(
            facts, self._registry.intervals_ms, self._registry.excluded, now_ms
        )

    def _watch_clock(self, now_ms: int) -> None:
        """Notice that the wall clock was set; the timetable depends on it and begins again."""
        wall, lead_ms = self._scheduler.wall, self._clock.now_ms() - now_ms
        if abs(lead_ms - wall.lead_ms) > _JUMP_MS:
            _log.warning("clock_jumped", by_s=round((lead_ms - wall.lead_ms) / 1000, 1))
            wall.set(lead_ms, now_ms)
            self._timetable.clock_jumped()

    # -- the end

    def _stop_asked(self) -> None:
        self._stops_asked += 1
        _log.info("service_draining", asked=self._stops_asked)
        if self._drain_s is None:
            self._drain_s = self._clock.monotonic_s()
        self._scheduler.drain(self._clock.steady_ms())
        # Publish the view at once: orchestrators must see that the service drains.
        self._next_tick_s = self._clock.monotonic_s()

    def _lead_out(self) -> None:
        """End a start that takes too long; while draining, cancel when the merges' time is over."""
        now_s, shutdown = self._clock.monotonic_s(), self._settings.config.shutdown
        if self._drain_s is None:
            if not self._facts.is_started and now_s > self._start_deadline_s:
                error = self._capacity.error or "Spark has not answered yet"
                _log.error("startup_failed", error=error)
                self._exit_code = _NO_ENGINE
                self._stop_asked()
            return
        patience_s = (shutdown.grace_ms - shutdown.commit_reserve_ms) / 1000
        if self._stops_asked > 1 or now_s - self._drain_s > patience_s:
            self._cancel()

    def _cancel(self) -> None:
        if self._has_cancelled:
            return
        self._has_cancelled = True
        self._scheduler.end()
        if self._scheduler.running_subcompactions:
            _log.info("tasks_cancelled", subcompactions=self._scheduler.running_subcompactions)
        # `cancel` waits for workers to remove their outputs; then nothing is in flight any more.
        cancelled = self._chores.submit(self._engine.cancel)
        gone = partial(self._scheduler.engine_lost, "stopped", self._clock.steady_ms())
        cancelled.add_done_callback(lambda _: self._events.put(gone))

    def _is_over(self) -> bool:
        if self._drain_s is None:
            return False
        if self._scheduler.is_idle:
            return True
        elapsed_s = self._clock.monotonic_s() - self._drain_s
        return elapsed_s > self._settings.config.shutdown.grace_ms / 1000

    def _close(self) -> None:
        self._scheduler.drain(self._clock.steady_ms())
        self._scheduler.end()
        self._timetable.close()
        self._chores.shutdown(wait=False, cancel_futures=True)
        has_ended = self._runner.close(_CLOSE_S)
        has_ended &= self._engine.close(_CLOSE_S)
        if not has_ended:
            # A call into a store never returned: the next start sweeps the files it leaves.
            stuck = [thread.name for thread in threading.enumerate() if thread.name != "MainThread"]
            _log.error("threads_abandoned", threads=stuck)
        self.has_stragglers = not (self._discovery.close(_LISTING_CLOSE_S) and has_ended)

    # -- events: tables

    def _cycle_ended(self, name: TableName, cycle: Cycle, seconds: float) -> None:
        now_ms = self._clock.steady_ms()
        self._metrics.polled(seconds)
        scheduled = self._scheduler.tables[name]
        before = scheduled.planned
        self._scheduler.cycle_ended(name, cycle, now_ms)
        if cycle.planned is not None:
            self._observer.planned(name, cycle.planned, before)
        if cycle.info is not None:
            self._registry.looked_at(scheduled)

    def _dispatched(
        self, name: TableName, result: Dispatch | Outrun | CompactordError | None
    ) -> None:
        self._scheduler.dispatched(name, result, self._clock.steady_ms())

    def _subcompaction_has_ended(self, outcome: TaskOutcome) -> None:
        self._capacity.count_busy(self._scheduler.running_subcompactions)
        self._capacity.subcompaction_ended(outcome)
        if isinstance(outcome, SubcompactionResult):
            self._metrics.worker_requests(outcome.stats.requests)
        self._scheduler.subcompaction_ended(outcome, self._clock.steady_ms())

    def _expired(self, name: TableName, result: Expired | CompactordError, seconds: float) -> None:
        self._metrics.expired(seconds)
        scheduled = self._scheduler.tables[name]
        now_ms = self._clock.steady_ms()
        accounting.expired(scheduled, result, now_ms)
        more = isinstance(result, Expired) and result.more
        self._scheduler.expired(name, more, now_ms)
        self._observer.expired(name, result, seconds)

    def _swept(self, name: TableName, removed: int) -> None:
        if removed:
            _log.info("sweep_finished", **name.log_fields, removed_files=removed)
        self._scheduler.swept(name, self._clock.steady_ms())

    def _discarded(self, name: TableName) -> None:
        self._scheduler.discarded(name, self._clock.steady_ms())

    # -- events: the engine

    def _engine_is_up(self, cores: int) -> None:
        self._capacity.engine_up(cores)
        self._scheduler.slots = self._capacity.slots

    def _engine_is_down(self, why: str) -> None:
        if self._drain_s is None:
            _log.error("spark_lost", error=why)
        self._engine_has_failed(why)
        self._scheduler.engine_lost(why, self._clock.steady_ms())

    def _engine_has_failed(self, why: str) -> None:
        self._capacity.engine_failed(why)
        self._scheduler.slots = self._capacity.slots

    # -- events: catalogs and configuration

    def _scheduler_beat(self) -> None:
        stale_after_ms = max(_LOOP_STALE_MS, 6 * _BEAT_MS)
        self._facts.beats["scheduler"] = (self._clock.steady_ms(), stale_after_ms)

    def _begin_listing(self) -> None:
        if self._drain_s is None:
            self._discovery.begin()

    def _look_at_catalogs(self, now_ms: int) -> None:
        for catalog, seconds in self._discovery.overdue(now_ms):
            self._registry.overdue(catalog, seconds)
        # A listing asks its store first.
        probed = list(self._silent_stores.look(now_ms))
        if probed and self._drain_s is None:
            self._discovery.begin(*probed)

    def _listed(self, listing: Listing) -> None:
        self._discovery.ended(listing.catalog)
        self._metrics.discovered(listing.catalog, listing.seconds)
        self._registry.listed(listing)

    def _set_intervals(self) -> None:
        config = self._settings.config
        reloading = partial(self._begin_reload, asked=False)
        self._timetable.every(
            "listing", config.discovery.catalog_list_interval_ms, self._begin_listing
        )
        self._timetable.every("reload", config.reload.interval_ms, reloading)

    def _begin_reload(self, *, asked: bool) -> None:
        if self._drain_s is not None:
            return

        def read() -> None:
            self._events.put(partial(self._reloaded, self._settings.read_again(), asked))

        self._chores.submit(read)

    def _reloaded(self, result: LoadedConfig | CompactordError, asked: bool) -> None:
        if not self._settings.take_in(result, asked=asked, now_ms=self._clock.steady_ms()):
            return
        self._apply(self._settings.loaded)
        if asked:
            for name, scheduled in self._scheduler.tables.items():
                if accounting.is_unsafe(scheduled):
                    accounting.release(scheduled, self._observer)
                self._scheduler.try_again(name, self._clock.steady_ms())

    def _apply(self, loaded: LoadedConfig) -> None:
        """Put another configuration into effect."""
        scheduler, config = self._scheduler, loaded.config
        scheduler.retry, scheduler.sweep_interval_ms = config.retry, config.recovery.interval_ms
        scheduler.max_commit_delay_ms = config.limits.max_commit_delay_ms
        self._runner.orphan_grace_ms = config.recovery.orphan_grace_ms
        self._status.top_n = config.metrics.top_n
        self._metrics.configure(
            max_tables=config.metrics.max_tables, top_buckets=config.metrics.top_n
        )
        self._capacity.configure(config.limits)
        scheduler.set_time_limit(time_limit(config.limits))
        scheduler.slots = self._capacity.slots
        self._set_intervals()
        self._registry.apply(loaded)
        self._begin_listing()
