from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.model import TableKind
from compactord.paimon.data_file import BucketId, DataFile
from compactord.plan.table import PlanRequest, Strategy, candidates, plan_bucket
from compactord.state.base_files import BucketIndex, BucketSummaries, packed_keys
from compactord.table.shapes import bucket_shape
from tests.sampling import examples
from tests.unit.plan.builders import MARKS, bucket_of, compaction_options, data_file, plan_request
from tests.unit.plan.simulation import A_VECTOR
from tests.unit.plan.test_table_properties import append_files, lsm_files, requests


def summary_of(buckets: list[list[DataFile]], request: PlanRequest) -> BucketSummaries:
    shapes = [bucket_shape(bucket_of(files), request.options) for files in buckets]

    def column(values: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(list(values), np.int64)

    return BucketSummaries(
        index=BucketIndex((b"",), {b"": 0}, packed_keys(0, np.arange(len(shapes)))),
        total_buckets=column(1 for _ in shapes),
        file_count=column(shape.files for shape in shapes),
        size_bytes=column(shape.size_bytes for shape in shapes),
        row_count=column(shape.rows for shape in shapes),
        level0_count=column(sum(f.level == 0 for f in files) for files in buckets),
        run_count=column(shape.sorted_runs for shape in shapes),
        max_level=column(max((f.level for f in files), default=0) for files in buckets),
        # Not looked at.
        oldest_run_bytes=column(0 for _ in shapes),
        top_created_ms=column(0 for _ in shapes),
    )


def many(kind: TableKind) -> st.SearchStrategy[tuple[list[list[DataFile]], PlanRequest]]:
    files = lsm_files() if kind is TableKind.PRIMARY_KEY else append_files()
    return st.tuples(st.lists(files, max_size=4), requests(kind))


@settings(max_examples=examples(500), deadline=None)
@given(st.sampled_from(TableKind).flatmap(many), st.sampled_from(["without", "some", "all"]))
def test_no_bucket_with_a_pick_is_ruled_out(
    case: tuple[list[list[DataFile]], PlanRequest], having: str
) -> None:
    buckets, request = case
    vectors = {
        BucketId(b"", number): {file.file_name: A_VECTOR for file in files[::2]}
        for number, files in enumerate(buckets)
        if having == "all" or (having == "some" and number == 1)
    }
    if having != "without" and request.kind is TableKind.PRIMARY_KEY:
        request = replace(
            request,
            options=replace(request.options, lookup=MARKS),
            unmarked_schemas={0},
            vectors_of=lambda bucket: vectors.get(bucket, {}),
        )
    elif having != "without":
        request = replace(request, vectors_of=lambda bucket: vectors.get(bucket, {}))
    mask = np.zeros(len(buckets), np.bool_)
    # Not all need be due.
    for strategy in {request.strategy, *([Strategy.FULL] if request.delta_commits_due else [])}:
        mask |= candidates(
            summary_of(buckets, request),
            request.kind,
            strategy,
            request.options,
            with_deleted=[*vectors, BucketId(b"gone", 0)],
            lookup_begins=bool(request.unmarked_schemas),
        )
    assert mask.shape == (len(buckets),)
    for number, (is_candidate, files) in enumerate(zip(mask, buckets, strict=True)):
        bucket = bucket_of(files, BucketId(b"", number))
        assert is_candidate or not plan_bucket(bucket, request).compactions


def test_quiet_buckets_are_ruled_out() -> None:
    quiet = [
        [],
        [data_file("a", level=5), data_file("b", level=5, keys=(1, 1))],
        [data_file(f"f{number}") for number in range(4)],
    ]
    request = plan_request()
    summary = summary_of(quiet, request)
    for kind, strategy, expected in [
        (TableKind.PRIMARY_KEY, Strategy.MINOR, [False, False, False]),
        (TableKind.PRIMARY_KEY, Strategy.FULL, [False, False, True]),
        (TableKind.APPEND_UNAWARE, Strategy.MINOR, [False, True, True]),
        (TableKind.APPEND_BUCKETED, Strategy.MINOR, [False, False, False]),
        (TableKind.APPEND_BUCKETED, Strategy.FULL, [False, False, True]),
    ]:
        assert candidates(summary, kind, strategy, request.options).tolist() == expected


def test_buckets_with_just_enough_are_kept() -> None:
    request = plan_request(options=compaction_options(force_up_level_0=True))
    lone = summary_of([[data_file("a")]], request)
    assert candidates(lone, TableKind.PRIMARY_KEY, Strategy.MINOR, request.options).all()
    options = compaction_options()
    runs = summary_of([[data_file("a", level=4), data_file("b", level=5)]], request)
    for begins in (False, True):
        found = candidates(
            runs, TableKind.PRIMARY_KEY, Strategy.MINOR, request.options, lookup_begins=begins
        )
        assert found.tolist() == [begins]
    files = [data_file("a"), data_file("b"), data_file("c", size=options.target_file_size)]
    mostly_small = summary_of([files], plan_request(options=options))
    assert candidates(mostly_small, TableKind.APPEND_BUCKETED, Strategy.FULL, options).all()
