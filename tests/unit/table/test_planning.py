from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

import pytest

from compactord.catalog.access import table_in_folder
from compactord.errors import UsageError
from compactord.paimon import paths
from compactord.paimon.binary_row import encode_row
from compactord.paimon.schema import TableRef
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.plan.table import Strategy
from compactord.state.table_state import load_state
from compactord.table.opening import open_table
from compactord.table.plan_inputs import delta_commits_due
from compactord.table.planning import (
    CompactRequest,
    PartitionTest,
    PlanContext,
    StatePlanner,
    plan_state,
)
from compactord_demo.writer import create_table
from tests import builders
from tests.builders import NOW_MS
from tests.lineage import TABLE, Lineage, bucket_id
from tests.storages import MemoryStorage
from tests.unit.paimon.table_builder import History, data_file, entry

EVERY_THIRD = {"full-compaction.delta-commits": "3", "bucket": "2"}


def _due(table: Lineage) -> set[int]:
    opened = open_table(table_in_folder(table.storage, TABLE), {})
    pending = delta_commits_due(opened, table.state())
    return {bucket.bucket for bucket in pending}


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


def test_what_came_while_a_bucket_was_compacted_is_due_where_every_commit_is() -> None:
    table = Lineage(buckets=2, options={"changelog-producer": "full-compaction", "bucket": "2"})
    table.append(1, bucket=0)
    table.append(1, bucket=1)
    first = table.files(0)
    table.compacted_by_others(first, bucket=0)
    assert _due(table) == {1}
    table.append(1, bucket=0)
    second = table.files(0)[-1:]
    table.append(1, bucket=0)
    table.compacted_by_others(second, bucket=0)
    assert _due(table) == {0, 1}, "the last append is still on level 0"


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
    opened, state = open_table(table_in_folder(table.storage, TABLE), {}), table.state()
    path = paths.snapshot_path(TABLE.location, compacted.id)
    if gone == "delta":
        path = paths.manifest_path(TABLE.location, compacted.delta_manifest_list)
    table.storage.delete(path)
    assert delta_commits_due(opened, state) == {bucket_id(0), bucket_id(1)}


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
    opened = open_table(table_in_folder(storage, table), {})
    context = PlanContext(
        request=CompactRequest(strategy=strategy, partitions=asked),
        now_ms=NOW_MS,
        steady_ms=NOW_MS,
        zone=datetime.timezone.utc,
    )
    plans = plan_state(StatePlanner(opened, load_state(storage, table), context))
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


_STRING = AtomicType(root=TypeRoot.VARCHAR, precision=2**31 - 1)
_INT = AtomicType(root=TypeRoot.INT)


def _chosen(
    type_: AtomicType, values: Sequence[object], *asked: str, **options: str
) -> list[object]:
    """Which of these values of a partition column `p` are asked for."""
    storage = MemoryStorage()
    fields = [*builders.FIELDS, DataField(id=2, name="p", type=type_)]
    create_table(storage, TABLE, fields, partition_keys=["p"], options={"bucket": "-1", **options})
    opened = open_table(table_in_folder(storage, TABLE), {})
    test = PartitionTest(opened, tuple({"p": text} for text in asked))
    return [value for value in values if test(encode_row([value], [type_]))]


def test_null_and_blank_text_are_asked_for_by_the_name_of_their_folder() -> None:
    values = [None, "", " \t", "a", "__DEFAULT_PARTITION__"]
    asked = _chosen(_STRING, values, "__DEFAULT_PARTITION__")
    assert asked == [None, "", " \t", "__DEFAULT_PARTITION__"]
    assert _chosen(_STRING, values, "") == [""]


def test_null_is_asked_for_by_the_name_that_the_table_gives_it() -> None:
    renamed = {"partition.default-name": "nil"}
    assert _chosen(_INT, [None, 1], "nil", **renamed) == [None]
    assert _chosen(
        _STRING, [None, "__DEFAULT_PARTITION__"], "__DEFAULT_PARTITION__", **renamed
    ) == ["__DEFAULT_PARTITION__"]
    with pytest.raises(UsageError, match="nil means null"):
        _chosen(_INT, [], "__DEFAULT_PARTITION__", **renamed)


def test_values_are_compared_not_texts() -> None:
    assert _chosen(_INT, [None, 1, 10], "01", "-0") == [1]


@pytest.mark.parametrize("text", ["abc", "1.0", "99999999999", ""])
def test_a_value_that_the_column_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"db\.t has p of type INT, expected a whole number"):
        _chosen(_INT, [], text)


def test_partitions_without_live_files_are_named() -> None:
    storage, table = _partitioned()
    asked = tuple({"day": text} for text in ("7", "0", "1970-01-02", "2024-01-01"))
    test = PartitionTest(open_table(table_in_folder(storage, table), {}), asked)
    live = [bucket.partition for bucket in load_state(storage, table).files.bucket_ids()]
    assert test.absent(live) == ["day=7", "day=2024-01-01"]
    assert PartitionTest(open_table(table_in_folder(storage, table), {}), ()).absent(live) == []
