"""What is known of a table, and when it is found out again whether it may be touched at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from compactord.catalog.access import table_in_folder
from compactord.commit.changes import BucketChange, CommitOutcome, Committed
from compactord.errors import CommitError
from compactord.model import CompactReason, TableKind
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId
from compactord.paimon.schema import TableRef, latest_schema
from compactord.paimon.snapshot import latest_snapshot_id, snapshot_json
from compactord.plan.table import Strategy
from compactord.storage.base import Storage
from compactord.table.backlog import DispatchFilter
from compactord.table.compactor import TableCompactor
from compactord.table.jobs import CycleResult, InFlight
from compactord.table.planning import CompactRequest
from compactord.table.session import TableSession
from compactord_demo.schema_files import schema_json
from compactord_demo.writer import WriteOnlyWriter
from tests.builders import (
    DAY_MS,
    FIRST,
    SECOND,
    VirtualClock,
    append_table,
    check_chain,
    compact,
    fill_keyed,
    keyed_table,
    leftovers,
    read_keyed,
    rows_of,
    writer,
)
from tests.deletions import Deletions
from tests.lineage import APPENDED, TABLE
from tests.storages import Call, HookedStorage, MemoryStorage, OrderedStorage
from tests.unit.table.compacting import ALL, compactor_of, outcome_of

WHERE = "/warehouse/db.db/t"
FORCED = {"compaction.force-rewrite-all-files": "true"}


def _filled() -> tuple[MemoryStorage, TableRef]:
    """A table with keys of which both buckets are due."""
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE)
    fill_keyed(writer(storage, table), commits=6)
    return storage, table


def _followed(storage: Storage, table: TableRef) -> TableSession:
    return TableSession(
        table_in_folder(storage, table), CompactRequest(), clock=VirtualClock(), owner=FIRST
    )


def _finished(compactor: TableCompactor) -> list[InFlight]:
    """All that is due, merged and not yet published."""
    planned = compactor.cycle([], ALL).planned
    ended: list[InFlight] = []
    for number, pending in enumerate(planned.offered if planned is not None else (), 1):
        dispatch = compactor.dispatch(pending.bucket, compaction_id=number, free_slots=1)
        assert isinstance(dispatch, InFlight)
        found = outcome_of(dispatch)
        assert isinstance(found.result, BucketChange)
        ended.append(found)
    return ended


def _settled(compactor: TableCompactor, finished: list[InFlight]) -> CommitOutcome:
    cycle = compactor.cycle(finished, ALL)
    if cycle.error is not None:
        raise cycle.error
    assert cycle.commit is not None
    return cycle.commit


def _round(compactor: TableCompactor) -> CommitOutcome | None:
    """Merge what is due and publish it; None when nothing is."""
    finished = _finished(compactor)
    return _settled(compactor, finished) if finished else None


def _schema_ids(compactor: TableCompactor) -> tuple[int, frozenset[int]]:
    """That of the table, and those of its files."""
    assert compactor.last_plan is not None
    return compactor.table.schema.id, frozenset(compactor.last_plan.state.files.schema_ids)


def _alter(storage: Storage, table: TableRef, **changed: Any) -> None:
    """The next schema, as ALTER TABLE writes it."""
    schema = latest_schema(storage, table.location)
    schema = replace(schema, id=schema.id + 1, **changed)
    storage.write_new(paths.schema_path(table.location, schema.id), schema_json(schema))


def _altered(storage: Storage, table: TableRef) -> None:
    """Column `v` becomes `w`."""
    key, value = latest_schema(storage, table.location).fields
    _alter(storage, table, fields=(key, replace(value, name="w")))


def _drop(storage: MemoryStorage, table: TableRef) -> None:
    for path in [path for path in storage.objects if path.startswith(table.location)]:
        storage.delete(path)


def test_files_of_older_columns_that_came_during_a_merge_are_merged_next() -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE)
    stale = writer(storage, table)
    _altered(storage, table)
    target = writer(storage, table)
    for commit in range(6):
        target.write(rows_of([(key, commit) for key in range(9)]).rename_columns(["k", "w"]))
    compactor = compactor_of(storage, table)
    finished = _finished(compactor)
    stale.write(rows_of([(1, 1)]))
    assert isinstance(_settled(compactor, finished), Committed)
    for value in range(5):
        stale.write(rows_of([(1, value)]))
    settled = _round(compactor)
    assert isinstance(settled, Committed)
    assert _schema_ids(compactor) == (1, {1})


def test_a_column_that_is_renamed_while_a_table_is_read_first_costs_nothing() -> None:
    storage, table = _filled()

    def write_with_another_name() -> None:
        _altered(storage, table)
        writer(storage, table).write(rows_of([(1, 1)]).rename_columns(["k", "w"]))

    asked, read = ("status", "/schema-1"), ("read", "/LATEST")
    ordered = OrderedStorage(storage, asked, read, meanwhile=write_with_another_name)
    compactor = compactor_of(ordered, table)
    assert compactor.cycle([], ALL).error is None
    assert ordered.happened
    assert _schema_ids(compactor) == (1, {0, 1})


def test_so_do_vectors_that_are_enabled_then_though_no_file_is_of_that_schema() -> None:
    deleting = Deletions(APPENDED, {"deletion-vectors.enabled": "false"})
    storage, table = deleting.storage, TABLE
    name = deleting.append(1)[0].file_name

    def delete_by_vectors() -> None:
        options = latest_schema(storage, table.location).options
        _alter(storage, table, options={**options, "deletion-vectors.enabled": "true"})
        deleted = replace(deleting.delete_rows({name: [1]}), schema_id=1)
        path = paths.snapshot_path(table.location, deleted.id)
        storage.overwrite(path, snapshot_json(deleted))

    asked, read = ("status", "/schema-1"), ("read", "/LATEST")
    ordered = OrderedStorage(storage, asked, read, meanwhile=delete_by_vectors)
    compactor = compactor_of(ordered, table)
    assert compactor.cycle([], ALL).error is None
    assert ordered.happened
    assert _schema_ids(compactor) == (1, {0})


def test_a_column_that_is_renamed_during_a_merge_costs_a_new_plan_and_nothing_else() -> None:
    storage, table = _filled()
    compactor = compactor_of(storage, table)
    finished = _finished(compactor)
    _altered(storage, table)
    settled = _settled(compactor, finished)
    assert isinstance(settled, Committed)
    assert not settled.dropped
    assert _schema_ids(compactor) == (1, {0})
    target = writer(storage, table)
    for commit in range(6):
        target.write(rows_of([(key, commit) for key in range(9)]).rename_columns(["k", "w"]))
    assert _round(compactor) is not None


def test_a_table_that_is_opened_and_followed_has_its_schema_read_once() -> None:
    storage, table = _filled()
    reads = 0

    def count(call: Call) -> None:
        nonlocal reads
        reads += call.method == "read" and "/schema/" in call.path

    followed = _followed(HookedStorage(storage, before=count), table)
    followed.refresh()
    assert reads == 1


def test_older_schemas_are_read_once_while_the_latest_stays() -> None:
    storage, table = _filled()
    followed = _followed(storage, table)
    _altered(storage, table)
    followed.refresh()
    assert followed.table.history.schema(0).id == 0
    known = followed.table
    writer(storage, table).write(rows_of([(1, 1)]).rename_columns(["k", "w"]))
    assert followed.refresh()
    assert followed.table is not known
    assert followed.table.history is known.history


def test_a_table_made_anew_during_a_merge_is_opened_anew() -> None:
    storage, table = _filled()
    compactor = compactor_of(storage, table)
    finished = _finished(compactor)
    _drop(storage, table)
    append_table(storage, WHERE)
    target = writer(storage, table)
    for commit in range(8):
        target.write(rows_of([(1, commit)]))
    assert len(_settled(compactor, finished).dropped) == 2
    assert compactor.last_plan is not None
    assert compactor.last_plan.table.kind is TableKind.APPEND_UNAWARE
    assert leftovers(storage, table, [FIRST]) == set()


def test_nothing_new_is_not_taken_in_again() -> None:
    storage, table = _filled()
    followed = _followed(storage, table)
    assert [followed.refresh(), followed.refresh()] == [True, False]
    compact(storage, table)
    assert [followed.refresh(), followed.refresh()] == [True, False]
    fill_keyed(writer(storage, table), commits=1)
    assert [followed.refresh(), followed.refresh()] == [True, False]


def test_a_schema_without_a_snapshot_is_new() -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE)
    followed = _followed(storage, table)
    followed.refresh()
    _altered(storage, table)
    assert followed.refresh()
    assert followed.table.schema.id == 1


@pytest.mark.parametrize("commits", [1, 6])
def test_what_a_process_has_rewritten_it_does_not_rewrite_again(commits: int) -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE)
    expected = fill_keyed(writer(storage, table), commits=commits)
    compact(storage, table, strategy=Strategy.FULL)
    for _ in range(2):
        # A later command rewrites again, as asked.
        compactor = compactor_of(storage, table, strategy=Strategy.FULL, overrides=FORCED)
        finished = _finished(compactor)
        assert {each.compaction.reason for each in finished} == {CompactReason.FORCED_REWRITE}
        assert len(_settled(compactor, finished).published) == len(finished)
        assert _round(compactor) is None
    assert read_keyed(storage, table) == expected
    check_chain(storage, table)


INTERVAL = {"compaction.optimization-interval": "1 h"}


def _full_round(compactor: TableCompactor, target: WriteOnlyWriter) -> BucketId:
    target.write(rows_of([(1, 1)]))
    (finished,) = _finished(compactor)
    assert _settled(compactor, [finished]).compaction_ids == (finished.compaction_id,)
    return finished.compaction.bucket


def _last_full_ms(compactor: TableCompactor) -> Mapping[BucketId, int]:
    assert compactor.last_plan is not None
    return dict(compactor.last_plan.request.last_full_ms)


def test_full_compactions_alone_are_remembered_while_that_matters() -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE, buckets=1)
    target = writer(storage, table)
    for commit in range(5):
        # Sizes are equal: run after run is taken.
        target.write(rows_of([(key, commit) for key in range(100)]))
    clock = VirtualClock()
    compactor = compactor_of(
        storage,
        table,
        overrides={"compaction.max-size-amplification-percent": "1000"},
        clock=clock,
    )
    (finished,) = _finished(compactor)
    assert finished.compaction.reason is CompactReason.SIZE_RATIO
    assert _settled(compactor, [finished]).compaction_ids == (finished.compaction_id,)
    compactor.reconfigure(CompactRequest(strategy=Strategy.FULL))
    _full_round(compactor, target)
    assert _last_full_ms(compactor) == {}, "nothing goes by it"
    compactor.reconfigure(CompactRequest(strategy=Strategy.FULL, overrides=INTERVAL))
    clock.set_by_ms = -DAY_MS
    bucket = _full_round(compactor, target)
    assert _last_full_ms(compactor) == {bucket: clock.steady_ms()}


def _replaced_by_others(storage: Storage, table: TableRef, snapshot_id: int) -> None:
    """Another writer's rename over a snapshot: it had not seen it."""
    storage.delete(paths.snapshot_path(table.location, snapshot_id))
    storage.overwrite(paths.latest_hint(table.location), str(snapshot_id - 1).encode())
    assert writer(storage, table).write(rows_of([(1, 1)])) == snapshot_id


class _Counted(TableCompactor):
    """Counts what its cycles tell of lost snapshots."""

    lost = replaced = 0

    def cycle(self, ended: Sequence[InFlight], skip: DispatchFilter) -> CycleResult:
        found = super().cycle(ended, skip)
        assert found.error is None
        self.lost += len(found.lost_snapshots)
        self.replaced = found.replaced_snapshots
        return found


def _counted(storage: Storage, table: TableRef) -> _Counted:
    return compactor_of(storage, table, made_by=_Counted)


def _published(compactor: TableCompactor) -> int:
    settled = _round(compactor)
    assert isinstance(settled, Committed)
    return settled.snapshot_id


def test_snapshots_of_a_table_made_anew_are_not_replaced_but_earlier_and_later_ones_are() -> None:
    storage, table = _filled()
    compactor = _counted(storage, table)
    _replaced_by_others(storage, table, _published(compactor))
    compactor.cycle([], ALL)
    assert (compactor.lost, compactor.replaced) == (1, 1)
    fill_keyed(writer(storage, table), commits=6)
    _published(compactor)
    _drop(storage, table)
    keyed_table(storage, WHERE, options={"file.compression": "lz4"})
    expected = fill_keyed(writer(storage, table), commits=9)
    newest = _published(compactor)
    assert (compactor.lost, compactor.replaced) == (2, 1)
    assert read_keyed(storage, table) == expected
    _replaced_by_others(storage, table, newest)
    compactor.cycle([], ALL)
    assert (compactor.lost, compactor.replaced) == (3, 2)


def test_a_table_names_what_has_changed_once() -> None:
    storage, table = _filled()
    followed = _followed(storage, table)
    followed.refresh()
    assert followed.drain_stats().changed is None
    assert followed.drain_stats().changed == set()
    before = set(followed.state.files.bucket_ids())
    compact(storage, table, owner=SECOND)
    writer(storage, table).write(rows_of([(1, 1)]))
    followed.refresh()
    drift = followed.drain_stats()
    assert drift.changed == before
    assert drift.appended_bytes > 0
    assert followed.drain_stats().changed == set()


def test_replaced_inputs_are_told_by_the_newest_snapshot_which_is_then_taken_in() -> None:
    storage, table = _filled()
    compactor, followed = compactor_of(storage, table), _followed(storage, table)
    (first, *_) = _finished(compactor)
    followed.refresh()
    assert not followed.has_replaced(first.compaction)
    compact(storage, table, owner=SECOND)
    assert followed.has_replaced(first.compaction)
    assert followed.refresh()


@pytest.mark.parametrize("is_altered_before", [True, False])
def test_a_table_made_anew_is_told_by_the_schema_that_was_known(*, is_altered_before: bool) -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE)
    if is_altered_before:
        _altered(storage, table)
    names = ["k", "w"] if is_altered_before else ["k", "v"]
    target = writer(storage, table)
    for commit in range(6):
        target.write(rows_of([(key, commit) for key in range(9)]).rename_columns(names))
    compactor = _counted(storage, table)
    _published(compactor)
    _drop(storage, table)
    keyed_table(storage, WHERE, options={"file.compression": "lz4"})
    if not is_altered_before:
        _altered(storage, table)
    target = writer(storage, table)
    names = ["k", "v"] if is_altered_before else ["k", "w"]
    for commit in range(9):
        target.write(rows_of([(key, commit) for key in range(9)]).rename_columns(names))
    compactor.cycle([], ALL)
    assert (compactor.lost, compactor.replaced) == (1, 0)


def test_a_table_that_was_altered_is_not_taken_for_a_new_one() -> None:
    storage, table = _filled()
    compactor = _counted(storage, table)
    newest = _published(compactor)
    _replaced_by_others(storage, table, newest)
    options = latest_schema(storage, table.location).options
    _alter(storage, table, options={**options, "target-file-size": "64 mb"})
    compactor.cycle([], ALL)
    assert (compactor.lost, compactor.replaced) == (1, 1)


def test_files_of_a_schema_that_was_rolled_back_are_not_published() -> None:
    """Nobody could read them; Java's rollback allows it as long as no snapshot has that schema."""
    storage, table = _filled()
    _alter(storage, table, comment="new")
    compactor = compactor_of(storage, table)
    finished = _finished(compactor)
    assert {output.file.schema_id for each in finished for output in each.outputs} == {1}
    storage.delete(paths.schema_path(table.location, 1))
    newest = latest_snapshot_id(storage, table.location)
    with pytest.raises(CommitError, match="schema 1, which was rolled back meanwhile to 0"):
        _settled(compactor, finished)
    assert latest_snapshot_id(storage, table.location) == newest
    assert leftovers(storage, table, [FIRST]) == set()
    again = _round(compactor)
    assert again is not None
    assert again.snapshot_id is not None
    assert len(again.published) == len(finished)
    assert _schema_ids(compactor)[0] == 0
