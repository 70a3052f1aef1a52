"""How many requests a cycle makes of a table where nothing happens, and that it misses nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from compactord.errors import TableNotFound
from compactord.paimon import paths
from compactord.paimon.schema import TableRef, latest_schema
from compactord_demo.schema_files import schema_json
from tests.builders import (
    NOW_MS,
    VirtualClock,
    append_table,
    compact,
    fill_keyed,
    keyed_table,
    rows_of,
    writer,
)
from tests.storages import MemoryStorage, RecordingStorage
from tests.unit.maintenance.days import table_of_days, write_days
from tests.unit.table.compacting import ALL, Driver, compactor_of

WHERE = "/warehouse/db.db/t"


def _keyed(storage: MemoryStorage) -> TableRef:
    table = keyed_table(storage, WHERE)
    fill_keyed(writer(storage, table), commits=3)
    return table


def _keyed_with_work(storage: MemoryStorage) -> TableRef:
    """What is offered waits for a slot."""
    table = keyed_table(storage, WHERE)
    fill_keyed(writer(storage, table), commits=6)
    return table


def _appended(storage: MemoryStorage) -> TableRef:
    table = append_table(storage, WHERE)
    target = writer(storage, table)
    for number in range(3):
        target.write(rows_of([(number, number)]))
    return table


def _altered(storage: MemoryStorage) -> TableRef:
    table = _keyed(storage)
    _alter(storage, table)
    _alter(storage, table)
    return table


def _alter(storage: MemoryStorage, table: TableRef) -> None:
    schema = latest_schema(storage, table.location)
    schema = replace(schema, id=schema.id + 1, options={**schema.options, "snapshot.num": "1"})
    storage.write_new(paths.schema_path(table.location, schema.id), schema_json(schema))


def _empty(storage: MemoryStorage) -> TableRef:
    return keyed_table(storage, WHERE)


def _compacted(storage: MemoryStorage) -> TableRef:
    table = _keyed_with_work(storage)
    compact(storage, table)
    return table


def _maintained(storage: MemoryStorage) -> TableRef:
    """It asks for maintenance of each kind, which has rounds of its own."""
    options = {
        "partition.expiration-time": "7 d",
        "partition.idle-time-to-done": "1 h",
        "partition.time-interval": "1 d",
        "tag.automatic-creation": "process-time",
        "tag.default-time-retained": "7 d",
        "consumer.expiration-time": "7 d",
        "changelog.num-retained.min": "100",
    }
    storage_of_days, table = table_of_days(options)
    write_days(storage_of_days, table, NOW_MS, "2023-11-12")
    storage.objects |= storage_of_days.objects
    return table


TABLES = [_keyed, _keyed_with_work, _appended, _altered, _empty, _compacted]
Made = Callable[[MemoryStorage], TableRef]


@pytest.mark.parametrize("made", [*TABLES, _maintained])
def test_a_quiet_cycle_makes_three_small_requests_and_lists_nothing(made: Made) -> None:
    storage = RecordingStorage(MemoryStorage())
    table = made(storage.inner)  # type: ignore[arg-type]
    clock = VirtualClock()
    compactor = compactor_of(storage, table, clock=clock)
    assert compactor.cycle((), ALL).planned is not None
    for _ in range(20):
        clock.sleep(5)
        storage.log.clear()
        assert compactor.cycle((), ALL).planned is None
        assert {call.method for call in storage.log} <= {"read", "status"}, storage.log
        assert len(storage.log) <= 3, storage.log


def test_after_our_own_snapshots_a_quiet_cycle_lists_nothing_either() -> None:
    """Once a minute, ours and those that they were built on are asked for, for ten minutes."""
    storage = RecordingStorage(MemoryStorage())
    table = _keyed_with_work(storage.inner)  # type: ignore[arg-type]
    clock = VirtualClock()
    compactor = compactor_of(storage, table, clock=clock)
    Driver(compactor).run(cycles=3)
    counts = []
    for _ in range(180):
        clock.sleep(5)
        storage.log.clear()
        assert compactor.cycle((), ALL).planned is None
        assert {call.method for call in storage.log} <= {"read", "status"}, storage.log
        counts.append(len(storage.log))
    assert sum(count > 3 for count in counts) <= 10, "the looks"
    assert max(counts) <= 3 + 2 * 2
    assert set(counts[121:]) == {3}, "nothing is looked back at any more"


@pytest.mark.parametrize("poll_s", [5, 90])
def test_a_schema_that_is_rolled_back_and_made_again_is_noticed(poll_s: int) -> None:
    """With the same id and without a snapshot, so that only its content tells."""
    storage, clock = MemoryStorage(), VirtualClock()
    table = _keyed(storage)
    _alter(storage, table)
    compactor = compactor_of(storage, table, clock=clock)
    compactor.cycle((), ALL)
    before = latest_schema(storage, table.location)
    again = replace(before, options={**before.options, "snapshot.num-retained.max": "7"})
    storage.overwrite(paths.schema_path(table.location, again.id), schema_json(again))
    seen = False
    for _ in range(1 + 60 // poll_s):
        clock.sleep(poll_s)
        seen = seen or compactor.cycle((), ALL).planned is not None
    assert seen
    assert compactor.last_plan is not None
    assert compactor.last_plan.table.schema == again
    # A later one is noticed as before.
    _alter(storage, table)
    clock.sleep(poll_s)
    assert compactor.cycle((), ALL).planned is not None


def test_an_empty_table_that_is_dropped_is_noticed() -> None:
    storage, clock = MemoryStorage(), VirtualClock()
    table = _empty(storage)
    compactor = compactor_of(storage, table, clock=clock)
    compactor.cycle((), ALL)
    storage.delete(paths.schema_path(table.location, 0))
    clock.sleep(60)
    assert isinstance(compactor.cycle((), ALL).error, TableNotFound)


@pytest.mark.parametrize("made", TABLES)
def test_a_snapshot_and_a_schema_that_come_are_noticed_at_the_next_cycle(made: Made) -> None:
    storage = MemoryStorage()
    table = made(storage)
    compactor = compactor_of(storage, table)
    compactor.cycle((), ALL)
    assert compactor.cycle((), ALL).planned is None
    _alter(storage, table)
    assert compactor.cycle((), ALL).planned is not None
    writer(storage, table).write(rows_of([(1, 1)]))
    assert compactor.cycle((), ALL).planned is not None
    assert compactor.cycle((), ALL).planned is None
