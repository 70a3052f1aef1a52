from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.paimon.data_file import BucketId, DataFile
from compactord.plan.candidates import BucketSummary, candidates, summarise
from compactord.plan.shape import bucket_shape
from compactord.plan.table import PlanRequest, Strategy, TableKind, plan_bucket
from tests.unit.plan.builders import bucket_of, compaction_options, data_file
from tests.unit.plan.test_table_properties import append_files, lsm_files, requests


def summary_of(buckets: list[list[DataFile]], request: PlanRequest) -> BucketSummary:
    rows = [
        (number, file.level, file.file_size)
        for number, files in enumerate(buckets)
        for file in files
    ]
    columns = np.array(rows, np.int64).reshape(-1, 3)
    shuffled = np.random.default_rng(7).permutation(columns)
    return summarise(*shuffled.T, bucket_count=len(buckets), options=request.options)


def many(kind: TableKind) -> st.SearchStrategy[tuple[list[list[DataFile]], PlanRequest]]:
    files = lsm_files() if kind is TableKind.PRIMARY_KEY else append_files()
    return st.tuples(st.lists(files, max_size=4), requests(kind))


@settings(max_examples=4000, deadline=None)
@given(st.sampled_from(TableKind).flatmap(many))
def test_no_bucket_with_a_pick_is_ruled_out(
    case: tuple[list[list[DataFile]], PlanRequest],
) -> None:
    buckets, request = case
    strategy = Strategy.FULL if request.delta_commits_due else request.strategy
    mask = candidates(summary_of(buckets, request), request.kind, strategy, request.options)
    assert mask.shape == (len(buckets),)
    for is_candidate, files in zip(mask, buckets, strict=True):
        assert is_candidate or not plan_bucket(bucket_of(files), request).compactions


@settings(deadline=None)
@given(st.lists(lsm_files(), max_size=4), requests(TableKind.PRIMARY_KEY))
def test_sums_equal_those_of_the_shape(buckets: list[list[DataFile]], request: PlanRequest) -> None:
    summary = summary_of(buckets, request)
    for number, files in enumerate(buckets):
        shape = bucket_shape(bucket_of(files, BucketId(b"", number)), request.options)
        assert summary.file_count[number] == shape.file_count
        assert summary.run_count[number] == shape.run_count
        assert summary.level_0_count[number] == sum(file.level == 0 for file in files)
        assert summary.highest_level[number] == shape.highest_level
        assert summary.size_bytes[number] == shape.size_bytes
        assert summary.small_count[number] == shape.small_file_count
        target = request.options.target_file_size
        assert summary.below_target_count[number] == sum(f.file_size < target for f in files)


def test_quiet_buckets_are_ruled_out() -> None:
    quiet = [
        [],
        [data_file("a", level=5), data_file("b", level=5, keys=(1, 1))],
        [data_file(f"f{number}") for number in range(4)],
    ]
    request = PlanRequest(
        kind=TableKind.PRIMARY_KEY,
        options=compaction_options(),
        strategy=Strategy.MINOR,
        key_of=bytes,
        now_local_ms=0,
        append_wait_ms=0,
    )
    summary = summary_of(quiet, request)
    for kind, strategy, expected in [
        (TableKind.PRIMARY_KEY, Strategy.MINOR, [False, False, False]),
        (TableKind.PRIMARY_KEY, Strategy.FULL, [False, False, True]),
        (TableKind.APPEND_UNAWARE, Strategy.MINOR, [False, True, True]),
        (TableKind.APPEND_BUCKETED, Strategy.MINOR, [False, False, False]),
        (TableKind.APPEND_BUCKETED, Strategy.FULL, [False, False, True]),
    ]:
        assert candidates(summary, kind, strategy, request.options).tolist() == expected
