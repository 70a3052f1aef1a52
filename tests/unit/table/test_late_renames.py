"""Whole tables, with rows: a compactor and a one-shot run beside a writer whose rename is late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import ClassVar

import pyarrow as pa
import pytest

from compactord.commit.changes import Committed, LossOutcome
from compactord.commit.publish import StorePublisher
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import latest_snapshot_id, snapshot_ids
from compactord.table.backlog import DispatchFilter
from compactord.table.compactor import TableCompactor
from tests import builders
from tests.builders import VirtualClock, keyed_table, rows_of, writer
from tests.storages import MemoryStorage
from tests.unit.table.compacting import ALL, compactor_of, expire, outcome_of

WHERE = "/warehouse/db.db/t"
LATE = {7: 70, 8: 80}
SETTLE_MS = 10_000
# The tests' writer names its files as we do: what it wrote must not seem to be ours, and new.
AN_HOUR_LATER_MS = builders.NOW_MS + 3_600_000


def late_write(
    storage: MemoryStorage, table: TableRef, rows: pa.Table
) -> tuple[int, Callable[[], None]]:
    """All of a writer's commit but the rename: the snapshot's id, and what renames it."""
    aside = storage.copy()
    snapshot_id = writer(aside, table).write(rows)
    path = paths.snapshot_path(table.location, snapshot_id)
    hint = paths.latest_hint(table.location)
    for name in aside.objects.keys() - storage.objects.keys() - {path}:
        storage.write_new(name, aside.objects[name])

    def rename() -> None:
        storage.now_ms += 1
        storage.overwrite(path, aside.objects[path])
        storage.overwrite(hint, str(snapshot_id).encode())

    return snapshot_id, rename


def _filled(*, commits: int = 6) -> tuple[MemoryStorage, TableRef, dict[int, int]]:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE, buckets=2)
    return storage, table, builders.fill_keyed(writer(storage, table), commits=commits)


def _publish_each_bucket(compactor: TableCompactor) -> int:
    """A snapshot for each bucket; how many."""
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    count = 0
    for number, pending in enumerate(planned.offered, 1):
        dispatch = compactor.dispatch(pending.bucket, compaction_id=number, free_slots=1)
        assert dispatch is not None
        settled = compactor.cycle([outcome_of(dispatch)], ALL).commit
        assert isinstance(settled, Committed)
        count += 1
    return count


def test_a_cycle_commits_again_what_a_late_rename_took_and_plans_with_it() -> None:
    storage, table, expected = _filled()
    clock = VirtualClock()
    snapshot_id, rename = late_write(storage, table, rows_of(LATE.items()))
    compactor = compactor_of(storage, table, clock=clock)
    assert _publish_each_bucket(compactor) == 2
    rename()
    assert builders.read_keyed(storage, table) == expected
    assert expire(compactor).why_not is not None
    # A poll within a minute costs nothing more; the next one looks.
    assert compactor.cycle((), ALL).lost_commits == ()
    clock.sleep(60)
    cycle = compactor.cycle((), ALL)
    (lost,) = cycle.lost_commits
    assert (lost.snapshot_id, lost.outcome) == (snapshot_id, LossOutcome.HEALED)
    assert cycle.replaced_snapshots == 0
    assert any(str(snapshot_id) in why for why in cycle.lost_snapshots)
    assert builders.read_keyed(storage, table) == {**expected, **LATE}
    assert cycle.planned is not None
    assert cycle.planned.snapshot_id == lost.again_id == latest_snapshot_id(storage, WHERE)
    assert expire(compactor).why_not is None
    assert compactor.cycle((), ALL).lost_commits == ()


def test_nothing_is_planned_committed_or_expired_while_our_snapshot_has_to_stand() -> None:
    storage, table, _ = _filled()
    clock = VirtualClock(AN_HOUR_LATER_MS)
    compactor = compactor_of(storage, table, clock=clock, settle_ms=SETTLE_MS)
    first = compactor.cycle((), ALL)
    assert first.planned is not None
    assert first.wait_ms == 0
    one, other = (
        compactor.dispatch(pending.bucket, compaction_id=number, free_slots=1)
        for number, pending in enumerate(first.planned.offered, 1)
    )
    assert one is not None
    assert other is not None
    published = compactor.cycle([outcome_of(one)], ALL)
    assert isinstance(published.commit, Committed)
    assert (published.planned, published.wait_ms) == (None, SETTLE_MS)
    why_not = expire(compactor).why_not
    assert why_not is not None
    assert "may still be replaced" in why_not
    clock.sleep(3)
    assert compactor.cycle((), ALL).wait_ms == SETTLE_MS - 3_000
    # Whoever does not wait is made to wait.
    before_ms = clock.steady_ms()
    published = compactor.cycle([outcome_of(other)], ALL)
    assert clock.steady_ms() - before_ms == SETTLE_MS - 3_000
    assert published.wait_ms == SETTLE_MS
    clock.sleep(SETTLE_MS / 1000)
    last = compactor.cycle((), ALL)
    assert last.planned is not None
    assert (last.planned.snapshot_id, last.wait_ms) == (8, 0)
    assert expire(compactor).why_not is None


def test_a_rename_over_our_snapshot_while_it_has_to_stand_is_neither_unsafe_nor_a_loss() -> None:
    storage, table, expected = _filled()
    clock = VirtualClock(AN_HOUR_LATER_MS)
    snapshot_id, rename = late_write(storage, table, rows_of(LATE.items()))
    compactor = compactor_of(storage, table, clock=clock, settle_ms=SETTLE_MS)
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    dispatched = [
        compactor.dispatch(pending.bucket, compaction_id=number, free_slots=1)
        for number, pending in enumerate(planned.offered, 1)
    ]
    one, other = (outcome_of(each) for each in dispatched if each is not None)
    settled = compactor.cycle([one], ALL).commit
    assert isinstance(settled, Committed)
    assert settled.snapshot_id == snapshot_id
    rename()
    clock.sleep(SETTLE_MS / 1000)
    # The other bucket is published on top of what the writer put in the place of the first.
    cycle = compactor.cycle([other], ALL)
    assert cycle.error is None
    assert (cycle.replaced_snapshots, cycle.lost_snapshots, cycle.lost_commits) == (0, (), ())
    assert builders.read_keyed(storage, table) == {**expected, **LATE}
    clock.sleep(SETTLE_MS / 1000)
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    assert [each.bucket for each in planned.offered] == [one.compaction.bucket]


def test_a_rename_after_our_snapshot_has_stood_and_was_looked_at_is_unsafe() -> None:
    """The operator's `settle` is too short for these writers."""
    storage, table, _ = _filled()
    clock = VirtualClock(AN_HOUR_LATER_MS)
    _, rename = late_write(storage, table, rows_of(LATE.items()))
    compactor = compactor_of(storage, table, clock=clock, settle_ms=SETTLE_MS)
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    dispatch = compactor.dispatch(planned.offered[0].bucket, compaction_id=1, free_slots=1)
    assert dispatch is not None
    compactor.cycle([outcome_of(dispatch)], ALL)
    clock.sleep(SETTLE_MS / 1000)
    compactor.cycle((), ALL)
    rename()
    assert compactor.cycle((), ALL).replaced_snapshots == 1


def test_a_process_that_starts_lets_stand_what_another_one_has_just_published() -> None:
    storage, table, _ = _filled()
    assert _publish_each_bucket(compactor_of(storage, table)) == 2
    clock = VirtualClock()
    compactor = compactor_of(storage, table, clock=clock, settle_ms=SETTLE_MS)
    cycle = compactor.cycle((), ALL)
    assert (cycle.planned, cycle.wait_ms) == (None, SETTLE_MS)
    clock.sleep(SETTLE_MS / 1000)
    assert compactor.cycle((), ALL).planned is not None


def test_a_table_that_must_not_be_changed_keeps_what_was_lost_until_it_may() -> None:
    storage, table, expected = _filled()
    clock = VirtualClock()
    _, rename = late_write(storage, table, rows_of(LATE.items()))
    compactor = compactor_of(storage, table, clock=clock)
    _publish_each_bucket(compactor)
    rename()
    clock.sleep(60)
    assert compactor.cycle((), DispatchFilter(may_commit=False)).lost_commits == ()
    assert builders.read_keyed(storage, table) == expected
    assert expire(compactor).why_not is not None
    clock.sleep(60)
    assert len(compactor.cycle((), ALL).lost_commits) == 1
    assert builders.read_keyed(storage, table) == {**expected, **LATE}


def test_a_compactor_that_starts_puts_right_what_came_late_while_none_ran() -> None:
    storage, table, expected = _filled()
    _, rename = late_write(storage, table, rows_of(LATE.items()))
    _publish_each_bucket(compactor_of(storage, table))
    rename()
    (lost,) = compactor_of(storage, table).cycle((), ALL).lost_commits
    assert lost.outcome is LossOutcome.HEALED
    assert builders.read_keyed(storage, table) == {**expected, **LATE}
    assert compactor_of(storage, table).cycle((), ALL).lost_commits == ()


@pytest.mark.parametrize(
    ("options", "is_healed"), [({}, True), ({"sequence.field": "v"}, False)], ids=["safe", "not"]
)
def test_a_run_puts_right_or_names_what_came_late(
    options: Mapping[str, str], *, is_healed: bool
) -> None:
    inner = MemoryStorage()
    table = keyed_table(inner, WHERE, buckets=2, options=options)
    expected = builders.fill_keyed(writer(inner, table), commits=6)
    snapshot_id, rename = late_write(inner, table, rows_of(LATE.items()))

    class Late(builders.Silent):
        """Others append to what was published, and then comes the rename over it."""

        def committed(self, found_id: int) -> None:
            if found_id == snapshot_id:
                writer(inner, table).write(rows_of([(9, 90)]))
                rename()

    totals = builders.compact(inner, table, progress=Late())
    assert len(totals.lost_snapshots) == 1
    if is_healed:
        assert f"snapshot {snapshot_id}" in totals.lost_commits[0]
        assert totals.failures == []
        assert builders.read_keyed(inner, table) == {**expected, **LATE, 9: 90}
    else:
        assert totals.lost_commits == []
        assert f"snapshot {snapshot_id}" in totals.failures[0]
        assert "sequence fields" in totals.failures[0]


def _rolled_back(storage: MemoryStorage, table: TableRef, *, to: int) -> None:
    """As Java's rollback: later snapshots are deleted, the hint names the one that is kept."""
    for snapshot_id in snapshot_ids(storage, table.location):
        if snapshot_id > to:
            storage.delete(paths.snapshot_path(table.location, snapshot_id))
    storage.overwrite(paths.latest_hint(table.location), str(to).encode())


@pytest.mark.parametrize("quiet_s", [0, 3_600])
@pytest.mark.parametrize("commits", [1, 3, 4, 5, 6])
def test_commits_after_a_rollback_do_not_count_as_unsafe_however_late_the_next_poll(
    commits: int, quiet_s: int
) -> None:
    storage, table, _ = _filled()
    clock = VirtualClock()
    compactor = compactor_of(storage, table, clock=clock)
    assert _publish_each_bucket(compactor) == 2
    clock.sleep(quiet_s)
    compactor.cycle((), ALL)
    _rolled_back(storage, table, to=4)
    for number in range(commits):
        writer(storage, table).write(rows_of([(number, number)]))
    cycle = compactor.cycle((), ALL)
    assert cycle.error is None
    assert (cycle.replaced_snapshots, len(cycle.lost_snapshots)) == (0, 1)


def test_a_snapshot_that_was_replaced_where_it_stood_counts_as_unsafe() -> None:
    storage, table, _ = _filled()
    compactor = compactor_of(storage, table)
    assert _publish_each_bucket(compactor) == 2
    _rolled_back(storage, table, to=7)
    writer(storage, table).write(rows_of([(1, 1)]))
    assert compactor.cycle((), ALL).replaced_snapshots == 1


def test_a_run_waits_for_each_snapshot_to_stand_says_so_and_looks_at_the_last_one() -> None:
    inner = MemoryStorage()
    table = keyed_table(inner, WHERE, buckets=2)
    expected = builders.fill_keyed(writer(inner, table), commits=6)
    snapshot_id, rename = late_write(inner, table, rows_of(LATE.items()))

    class Late(builders.Silent):
        """The writer renames while the run waits for the first time."""

        waits: ClassVar[list[int]] = []

        def waiting(self, wait_ms: int) -> None:
            if not self.waits:
                rename()
            self.waits.append(wait_ms)

    clock = VirtualClock(AN_HOUR_LATER_MS)
    publisher = StorePublisher(inner, settle_ms=SETTLE_MS)
    totals = builders.compact(inner, table, publisher=publisher, clock=clock, progress=Late())
    assert totals.failures == totals.lost_commits == totals.lost_snapshots == []
    # Lost, and done again on top of what the writer brought.
    assert totals.snapshots == [snapshot_id, snapshot_id + 1]
    assert Late.waits == [SETTLE_MS, SETTLE_MS]
    assert max(clock.sleeps) <= 0.2, "a signal is heard"
    assert builders.read_keyed(inner, table) == {**expected, **LATE}


def test_a_run_that_is_stopped_does_not_wait_to_the_end() -> None:
    inner = MemoryStorage()
    table = keyed_table(inner, WHERE, buckets=2)
    builders.fill_keyed(writer(inner, table), commits=6)
    stop = threading.Event()

    class Stopping(builders.Silent):
        def waiting(self, wait_ms: int) -> None:
            stop.set()

    clock = VirtualClock(AN_HOUR_LATER_MS)
    publisher = StorePublisher(inner, settle_ms=SETTLE_MS)
    totals = builders.compact(
        inner, table, publisher=publisher, clock=clock, progress=Stopping(), stop=stop
    )
    assert totals.stopped
    assert len(totals.snapshots) == 1
    assert clock.sleeps == []
