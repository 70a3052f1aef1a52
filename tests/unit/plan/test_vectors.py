"""Deletion vectors: commands end, and what a table of before them needs first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.errors import FormatError
from compactord.model import CompactReason, Rewrite, TableKind
from compactord.paimon.data_file import DataFile
from compactord.paimon.options.table_options import LookupOptions
from compactord.plan.table import PlanRequest, Strategy, plan_bucket
from tests.sampling import examples
from tests.unit.plan.builders import (
    MARKS,
    bucket_of,
    compaction_options,
    data_file,
    names,
    plan_request,
)
from tests.unit.plan.simulation import A_VECTOR, PaperBucket, run_command
from tests.unit.plan.test_table_properties import TARGET, append_files, lsm_files, requests

# What a paper bucket makes has schema 0.
OLD = 7
VALUES = replace(MARKS, upgrades=False, is_one_record=False, finds_values=True)


@st.composite
def with_vectors(draw: st.DrawFn, files: list[DataFile]) -> PaperBucket:
    files = [replace(file, schema_id=draw(st.sampled_from([0, 0, OLD]))) for file in files]
    paths = st.sampled_from(["index-a", "index-b", "index-c"])
    vectors = {
        name: replace(
            A_VECTOR, path=draw(paths), cardinality=draw(st.sampled_from([None, 0, 1, 9]))
        )
        for name in draw(st.sets(st.sampled_from([*names(files), "gone"])))
    }
    return PaperBucket(
        files={file.file_name: file for file in files}, roll_size=TARGET, vectors=vectors
    )


@settings(max_examples=examples(150), deadline=None)
@given(
    lsm_files().flatmap(with_vectors),
    requests(TableKind.PRIMARY_KEY),
    st.sampled_from([MARKS, VALUES, replace(MARKS, wait_ms=0)]),
    st.booleans(),
)
def test_commands_on_keys_end_and_a_full_one_leaves_no_vectors(
    bucket: PaperBucket, request_: PlanRequest, lookup: LookupOptions, all_deleted: bool
) -> None:
    options = replace(request_.options, lookup=lookup, force_up_level_0=lookup.wait_ms is None)
    request_ = replace(request_, options=options, unmarked_schemas={OLD})
    run_command(bucket, request_, all_deleted=all_deleted)
    assert bucket.plan(request_) == []
    if options.force_up_level_0:
        assert all(file.level > 0 for file in bucket.files.values())
    if request_.strategy is Strategy.FULL:
        assert bucket.vectors.keys() <= {"gone"}
    above = {file.level for file in bucket.files.values()} - {0}
    middle = [file for file in bucket.files.values() if 0 < file.level < max(above)]
    assert all(file.schema_id == 0 for file in middle)


@settings(max_examples=examples(150), deadline=None)
@given(
    append_files().flatmap(with_vectors),
    st.sampled_from([TableKind.APPEND_UNAWARE, TableKind.APPEND_BUCKETED]).flatmap(requests),
)
def test_commands_without_keys_end_and_a_full_one_leaves_no_vectors(
    bucket: PaperBucket, request_: PlanRequest
) -> None:
    run_command(bucket, request_)
    assert bucket.plan(request_) == []
    if request_.strategy is Strategy.FULL:
        assert bucket.vectors.keys() <= {"gone"}
    elif request_.kind is TableKind.APPEND_UNAWARE:
        left = [file for name, file in bucket.files.items() if name in bucket.vectors]
        assert all(file.file_size >= request_.options.small_file_size for file in left)


@settings(max_examples=examples(150), deadline=None)
@given(append_files().flatmap(with_vectors), requests(TableKind.APPEND_UNAWARE))
def test_no_two_tasks_rewrite_one_index_file(bucket: PaperBucket, request_: PlanRequest) -> None:
    seen: set[str] = set()
    for compaction in bucket.plan(replace(request_, delta_commits_due=frozenset())):
        found = {bucket.vectors[n].path for n in names(compaction.inputs) if n in bucket.vectors}
        assert found.isdisjoint(seen)
        seen |= found


@settings(max_examples=examples(150), deadline=None)
@given(lsm_files().flatmap(with_vectors), requests(TableKind.PRIMARY_KEY))
def test_rows_that_newer_ones_replace_are_marked_wherever_they_may_be(
    bucket: PaperBucket, request_: PlanRequest
) -> None:
    request_ = replace(request_, options=replace(request_.options, lookup=MARKS))
    for compaction in bucket.plan(request_):
        higher = [f for f in bucket.files.values() if f.level > compaction.output_level]
        for action in compaction.actions:
            files = (
                [file for s in action.sections for run in s.runs for file in run.files]
                if isinstance(action, Rewrite)
                else [action.file]
            )
            if all(file.level for file in files):
                assert not action.above
                continue
            assert action.marks
            low, high = min(f.min_key for f in files), max(f.max_key for f in files)
            meeting = [f for f in higher if f.min_key <= high and low <= f.max_key]
            assert {f for run in action.above for f in run.files} == set(meeting)


def levels(*schemas: int) -> list[DataFile]:
    """A file on each level from 1 on."""
    return [
        data_file(f"f{level}", level=level, keys=(0, 9), schema_id=schema)
        for level, schema in enumerate(schemas, 1)
    ]


@pytest.mark.parametrize(
    ("schemas", "lookup", "partial", "merges_parts"),
    [
        # With the first schema nothing was looked up, with the second nothing was marked.
        ((1, 1, 1), VALUES, {1}, True),
        ((2, 2, 1), VALUES, {1}, False),
        ((3, 2, 1), VALUES, {1}, False),
        ((2, 3, 3), VALUES, {1}, False),
        ((3, 1, 1), MARKS, set(), False),
        # The state is the newest record by a sequence field: parts and whole states may be merged.
        ((3, 1, 1), replace(MARKS, upgrades=False), {1}, True),
        ((2, 1, 3), replace(MARKS, upgrades=False), {1}, True),
    ],
)
def test_levels_of_before_are_merged_by_what_their_records_are(
    schemas: tuple[int, ...], lookup: LookupOptions, partial: set[int], merges_parts: bool
) -> None:
    request = plan_request(
        options=compaction_options(lookup=lookup, force_up_level_0=True, num_levels=4),
        partial_schemas=partial,
        unmarked_schemas={1, 2},
    )
    files = [data_file("new", keys=(0, 9), schema_id=3), *levels(*schemas)]
    (compaction,) = plan_bucket(bucket_of(files), request).compactions
    assert compaction.reason is CompactReason.LOOKUP_BEGINS
    (action,) = compaction.actions
    assert sorted(names(compaction.inputs)) == ["f1", "f2", "f3"]
    assert isinstance(action, Rewrite)
    assert (action.looks_up, action.marks, action.drop_deletes) == (not merges_parts, False, True)


def test_whole_states_beside_parts_cannot_be_merged_where_values_add_up() -> None:
    options = compaction_options(lookup=VALUES, num_levels=4)
    request = plan_request(options=options, partial_schemas={1}, unmarked_schemas={1, 2})
    with pytest.raises(FormatError, match="are unknown: f2"):
        plan_bucket(bucket_of(levels(3, 1, 1)), request)


def test_a_final_file_is_rewritten_when_rows_of_it_have_been_deleted_since() -> None:
    files = [data_file("made", level=5), data_file("other", level=5, keys=(1, 1))]
    request = plan_request(
        strategy=Strategy.FULL,
        options=compaction_options(lookup=MARKS),
        final=frozenset({"made", "other"}),
        vectors_of=lambda bucket: {"made": A_VECTOR},
    )
    (compaction,) = plan_bucket(bucket_of(files), request).compactions
    assert names(compaction.inputs) == ["made"]
    assert compaction.reason is CompactReason.DELETED_ROWS
    expired = replace(request, is_expired=lambda file: file.file_name == "other", final=frozenset())
    (compaction,) = plan_bucket(bucket_of(files), expired).compactions
    assert names(compaction.inputs) == ["made", "other"]
    assert compaction.reason is CompactReason.EXPIRED_RECORDS
