from __future__ import annotations

import datetime
from collections.abc import Mapping

import pytest

from compactord.demo import create_table
from compactord.errors import UsageError
from compactord.paimon import paths
from compactord.paimon.binary_row import encode_row
from compactord.paimon.table import TableRef, load_state
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.plan.table import Strategy
from compactord.service.planning import PlanContext, delta_commits_due, plan_state
from compactord.service.table import open_table
from tests import builders
from tests.builders import NOW_MS
from tests.lineage import TABLE, Lineage, bucket_id
from tests.storages import MemoryStorage
from tests.unit.paimon.table_builder import History, data_file, entry

EVERY_THIRD = {"full-compaction.delta-commits": "3", "bucket": "2"}


def _due(table: Lineage) -> set[int]:
    opened = open_table(table.storage, TABLE, {})
    due = delta_commits_due(table.storage, opened, table.state())
    return {bucket.bucket for bucket in due}


def test_without_the_option_nothing_is_due() -> None:
    table = Lineage(buckets=2)
    table.append(1, commits=5)
    assert _due(table) == set()


def test_a_bucket_is_due_after_so_many_appends_to_the_table() -> None:
    table = Lineage(buckets=2, options=EVERY_THIRD)
    table.append(1, commits=2)
    assert _due(table) == set()
    table.append(1, bucket=1)
    assert _due(table) == {0, 1}


def test_a_bucket_that_was_taken_to_the_highest_level_since_is_not_due() -> None:
    table = Lineage(buckets=2, options=EVERY_THIRD)
    table.append(1, bucket=0)
    table.append(1, bucket=1)
    table.compacted_by_others(table.files(0), bucket=0)
    table.append(1, bucket=1)
    assert _due(table) == {1}
    table.append(1, bucket=1, commits=2)
    assert _due(table) == {0, 1}, "three appends lie after the full compaction of bucket 0"


def test_a_compaction_below_the_highest_level_does_not_count() -> None:
    table = Lineage(buckets=2, options={**EVERY_THIRD, "num-levels": "7"})
    table.append(1, bucket=0)
    table.compacted_by_others(table.files(0), bucket=0)
    table.append(1, bucket=0, commits=2)
    assert _due(table) == {0}


def test_overwrites_are_no_appends() -> None:
    table = Lineage(buckets=2, options=EVERY_THIRD)
    table.append(1, commits=2)
    table.overwrite(0)
    assert _due(table) == set()


@pytest.mark.parametrize("gone", ["snapshot", "delta"])
def test_where_snapshots_have_expired_everything_is_due(gone: str) -> None:
    table = Lineage(buckets=2, options=EVERY_THIRD)
    table.append(1, bucket=0)
    table.compacted_by_others(table.files(0), bucket=0)
    compacted = table.state().snapshot
    assert compacted is not None
    table.append(1, bucket=1)
    opened, state = open_table(table.storage, TABLE, {}), table.state()
    path = paths.snapshot_path(TABLE.location, compacted.id)
    if gone == "delta":
        path = paths.manifest_path(TABLE.location, compacted.delta_manifest_list)
    table.storage.delete(path)
    assert delta_commits_due(table.storage, opened, state) == {bucket_id(0), bucket_id(1)}


def test_append_tables_have_no_full_compactions_by_commits() -> None:
    table = Lineage(is_keyed=False, options={"full-compaction.delta-commits": "1"})
    table.append(1)
    assert _due(table) == set()


def _partitioned() -> tuple[MemoryStorage, TableRef]:
    """An append table by day, with two small files on each of two days."""
    storage = MemoryStorage()
    day = AtomicType(root=TypeRoot.DATE)
    create_table(
        storage,
        TABLE,
        [*builders.FIELDS, DataField(id=2, name="day", type=day)],
        partition_keys=["day"],
        options={"bucket": "-1", "compaction.min.file-num": "2"},
    )
    history = History(storage, TABLE, partition_types=[day])  # type: ignore[arg-type]
    history.commit(
        [
            entry(data_file(f"{value}-{n}.parquet"), partition=encode_row([value], [day]))
            for value in (0, 1)
            for n in range(2)
        ]
    )
    return storage, TABLE


def _planned(*asked: Mapping[str, str], strategy: Strategy = Strategy.MINOR) -> list[str]:
    storage, table = _partitioned()
    opened = open_table(storage, table, {})
    context = PlanContext(
        strategy=strategy,
        partitions=asked,
        append_wait_ms=None,
        now_ms=NOW_MS,
        zone=datetime.timezone.utc,
        last_full_ms={},
        settled=frozenset(),
    )
    plans = plan_state(storage, opened, load_state(storage, table), context)
    return sorted(
        opened.partition_path(plan.bucket.partition) for plan in plans if plan.compactions
    )


def test_no_partition_asked_for_means_all() -> None:
    assert _planned() == ["day=0", "day=1"]


@pytest.mark.parametrize("text", ["1970-01-02", "1"], ids=["as people write it", "as the folder"])
def test_a_partition_is_asked_for_in_either_form(text: str) -> None:
    assert _planned({"day": text}) == ["day=1"]


def test_any_of_several_partitions_counts_and_one_that_is_not_there_plans_nothing() -> None:
    assert _planned({"day": "0"}, {"day": "1"}) == ["day=0", "day=1"]
    assert _planned({"day": "7"}) == []


def test_a_column_that_is_no_partition_key_is_refused_before_anything_is_planned() -> None:
    with pytest.raises(UsageError, match=r"k is not a partition key of db\.t.*: day"):
        _planned({"k": "1"})
