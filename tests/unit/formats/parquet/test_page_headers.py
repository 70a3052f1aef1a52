"""Page headers, which no checksum covers: what one says wrongly never changes rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compactord.errors import DataFileDamaged, FormatError
from compactord.formats.layout import append_layout, row_range
from compactord.formats.parquet import thrift
from compactord.formats.parquet.copying import footer_of
from compactord.formats.parquet.thrift import Kind, Struct
from compactord.model import KeyRange
from compactord.paimon.binary_row import encode_row
from compactord.paimon.types import value_schema
from compactord.rewrite.reader import Input, InputReader
from compactord.storage.local import LocalStorage
from tests.unit.formats.parquet.stored_pages import with_footer
from tests.unit.rewrite.builders import fields, input_file, write_parquet

ROWS = 120
COLUMNS = fields(k="BIGINT NOT NULL", s="STRING", c="STRING", a={"type": "ARRAY", "element": "INT"})
# Of PageHeader, and of its part for data pages of either version and for dictionaries.
TYPE, PARTS = 1, {0: 5, 2: 7, 3: 8}
KINDS: dict[str, dict[str, Any]] = {
    "as Java": {"write_page_index": True, "write_page_checksum": True},
    "statistics, no checksums": {"compression": "none"},
    "version 2": {"compression": "none", "data_page_version": "2.0"},
    "full dictionary": {"use_dictionary": True, "dictionary_pagesize_limit": 100},
}


@dataclass(frozen=True)
class Page:
    """A page of a file: where its header and its body begin."""

    column: str
    start: int
    body: int
    header: Struct

    @property
    def type(self) -> int:
        return int(self.header[TYPE].value)

    @property
    def part(self) -> Struct:
        found: Struct = self.header[PARTS[self.type]].value
        return found

    def changed(self, field: int, value: int) -> bytes:
        """The header with another number in its part for this type of page."""
        part = {**self.part, field: thrift.i32(value)}
        return thrift.encode({**self.header, PARTS[self.type]: thrift.struct(part)})


@dataclass(frozen=True)
class File:
    """A file that tests change, and how its rows are read."""

    path: Path
    content: bytes

    def read(self, *, key_range: tuple[int, int] | None = None) -> pa.Table:
        layout = append_layout(COLUMNS).with_dictionaries({"c"})
        rows = None
        if key_range is not None:
            low, high = (encode_row([key], [COLUMNS[0].type]) for key in key_range)
            rows = row_range(KeyRange(lower=low, upper=high), COLUMNS[:1])
        reader = InputReader(LocalStorage(), layout, rows)
        batches = list(Input(reader, input_file(self.path, ROWS)).batches(25))
        found = pa.Table.from_batches(batches, schema=layout.row_schema)
        found.validate(full=True)
        return found.unify_dictionaries()

    def pages(self, column: str | None = None) -> list[Page]:
        return [page for page in _pages(self.content) if column in (None, page.column)]

    def with_header(self, page: Page, header: bytes) -> None:
        """The page with another header of the same length."""
        assert len(header) == page.body - page.start
        assert header != self.content[page.start : page.body]
        self.path.write_bytes(self.content[: page.start] + header + self.content[page.body :])

    def flip(self, place: int, bit: int) -> None:
        content = bytearray(self.content)
        content[place] ^= 1 << bit
        self.path.write_bytes(content)


def written(folder: Path, **options: Any) -> File:
    """Two row groups of several pages for each column."""
    path = folder / "in.parquet"
    settings = {
        "use_dictionary": ["c"],
        "row_group_size": 80,
        "max_rows_per_page": 30,
        "write_batch_size": 10,
    }
    write_parquet(path, rows_written(), **settings | options)
    return File(path, path.read_bytes())


@cache
def rows_written() -> pa.Table:
    rows = [
        {
            "k": 3 * n,
            "s": None if n % 5 == 0 else f"text {n * 7919 % 101}",
            "c": None if n % 9 == 0 else f"class {n * 31 % 7}",
            "a": None if n % 8 == 0 else [None if i == n % 4 else i for i in range(n % 4)],
        }
        for n in range(ROWS)
    ]
    return pa.Table.from_pylist(rows, schema=value_schema(COLUMNS))


def _pages(content: bytes) -> Iterator[Page]:
    for group in footer_of(content)[4].value.values:
        for chunk in group[1].value.values:
            meta = chunk[3].value
            position = min(meta[field].value for field in (9, 11) if field in meta)
            end = position + meta[7].value
            while position < end:
                header, body = thrift.decode(content, position)
                column = meta[3].value.values[0].decode()
                yield Page(column=column, start=position, body=body, header=header)
                position = body + header[3].value


def assert_refused(file: File, message: str, **how: Any) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        file.read(**how)
    assert str(file.path) in str(caught.value)


# --- any bit --------------------------------------------------------------------------------------


@pytest.mark.parametrize("key_range", [None, (60, 150)], ids=["whole", "range"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_bit_of_a_header_changes_rows(tmp_path, kind, key_range):
    """Not every one of them, but all places of a header, each in some of the pages."""
    file = written(tmp_path, **KINDS[kind])
    rows = file.read(key_range=key_range)
    bits = [
        (place, bit)
        for page in file.pages()
        for place in range(page.start, page.body)
        for bit in range(8)
    ]
    refused = 0
    for place, bit in bits[::47]:
        file.flip(place, bit)
        try:
            found = file.read(key_range=key_range)
        except FormatError as error:
            assert str(file.path) in str(error)  # noqa: PT017
            refused += 1
        else:
            assert found.equals(rows), (place, bit)
    assert refused > 25


def test_no_bit_of_an_offset_index_matters(tmp_path):
    """It is as little covered by checksums as headers are; so it is not asked."""
    file = written(tmp_path, **KINDS["as Java"])
    rows = file.read()
    for group in footer_of(file.content)[4].value.values:
        for chunk in group[1].value.values:
            at, size = chunk[4].value, chunk[5].value
            for place in range(at, at + size, 11):
                file.flip(place, place % 8)
                assert file.read().equals(rows)


# --- what is wrong, and how it is said ------------------------------------------------------------


@pytest.mark.parametrize("difference", [-1, 1, 8])
@pytest.mark.parametrize("column", ["k", "s", "c", "a"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_with_another_number_of_values_is_refused(tmp_path, kind, column, difference):
    file = written(tmp_path, **KINDS[kind])
    pages = [page for page in file.pages(column) if page.type != 2]
    page = pages[1]
    file.with_header(page, page.changed(1, page.part[1].value + difference))
    # Of version 2 the levels tell already.
    message = rf"column {column}[.a-z]*, row group 0: (its pages hold \d+ values|a page's levels)"
    assert_refused(file, message)
    assert_refused(file, message, key_range=(0, 9))


def test_a_page_that_arrow_would_pass_over_is_refused(tmp_path):
    file = written(tmp_path, **KINDS["as Java"])
    page = file.pages("s")[1]
    file.with_header(page, thrift.encode({**page.header, TYPE: thrift.i32(1)}))
    assert_refused(file, "column s, row group 0: its page at byte .*unknown page type 1")


def test_only_the_row_groups_of_a_range_are_looked_at(tmp_path):
    file = written(tmp_path, **KINDS["as Java"])
    page = file.pages("s")[-1]
    file.with_header(page, page.changed(1, page.part[1].value - 1))
    assert file.read(key_range=(0, 9)).column("k").to_pylist() == [0, 3, 6]
    assert_refused(file, "column s, row group 1")


@pytest.mark.parametrize("field", [5, 6], ids=["definition", "repetition"])
@pytest.mark.parametrize("difference", [-1, 1, 30])
def test_levels_that_are_not_as_long_as_the_header_says_are_refused(tmp_path, field, difference):
    file = written(tmp_path, **KINDS["version 2"])
    page = file.pages("a")[1]
    file.with_header(page, page.changed(field, page.part[field].value + difference))
    assert_refused(
        file, "column a.list.element, row group 0: a page's levels do not have the length"
    )


@pytest.mark.parametrize("more", [2, 4])
def test_values_that_look_like_levels_are_not_taken_for_them(tmp_path, more):
    """The length of a text, in four bytes, is a run of few levels, too."""
    file = written(tmp_path, **KINDS["version 2"])
    (page,) = [
        page
        for page in file.pages("s")
        if file.content[page.body + page.part[5].value] == {2: 6, 4: 7}[more]
    ][:1]
    file.with_header(page, page.changed(5, page.part[5].value + more))
    assert_refused(file, "column s, row group [01]: a page's levels do not have the length")


def test_missing_levels_are_refused(tmp_path):
    file = written(tmp_path, **KINDS["version 2"])
    page = file.pages("s")[0]
    file.with_header(page, page.changed(5, 0))
    assert_refused(file, "column s, row group 0: a page's levels do not have the length")


def test_levels_of_less_than_no_bytes_are_refused(tmp_path):
    file = written(tmp_path, **KINDS["version 2"])
    page = file.pages("s")[0]
    file.with_header(page, page.changed(5, -page.part[5].value))
    assert_refused(file, "column s, row group 0: a page's levels are longer than the page")


def test_levels_of_a_column_that_has_none_are_refused(tmp_path):
    file = written(tmp_path, **KINDS["version 2"])
    page = file.pages("k")[1]
    assert page.part[5].value == 0
    file.with_header(page, page.changed(5, 1))
    assert_refused(file, "column k, row group 0: a page's levels do not have the length")


def test_a_page_that_is_said_not_to_be_compressed_is_refused(tmp_path):
    file = written(tmp_path, data_page_version="2.0")
    page = file.pages("s")[0]
    part = {**page.part, 7: thrift.Typed(Kind.FALSE, False)}
    file.with_header(page, thrift.encode({**page.header, 8: thrift.struct(part)}))
    assert_refused(file, "column s, row group 0: an uncompressed page has two different sizes")


def test_two_sizes_of_a_page_that_is_not_compressed_are_refused(tmp_path):
    file = written(tmp_path, **KINDS["statistics, no checksums"])
    page = file.pages("s")[0]
    file.with_header(page, thrift.encode({**page.header, 2: thrift.i32(page.header[2].value + 1)}))
    assert_refused(file, "column s, row group 0: an uncompressed page has two different sizes")


@pytest.mark.parametrize(("kind", "column"), [("as Java", "c"), ("full dictionary", "s")])
@pytest.mark.parametrize("counts", ["as written", "one list missing", "all missing"])
def test_indices_and_plain_values_are_told_apart(tmp_path, kind, column, counts):
    """The footer names both encodings in either case; how many pages each has is in its counts."""
    file = written(tmp_path, **KINDS[kind])
    if counts != "as written":
        file = without_encoding_counts(file, all_of_them=counts == "all missing")
    rows = file.read()
    assert rows.select(["k"]).equals(rows_written().select(["k"]))
    page = file.pages(column)[-1]
    wrong = {0: 8, 8: 0}[page.part[2].value]
    file.with_header(page, page.changed(2, wrong))
    if counts == "all missing":
        with pytest.raises(FormatError):
            file.read()
    else:
        assert_refused(file, f"column {column}, row group 1: its pages have other encodings")


def with_metas(file: File, changed: Callable[[Struct], Struct]) -> File:
    """The file with something else in its footer about each chunk."""
    footer = footer_of(file.content)
    groups = []
    for group in footer[4].value.values:
        chunks = [
            {**chunk, 3: thrift.struct(changed(chunk[3].value))} for chunk in group[1].value.values
        ]
        groups.append({**group, 1: thrift.items(Kind.STRUCT, chunks)})
    with_footer(file.path, {**footer, 4: thrift.items(Kind.STRUCT, groups)}, ROWS)
    return replace(file, content=file.path.read_bytes())


def without_encoding_counts(file: File, *, all_of_them: bool) -> File:
    """Of all chunks, or of the first one."""
    left = iter([False] if not all_of_them else [])

    def changed(meta: Struct) -> Struct:
        if next(left, not all_of_them):
            return meta
        return {field: value for field, value in meta.items() if field != 13}

    return with_metas(file, changed)


def test_an_encoding_that_the_footer_does_not_name_is_refused(tmp_path):
    file = written(tmp_path, **KINDS["statistics, no checksums"])
    page = file.pages("s")[0]
    file.with_header(page, page.changed(2, 6))
    assert_refused(file, "column s, row group 0: a page has an encoding that the footer does not")
    file.with_header(page, page.changed(3, 4))
    assert_refused(file, "column s, row group 0: a page has an encoding that the footer does not")


@pytest.mark.parametrize("column", ["k", "s"])
def test_a_header_that_ends_too_early_is_refused_without_checksums_too(tmp_path, column):
    """Statistics with a byte less: the page's values would begin with what was theirs."""
    file = written(tmp_path, **KINDS["statistics, no checksums"])
    page = file.pages(column)[-1]
    content = bytearray(file.content[page.start : page.body])
    # Flags, then the ends of statistics, of the part and of the header: an end before the flags.
    assert content[-5:] == b"\x11\x11\x00\x00\x00"
    content[-5] = 0
    file.with_header(page, bytes(content))
    assert_refused(file, f"column {column}, row group 1")


def test_a_header_that_ends_too_late_is_refused_without_checksums_too(tmp_path):
    file = written(tmp_path, compression="none", max_rows_per_page=ROWS)
    page = file.pages("k")[0]
    # The header's end becomes the head of a field, for which the first value's zeros are number
    # and end.
    assert file.content[page.body - 1 : page.body + 2] == b"\x00\x00\x00"
    file.flip(page.body - 1, 0)
    assert_refused(file, "column k, row group 0: its pages do not end at the offset in the footer")


def test_a_page_of_less_than_no_bytes_is_refused(tmp_path):
    """Its end would lie before it, and the next header with it."""
    file = written(tmp_path, **KINDS["as Java"])
    page = file.pages("s")[1]
    negative = thrift.i32(-page.header[3].value)
    file.with_header(page, thrift.encode({**page.header, 3: negative}))
    assert_refused(file, "column s, row group 0: its page .*negative size or value count")


def test_a_header_that_was_overwritten_proves_damage(tmp_path):
    file = written(tmp_path, **KINDS["as Java"])
    page = file.pages("s")[1]
    content = bytearray(file.path.read_bytes())
    content[page.start : page.start + 64] = bytes(64)
    file.path.write_bytes(content)
    with pytest.raises(DataFileDamaged, match="has no readable header"):
        file.read()


def test_a_chunk_outside_of_the_file_is_refused(tmp_path):
    file = written(tmp_path, **KINDS["as Java"])
    file = with_metas(file, lambda meta: {**meta, 9: thrift.i64(1 << 40)})
    assert_refused(file, "column k, row group 0: the footer places it outside the file")


def test_row_groups_with_other_numbers_of_rows_are_refused(tmp_path):
    file = written(tmp_path, **KINDS["as Java"])
    footer = footer_of(file.content)
    groups = [
        {**group, 3: thrift.i64(group[3].value + difference)}
        for group, difference in zip(footer[4].value.values, (1, -1), strict=True)
    ]
    with_footer(file.path, {**footer, 4: thrift.items(Kind.STRUCT, groups)}, ROWS)
    assert_refused(file, "column k, row group 0: it has 80 values for 81 rows")


def test_a_dictionary_with_fewer_values_than_are_used_is_refused(tmp_path):
    """Arrow hands out such a dictionary as it is, with indices behind its end."""
    file = written(tmp_path, **KINDS["as Java"])
    page = file.pages("c")[0]
    assert page.type == 2
    file.with_header(page, page.changed(1, page.part[1].value - 1))
    assert_refused(file, "column c has values outside of its dictionary")
