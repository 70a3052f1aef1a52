"""Wrong page indexes and headers in files of which merges copy pages; none has a checksum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from compactord.formats.parquet import thrift
from compactord.formats.parquet.copying import footer_of
from compactord.formats.parquet.thrift import (
    Chunk,
    ColumnIndex,
    File,
    Group,
    Kind,
    Meta,
    OffsetIndex,
    PageLocation,
)
from compactord.model import InputFile, Subcompaction, SubcompactionFailure
from compactord.rewrite.subcompaction import run_subcompaction
from tests.unit.formats.parquet.stored_pages import assert_healthy, bodies, with_footer
from tests.unit.rewrite.builders import KIND, SEQUENCE, files_left
from tests.unit.rewrite.large_files import (
    BEGIN,
    NONE,
    PAGE,
    ROWS,
    assert_refused,
    copied_pages,
    huge,
    locations,
    merge,
    number,
    run,
    small,
)
from tests.unit.rewrite.large_files import claiming as claiming_in_footer

Made: TypeAlias = Callable[[Path], Subcompaction]


def with_index(
    file: InputFile, column: str, at: int, change: Callable[[dict[int, Any]], None]
) -> InputFile:
    """The file whose index of a column is changed; `at` is the field that has its offset."""
    path = Path(file.path)
    content = path.read_bytes()
    footer = footer_of(content)
    (group,) = footer[File.GROUPS].value.values
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    chunks = []
    for chunk in group[Group.COLUMNS].value.values:
        if chunk[Chunk.META].value[Meta.PATH].value.values == [column.encode()]:
            index = dict(thrift.decode(content, chunk[at].value)[0])
            change(index)
            encoded = thrift.encode(index)
            content = content[:end] + encoded + content[end:]
            chunk = {**chunk, at: thrift.i64(end), at + 1: thrift.i32(len(encoded))}
            end += len(encoded)
        chunks.append(chunk)
    path.write_bytes(content)
    group = {**group, Group.COLUMNS: thrift.items(Kind.STRUCT, chunks)}
    changed = {**footer, File.GROUPS: thrift.items(Kind.STRUCT, [group])}
    sizes = with_footer(path, changed, file.row_count)
    return replace(file, size_bytes=sizes.size_bytes)


def claiming(file: InputFile, column: str, page: int, low: bytes, high: bytes) -> InputFile:
    """The file, whose column index has these bounds of a page."""

    def change(index: dict[int, Any]) -> None:
        for field, bound in ((ColumnIndex.LOWS, low), (ColumnIndex.HIGHS, high)):
            values = list(index[field].value.values)
            values[page] = bound
            index[field] = thrift.items(Kind.BINARY, values)

    return with_index(file, column, Chunk.COLUMN_INDEX_AT, change)


def wrong_keys(folder: Path) -> Subcompaction:
    """The other run has a key that is said not to be in the page."""
    old = claiming(huge(folder), "k", 20, number(BEGIN[20]), number(BEGIN[20] + 600))
    return merge(folder, [old], [small(folder, [BEGIN[20] + 700])])


def wrong_keys_of_the_other_run(folder: Path) -> Subcompaction:
    """Both are read by pages; the other one begins with a key of a page that is copied."""
    new = run(
        folder / "b.parquet",
        [BEGIN[3], *range(BEGIN[30], BEGIN[30] + 2 * ROWS, 2)],
        1 << 20,
        row_group_size=2 * ROWS,
    )
    new = claiming_in_footer(new, "k", number(BEGIN[30]), number(BEGIN[30] + 2 * ROWS))
    return merge(folder, [huge(folder)], [new])


def wrong_rows(folder: Path) -> Subcompaction:
    """A page is said to begin ten rows later."""

    def change(index: dict[int, Any]) -> None:
        pages = [dict(each) for each in index[OffsetIndex.LOCATIONS].value.values]
        row = pages[20][PageLocation.FIRST_ROW].value
        pages[20][PageLocation.FIRST_ROW] = thrift.i64(row + 10)
        index[OffsetIndex.LOCATIONS] = thrift.items(Kind.STRUCT, pages)

    old = with_index(huge(folder), "k", Chunk.OFFSET_INDEX_AT, change)
    return merge(folder, [old], [small(folder, [BEGIN[20] + 500])])


def wrong_kinds(folder: Path) -> Subcompaction:
    kinds = np.zeros(ROWS, np.int8)
    kinds[7 * PAGE + 3] = kinds[20 * PAGE] = 3
    old = claiming(huge(folder, kinds=kinds), KIND, 7, bytes(4), bytes(4))
    return merge(folder, [old], [small(folder, [-5])])


def wrong_numbers(folder: Path) -> Subcompaction:
    old = claiming(huge(folder), SEQUENCE, 0, number(3), number(PAGE - 1))
    return merge(folder, [old], [small(folder, [BEGIN[20]])])


def wrong_page(folder: Path) -> Subcompaction:
    old = huge(folder)
    content = bytearray(Path(old.path).read_bytes())
    place = content.index(bodies(old.path, "n")[3]) + 100
    content[place] ^= 1
    Path(old.path).write_bytes(content)
    return merge(folder, [old], [small(folder, [BEGIN[20]])])


DAMAGED: dict[str, tuple[Made, str]] = {
    "keys": (wrong_keys, "keys are not within their statistics"),
    "keys of the other run": (wrong_keys_of_the_other_run, "keys are not within their statistics"),
    "rows": (wrong_rows, "keys are not within their statistics"),
    "kinds": (wrong_kinds, "its kinds are not its statistics'"),
    "sequence numbers": (wrong_numbers, "its sequence numbers are not its statistics'"),
    "a page": (wrong_page, "column n: a page's checksum is wrong"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_what_is_not_as_declared_is_refused(tmp_path, what):
    made, message = DAMAGED[what]
    assert_refused(made(tmp_path), message)


def unsorted(index: dict[int, Any]) -> None:
    """The second page is said to have keys of the third."""
    for field in (ColumnIndex.LOWS, ColumnIndex.HIGHS):
        values = list(index[field].value.values)
        values[1], values[2] = values[2], values[1]
        index[field] = thrift.items(Kind.BINARY, values)


def too_few(index: dict[int, Any]) -> None:
    for field in (ColumnIndex.LOWS, ColumnIndex.HIGHS):
        values = list(index[field].value.values)
        index[field] = thrift.items(Kind.BINARY, values[1:])


def other_nulls(index: dict[int, Any]) -> None:
    counts = list(index[ColumnIndex.NULL_COUNTS].value.values)
    index[ColumnIndex.NULL_COUNTS] = thrift.items(Kind.I64, [counts[0] + 1, *counts[1:]])


def without_nulls(index: dict[int, Any]) -> None:
    del index[ColumnIndex.NULL_COUNTS]


def null_page(index: dict[int, Any]) -> None:
    pages = list(index[ColumnIndex.NULL_PAGES].value.values)
    index[ColumnIndex.NULL_PAGES] = thrift.items(Kind.TRUE, [Kind.TRUE, *pages[1:]])


def all_null(index: dict[int, Any]) -> None:
    pages = index[ColumnIndex.NULL_PAGES].value.values
    index[ColumnIndex.NULL_PAGES] = thrift.items(Kind.TRUE, [Kind.TRUE] * len(pages))


# An index that contradicts itself or the footer is not used.
UNUSED: dict[str, tuple[str, Callable[[dict[int, Any]], None], str]] = {
    "keys that do not ascend": ("k", unsorted, "n"),
    "keys of some pages": ("k", too_few, "n"),
    "values of some pages": ("n", too_few, "n"),
    "other counts of nulls": ("s", other_nulls, "s"),
    "counts of nulls in a column that has none": ("n", other_nulls, "n"),
    "a page that is not null": ("s", null_page, "s"),
    "nothing but nulls": ("n", all_null, "n"),
    "no counts of nulls": ("s", without_nulls, "s"),
}


@pytest.mark.parametrize("case", UNUSED)
def test_an_index_is_not_used(tmp_path, case):
    column, change, encoded = UNUSED[case]
    old = with_index(huge(tmp_path, use_dictionary=[KIND]), column, Chunk.COLUMN_INDEX_AT, change)
    subcompaction = merge(tmp_path, [old], [small(tmp_path, [BEGIN[20]])])
    assert copied_pages(subcompaction, encoded) == NONE
    (path,) = Path(subcompaction.write.folder).iterdir()
    assert_healthy(path)
    others = NONE if column == "k" else [(0, 20), (21, 40)]
    assert copied_pages(subcompaction, SEQUENCE) == others


def test_bounds_of_pages_may_be_wider_than_the_row_groups(tmp_path):
    """Writers truncate bounds of long texts."""
    old = claiming(huge(tmp_path), "k", 39, number(BEGIN[39]), number(4 * ROWS))
    old = claiming(old, "k", 0, number(-4 * ROWS), number(BEGIN[1] - 2))
    keys = (-1, BEGIN[20], 2 * ROWS)
    runs = [[run(tmp_path / f"{n}.parquet", [key], (1 << 20) + n)] for n, key in enumerate(keys)]
    assert copied_pages(merge(tmp_path, [old], *runs)) == [(0, 20), (21, 40)]


def test_no_counts_of_nulls_where_there_are_none(tmp_path):
    old = with_index(huge(tmp_path), "n", Chunk.COLUMN_INDEX_AT, without_nulls)
    subcompaction = merge(tmp_path, [old], [small(tmp_path, [BEGIN[20]])])
    assert copied_pages(subcompaction) == [(0, 20), (21, 40)]


def test_a_decoded_size_that_does_not_add_up(tmp_path):
    """Such a page is decoded, which fails: checksums do not cover its header."""
    old = huge(tmp_path)
    path = Path(old.path)
    content = bytearray(path.read_bytes())
    head = locations(path, "n")[3].offset
    size, end = thrift.signed(content, head + 3)
    changed = bytearray()
    thrift.put_signed(changed, size + 1)
    assert len(changed) == end - head - 3
    content[head + 3 : end] = changed
    path.write_bytes(content)
    subcompaction = merge(tmp_path, [old], [small(tmp_path, [BEGIN[20]])])
    outcome = run_subcompaction(subcompaction)
    assert isinstance(outcome, SubcompactionFailure)
    assert "huge.parquet" in outcome.message
    assert files_left(subcompaction) == []
