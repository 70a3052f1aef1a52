"""A table is planned by the rule of its own request, wherever the plan is shown."""

from __future__ import annotations

from compactord.model import PickRule
from compactord.paimon.schema import TableRef
from compactord.plan.table import Strategy
from compactord.state.table_state import load_state
from compactord.storage.base import Storage
from compactord.table.explain import bucket_details
from compactord.table.planning import CompactRequest
from tests.builders import compact, keyed_table, rows_of, writer
from tests.storages import MemoryStorage
from tests.unit.table.compacting import ALL, compactor_of

WHERE = "/warehouse/db.db/t"


def uneven_table(storage: Storage, location: str) -> TableRef:
    """Small runs before a larger one of level 0, and one on the highest level that is larger still.

    By 2.0 the larger one takes the highest level along, by 2.1 the pick ends before that.
    """
    table = keyed_table(
        storage,
        location,
        buckets=1,
        options={
            "num-sorted-run.compaction-trigger": "4",
            "compaction.max-size-amplification-percent": "1000000",
        },
    )
    target = writer(storage, table)
    target.write(rows_of([(key, key * 7919) for key in range(20_000)]))
    compact(storage, table, strategy=Strategy.FULL)
    for count in (2_000, 1, 1):
        target.write(rows_of([(key, key * 7907) for key in range(count)]))
    return table


def test_a_command_picks_by_the_rule_that_it_is_told() -> None:
    levels = {}
    for rule in PickRule:
        storage = MemoryStorage()
        table = uneven_table(storage, WHERE)
        compact(storage, table, pick=rule)
        (bucket,) = load_state(storage, table).files.bucket_ids()
        files = load_state(storage, table).files.bucket(bucket).files
        levels[rule] = sorted(file.level for file in files)
    assert levels == {PickRule.RELEASE_2_0: [4], PickRule.RELEASE_2_1: [3, 4]}


def test_another_rule_counts_from_the_next_cycle_on_and_is_what_the_page_shows() -> None:
    storage = MemoryStorage()
    compactor = compactor_of(storage, uneven_table(storage, WHERE))
    told = []
    for rule in (PickRule.RELEASE_2_1, PickRule.RELEASE_2_0, PickRule.RELEASE_2_1):
        compactor.reconfigure(CompactRequest(pick=rule))
        planned = compactor.cycle((), ALL).planned
        assert planned is not None
        assert compactor.last_plan is not None
        (detail,) = bucket_details(compactor.last_plan)
        told.append((planned.backlog.files, "level 3" in detail.plan, "level 4" in detail.plan))
    assert told == [(3, True, False), (4, False, True), (3, True, False)]
