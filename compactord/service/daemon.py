"""The daemon: one loop that owns all state, its signals and its shutdown.

An event is a function that the loop calls. Blocking work runs in other threads (`job_runner`,
`engine_host`, chores) and posts an event when it ends. After each event the scheduler decides what
to start. Once a second the loop records a heartbeat and publishes the view that all readers use.

Merges and commits may finish until the grace period is nearly over. Then merges are cancelled,
which leaves the rest of the time to commits. A second request cancels at once. The daemon waits
only briefly for other work: reads change nothing, and deletions resume after the next start.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import tzinfo
from functools import partial
from types import FrameType

import structlog

from compactord import __version__
from compactord.catalog.base import Catalog
from compactord.clock import Clock, WallTime
from compactord.config.load import LoadedConfig
from compactord.config.model import CatalogSection, Recovery, ServiceConfig
from compactord.config.model import Shutdown as Limits
from compactord.engine.base import Engine
from compactord.errors import CompactordError
from compactord.maintenance.kind import AnyKind
from compactord.maintenance.registry import maintenance_kinds
from compactord.model import SubcompactionOutcome, SubcompactionResult, TableName
from compactord.scheduler.effects import Job, JobOutcome
from compactord.scheduler.events import Observer
from compactord.scheduler.scheduler import Scheduler
from compactord.service.engine_host import EngineHost
from compactord.service.jobs import JOBS_MAX, THREADS_MAX, JobRunner, ServedTables
from compactord.service.logs import LoggingObserver, ObserverThread
from compactord.service.metrics import Metrics
from compactord.service.probes import LOOP_STALE_MS, heartbeat
from compactord.service.registry import Discovery, Listing, TableRegistry
from compactord.service.settings import Capacity, Settings, Timetable
from compactord.service.status_source import ServiceState, StatusKeeper
from compactord.service.view import ServiceView, TableDetail
from compactord.service.why import explained
from compactord.storage.calls import Breaker, Breakers
from compactord.table.explain import bucket_details
from compactord.table.jobs import CycleResult, Phase
from compactord.table.subcompactions import WorkerSpec

_log = structlog.get_logger()
# How long jobs that only read or delete may take to return, once no other work runs.
_READS_S = 2.0


class Shutdown:
    """Progress of a shutdown. Only the loop uses it. `cancel` starts ending all engine work."""

    def __init__(
        self,
        scheduler: Scheduler,
        tables: ServedTables,
        clock: Clock,
        cancel: Callable[[], None],
    ) -> None:
        self._scheduler = scheduler
        self._tables = tables
        self._clock = clock
        self._cancel = cancel
        self._since_s: float | None = None
        # When merges or commits last ran.
        self._worked_s = 0.0
        self._requests = 0
        self._has_cancelled = False

    @property
    def is_requested(self) -> bool:
        return self._since_s is not None

    def request(self) -> None:
        """Start no new work from now on."""
        self._requests += 1
        _log.info("service_draining", asked=self._requests)
        if self._since_s is None:
            self._since_s = self._worked_s = self._clock.monotonic_s()
        self._scheduler.drain(self._clock.steady_ms())

    def go_on(self, limits: Limits) -> None:
        """Cancel running work when its time is over."""
        patience_s = (limits.grace_ms - limits.commit_reserve_ms) / 1000
        if self._has_cancelled or not (self._requests > 1 or self.elapsed_s > patience_s):
            return
        self._has_cancelled = True
        self._scheduler.end()
        if self._scheduler.engine.running:
            _log.info("tasks_cancelled", subcompactions=self._scheduler.engine.running)
        self._cancel()

    def is_over(self, limits: Limits) -> bool:
        """Whether no running work is worth waiting for, or the grace period has passed."""
        if not self.is_requested:
            return False
        now_s = self._clock.monotonic_s()
        if self.has_work:
            self._worked_s = now_s
        is_late = self.elapsed_s > limits.grace_ms / 1000
        return self._scheduler.is_idle or is_late or now_s - self._worked_s > _READS_S

    @property
    def has_work(self) -> bool:
        """Whether merges or commits run."""
        return self._scheduler.has_results or any(
            self._tables.phase(name) is Phase.COMMIT
            for name, scheduled in self._scheduler.tables.items()
            if scheduled.job is not None or scheduled.maintenance is not None
        )

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first request to stop, 0 before."""
        return 0.0 if self._since_s is None else self._clock.monotonic_s() - self._since_s


class UnresponsiveStores:
    """Stores and servers that do not answer. Only the loop uses it.

    `breakers` are the breakers that tables wait for, by catalog.
    """

    def __init__(self, breakers: Mapping[str, Sequence[Breaker]], scheduler: Scheduler) -> None:
        # By catalog: since when its store or server has not answered.
        self.since_ms: dict[str, int] = {}
        self._breakers = breakers
        self._scheduler = scheduler

    def check(self, now_ms: int) -> Iterator[str]:
        """Report changes to the scheduler; yields catalogs with a store or server to probe."""
        for catalog, breakers in self._breakers.items():
            since_ms = min(filter(None, (each.open_since_ms for each in breakers)), default=0)
            if since_ms and catalog not in self.since_ms:
                why = "; ".join(filter(None, (each.why for each in breakers)))
                _log.error("store_unresponsive", catalog=catalog, error=why)
                self._scheduler.store_unresponsive(catalog, why)
            elif not since_ms and self.since_ms.pop(catalog, None) is not None:
                _log.info("store_answers", catalog=catalog)
                self._scheduler.store_answers(catalog, now_ms)
            if since_ms:
                self.since_ms[catalog] = since_ms
            if any(each.is_probe_due for each in breakers):
                yield catalog


_TICK_S = 1.0
_BEAT_MS = 5_000
# The wall clock counts as set once it has moved this far against the monotonic clock.
_JUMP_MS = 2_000
_NO_ENGINE = 69
# How long, after the grace period, commits may take to return, and Spark to end.
_CLOSE_S = 20.0
# Wait for a Spark that is still starting, after the request to stop. All other work ends within
# ten seconds.
_STARTING_CLOSE_S = 8.0
# The same for other work, which leaves no traces or resumes after the next start.
_READS_CLOSE_S = 1.0


class Daemon:
    """`run` is called once, by the thread that owns the daemon. A `StatusSource` for readers.

    `start_engine` is called again whenever the engine has died. `reload` reads the configuration
    again, and raises `UsageError` if it is invalid. `kinds` returns the configured kinds of
    maintenance.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        *,
        clock: Clock,
        worker: WorkerSpec,
        open_catalog: Callable[[CatalogSection], Catalog],
        start_engine: Callable[[], Engine],
        reload: Callable[[], LoadedConfig],
        apply_logs: Callable[[LoadedConfig], None],
        metrics: Metrics,
        breakers: Breakers,
        instance: str,
        kinds: Callable[[Recovery], tuple[AnyKind, ...]] = maintenance_kinds,
        observers: Iterable[Observer] = (),
    ) -> None:
        config = loaded.config
        now_ms = clock.steady_ms()
        self._settings = Settings(loaded, read=reload, apply_logs=apply_logs, now_ms=now_ms)
        self._clock, self._metrics, self._kinds = clock, metrics, kinds
        self._observers = [ObserverThread(each, metrics) for each in observers]
        # Opened once: an error here ends the start.
        catalogs = {name: open_catalog(catalog) for name, catalog in config.catalogs.items()}
        self._discovery = Discovery(
            catalogs=catalogs,
            loaded=lambda: self._settings.loaded,
            post=lambda listing: self._events.put(partial(self._listed, listing)),
            clock=clock,
        )
        self._capacity = Capacity(config, clock)
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._scheduler = self._make_scheduler(config, worker.zone)
        of_catalogs = self._breakers(catalogs, breakers)
        self._silent_stores = UnresponsiveStores(of_catalogs, self._scheduler)
        self._engine = EngineHost(start_engine, self, post=self._events.put)
        self._tables = ServedTables(clock=clock, worker=worker, requested=metrics.table_requests)
        self._tables.pace.per_second = config.limits.max_deletes_per_second
        self._runner = JobRunner(
            tables=self._tables,
            jobs=ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="table"),
            maintenance=ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="maintenance"),
            engine=lambda: self._engine,
            restart=self._engine.restart,
            ended=lambda *ended: self._events.put(partial(self._job_ended, *ended)),
        )
        # For reading the configuration.
        self._chores = ThreadPoolExecutor(1, thread_name_prefix="chore")
        self._timetable = Timetable(self._events.put)
        self._registry = TableRegistry(
            loaded, self._scheduler, self._tables.specs, timetable=self._timetable, clock=clock
        )
        self._facts = self._make_facts(instance)
        self._next_tick_s = clock.monotonic_s()
        self._start_deadline_s = clock.monotonic_s() + config.startup.timeout_ms / 1000
        self._shutdown = Shutdown(self._scheduler, self._tables, clock, self._cancel)
        # Whether threads still run that would keep the process from ending.
        self._exit_code, self.has_stragglers = 0, False
        self._status = StatusKeeper(self._scheduler, config.metrics.top_n)
        self._view = self._status.update(self._facts, {}, now_ms)

    def _make_scheduler(self, config: ServiceConfig, zone: tzinfo) -> Scheduler:
        return Scheduler(
            retry=config.retry,
            wall=WallTime(zone),
            observers=(LoggingObserver(self._metrics), *self._observers),
            jobs_max=JOBS_MAX,
            limits=config.limits,
            kinds=self._kinds(config.recovery),
        )

    def _breakers(
        self, catalogs: Mapping[str, Catalog], breakers: Breakers
    ) -> Mapping[str, Sequence[Breaker]]:
        """Breakers that each catalog's tables wait for; the server's breaker counts requests."""
        counted = self._metrics.catalog_request
        return {
            name: catalog.behind(replace(breakers, report=partial(counted, name)))
            for name, catalog in catalogs.items()
        }

    def _make_facts(self, instance: str) -> ServiceState:
        return ServiceState(
            instance=instance,
            version=__version__,
            started_ms=self._clock.steady_ms(),
            config=self._settings.view,
            engine=self._capacity.view(0, 0),
            catalogs=self._registry.catalogs,
            silent_since_ms=self._silent_stores.since_ms,
            unmatched=self._registry.unmatched,
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
        compactor = self._tables.compactors.get(name)
        seen = compactor.last_plan if compactor is not None else None
        buckets = bucket_details(seen) if seen is not None else ()
        found = TableDetail(view=view, buckets=buckets, bucket_count=view.shape.buckets)
        return explained(
            found,
            None if seen is None else seen.table,
            self._settings.loaded,
            now_ms=self._clock.now_ms(),
            zone=self._scheduler.wall.zone,
        )

    def effective(self) -> LoadedConfig:
        """The configuration in effect."""
        return self._settings.loaded

    def stop(self) -> None:
        """Drain and end. A second call cancels running work; every table stays consistent."""
        self._events.put(self._begin_stop)

    def reload(self) -> None:
        """Read the configuration again, end halts that wait for an operator, try what failed."""
        self._events.put(partial(self._begin_reload, is_requested=True))

    # -- the loop

    def run(self) -> int:
        """Serve until a request to stop; returns the exit code."""
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
            while not self._shutdown.is_over(self._settings.config.shutdown):
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
        self._capacity.count_busy(self._scheduler.engine.running)
        if is_tick:
            self._watch_clock(now_ms)
        effects = self._scheduler.tick(now_ms) if is_tick else self._scheduler.decide(now_ms)
        for effect in effects:
            self._runner.run(effect)
        if is_tick:
            late_s = start_s - self._next_tick_s
            self._facts.overruns["dispatcher"] += late_s > _TICK_S
            self._next_tick_s = start_s + _TICK_S
            if self._shutdown.is_requested:
                self._shutdown.go_on(self._settings.config.shutdown)
            else:
                self._end_late_start()
            self._check_catalogs(now_ms)
            self._publish_view(now_ms)
            self._metrics.loop_ran("dispatcher", self._clock.monotonic_s() - start_s)

    def _publish_view(self, now_ms: int) -> None:
        facts, scheduler = self._facts, self._scheduler
        facts.config = self._settings.view
        running, hung = scheduler.engine.running, scheduler.engine.hung
        facts.engine = self._capacity.view(running, hung)
        heartbeat(facts, scheduler, self._tables, now_ms)
        # Does not wait for catalogs: one that hangs must not delay the rest.
        facts.is_started = facts.is_started or facts.engine.is_up
        self._view = self._status.update(facts, self._registry.unserved, now_ms)

    def _watch_clock(self, now_ms: int) -> None:
        """Detect that the wall clock was set; the timetable depends on it and is recomputed."""
        wall, lead_ms = self._scheduler.wall, self._clock.now_ms() - now_ms
        if abs(lead_ms - wall.lead_ms) > _JUMP_MS:
            _log.warning("clock_jumped", by_s=round((lead_ms - wall.lead_ms) / 1000, 1))
            wall.set(lead_ms, now_ms)
            self._timetable.clock_jumped()

    # -- the end

    def _begin_stop(self) -> None:
        self._shutdown.request()
        self._tables.stop()
        # Publish the view at once: orchestrators must see that the service drains.
        self._next_tick_s = self._clock.monotonic_s()

    def _end_late_start(self) -> None:
        if not self._facts.is_started and self._clock.monotonic_s() > self._start_deadline_s:
            error = self._capacity.error or "Spark has not answered yet"
            _log.error("startup_failed", error=error)
            self._exit_code = _NO_ENGINE
            self._begin_stop()

    def _cancel(self) -> None:
        # `cancel` waits until workers have removed their outputs; then no merge is in flight.
        gone = partial(self._scheduler.engine_lost, "stopped", self._clock.steady_ms())

        def cancel() -> None:
            try:
                self._engine.cancel()
            finally:
                self._events.put(gone)

        threading.Thread(target=cancel, name="cancel", daemon=True).start()

    def _close(self) -> None:
        self._scheduler.drain(self._clock.steady_ms())
        self._scheduler.end()
        self._tables.stop()
        self._timetable.close()
        self._chores.shutdown(wait=False, cancel_futures=True)
        has_ended = self._runner.close(_CLOSE_S if self._shutdown.has_work else _READS_CLOSE_S)
        # An engine that is starting removes its files if it can.
        start_s = max(_READS_CLOSE_S, _STARTING_CLOSE_S - self._shutdown.elapsed_s)
        has_ended &= self._engine.close(_CLOSE_S if self._engine.is_up else start_s)
        if not has_ended:
            # The next start finds what interrupted reads and deletions leave behind.
            stuck = [thread.name for thread in threading.enumerate() if thread.name != "MainThread"]
            _log.warning("threads_abandoned", threads=stuck)
        for observer in self._observers:
            observer.close()
        self.has_stragglers = not (self._discovery.close(_READS_CLOSE_S) and has_ended)

    # -- events: tables

    def _job_ended(self, job: Job, outcome: JobOutcome, seconds: float) -> None:
        self._scheduler.job_ended(job, outcome, seconds, self._clock.steady_ms())
        # A poll without news has no `info`; it counts as a quiet poll.
        if isinstance(outcome, CycleResult) and (outcome.info is not None or outcome.error is None):
            self._registry.polled(self._scheduler.tables[job.name])

    def subcompaction_ended(self, outcome: SubcompactionOutcome) -> None:
        self._capacity.count_busy(self._scheduler.engine.running)
        self._capacity.subcompaction_ended(outcome)
        if isinstance(outcome, SubcompactionResult):
            self._metrics.worker_requests(outcome.stats.requests)
        self._scheduler.subcompaction_ended(outcome, self._clock.steady_ms())

    # -- events: the engine

    def engine_up(self, cores: int) -> None:
        self._capacity.engine_up(cores)
        self._scheduler.slots = self._capacity.slots

    def engine_down(self, why: str) -> None:
        if not self._shutdown.is_requested:
            _log.error("spark_lost", error=why)
        self.engine_failed(why)
        self._scheduler.engine_lost(why, self._clock.steady_ms())

    def engine_failed(self, why: str) -> None:
        self._capacity.engine_failed(why)
        self._scheduler.slots = self._capacity.slots

    # -- events: catalogs and configuration

    def _scheduler_beat(self) -> None:
        self._facts.beats["scheduler"] = (self._clock.steady_ms(), LOOP_STALE_MS)

    def _begin_listing(self) -> None:
        if not self._shutdown.is_requested:
            self._discovery.begin()

    def _check_catalogs(self, now_ms: int) -> None:
        for catalog, seconds in self._discovery.overdue(now_ms):
            self._registry.overdue(catalog, seconds)
        # A listing sends requests to them first.
        wanted = {*self._silent_stores.check(now_ms), *self._registry.to_list_again()}
        if wanted and not self._shutdown.is_requested:
            self._discovery.begin(*sorted(wanted))

    def _listed(self, listing: Listing) -> None:
        self._discovery.ended(listing.catalog)
        self._metrics.discovery.labels(listing.catalog).observe(listing.seconds)
        self._registry.listed(listing)

    def _set_intervals(self) -> None:
        config = self._settings.config
        reloading = partial(self._begin_reload, is_requested=False)
        self._timetable.every(
            "listing", config.discovery.catalog_list_interval_ms, self._begin_listing
        )
        self._timetable.every("reload", config.reload.interval_ms, reloading)

    def _begin_reload(self, *, is_requested: bool) -> None:
        if self._shutdown.is_requested:
            return

        def read() -> None:
            self._events.put(partial(self._reloaded, self._settings.read_again(), is_requested))

        self._chores.submit(read)

    def _reloaded(self, result: LoadedConfig | CompactordError, is_requested: bool) -> None:
        if not self._settings.take_in(
            result, is_requested=is_requested, now_ms=self._clock.steady_ms()
        ):
            return
        self._apply(self._settings.loaded)
        if is_requested:
            for name in self._scheduler.tables:
                self._scheduler.try_again(name, self._clock.steady_ms())

    def _apply(self, loaded: LoadedConfig) -> None:
        """Put another configuration into effect."""
        scheduler, config = self._scheduler, loaded.config
        scheduler.configure(
            retry=config.retry, limits=config.limits, kinds=self._kinds(config.recovery)
        )
        self._status.top_n = config.metrics.top_n
        self._metrics.configure(
            max_tables=config.metrics.max_tables, top_buckets=config.metrics.top_n
        )
        self._capacity.configure(config.limits)
        self._tables.pace.per_second = config.limits.max_deletes_per_second
        scheduler.slots = self._capacity.slots
        self._set_intervals()
        self._registry.apply(loaded)
        self._begin_listing()


# The first drains, the second cancels.
_PATIENCE = 2


@contextlib.contextmanager
def handled(daemon: Daemon) -> Iterator[None]:
    """Signals become events of the daemon; a third SIGTERM or SIGINT ends the process.

    A handler interrupts the main thread at any point, so it takes no lock and writes nothing: a
    separate thread writes the stacks.
    """
    requests = itertools.count(1)
    stacks_wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        if next(requests) > _PATIENCE:
            os._exit(128 + number)
        daemon.stop()

    def want_stacks(number: int, frame: FrameType | None) -> None:
        del number, frame
        if stacks_wanted.empty():
            stacks_wanted.put(True)

    actions = {
        signal.SIGTERM: end,
        signal.SIGINT: end,
        signal.SIGHUP: lambda number, frame: daemon.reload(),
        signal.SIGUSR1: want_stacks,
    }
    writer = threading.Thread(
        target=_write_stacks, args=(stacks_wanted,), name="stacks", daemon=True
    )
    writer.start()
    previous = {number: signal.signal(number, action) for number, action in actions.items()}
    try:
        yield
    finally:
        for number, action in previous.items():
            signal.signal(number, action)
        stacks_wanted.put(False)
        writer.join()


def _write_stacks(wanted: queue.SimpleQueue[bool]) -> None:
    """Log the stacks of all threads each time that `wanted` yields true; end at false."""
    while wanted.get():
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            stack = "".join(traceback.format_stack(frame))
            _log.info("thread_stack", thread=names.get(ident, str(ident)), stack=stack)
