"""Rows that readers wait for: since when, what is forced for them; when files were compacted."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace

import pytest

from compactord.catalog.access import table_in_folder
from compactord.model import CompactReason, WorkKind
from compactord.paimon import paths
from compactord.paimon.data_file import EMPTY_ROW, BucketId, DataFile, EntryKind, FileSource
from compactord.plan.table import Strategy
from compactord.state.columns import WaitingRows
from compactord.state.loading import no_files
from compactord.state.table_state import TableState, load_state
from compactord.table.backlog import DispatchFilter, PendingCompaction, TableBacklog
from compactord.table.jobs import InFlight, Planned
from compactord.table.opening import open_table
from compactord.table.planning import CompactRequest, PlanContext, StatePlanner, with_waiting_rows
from tests.builders import VirtualClock, append_table, compact, fill_keyed, keyed_table, writer
from tests.storages import MemoryStorage
from tests.unit.plan.builders import NOW_MS
from tests.unit.table.compacting import ALL, compactor_of, outcome_of
from tests.unit.table.test_backlog import KnownTable, entry_of, of_the_table, runs

WHERE = "/warehouse/db.db/t"
FULL = {"changelog-producer": "full-compaction"}
BUCKET = BucketId(EMPTY_ROW, 0)


def _planned(planned: Planned | None) -> Planned:
    assert planned is not None
    return planned


def test_rows_wait_from_their_snapshot_on_until_a_full_compaction_has_told_them() -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE, buckets=1, options=FULL)
    compactor = compactor_of(storage, table)
    planned = _planned(compactor.cycle((), ALL).planned)
    assert planned.info.readers_wait
    assert planned.shape.waiting_since_ms == 0
    fill_keyed(writer(storage, table), commits=1)
    first = load_state(storage, table).snapshot
    fill_keyed(writer(storage, table), commits=1)
    planned = _planned(compactor.cycle((), ALL).planned)
    assert first is not None
    assert planned.shape.waiting_since_ms == first.time_ms
    (pending,) = planned.offered
    assert pending.is_forced
    assert not pending.is_near_stop
    in_flight = compactor.dispatch(pending.bucket, compaction_id=1, free_slots=1)
    assert isinstance(in_flight, InFlight)
    meanwhile = _planned(compactor.cycle((), ALL).planned)
    assert meanwhile.shape.waiting_since_ms == first.time_ms, "until it is published"
    told = _planned(compactor.cycle([outcome_of(in_flight)], ALL).planned)
    assert told.shape.waiting_since_ms == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({**FULL, "full-compaction.delta-commits": "9"}, CompactReason.FRESHNESS_LAG),
        (
            {
                "changelog-producer": "lookup",
                "lookup-compact": "gentle",
                "lookup-compact.max-interval": "1000",
            },
            CompactReason.FORCED_LEVEL_0,
        ),
    ],
    ids=["full compactions", "lookups"],
)
def test_what_rows_wait_for_is_due_from_half_of_the_lag_on(
    options: dict[str, str], reason: CompactReason
) -> None:
    storage, clock = MemoryStorage(), VirtualClock()
    table = keyed_table(storage, WHERE, buckets=1, options=options)
    fill_keyed(writer(storage, table), commits=2)
    created_ms = min(each.created_ms for each in load_state(storage, table).files.files_in(BUCKET))
    clock.sleep((created_ms - clock.now_ms()) / 1000)
    compactor = compactor_of(storage, table, clock=clock, max_freshness_lag_ms=60_000)
    unbounded = compactor_of(storage, table, clock=clock)
    assert _planned(compactor.cycle((), ALL).planned).offered == ()
    clock.sleep(29)
    assert compactor.cycle((), ALL).planned is None
    clock.sleep(1)
    (pending,) = _planned(compactor.cycle((), ALL).planned).offered
    assert (pending.reason, pending.is_forced) == (reason, True)
    assert _planned(unbounded.cycle((), ALL).planned).offered == ()
    in_flight = compactor.dispatch(pending.bucket, compaction_id=1, free_slots=1)
    assert isinstance(in_flight, InFlight)
    told = _planned(compactor.cycle([outcome_of(in_flight)], ALL).planned)
    assert (told.shape.waiting_since_ms, told.offered) == (0, ())


def test_what_was_planned_before_rows_were_late_is_planned_again() -> None:
    """A merge that leaves the highest level alone, as nothing was late, tells no changes."""
    storage, clock = MemoryStorage(), VirtualClock()
    options = {**FULL, "full-compaction.delta-commits": "99", "num-levels": "6"}
    table = keyed_table(storage, WHERE, buckets=1, options=options)
    target = writer(storage, table)
    fill_keyed(target, commits=1, keys=60_000)
    compact(storage, table, strategy=Strategy.FULL)
    fill_keyed(target, commits=5)
    files = load_state(storage, table).files.files_in(BUCKET)
    created_ms = min(each.created_ms for each in files if each.level == 0)
    clock.sleep((created_ms - clock.now_ms()) / 1000)
    compactor = compactor_of(storage, table, clock=clock, max_freshness_lag_ms=60_000)
    (pending,) = _planned(compactor.cycle((), ALL).planned).offered
    assert (pending.reason, pending.is_forced) == (CompactReason.RUN_COUNT, False)
    clock.sleep(30)
    (pending,) = _planned(compactor.cycle((), ALL).planned).offered
    assert (pending.reason, pending.is_forced) == (CompactReason.FRESHNESS_LAG, True)
    clock.sleep(30)
    assert compactor.cycle((), ALL).planned is None, "it is planned once"


def test_rows_wait_on_after_a_rollback_to_a_snapshot_of_ours() -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE, buckets=3, options=FULL)
    target = writer(storage, table)
    fill_keyed(target, commits=1)
    compactor = compactor_of(storage, table)
    ended = []
    for number, pending in enumerate(_planned(compactor.cycle((), ALL).planned).offered):
        in_flight = compactor.dispatch(pending.bucket, compaction_id=number, free_slots=1)
        assert isinstance(in_flight, InFlight)
        ended.append(outcome_of(in_flight))
    first = _planned(compactor.cycle(ended[:1], ALL).planned)
    fill_keyed(target, commits=1)
    compactor.cycle((), ALL)
    storage.overwrite(paths.latest_hint(WHERE), str(first.snapshot_id).encode())
    storage.delete(paths.snapshot_path(WHERE, first.snapshot_id + 1))
    then = _planned(compactor.cycle(ended[1:2], ALL).planned)
    assert then.snapshot_id == first.snapshot_id + 1
    assert then.shape.waiting_since_ms == first.shape.waiting_since_ms > 0


def test_a_service_that_starts_counts_from_the_creation_of_files() -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE, buckets=1, options=FULL)
    fill_keyed(writer(storage, table), commits=2)
    files = load_state(storage, table).files.files_in(BUCKET)
    planned = _planned(compactor_of(storage, table).cycle((), ALL).planned)
    assert planned.shape.waiting_since_ms == min(file.created_ms for file in files)


def _waiting(
    files: Sequence[DataFile], level: int | None, *, steady_ms: int = NOW_MS
) -> tuple[PendingCompaction, ...]:
    """What is offered of a bucket with these files, whose readers wait below a level."""
    storage = MemoryStorage()
    ref = keyed_table(storage, WHERE, buckets=1)
    table = open_table(table_in_folder(storage, ref), {})
    added = [entry_of(EntryKind.ADD, BUCKET, file) for file in of_the_table(files, 0)]
    live = no_files(WHERE).applied(added)
    waiting = None if level is None else WaitingRows.of(live, level, ahead_ms=0)
    state = TableState(table=ref, snapshot=None, files=live, waiting=waiting)
    context = PlanContext(
        request=CompactRequest(), now_ms=NOW_MS, steady_ms=steady_ms, zone=datetime.timezone.utc
    )
    backlog = TableBacklog(stop_trigger=8)
    planner = StatePlanner(table, state, context)
    backlog.update(planner, None, {})
    return backlog.offered(ALL)


@pytest.mark.parametrize(
    ("level", "since_ms"),
    [
        pytest.param(None, 0, id="readers do not wait"),
        pytest.param(1, NOW_MS - 60_000, id="a merge into level 1 or above lets them out"),
        pytest.param(5, NOW_MS - 60_000, id="into the highest level"),
        pytest.param(6, 0, id="not far enough up"),
    ],
)
def test_what_lets_waiting_rows_out_is_forced(level: int | None, since_ms: int) -> None:
    files = runs(9, 9, 9, 9, 9, created_ms=NOW_MS - 60_000)
    (pending,) = _waiting(files, level)
    assert (pending.waiting_since_ms, pending.is_forced) == (since_ms, since_ms > 0)
    skip = DispatchFilter(kinds=frozenset(WorkKind))
    assert skip.covers(pending) is not pending.is_forced, "windows spare it"


def test_waiting_is_told_in_steady_time_and_never_in_the_future() -> None:
    ahead = runs(9, 9, 9, 9, 9, created_ms=NOW_MS + 60_000)
    for files, since_ms in ((runs(9, 9, 9, 9, 9), 1_000), (ahead, 1_000)):
        (pending,) = _waiting(files, 1, steady_ms=1_000)
        assert pending.waiting_since_ms == since_ms


@pytest.mark.parametrize("options", [{}, FULL])
def test_what_waits_follows_the_options_of_the_table(options: dict[str, str]) -> None:
    storage = MemoryStorage()
    ref = keyed_table(storage, WHERE, buckets=1, options=options)
    fill_keyed(writer(storage, ref), commits=1)
    table, clock = open_table(table_in_folder(storage, ref), {}), VirtualClock()
    state = with_waiting_rows(table, load_state(storage, ref), clock)
    assert (state.waiting is not None) is bool(options)
    assert with_waiting_rows(table, state, clock) is state
    other = replace(state, waiting=WaitingRows.of(state.files, 1, ahead_ms=0))
    changed = with_waiting_rows(table, other, clock)
    assert (changed.waiting and changed.waiting.level) == table.options.compaction.waiting_level


def test_when_files_were_compacted_last_and_since_when_others_were_not() -> None:
    known = KnownTable()

    def times() -> tuple[int, int]:
        shape = known.shape()
        return shape.last_compacted_file_ms, shape.earliest_uncompacted_file_ms

    def files(level: int, *ages_ms: int) -> list[DataFile]:
        found = (runs(9, level=level, created_ms=NOW_MS - age)[0] for age in ages_ms)
        return [replace(file, file_name=f"{n}-{level}") for n, file in enumerate(found)]

    first, second = BUCKET, BucketId(EMPTY_ROW, 1)
    assert times() == (0, 0)
    known.replace(first, of_the_table(files(0, 70, 60), 0))
    assert times() == (0, NOW_MS - 70)
    known.replace(second, of_the_table([*files(0, 90), *files(5, 50, 40)], 1))
    assert times() == (NOW_MS - 40, NOW_MS - 90)
    known.replace(second, of_the_table(files(5, 30), 2))
    assert times() == (NOW_MS - 30, NOW_MS - 70)
    before = times()
    known.look(None)
    assert times() == before, "read as a whole it is the same"
    known.replace(first, [])
    assert times() == (NOW_MS - 30, 0)


def test_without_keys_small_files_that_no_compaction_wrote_count() -> None:
    storage = MemoryStorage()
    table = append_table(storage, WHERE)
    fill_keyed(writer(storage, table), commits=6)
    files = load_state(storage, table).files.files_in(BUCKET)
    shape = _planned(compactor_of(storage, table).cycle((), ALL).planned).shape
    assert shape.earliest_uncompacted_file_ms == min(file.created_ms for file in files)
    assert shape.last_compacted_file_ms == 0
    compact(storage, table, strategy=Strategy.FULL)
    (file,) = load_state(storage, table).files.files_in(BUCKET)
    shape = _planned(compactor_of(storage, table).cycle((), ALL).planned).shape
    assert shape.earliest_uncompacted_file_ms == 0
    assert shape.last_compacted_file_ms == file.created_ms
    assert file.file_source == FileSource.COMPACT
