"""Tables that look up what keys have above, compacted as a whole."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator

import pytest

from compactord.catalog.access import table_in_folder
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.plan.table import Strategy
from compactord.state.table_state import load_state
from compactord.storage.base import Storage
from compactord.table.opening import describe_table, open_table
from compactord.table.planning import CompactRequest, PlanContext, StatePlanner, plan_state
from compactord.table.report import action_text, bucket_shapes, damage_notes
from tests import builders
from tests.builders import DELETE, INSERT, VirtualClock, kinds_of, rows_of
from tests.storages import MemoryStorage

WHERE = "/w/db.db/t"
LOOKUP = {"changelog-producer": "lookup"}
SUMS = {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"}
FIRST = {"merge-engine": "first-row"}


def _levels(storage: Storage, table: TableRef) -> list[int]:
    files = load_state(storage, table).files
    return sorted(f.level for bucket in files.bucket_ids() for f in files.files_in(bucket))


def _commits(engine: str) -> Iterator[tuple[list[tuple[int, int]], list[int], dict[int, int]]]:
    """Rows, their kinds, and what is in the table then."""
    table: dict[int, int] = {}
    for commit in range(8):
        keys = [*range(commit % 3, 5000 if commit == 0 else 30, 1 + commit % 4), 6000 + commit]
        rows = [(key, 100 * commit + key) for key in keys]
        kinds = [
            DELETE if engine == "deduplicate" and (key + commit) % 5 == 0 else INSERT
            for key in keys
        ]
        for (key, value), kind in zip(rows, kinds, strict=True):
            if kind == DELETE:
                table.pop(key, None)
            elif engine == "aggregation":
                table[key] = table.get(key, 0) + value
            elif engine == "deduplicate" or key not in table:
                table[key] = value
        yield rows, kinds, dict(table)


@pytest.mark.parametrize("full_at", [0, 3, None])
@pytest.mark.parametrize(
    ("engine", "options"),
    [("deduplicate", {}), ("aggregation", SUMS), ("first-row", FIRST)],
)
def test_each_change_is_told_once(engine, options, full_at):
    storage = MemoryStorage()
    table = builders.keyed_table(storage, WHERE, buckets=1, options={**LOOKUP, **options})
    writer = builders.writer(storage, table)
    seen = set()
    for commit, (rows, kinds, expected) in enumerate(_commits(engine)):
        writer.write(rows_of(rows), kinds=kinds_of(kinds))
        strategy = Strategy.FULL if commit == full_at else Strategy.MINOR
        builders.compact(storage, table, strategy=strategy)
        levels = _levels(storage, table)
        assert 0 not in levels
        seen.update(levels)
        assert builders.replayed(builders.read_changes(storage, table)) == expected
    builders.compact(storage, table, strategy=Strategy.FULL)
    assert builders.read_keyed(storage, table) == expected
    assert builders.replayed(builders.read_changes(storage, table)) == expected
    assert len(seen) > 1, "rows were looked up on higher levels"


def _alter(storage: Storage, table: TableRef, schema_id: int, options: dict[str, str]) -> None:
    path = paths.schema_path(table.root, schema_id - 1)
    older = json.loads(storage.read(path))
    newer = {**older, "id": schema_id, "options": older["options"] | options}
    storage.overwrite(paths.schema_path(table.root, schema_id), json.dumps(newer).encode())


@pytest.mark.parametrize(
    "alterations",
    [
        [{"num-sorted-run.compaction-trigger": "8"}],
        [{"changelog-producer": "none"}, LOOKUP],
    ],
    ids=["more levels", "off and on"],
)
def test_whole_states_are_never_merged_with_what_they_have_in_them(alterations):
    storage = MemoryStorage()
    table = builders.keyed_table(storage, WHERE, buckets=1, options=SUMS)
    writer = builders.writer(storage, table)
    writer.write(rows_of([(key, 1) for key in range(5000)]))
    builders.compact(storage, table, strategy=Strategy.FULL)
    _alter(storage, table, 1, LOOKUP)
    writer.write(rows_of([(key, 10) for key in range(3)]))
    builders.compact(storage, table)
    assert _levels(storage, table) == [4, 5]
    for number, options in enumerate(alterations, 2):
        _alter(storage, table, number, options)
    writer.write(rows_of([(4000, 100)]))
    builders.compact(storage, table)
    builders.compact(storage, table, strategy=Strategy.FULL)
    sums = dict.fromkeys(range(5000), 1) | dict.fromkeys(range(3), 11) | {4000: 101}
    assert builders.read_keyed(storage, table) == sums
    assert builders.read_changes(storage, table)[-2:] == [(1, 4000, 1), (2, 4000, 101)]


def test_whole_states_beside_parts_are_left_alone():
    storage = MemoryStorage()
    table = builders.keyed_table(storage, WHERE, buckets=1, options={**SUMS, **LOOKUP})
    writer = builders.writer(storage, table)
    writer.write(rows_of([(key, 1) for key in range(90_000)]))
    builders.compact(storage, table, strategy=Strategy.FULL)
    writer.write(rows_of([(key, 10) for key in range(5000)]))
    builders.compact(storage, table)
    _alter(storage, table, 1, {"changelog-producer": "none"})
    builders.writer(storage, table).write(rows_of([(key, 10) for key in range(3)]))
    builders.compact(storage, table, overrides={"compaction.force-up-level-0": "true"})
    assert _levels(storage, table) == [3, 4, 5]
    _alter(storage, table, 2, LOOKUP)
    writer.write(rows_of([(1, 1)]))
    builders.compact(storage, table)
    assert _levels(storage, table) == [0, 3, 4, 5]
    access, state = table_in_folder(storage, table), load_state(storage, table)
    opened = describe_table(access, access.newest_schema(), {})
    [note] = damage_notes(opened, state, bucket_shapes(opened, state))
    assert "the rows that they hold together are unknown" in note


def test_what_was_compacted_before_a_table_looked_up_is_merged_first():
    storage = MemoryStorage()
    table = builders.keyed_table(storage, WHERE, buckets=1, options=SUMS)
    writer = builders.writer(storage, table)
    writer.write(rows_of([(key, 1) for key in range(200)]))
    builders.compact(storage, table, strategy=Strategy.FULL)
    writer.write(rows_of([(key, 10) for key in range(5)]))
    builders.compact(storage, table, overrides={"compaction.force-up-level-0": "true"})
    assert _levels(storage, table) == [4, 5]
    _alter(storage, table, 1, LOOKUP)
    access = table_in_folder(storage, table)
    # Commands that only read say it, too.
    assert describe_table(access, access.newest_schema(), {}).partial_schemas == {0}
    writer.write(rows_of([(key, 100) for key in range(8)]))
    builders.compact(storage, table)
    sums = (
        dict.fromkeys(range(200), 1) | dict.fromkeys(range(8), 101) | dict.fromkeys(range(5), 111)
    )
    told = builders.read_changes(storage, table)
    assert told == [
        change
        for key in range(8)
        for change in ((1, key, 11 if key < 5 else 1), (2, key, sums[key]))
    ]
    builders.compact(storage, table, strategy=Strategy.FULL)
    assert builders.read_keyed(storage, table) == sums


def test_levels_may_be_very_many():
    storage = MemoryStorage()
    options = {**LOOKUP, **SUMS, "num-levels": "500"}
    table = builders.keyed_table(storage, WHERE, buckets=1, options=options)
    writer = builders.writer(storage, table)
    for _ in range(3):
        writer.write(rows_of([(key, 1) for key in range(10)]))
        builders.compact(storage, table, strategy=Strategy.FULL)
    assert builders.read_keyed(storage, table) == dict.fromkeys(range(10), 3)


@pytest.mark.parametrize("strategy", [Strategy.MINOR, Strategy.FULL])
@pytest.mark.parametrize(
    "options",
    [
        {"changelog-producer": "full-compaction", "full-compaction.delta-commits": "1"},
        LOOKUP,
        LOOKUP | SUMS,
        LOOKUP | FIRST,
        LOOKUP | {"deletion-vectors.enabled": "true"},
    ],
)
def test_each_change_is_told_once_where_there_were_more_levels(options, strategy):
    """Files above the levels that the table has now count as they did."""
    storage = MemoryStorage()
    table = builders.keyed_table(storage, WHERE, buckets=1, options=options)
    engine = options.get("merge-engine", "deduplicate")
    writer = builders.writer(storage, table)
    for commit, (rows, kinds, expected) in enumerate(_commits(engine)):
        if commit == 2:
            _alter(storage, table, 1, {"num-levels": "3"})
        writer.write(rows_of(rows), kinds=kinds_of(kinds))
        builders.compact(storage, table, strategy=Strategy.MINOR if commit else strategy)
        assert builders.replayed(builders.read_changes(storage, table)) == expected
        assert 0 not in _levels(storage, table)
    assert max(_levels(storage, table)) == 5
    builders.compact(storage, table, strategy=strategy)
    assert builders.read_keyed(storage, table) == expected
    assert builders.replayed(builders.read_changes(storage, table)) == expected


def test_level_0_may_wait_where_lookups_are_gentle():
    storage, clock = MemoryStorage(), VirtualClock()
    options = {**LOOKUP, "lookup-compact": "gentle", "continuous.discovery-interval": "1 min"}
    table = builders.keyed_table(storage, WHERE, buckets=1, options=options)
    builders.writer(storage, table).write(rows_of([(1, 1)]))
    builders.compact(storage, table, clock=clock)
    assert _levels(storage, table) == [0]
    # Ten intervals, twice the trigger, after the file was made.
    clock.sleep(10 * 60 - 1)
    builders.compact(storage, table, clock=clock)
    assert _levels(storage, table) == [0]
    clock.sleep(1)
    builders.compact(storage, table, clock=clock)
    assert _levels(storage, table) == [5]


def test_a_plan_says_where_rows_are_looked_up():
    storage = MemoryStorage()
    table = builders.keyed_table(storage, WHERE, buckets=1, options={**LOOKUP, **SUMS})
    writer = builders.writer(storage, table)
    for keys in (5000, 10):
        writer.write(rows_of([(key, 1) for key in range(keys)]))
        access = table_in_folder(storage, table)
        opened = open_table(access, {})
        context = PlanContext.now(CompactRequest(), VirtualClock(), datetime.timezone.utc)
        state = load_state(storage, table)
        [plan] = plan_state(StatePlanner(opened, state, context))
        text = action_text(plan.compactions[0])
        assert ("look up in 1 file above (at most " in text) == (keys == 10)
        builders.compact(storage, table)
