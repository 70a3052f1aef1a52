"""What a session knows of its table, and when it looks again whether it may touch it at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from compactord.commit.publish import StorePublisher
from compactord.engine.worker import run_subcompaction
from compactord.errors import CommitError
from compactord.model import CompactReason
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId
from compactord.paimon.schema import latest_schema, schema_json
from compactord.paimon.snapshot import latest_snapshot_id
from compactord.paimon.table import TableRef
from compactord.plan.table import Strategy, TableKind
from compactord.storage.base import Storage
from compactord.table.in_flight import Finished, InFlight
from compactord.table.session import SessionRequest, Settled, TableSession, neighbours
from compactord.table.subcompactions import WorkerSpec
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
from tests.storages import MemoryStorage
from tests.unit.table.compacting import NAME

WHERE = "/warehouse/db.db/t"
FORCED = {"compaction.force-rewrite-all-files": "true"}


def _session(
    storage: Storage,
    table: TableRef,
    *,
    strategy: Strategy = Strategy.MINOR,
    overrides: Mapping[str, str] | None = None,
    clock: VirtualClock | None = None,
) -> TableSession:
    return TableSession(
        table,
        SessionRequest(strategy=strategy, overrides=overrides or {}),
        storage=storage,
        publisher=StorePublisher(storage),
        clock=clock or VirtualClock(),
        worker=WorkerSpec(owner=FIRST, memory_bytes=64 << 20, zone=VirtualClock().time_zone),
    )


def _filled() -> tuple[MemoryStorage, TableRef, TableSession]:
    """A table with keys of which both buckets are due, and a session that has not looked yet."""
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE)
    fill_keyed(writer(storage, table), commits=6)
    return storage, table, _session(storage, table)


def _finished(session: TableSession) -> list[Finished]:
    """All that is due by the state as it is, merged and not yet published."""
    state, indexes = session.state, session.index_entries()
    assert state is not None
    ended: list[Finished] = []
    decisions = [compaction for plan in session.plans() for compaction in plan.compactions]
    for number, compaction in enumerate(decisions):
        in_flight = InFlight(
            number,
            compaction,
            session.subcompactions(compaction, number=number, free_slots=1),
            neighbours=neighbours(compaction, state),
            index_entries=indexes.get(compaction.bucket, ()),
        )
        while in_flight.waiting:
            outcome = run_subcompaction(in_flight.waiting.popleft())
            in_flight.arrived(outcome, NAME, attempts_max=1)
        found = in_flight.ended()
        assert isinstance(found, Finished)
        ended.append(found)
    return ended


def _round(session: TableSession) -> Settled | None:
    """Refresh, merge what is due and publish it; None when nothing is."""
    session.refresh()
    finished = _finished(session)
    return session.settle(finished, busy=()) if finished else None


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
    session = _session(storage, table)
    session.refresh()
    finished = _finished(session)
    stale.write(rows_of([(1, 1)]))
    assert session.settle(finished, busy=()).committed is not None
    for value in range(5):
        stale.write(rows_of([(1, value)]))
    settled = _round(session)
    assert settled is not None
    assert settled.committed is not None
    assert session.state is not None
    assert session.state.files.schema_ids == {1}


def test_a_column_that_is_renamed_during_a_merge_costs_a_new_plan_and_nothing_else() -> None:
    storage, table, session = _filled()
    session.refresh()
    finished = _finished(session)
    _altered(storage, table)
    settled = session.settle(finished, busy=())
    assert settled.committed is not None
    assert not settled.dropped
    assert session.refresh()
    assert session.table.schema.id == 1
    target = writer(storage, table)
    for commit in range(6):
        target.write(rows_of([(key, commit) for key in range(9)]).rename_columns(["k", "w"]))
    assert _round(session) is not None


def test_older_schemas_are_read_once_while_the_latest_stays() -> None:
    storage, table, session = _filled()
    _altered(storage, table)
    session.refresh()
    assert session.table.history.schema(0).id == 0
    known = session.table
    writer(storage, table).write(rows_of([(1, 1)]).rename_columns(["k", "w"]))
    assert session.refresh()
    assert session.table is not known
    assert session.table.history is known.history


def test_a_table_made_anew_during_a_merge_is_opened_anew() -> None:
    storage, table, session = _filled()
    session.refresh()
    finished = _finished(session)
    _drop(storage, table)
    append_table(storage, WHERE)
    target = writer(storage, table)
    for commit in range(8):
        target.write(rows_of([(1, commit)]))
    assert len(session.settle(finished, busy=()).dropped) == 2
    assert session.refresh()
    assert session.table.kind is TableKind.APPEND_UNAWARE
    assert leftovers(storage, table, [FIRST]) == set()


def test_nothing_new_is_not_looked_at_again() -> None:
    storage, table, session = _filled()
    assert [session.refresh(), session.refresh()] == [True, False]
    _round(session)
    assert [session.refresh(), session.refresh()] == [True, False]
    fill_keyed(writer(storage, table), commits=1)
    assert [session.refresh(), session.refresh()] == [True, False]


def test_a_schema_without_a_snapshot_is_new() -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE)
    session = _session(storage, table)
    session.refresh()
    _altered(storage, table)
    assert session.refresh()
    assert session.table.schema.id == 1


@pytest.mark.parametrize("commits", [1, 6])
def test_what_a_session_has_rewritten_it_does_not_rewrite_again(commits: int) -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE)
    expected = fill_keyed(writer(storage, table), commits=commits)
    compact(storage, table, strategy=Strategy.FULL)
    for _ in range(2):
        # A later command rewrites again, as asked.
        session = _session(storage, table, strategy=Strategy.FULL, overrides=FORCED)
        first = _round(session)
        assert first is not None
        assert {each.compaction.reason for each in first.published} == {
            CompactReason.FORCED_REWRITE
        }
        assert _round(session) is None
    assert read_keyed(storage, table) == expected
    check_chain(storage, table)


INTERVAL = {"compaction.optimization-interval": "1 h"}


def _full_round(session: TableSession, target: WriteOnlyWriter) -> BucketId:
    target.write(rows_of([(1, 1)]))
    settled = _round(session)
    assert settled is not None
    (finished,) = settled.published
    return finished.compaction.bucket


def test_full_compactions_alone_are_remembered_while_that_matters() -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE, buckets=1)
    target = writer(storage, table)
    for commit in range(5):
        # Sizes are equal: run after run is taken.
        target.write(rows_of([(key, commit) for key in range(100)]))
    clock = VirtualClock()
    session = _session(
        storage,
        table,
        overrides={"compaction.max-size-amplification-percent": "1000"},
        clock=clock,
    )
    settled = _round(session)
    assert settled is not None
    assert [each.compaction.reason for each in settled.published] == [CompactReason.SIZE_RATIO]
    session.reconfigure(SessionRequest(strategy=Strategy.FULL))
    _full_round(session, target)
    assert session.plan_context().last_full_ms == {}, "nothing goes by it"
    session.reconfigure(SessionRequest(strategy=Strategy.FULL, overrides=INTERVAL))
    clock.set_by_ms = -DAY_MS
    bucket = _full_round(session, target)
    assert session.plan_context().last_full_ms == {bucket: clock.steady_ms()}


def _replaced_by_others(storage: Storage, table: TableRef, snapshot_id: int) -> None:
    """Another writer's rename over a snapshot: it had not seen it."""
    storage.delete(paths.snapshot_path(table.location, snapshot_id))
    storage.overwrite(paths.latest_hint(table.location), str(snapshot_id - 1).encode())
    assert writer(storage, table).write(rows_of([(1, 1)])) == snapshot_id


def _published(session: TableSession) -> int:
    settled = _round(session)
    assert settled is not None
    assert settled.committed is not None
    return settled.committed.snapshot_id


def test_snapshots_of_a_table_made_anew_are_not_replaced_but_earlier_and_later_ones_are() -> None:
    storage, table, session = _filled()
    _replaced_by_others(storage, table, _published(session))
    session.refresh()
    assert (len(session.lost_snapshots), session.replaced_snapshots) == (1, 1)
    _published(session)
    _drop(storage, table)
    keyed_table(storage, WHERE, options={"file.compression": "lz4"})
    expected = fill_keyed(writer(storage, table), commits=9)
    assert session.refresh()
    assert (len(session.lost_snapshots), session.replaced_snapshots) == (2, 1)
    newest = _published(session)
    assert read_keyed(storage, table) == expected
    _replaced_by_others(storage, table, newest)
    session.refresh()
    assert (len(session.lost_snapshots), session.replaced_snapshots) == (3, 2)


def test_a_session_names_what_has_changed_once() -> None:
    storage, table, session = _filled()
    session.refresh()
    assert session.take_drift().changed is None
    assert session.take_drift().changed == set()
    settled = _round(session)
    assert settled is not None
    writer(storage, table).write(rows_of([(1, 1)]))
    session.refresh()
    drift = session.take_drift()
    assert drift.changed == {each.compaction.bucket for each in settled.published}
    assert drift.appended_bytes > 0
    assert session.take_drift().changed == set()


def test_outrun_is_told_by_the_newest_snapshot_which_is_then_looked_at() -> None:
    storage, table, session = _filled()
    session.refresh()
    (first, *_) = (compaction for plan in session.plans() for compaction in plan.compactions)
    assert session.is_outrun(1, first, "ObjectNotFound", "no such file") is False
    compact(storage, table, owner=SECOND)
    assert session.is_outrun(1, first, "FormatError", "damaged") is False
    assert session.is_outrun(1, first, "ObjectNotFound", "no such file") is True
    assert session.refresh()


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
    session = _session(storage, table)
    _published(session)
    _drop(storage, table)
    keyed_table(storage, WHERE, options={"file.compression": "lz4"})
    if not is_altered_before:
        _altered(storage, table)
    target = writer(storage, table)
    names = ["k", "v"] if is_altered_before else ["k", "w"]
    for commit in range(9):
        target.write(rows_of([(key, commit) for key in range(9)]).rename_columns(names))
    assert session.refresh()
    assert (len(session.lost_snapshots), session.replaced_snapshots) == (1, 0)


def test_a_table_that_was_altered_is_not_taken_for_a_new_one() -> None:
    storage, table, session = _filled()
    newest = _published(session)
    _replaced_by_others(storage, table, newest)
    options = latest_schema(storage, table.location).options
    _alter(storage, table, options={**options, "target-file-size": "64 mb"})
    assert session.refresh()
    assert (len(session.lost_snapshots), session.replaced_snapshots) == (1, 1)


def test_files_of_a_schema_that_was_rolled_back_are_not_published() -> None:
    """Nobody could read them; Java's rollback allows it as long as no snapshot has that schema."""
    storage, table, session = _filled()
    _alter(storage, table, comment="new")
    session.refresh()
    finished = _finished(session)
    assert {output.file.schema_id for each in finished for output in each.change.outputs} == {1}
    storage.delete(paths.schema_path(table.location, 1))
    newest = latest_snapshot_id(storage, table.location)
    with pytest.raises(CommitError, match="schema 1, which was rolled back meanwhile to 0"):
        session.settle(finished, busy=())
    assert latest_snapshot_id(storage, table.location) == newest
    assert leftovers(storage, table, [FIRST]) == set()
    session.refresh()
    assert session.table.schema.id == 0
    again = session.settle(_finished(session), busy=())
    assert again.committed is not None
    assert len(again.published) == len(finished)
