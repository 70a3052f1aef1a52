"""How copied files are packed into outputs and row groups, and which subcompactions are copied."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactord.formats.layout import append_layout
from compactord.model import InputFile, Subcompaction
from compactord.paimon.types import value_schema
from compactord.rewrite.outputs import GroupLimits, group_limits, packed
from compactord.rewrite.reader import SAMPLE_FILES, InputReader, sample
from compactord.rewrite.subcompaction import rewrite
from tests.unit.formats.parquet.small_files import (
    PAD,
    ROWS,
    assert_same_as_by_decoding,
    decoding,
    described,
    inputs,
    padded,
    table_of,
    write_small,
)
from tests.unit.formats.parquet.stored_pages import assert_healthy, bodies, is_copied
from tests.unit.rewrite.builders import concat_subcompaction, output_paths, with_groups_of

COLUMNS = padded(n="BIGINT", s="STRING", d="DOUBLE")


def file(size: int, rows: int, number: int = 0) -> InputFile:
    return InputFile(
        path=str(number),
        file_format="parquet",
        size_bytes=size,
        row_count=rows,
        min_sequence_number=0,
        max_sequence_number=0,
    )


# --- packing, pure --------------------------------------------------------------------------------

TARGET, LIMITS = 1_000, GroupLimits(rows=500, size_bytes=400)
# What `is_worthwhile` lets through: a quarter of the target, and no more than a row group takes.
many_files = st.lists(st.tuples(st.integers(1, TARGET // 4), st.integers(1, 500)), max_size=60).map(
    lambda drawn: [file(size, rows, n) for n, (size, rows) in enumerate(drawn)]
)


@given(many_files)
def test_every_file_is_packed_once_and_in_order(files):
    outputs = packed(files, TARGET, LIMITS)
    assert [each for groups in outputs for group in groups for each in group] == files
    assert all(group for groups in outputs for group in groups)
    assert all(outputs)


@given(many_files)
def test_row_groups_are_within_their_limits_and_as_large_as_they_let(files):
    def fits(group: Sequence[InputFile]) -> bool:
        return (
            sum(each.size_bytes for each in group) <= LIMITS.size_bytes
            and sum(each.row_count for each in group) <= LIMITS.rows
        )

    for groups in packed(files, TARGET, LIMITS):
        assert all(map(fits, groups))
        for group, following in itertools.pairwise(groups):
            assert not fits([*group, following[0]])


@given(many_files)
def test_an_output_ends_where_it_is_nearest_to_its_target(files):
    outputs = [list(itertools.chain(*groups)) for groups in packed(files, TARGET, LIMITS)]
    for output in outputs:
        if len(output) > 1:
            assert distance(output) <= distance(output[:-1])
    for output, following in itertools.pairwise(outputs):
        assert distance(output) < distance([*output, following[0]])


def distance(output: Sequence[InputFile]) -> int:
    return abs(sum(each.size_bytes for each in output) - TARGET)


def test_no_files_make_no_outputs():
    assert packed([], TARGET, LIMITS) == []


# --- real outputs ---------------------------------------------------------------------------------


def several(folder: Path, count: int = 12, *, rows: int = ROWS, **write: Any) -> Subcompaction:
    """Files of about one size; the target is that of four or five."""
    files = inputs(folder, COLUMNS, count, rows=rows)
    target = 4 * max(each.size_bytes for each in files)
    settings_ = {"keeps_encoding": True, "target_file_size": target} | write
    return concat_subcompaction(folder, COLUMNS, files, **settings_)


@pytest.mark.parametrize("threaded", [False, True], ids=["alone", "threads"])
@pytest.mark.parametrize("continues", [False, True])
def test_each_output_is_described_as_by_decoding_its_inputs(tmp_path, threaded, continues):
    subcompaction = several(tmp_path, continues=continues, first_sequence_number=70)
    result = assert_same_as_by_decoding(subcompaction, threaded=threaded)
    assert len(result.after) == 3
    assert is_copied(subcompaction, result, "n")
    files = list(subcompaction.source.files)
    sequence = 70
    for output, path in zip(result.after, output_paths(subcompaction, result), strict=True):
        assert abs(output.file_size - subcompaction.write.target_file_size) < files[0].size_bytes
        there = len(bodies(path, "n"))
        source = replace(
            subcompaction.source, files=tuple(files[:there]), first_sequence_number=sequence
        )
        (expected,) = rewrite(decoding(replace(subcompaction, source=source))).after
        assert described(output) == described(expected)
        assert_healthy(path)
        del files[:there]
        sequence += output.row_count if continues else 0
    assert not files


def test_row_groups_end_at_the_limit_of_bytes(tmp_path):
    subcompaction = several(tmp_path, 6, target_file_size=1 << 30)
    size = max(each.size_bytes for each in subcompaction.source.files)
    subcompaction = with_groups_of(subcompaction, 2 * size + 1)
    result = assert_same_as_by_decoding(subcompaction)
    assert is_copied(subcompaction, result, "n")
    assert pages_of_groups(subcompaction, result, "n") == [2, 2, 2]


def pages_of_groups(subcompaction: Subcompaction, result: Any, name: str) -> list[int]:
    (path,) = output_paths(subcompaction, result)
    assert_healthy(path)
    footer = pq.read_metadata(path)
    inputs_ = iter(each.row_count for each in subcompaction.source.files)
    found = []
    for number in range(footer.num_row_groups):
        rows, count = footer.row_group(number).num_rows, 0
        while rows:
            rows -= next(inputs_)
            count += 1
        found.append(count)
    return found


def test_row_groups_end_at_the_limit_of_memory(tmp_path):
    subcompaction = several(tmp_path, 6, rows=3 * ROWS, target_file_size=1 << 30)
    rows = max(each.row_count for each in subcompaction.source.files)
    subcompaction = replace(
        subcompaction, memory_bytes=8 * math.ceil(3 * rows * row_bytes(subcompaction))
    )
    result = assert_same_as_by_decoding(subcompaction)
    assert is_copied(subcompaction, result, "n")
    assert pages_of_groups(subcompaction, result, "n") == [3, 3]


def row_bytes(subcompaction: Subcompaction) -> float:
    """Of a decoded row, as a task finds it."""
    reader = InputReader(subcompaction.storage.open(), append_layout(subcompaction.fields))
    return reader.profile(reader.opened(subcompaction.source)[0][0]).row_bytes


def test_rows_are_limited_by_memory_too():
    assert group_limits(8 << 20, 1 << 10) == GroupLimits(rows=1 << 10, size_bytes=1 << 20)
    assert group_limits(8 << 20, 0.0) == GroupLimits(rows=1 << 20, size_bytes=1 << 20)
    assert group_limits(8 << 30, 1.0).rows == 1 << 20
    assert group_limits(80, 1e9).rows == 1


# --- what is worth it -----------------------------------------------------------------------------


def is_copied_subcompaction(subcompaction: Subcompaction) -> bool:
    """Rewritten both ways; whether the pad's pages are those of the inputs."""
    return is_copied(subcompaction, assert_same_as_by_decoding(subcompaction), PAD)


def test_files_of_another_encoding_than_the_run_wants_are_decoded(tmp_path):
    subcompaction = several(tmp_path, 4)
    assert is_copied_subcompaction(subcompaction)
    assert not is_copied_subcompaction(
        replace(subcompaction, write=replace(subcompaction.write, keeps_encoding=False))
    )


def test_files_larger_than_a_quarter_of_an_output_are_decoded(tmp_path):
    subcompaction = several(tmp_path, 4)
    smaller = replace(
        subcompaction.write, target_file_size=subcompaction.write.target_file_size - 1
    )
    assert not is_copied_subcompaction(replace(subcompaction, write=smaller))


def test_files_larger_than_a_row_group_are_decoded(tmp_path):
    subcompaction = several(tmp_path, 4)
    size = max(each.size_bytes for each in subcompaction.source.files)
    for limit, expected in ((size, True), (size - 1, False)):
        changed = with_groups_of(subcompaction, limit)
        assert is_copied_subcompaction(changed) == expected


def test_files_larger_than_their_share_of_memory_are_decoded(tmp_path):
    subcompaction = several(tmp_path, 3, rows=6 * ROWS)
    rows = max(each.row_count for each in subcompaction.source.files)
    for limit, expected in ((rows, True), (rows - 1, False)):
        memory = 8 * math.ceil(limit * row_bytes(subcompaction))
        assert is_copied_subcompaction(replace(subcompaction, memory_bytes=memory)) == expected


def test_a_large_file_that_no_sample_shows_is_told_by_its_bytes(tmp_path):
    columns = padded(s="STRING")
    texts = pa.array([f"{n * 7919:01000}" for n in range(ROWS)])
    large = write_small(
        tmp_path / "large.parquet", table_of(columns, ROWS, 1, s=texts), compression="none"
    )
    (small,) = inputs(tmp_path, columns, 1, rows=ROWS // 2, compression="none")
    files = [small] * SAMPLE_FILES * 2
    files[1] = large
    assert large not in sample(files)
    subcompaction = concat_subcompaction(
        tmp_path, columns, files, keeps_encoding=True, compression="none"
    )
    for memory, expected in ((8 * large.size_bytes, True), (8 * large.size_bytes - 8, False)):
        assert is_copied_subcompaction(replace(subcompaction, memory_bytes=memory)) == expected


def test_small_pages_are_decoded_to_become_larger(tmp_path):
    columns = padded(n="INT")
    size = write_small(tmp_path / "x.parquet", table_of(columns, ROWS, 1)).size_bytes
    rows = ROWS * 2 * (16 << 10) // size
    for count, expected in ((rows - 100, False), (rows + 200, True)):
        files = inputs(tmp_path, columns, 3, rows=count)
        subcompaction = concat_subcompaction(tmp_path, columns, files, keeps_encoding=True)
        assert is_copied_subcompaction(subcompaction) == expected


def test_files_without_rows_are_passed_over_by_decoding(tmp_path):
    """There is no row group without rows, which such a file would be alone."""
    subcompaction = several(tmp_path, 4)
    empty = write_small(tmp_path / "empty.parquet", value_schema(COLUMNS).empty_table())
    files = (*subcompaction.source.files, empty)
    size = max(each.size_bytes for each in files)
    subcompaction = with_groups_of(subcompaction, size)
    subcompaction = replace(subcompaction, source=replace(subcompaction.source, files=files))
    assert not is_copied_subcompaction(subcompaction)


def test_files_that_are_mostly_dictionaries_are_decoded(tmp_path):
    columns = padded(n="BIGINT", s="STRING")
    words = pa.array([f"{n % 97:050}" for n in range(ROWS)])
    files = [
        write_small(
            tmp_path / f"{seed}.parquet",
            table_of(columns, ROWS, seed, s=words),
            use_dictionary=[PAD, "s"],
        )
        for seed in range(3)
    ]
    subcompaction = concat_subcompaction(tmp_path, columns, files, keeps_encoding=True)
    result = assert_same_as_by_decoding(subcompaction)
    assert not is_copied(subcompaction, result, "n")
