"""When a partition is marked done, once and again, and that a failure loses no mark."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
from collections.abc import Callable, Mapping, Sequence

import pytest
from structlog.testing import capture_logs

from compactord.catalog.access import table_in_folder
from compactord.clock import SystemClock, WallTime
from compactord.config.choices import MaintenanceRule
from compactord.errors import CompactordError, StorageError
from compactord.maintenance.done import MarkDone, Marks
from compactord.maintenance.kind import MaintenanceRecord
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.plan.table import Strategy
from compactord.state.columns import AppendedFiles
from compactord.state.table_state import load_state
from compactord.storage.base import Storage
from compactord.table.compactor import TableCompactor
from compactord.table.opening import open_table
from tests.builders import NOW_MS, VirtualClock, compact, make_branch
from tests.rounds import mark_done
from tests.storages import Call, Fault, FaultyStorage, MemoryStorage, RecordingStorage
from tests.unit.maintenance.days import HOME, table_of_days, write_days
from tests.unit.maintenance.due_table import Due
from tests.unit.maintenance.expiring import FAULTS
from tests.unit.table.compacting import ALL, compactor_of

HOUR_MS = 3_600_000
# `NOW_MS` is 2023-11-14 22:13:20 UTC.
OLD, TODAY = "2023-11-13", "2023-11-14"
# Files of compactions have the time of this machine.
LATER_MS = 4_000_000_000_000
END_OF_TODAY_MS = NOW_MS + 6_400_000
ASKS = {"partition.idle-time-to-done": "1 h", "partition.time-interval": "1 d"}
UTC = datetime.timezone.utc


def _table(options: Mapping[str, str] = ASKS, *days: str) -> tuple[MemoryStorage, TableRef]:
    storage, table = table_of_days(options)
    write_days(storage, table, NOW_MS, *(days or (OLD, TODAY, "never")))
    return storage, table


def _mark(
    storage: Storage, table: TableRef, now_ms: int, marks: Marks | None = None
) -> dict[str, tuple[int, int]]:
    """The marks of a round at `now_ms`, as its files say."""
    opened = open_table(table_in_folder(storage, table), {})
    folders = mark_done(opened, now_ms, marks=marks)
    return {folder: _times(storage, folder) for folder in folders}


def _times(storage: Storage, folder: str) -> tuple[int, int]:
    found = json.loads(storage.read(f"{HOME}/{folder}/_SUCCESS"))
    assert found.keys() == {"creationTime", "modificationTime"}
    return found["creationTime"], found["modificationTime"]


def test_a_partition_is_done_once_it_is_idle_and_its_own_time_has_passed() -> None:
    storage, table = _table()
    before = dict(storage.objects)
    for now_ms, expected in (
        (NOW_MS + HOUR_MS, set[str]()),
        (NOW_MS + HOUR_MS + 1, {OLD}),
        (END_OF_TODAY_MS + HOUR_MS, set[str]()),
        (END_OF_TODAY_MS + HOUR_MS + 1, {TODAY}),
        (END_OF_TODAY_MS + 900 * HOUR_MS, set[str]()),
    ):
        opened = open_table(table_in_folder(storage, table), {})
        seen = dict(storage.objects)
        due = mark_done(opened, now_ms, is_dry=True)
        assert storage.objects == seen, "it only says so"
        with capture_logs() as events:
            assert _mark(storage, table, now_ms) == {
                f"dt={day}": (now_ms, now_ms) for day in expected
            }
        assert due == [f"dt={day}" for day in expected]
        assert [event["partitions"] for event in events] == [[f"dt={day}"] for day in expected], (
            "in the log, too"
        )
    new = storage.objects.keys() - before.keys()
    assert new == {f"{HOME}/dt={day}/_SUCCESS" for day in (OLD, TODAY)}


def test_the_time_of_a_partition_is_that_of_the_writers_zone() -> None:
    storage, table = _table(ASKS, TODAY)
    opened = open_table(table_in_folder(storage, table), {})
    ahead = datetime.timezone(datetime.timedelta(hours=2))
    # The file was created two hours earlier by this zone, and the day has ended.
    now_ms = END_OF_TODAY_MS - HOUR_MS
    for zone, expected in ((ahead, 1), (UTC, 0)):
        due = mark_done(opened, now_ms + 1, zone=zone, is_dry=True)
        assert len(due) == expected


def test_a_clock_that_is_an_hour_off_has_it_marked_late_and_once() -> None:
    storage, table = table_of_days(ASKS)
    # The writer's is ahead.
    write_days(storage, table, NOW_MS + HOUR_MS, OLD)
    assert not _mark(storage, table, NOW_MS + 2 * HOUR_MS)
    marked_ms = NOW_MS + 2 * HOUR_MS + 1
    assert _mark(storage, table, marked_ms)
    # Ours, or that of whoever looks next, is set back or ahead.
    for off_ms in (-HOUR_MS, HOUR_MS):
        assert not _mark(storage, table, marked_ms + off_ms)


def test_rows_that_come_later_have_it_marked_again_and_its_first_mark_stays() -> None:
    storage, table = _table(ASKS, OLD)
    first_ms = NOW_MS + 2 * HOUR_MS
    assert _mark(storage, table, first_ms) == {f"dt={OLD}": (first_ms, first_ms)}
    late_ms = first_ms + 5 * HOUR_MS
    write_days(storage, table, late_ms, OLD)
    assert not _mark(storage, table, late_ms + HOUR_MS)
    again_ms = late_ms + HOUR_MS + 1
    assert _mark(storage, table, again_ms) == {f"dt={OLD}": (first_ms, again_ms)}


@pytest.mark.parametrize("expired", [(), (1, 2), (1,)])
@pytest.mark.parametrize("forgets", [False, True])
def test_late_rows_that_were_compacted_between_two_rounds_have_it_marked_again(
    expired: Sequence[int], forgets: bool
) -> None:
    """By whoever has followed the table, which was read as a whole after or before the rows."""
    storage, table = _table(ASKS, OLD)
    compactor = compactor_of(storage, table)
    compactor.clock.sleep(2 * HOUR_MS // 1000)
    compactor.cycle((), ALL)
    assert len(MarkDone(interval_ms=1).run(compactor, None).items) == 1
    compactor.clock.sleep(HOUR_MS // 1000)
    late_ms = compactor.clock.now_ms()
    write_days(storage, table, late_ms, OLD)
    if len(expired) == 1:
        storage.delete(paths.snapshot_path(HOME, 1))
    if expired:
        compactor.cycle((), ALL)
    compact(storage, table, strategy=Strategy.FULL)
    for each in expired:
        storage.delete(paths.snapshot_path(HOME, each))
    if forgets:
        compactor.cycle((), ALL)
        # As after a commit of which nobody knows whether it succeeded.
        compactor._followed.forget_state()
        compactor._planner.forget()
        compactor.cycle((), ALL)
    compactor.clock.sleep((LATER_MS - late_ms) // 1000)
    assert len(MarkDone(interval_ms=1).run(compactor, None).items) == 1
    assert _times(storage, f"dt={OLD}")[1] > late_ms
    assert not MarkDone(interval_ms=1).run(compactor, None).items


def test_late_rows_of_a_clock_that_is_ahead_have_it_marked_once_their_time_has_come() -> None:
    """Compacted since, their file holds nobody up, and no mark is newer until then."""
    storage, table = table_of_days(ASKS)
    # What a compaction writes is dated by this machine.
    now_ms = SystemClock().now_ms()
    for _ in range(2):
        write_days(storage, table, now_ms + 8 * HOUR_MS - 1, OLD)
    compactor = compactor_of(storage, table, clock=VirtualClock(now_ms))
    compactor.cycle((), ALL)
    compact(storage, table, strategy=Strategy.FULL)
    marked = []
    for _ in range(12):
        compactor.clock.sleep(HOUR_MS // 1000)
        compactor.cycle((), ALL)
        marked.append(len(MarkDone(interval_ms=1).run(compactor, None).items))
    assert marked == [0, 1, *[0] * 5, 1, *[0] * 4]


def test_partitions_that_are_gone_are_forgotten() -> None:
    storage, table = _table(ASKS, OLD)
    known = AppendedFiles({b"gone": 1}).besides(load_state(storage, table).files)
    assert len(known.created_ms) == 2
    assert b"gone" not in known.without_emptied(load_state(storage, table).files).created_ms


def test_a_compaction_does_not_have_it_marked_again() -> None:
    storage, table = _table(ASKS, OLD)
    write_days(storage, table, NOW_MS, OLD)
    assert _mark(storage, table, NOW_MS + 2 * HOUR_MS)
    compact(storage, table, strategy=Strategy.FULL)
    assert not _mark(storage, table, LATER_MS)


def test_what_is_known_to_be_done_is_not_asked_for_again() -> None:
    storage, table = _table()
    watched, marks = RecordingStorage(storage), Marks()
    now_ms = END_OF_TODAY_MS + 2 * HOUR_MS
    for asked in (2, 0):
        watched.log.clear()
        assert len(_mark(watched, table, now_ms, marks)) == asked
        reads = [c for c in watched.log if c.path.endswith("_SUCCESS") and c.method == "read"]
        assert len(reads) == 2 * asked, "once for the round and once for the test"
    assert len(marks.marked_ms) == 2


@pytest.mark.parametrize("text", ["", "half {", "[]", '{"creationTime": "x"}', "{}"])
def test_a_mark_that_was_cut_short_is_made_again(text: str) -> None:
    storage, table = _table(ASKS, OLD)
    storage.overwrite(f"{HOME}/dt={OLD}/_SUCCESS", text.encode())
    now_ms = NOW_MS + 2 * HOUR_MS
    assert _mark(storage, table, now_ms) == {f"dt={OLD}": (now_ms, now_ms)}


def test_rows_that_readers_do_not_see_yet_keep_it_from_being_done() -> None:
    storage, table = _table({**ASKS, "merge-engine": "first-row"}, OLD)
    assert not _mark(storage, table, LATER_MS)
    compact(storage, table, strategy=Strategy.FULL)
    assert _mark(storage, table, LATER_MS)


def test_branches_are_not_marked_in_the_folders_of_main() -> None:
    storage, table = _table(ASKS, OLD)
    assert not _mark(storage, make_branch(storage, table, "b", 1), NOW_MS + 2 * HOUR_MS)


@pytest.mark.parametrize(("error", "concerns", "after_effect", "lasts"), FAULTS)
def test_whatever_call_fails_the_next_round_finishes(
    error: type[StorageError],
    concerns: Callable[[Call], bool],
    after_effect: bool,
    lasts: bool,
) -> None:
    now_ms = END_OF_TODAY_MS + 2 * HOUR_MS
    template, table = _table()
    for at in itertools.count(1):
        storage, marks = template.copy(), Marks()
        fault = Fault(at=at, error=error, after_effect=after_effect, lasts=lasts, concerns=concerns)
        faulty = FaultyStorage(storage, fault)
        with contextlib.suppress(CompactordError):
            _mark(faulty, table, now_ms, marks)
        _mark(storage, table, now_ms + 1, marks)
        for day in (OLD, TODAY):
            created_ms, marked_ms = _times(storage, f"dt={day}")
            assert created_ms in (now_ms, now_ms + 1)
            assert created_ms <= marked_ms <= now_ms + 1
        assert storage.objects.keys() - template.objects.keys() == {
            f"{HOME}/dt={day}/_SUCCESS" for day in (OLD, TODAY)
        }
        if not faulty.failed:
            return


def test_a_round_goes_by_the_newest_state_and_is_due_where_options_ask() -> None:
    storage, table = _table(ASKS, OLD)
    compactor: TableCompactor = compactor_of(storage, table)
    compactor.clock.sleep(2 * HOUR_MS // 1000)
    kind = MarkDone(interval_ms=1_000)
    # Rows that have come since the table was read last.
    write_days(storage, table, compactor.clock.now_ms(), OLD)
    assert not kind.run(compactor, None).items
    compactor.clock.sleep(HOUR_MS // 1000 + 1)
    done = kind.run(compactor, None)
    assert kind.ended(done, 0.1).counts == {"partitions_marked_done": 1}
    assert kind.ended(StorageError("/p", "it failed"), 0.1).has_failed
    record, wall = MaintenanceRecord(ended_ms=5), WallTime(UTC)
    for asked, rule, waited_ms, expected in (
        (("done",), MaintenanceRule.FROM_TABLE, 1_000, True),
        (("done",), MaintenanceRule.FROM_TABLE, 999, False),
        (("done",), MaintenanceRule.OFF, 1_000, False),
        (("consumers",), MaintenanceRule.FROM_TABLE, 1_000, False),
    ):
        assert kind.is_due(Due(asked, mark_done=rule), record, 5 + waited_ms, wall) is expected
