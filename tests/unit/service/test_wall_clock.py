"""The wall clock is set while the service runs: what waits takes no notice, nothing is lost."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from compactord.catalog.filesystem import FilesystemCatalog
from compactord.config.model import Recovery
from compactord.errors import StorageError
from compactord.maintenance.kind import AnyKind, MaintenanceRecord
from compactord.maintenance.orphans import SweepOrphans
from compactord.maintenance.registry import maintenance_kinds
from compactord.model import CompactReason, TableName
from compactord.paimon.data_file import BucketId
from compactord.scheduler.compaction import CompactionRecord, Halt
from compactord.scheduler.events import Observer
from compactord.scheduler.halts import QuarantinedBucket
from compactord.scheduler.scheduled_table import ScheduledTable
from compactord.scheduler.scheduler import ROUNDS_MAX, Maintenance
from compactord.scheduler.slots import Jobs
from compactord.service import probes
from compactord.service.daemon import Daemon
from compactord.service.metrics import Metrics
from compactord.storage.calls import Breakers
from compactord.table.compactor import TableCompactor
from compactord.table.subcompactions import WorkerSpec
from tests.builders import (
    DAY_MS,
    FIRST,
    VirtualClock,
    append_table,
    fill_keyed,
    keyed_table,
    leftovers,
    rows_of,
    writer,
)
from tests.inline_engine import InlineEngine
from tests.storages import Call, HookedStorage, MemoryStorage
from tests.unit.config.files import load
from tests.unit.scheduler.test_scheduler import NAME, Stage
from tests.unit.table.compacting import ALL, compactor_of, outcome_of

HOUR_MS = 3_600_000
each_jump = pytest.mark.parametrize("jump_ms", [-3 * DAY_MS, 3 * DAY_MS], ids=["back", "ahead"])

CONFIG = """
retry: {task_attempts: 1, halt_after_consecutive_failures: 1, backoff: {min: 4s, max: 8s}}
recovery: {interval: 5s}
"""
ROOT = "/wh"


class Running:
    """A daemon on a virtual clock; each `second` it does all that there is to do."""

    def __init__(
        self,
        folder: Path,
        kinds: Callable[[Recovery], tuple[AnyKind, ...]] = maintenance_kinds,
        *observers: Observer,
        **asked: str,
    ) -> None:
        self.clock = VirtualClock()
        self.metrics = Metrics(kinds=kinds(Recovery()))
        self.is_unlisted = False
        self.memory = MemoryStorage()
        self.is_broken = False
        self.storage = HookedStorage(self.memory, before=self._fail)
        options = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "2", **asked}
        self.table = keyed_table(self.memory, f"{ROOT}/db.db/t", buckets=1, options=options)
        self.name = TableName("lake", "db", "t")
        self.daemon = Daemon(
            load(folder, CONFIG),
            clock=self.clock,
            worker=WorkerSpec(owner=FIRST, memory_bytes=64 << 20, zone=self.clock.time_zone),
            open_catalog=lambda _: FilesystemCatalog(self.storage, ROOT),
            start_engine=InlineEngine,
            reload=lambda: load(folder, CONFIG),
            apply_logs=lambda _: None,
            metrics=self.metrics,
            breakers=Breakers(self.clock.steady_ms),
            instance="here",
            kinds=kinds,
            observers=observers,
        )

    def __enter__(self) -> Running:
        daemon = self.daemon
        daemon._engine.start()
        daemon._begin_listing()
        while not (daemon._scheduler.slots and self.name in daemon._scheduler.tables):
            self._settle()
        return self

    def __exit__(self, *_: object) -> None:
        self.daemon._close()

    def _fail(self, call: Call) -> None:
        if self.is_broken and call.method == "open_output":
            raise StorageError(call.path, "no")
        if self.is_unlisted and threading.current_thread().name.startswith("maintenance"):
            raise StorageError(call.path, "no")

    @property
    def scheduled(self) -> ScheduledTable:
        return self.daemon._scheduler.tables[self.name]

    def second(self) -> None:
        """A commit by others, what is due by the clock, and all that follows."""
        fill_keyed(writer(self.memory, self.table), commits=1)
        self.pass_by(1)

    def pass_by(self, seconds: float) -> None:
        """What is due by the clock, and all that follows."""
        self.clock.sleep(seconds)
        self.daemon._registry._poll_due(self.name)
        self.daemon._scheduler_beat()
        self._settle()

    def _settle(self) -> None:
        calm, daemon = 0, self.daemon
        while calm < 3:
            # The loop does not wait for a second that does not go by.
            daemon._next_tick_s = self.clock.monotonic_s()
            daemon._step()
            calm = calm + 1 if daemon._scheduler.is_idle and daemon._events.empty() else 0
            time.sleep(0.001)


# At which second the clock is set, and by how many days.
SETTINGS = {3: -3, 9: -3, 17: 8, 26: 4, 33: -9, 40: 1}


def _story(running: Running, settings: Mapping[int, int]) -> Iterator[None]:
    """Merges, some that fail and halt the table, sweeps, expiry; the clock is set on the way."""
    for second in range(50):
        running.is_broken = 12 <= second < 34
        running.clock.set_by_ms += settings.get(second, 0) * DAY_MS
        running.second()
        yield


def _times(found: object) -> object:
    """Every time that is kept of a table, whatever its name; dues tell those of files."""
    if isinstance(
        found, ScheduledTable | CompactionRecord | QuarantinedBucket | Halt | MaintenanceRecord
    ):
        return {
            field.name: _times(getattr(found, field.name))
            for field in dataclasses.fields(found)
            if isinstance(getattr(found, field.name), dict) or field.name.endswith("_ms")
        }
    if isinstance(found, Mapping):
        return {
            key: _times(value)
            for key, value in found.items()
            if isinstance(
                value, int | CompactionRecord | QuarantinedBucket | Halt | MaintenanceRecord
            )
        }
    return found


# Spans of time, and what only files tell.
_SPANS = ("interval_ms", "age_ms", "lag_ms", "after_ms", "oldest_ms", "steady_ms")
# Dates that files and snapshots have of their writers.
_SPANS += ("last_full_compaction_ms", "waiting_since_ms", "compacted_file_ms")


def _dates(found: object, where: str = "") -> Iterator[tuple[str, int]]:
    """Every date that a view shows."""
    if dataclasses.is_dataclass(found):
        for field in dataclasses.fields(found):
            value = getattr(found, field.name)
            if isinstance(value, int) and field.name.endswith("_ms"):
                if value and not field.name.endswith(_SPANS):
                    yield f"{where}.{field.name}", value
            else:
                yield from _dates(value, f"{where}.{field.name}")
    elif isinstance(found, Mapping):
        for key, value in found.items():
            if isinstance(value, int) and where.endswith("_ms"):
                yield f"{where}.{key}", value
            else:
                yield from _dates(value, f"{where}.{key}")
    elif isinstance(found, tuple):
        for number, value in enumerate(found):
            yield from _dates(value, f"{where}.{number}")


def _told(folder: Path, settings: Mapping[int, int]) -> list[tuple[object, dict[str, int]]]:
    """After each second: the times that are kept, and how old the view's dates are."""
    told = []
    with Running(folder) as running:
        for _ in _story(running, settings):
            view = running.daemon.view()
            assert view.now_ms == running.clock.now_ms(), "dates are those of the wall clock"
            ages = {where: view.now_ms - date for where, date in _dates(view)}
            told.append((_times(running.scheduled), ages))
    return told


def test_a_clock_that_is_set_changes_no_time_that_is_kept_and_no_age_that_is_shown(
    tmp_path: Path,
) -> None:
    untouched = _told(tmp_path, {})
    ever: dict[str, set[str]] = {}
    for kept, ages in untouched:
        assert isinstance(kept, dict)
        for name, value in kept.items():
            ever.setdefault(name, set()).add(str(value))
        for where in ages:
            ever.setdefault(where.rsplit(".", 1)[-1], set()).add(where)
    for name in (
        "next_try_ms",
        "rounds",
        "maintained_ms",
        "last_commit_ms",
    ):
        assert len(ever[name]) > 2, f"{name} is not put to the test"
    for name in ("quarantined", "halts", "last_success_ms"):
        assert len(ever[name]) > 1, f"{name} is not put to the test"
    for name in ("until_ms", "since_ms", "finished_ms", "heartbeat_ms", "last_reload_success_ms"):
        assert ever[name], f"{name} is not shown"
    for second, found in enumerate(_told(tmp_path, SETTINGS)):
        assert found == untouched[second], f"second {second}"


@each_jump
def test_probes_answer_as_if_nobody_had_set_the_clock(tmp_path: Path, jump_ms: int) -> None:
    with Running(tmp_path) as running:
        running.second()
        clock, view = running.clock, running.daemon.view()
        clock.set_by_ms = jump_ms

        def passes() -> tuple[bool, bool]:
            now_ms = view.reading_ms(clock.steady_ms())
            return probes.liveness(view, now_ms).is_well, probes.readiness(view, now_ms).is_well

        assert passes() == (True, True)
        clock.sleep(70)
        assert passes() == (False, True), "the loop hangs"


# -- sweeps

GRACE_MS = HOUR_MS


@pytest.mark.parametrize(
    ("days", "is_seen"),
    [
        ((0,), True),
        ((-3,), True),
        ((3,), True),
        ((-3, -3), True),
        ((3, -3), True),
        ((3, -4), True),
        ((-3, 3), True),
        ((-3, 5), True),
        # The loop looks at the clock every second: one setting at most is news to a sweep.
        ((-3,), False),
        ((3,), False),
    ],
)
def test_no_sweep_takes_what_is_under_way(days: tuple[int, ...], *, is_seen: bool) -> None:
    storage = MemoryStorage()
    clock = VirtualClock()
    table = keyed_table(storage, "/wh/db.db/t")
    fill_keyed(writer(storage, table), commits=6)
    compactor = compactor_of(storage, table, clock=clock)
    stage = Stage()
    stage.add()
    stage.now = clock.steady_ms()
    stage.submitted()
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    for number, pending in enumerate(planned.offered):
        # What is under way writes a file between any two settings of the clock, and after the last.
        storage.now_ms = clock.now_ms()
        dispatched = compactor.dispatch(pending.bucket, compaction_id=number, free_slots=1)
        assert dispatched is not None
        outcome_of(dispatched)
        if number < len(days):
            clock.sleep(60)
            clock.set_by_ms += days[number] * DAY_MS
            if is_seen:
                stage.scheduler.wall.set(clock.set_by_ms, clock.steady_ms())
    written = leftovers(storage, table, [FIRST])
    assert len(written) == 2
    for _ in range(3):
        clock.sleep(4 * HOUR_MS / 1000)
        assert _sweep(stage, compactor, clock) == 0
        assert leftovers(storage, table, [FIRST]) == written


def _sweep(stage: Stage, compactor: TableCompactor, clock: VirtualClock) -> int:
    """The number of files that a sweep removes now."""
    scheduled = stage.scheduler.tables[NAME]
    scheduled.maintenance, scheduled.rounds["sweep"].ended_ms = None, 0
    kinds = [SweepOrphans(interval_ms=1, grace_ms=GRACE_MS)]
    jobs, now_ms = Jobs(ROUNDS_MAX, silent=set()), clock.steady_ms()
    jobs.added(NAME)
    rounds = Maintenance(jobs)
    rounds.tick([scheduled], now_ms)
    (effect,) = rounds.begin([scheduled], kinds, now_ms=now_ms, wall=stage.scheduler.wall)
    return len(effect.kind.run(compactor, effect.under_way).orphans)


@each_jump
def test_what_a_killed_worker_left_is_swept_when_all_began_after_it(jump_ms: int) -> None:
    storage, clock = MemoryStorage(), VirtualClock()
    table = keyed_table(storage, "/wh/db.db/t")
    fill_keyed(writer(storage, table), commits=6)
    compactor = compactor_of(storage, table, clock=clock)
    clock.set_by_ms = jump_ms
    storage.now_ms = clock.now_ms()
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    dispatched = compactor.dispatch(planned.offered[0].bucket, compaction_id=1, free_slots=1)
    assert dispatched is not None
    outcome_of(dispatched)
    stage = Stage()
    stage.scheduler.wall.set(jump_ms, clock.steady_ms() - 1)
    clock.sleep(2 * HOUR_MS / 1000)
    stage.add()
    stage.now = clock.steady_ms()
    stage.submitted()
    assert _sweep(stage, compactor, clock) == 1
    assert leftovers(storage, table, [FIRST]) == set()


# -- ages of files, which are the wall clock's


def _decisions(compactor: TableCompactor) -> dict[BucketId, CompactReason]:
    """What a cycle finds due."""
    planned = compactor.cycle((), ALL).planned
    return (
        {} if planned is None else {pending.bucket: pending.reason for pending in planned.offered}
    )


@each_jump
def test_small_files_do_not_wait_until_a_clock_is_as_late_as_it_was(jump_ms: int) -> None:
    storage, clock = MemoryStorage(), VirtualClock()
    table = append_table(storage, "/wh/db.db/t")
    for key in range(2):
        writer(storage, table).write(rows_of([(key, key)]))
    compactor = compactor_of(storage, table, clock=clock, append_wait_ms=HOUR_MS)
    assert _decisions(compactor) == {}
    clock.set_by_ms = jump_ms
    clock.sleep(HOUR_MS / 1000 + 1)
    assert list(_decisions(compactor).values()) == [CompactReason.APPEND_WAITED]


@each_jump
@pytest.mark.parametrize("is_remembered", [True, False])
def test_full_compactions_go_on_at_their_interval(jump_ms: int, *, is_remembered: bool) -> None:
    # Workers date their files by the machine's clock.
    storage, clock = MemoryStorage(), VirtualClock(time.time_ns() // 1_000_000)
    options = {"compaction.optimization-interval": "1 h"}
    table = keyed_table(storage, "/wh/db.db/t", buckets=1, options=options)
    compactor = compactor_of(storage, table, clock=clock)
    fill_keyed(writer(storage, table), commits=2)
    _full(compactor)
    clock.set_by_ms = jump_ms
    if not is_remembered:
        compactor = compactor_of(storage, table, clock=clock)
        compactor.cycle((), ALL)
    fill_keyed(writer(storage, table), commits=1)
    if is_remembered:
        assert _decisions(compactor) == {}, "the last one was just now"
    clock.sleep(HOUR_MS / 1000 + 61)
    assert set(_decisions(compactor).values()) == {CompactReason.EARLY_FULL_INTERVAL}


def _full(compactor: TableCompactor) -> None:
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    (pending,) = planned.offered
    dispatched = compactor.dispatch(pending.bucket, compaction_id=1, free_slots=1)
    assert dispatched is not None
    assert compactor.cycle([outcome_of(dispatched)], ALL).commit is not None
