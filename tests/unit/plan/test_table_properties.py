from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.model import CompactReason, PickRule, TableKind, Upgrade
from compactord.paimon.data_file import DataFile, FileSource
from compactord.plan.picks import bucket_runs
from compactord.plan.table import PlanRequest, Strategy, plan_bucket
from tests.sampling import examples
from tests.unit.plan.builders import (
    BUCKET,
    NOW_MS,
    bucket_of,
    compaction_options,
    data_file,
    key_of,
    plan_request,
)
from tests.unit.plan.simulation import PaperBucket, run_command

TARGET = 100


@st.composite
def lsm_files(draw: st.DrawFn) -> list[DataFile]:
    files = []
    for _ in range(draw(st.integers(0, 9))):
        low, high = sorted(draw(st.tuples(st.integers(0, 99), st.integers(0, 99))))
        files.append((0, low, high))
    for level in draw(st.sets(st.integers(1, 8), max_size=3)):
        bounds = sorted(draw(st.sets(st.integers(0, 99), min_size=2, max_size=8)))
        files += [(level, low, high) for low, high in zip(bounds[::2], bounds[1::2], strict=False)]
    return [
        data_file(
            f"f{number}",
            level=level,
            size=draw(st.integers(1, 4 * TARGET)),
            keys=(low, high),
            sequences=(number, number),
            deletes=draw(st.sampled_from([0, 1, None])),
            created_ms=draw(st.sampled_from([NOW_MS - 5000, NOW_MS - 10, None])),
        )
        for number, (level, low, high) in enumerate(files)
    ]


@st.composite
def append_files(draw: st.DrawFn) -> list[DataFile]:
    sizes = draw(st.lists(st.integers(1, 3 * TARGET) | st.integers(1, 20), max_size=25))
    return [
        data_file(
            f"f{number}",
            size=size,
            sequences=(number // 2, number),
            created_ms=draw(st.sampled_from([NOW_MS - 5000, NOW_MS - 10, None])),
            source=draw(st.sampled_from(FileSource)),
        )
        for number, size in enumerate(sizes)
    ]


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def requests(kind: TableKind) -> st.SearchStrategy[PlanRequest]:
    options = st.builds(
        compaction_options,
        num_levels=st.integers(2, 8),
        compaction_trigger=st.integers(1, 6),
        max_size_amplification_percent=st.sampled_from([-1, 0, 25, 200, 2**31 - 1]),
        size_ratio_percent=st.sampled_from([0, 1, 50, 1000]),
        force_up_level_0=st.booleans(),
        force_rewrite_all_files=st.booleans(),
        optimization_interval_ms=maybe(st.sampled_from([0, 100, 10_000])),
        total_size_threshold=maybe(st.integers(1, 3000)),
        incremental_size_threshold=maybe(st.integers(1, 1000)),
        target_file_size=st.just(TARGET),
        small_file_ratio=st.sampled_from([0.3, 0.7, 0.7, 1.0, 1.5]),
        min_file_num=st.integers(1, 6),
        open_file_cost=st.sampled_from([0, 4, 200]),
        file_num_limit=st.sampled_from([1, 5, 100_000]),
    )
    return st.builds(
        plan_request,
        kind=st.just(kind),
        options=options,
        strategy=st.sampled_from(Strategy),
        pick=st.sampled_from(PickRule),
        append_wait_ms=st.sampled_from([0, 1000, 600_000]),
        delta_commits_due=st.sampled_from([frozenset(), frozenset({BUCKET})]),
    )


def is_forced_again(request: PlanRequest) -> bool:
    """Whether a new command rewrites what an earlier one has made, because it is told to."""
    is_full = request.strategy is Strategy.FULL or bool(request.delta_commits_due)
    return is_full and request.options.force_rewrite_all_files


@settings(max_examples=examples(500), deadline=None)
@given(lsm_files(), requests(TableKind.PRIMARY_KEY), st.sampled_from([100, 60, 7]), st.booleans())
def test_primary_key_commands_end_with_an_empty_plan(
    files: list[DataFile], request: PlanRequest, roll_size: int, all_deleted: bool
) -> None:
    bucket = PaperBucket(files={file.file_name: file for file in files}, roll_size=roll_size)
    run_command(bucket, request, all_deleted=all_deleted)
    assert bucket.plan(request) == []
    bucket.final.clear()
    if is_forced_again(request):
        assert {c.reason for c in bucket.plan(request)} <= {CompactReason.FORCED_REWRITE}
    else:
        assert bucket.plan(request) == []
    if request.strategy is Strategy.FULL:
        assert len({file.level for file in bucket.files.values()}) <= 1
    if request.options.force_up_level_0:
        assert all(file.level > 0 for file in bucket.files.values())


@settings(max_examples=examples(300), deadline=None)
@given(lsm_files(), requests(TableKind.PRIMARY_KEY))
def test_commands_end_while_records_go_on_expiring(
    files: list[DataFile], request: PlanRequest
) -> None:
    request = replace(request, is_expired=lambda file: True)
    bucket = PaperBucket(files={file.file_name: file for file in files}, roll_size=TARGET)
    run_command(bucket, request)
    if request.strategy is Strategy.FULL:
        assert all(file.file_source == FileSource.COMPACT for file in bucket.files.values())


@settings(max_examples=examples(200), deadline=None)
@given(lsm_files(), requests(TableKind.PRIMARY_KEY))
def test_forced_commands_rewrite_every_file_exactly_once(
    files: list[DataFile], request: PlanRequest
) -> None:
    options = replace(request.options, force_rewrite_all_files=True)
    request = replace(request, options=options, strategy=Strategy.FULL)
    bucket = PaperBucket(files={file.file_name: file for file in files}, roll_size=TARGET)
    assert run_command(bucket, request) == (1 if files else 0)
    assert all(file.file_source == FileSource.COMPACT for file in bucket.files.values())


@settings(max_examples=examples(500), deadline=None)
@given(
    append_files(),
    st.sampled_from([TableKind.APPEND_UNAWARE, TableKind.APPEND_BUCKETED]).flatmap(requests),
    st.sampled_from([100, 95, 60, 7]),
)
def test_append_commands_end_with_an_empty_plan(
    files: list[DataFile], request: PlanRequest, roll_size: int
) -> None:
    bucket = PaperBucket(files={file.file_name: file for file in files}, roll_size=roll_size)
    run_command(bucket, request)
    assert bucket.plan(request) == []
    assert sum(f.file_size for f in bucket.files.values()) == sum(f.file_size for f in files)
    bucket.final.clear()
    has_full_outputs = roll_size == TARGET or roll_size >= request.options.small_file_size
    is_rewritten_again = request.kind is TableKind.APPEND_BUCKETED and is_forced_again(request)
    if has_full_outputs and not is_rewritten_again:
        assert bucket.plan(request) == []


@settings(max_examples=examples(200), deadline=None)
@given(append_files(), requests(TableKind.APPEND_UNAWARE))
def test_full_commands_without_buckets_leave_one_file_to_merge(
    files: list[DataFile], request: PlanRequest
) -> None:
    files = [replace(file, file_source=FileSource.APPEND) for file in files]
    large = {file.file_name for file in files if file.file_size >= TARGET}
    bucket = PaperBucket(files={file.file_name: file for file in files}, roll_size=TARGET)
    run_command(bucket, replace(request, strategy=Strategy.FULL))
    assert large <= bucket.files.keys()
    small = request.options.small_file_size
    left = [file for file in bucket.files.values() if file.file_size < TARGET]
    assert sum(f.file_source == FileSource.APPEND or f.file_size < small for f in left) <= 1


@settings(max_examples=examples(300), deadline=None)
@given(
    st.sampled_from(TableKind).flatmap(
        lambda kind: st.tuples(
            lsm_files() if kind is TableKind.PRIMARY_KEY else append_files(), requests(kind)
        )
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_of_files_has_no_influence(
    case: tuple[list[DataFile], PlanRequest], rng: random.Random
) -> None:
    files, request = case
    shuffled = list(files)
    rng.shuffle(shuffled)
    if request.kind is TableKind.PRIMARY_KEY:
        assert bucket_runs(shuffled, key_of) == bucket_runs(files, key_of)
    assert plan_bucket(bucket_of(shuffled), request) == plan_bucket(bucket_of(files), request)


@settings(max_examples=examples(300), deadline=None)
@given(lsm_files(), requests(TableKind.PRIMARY_KEY))
def test_deletions_are_dropped_only_when_nothing_older_lies_beneath(
    files: list[DataFile], request: PlanRequest
) -> None:
    for compaction in plan_bucket(bucket_of(files), request).compactions:
        assert compaction.output_level > 0
        beneath = [file for file in files if file.level > compaction.output_level]
        for action in compaction.actions:
            assert isinstance(action, Upgrade) or action.drop_deletes == (not beneath)
