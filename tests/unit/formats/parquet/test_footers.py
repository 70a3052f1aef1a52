"""Footers, which no checksum covers: what one says wrongly never ends the process or changes rows.

Arrow ends the process for some footers, so flips are tried in processes of their own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.errors import FormatError
from compactord.formats.layout import append_layout
from compactord.formats.parquet import thrift
from compactord.formats.parquet.copying import footer_of
from compactord.formats.parquet.reader import profile
from compactord.formats.parquet.thrift import Kind, Struct
from compactord.model import InputFile
from compactord.paimon.types import value_schema
from compactord.rewrite.reader import Input, InputReader
from compactord.rewrite.split import cut_ranges
from compactord.storage.local import LocalStorage
from tests.unit.formats.parquet.stored_pages import parquet_input, with_footer
from tests.unit.rewrite.builders import (
    fields,
    input_file,
    merge_subcompaction,
    write_parquet,
)

ROWS = 24
COLUMNS = fields(
    k="BIGINT NOT NULL", c="STRING", u="TIMESTAMP(6)", a={"type": "ARRAY", "element": "INT"}
)
LAYOUT = append_layout(COLUMNS).with_dictionaries({"c"})
SCHEMA, GROUPS, CHUNKS, META, SIZES = 2, 4, 1, 3, 16
PROCESSES = 4
# At the least.
SCHEMA_BYTES = 150
# Of the footers that are refused at once, those that are tried in every way.
ONE_IN = 16


@dataclass(frozen=True)
class File:
    """A file that tests change."""

    input: InputFile
    content: bytes

    @property
    def path(self) -> Path:
        return Path(self.input.path)

    @property
    def footer_start(self) -> int:
        return len(self.content) - 8 - int.from_bytes(self.content[-8:-4], "little")

    def moved(self, path: Path) -> File:
        path.write_bytes(self.content)
        return replace(self, input=replace(self.input, path=str(path)))

    def flip(self, place: int, bit: int) -> None:
        content = bytearray(self.content)
        content[place] ^= 1 << bit
        self.path.write_bytes(content)

    def with_footer(self, footer: Struct) -> File:
        found = with_footer(self.path, footer, self.input.row_count)
        return File(found, self.path.read_bytes())

    def with_element(self, number: int, changed: Callable[[Struct], Struct]) -> File:
        """The file with something else in its schema."""
        footer = footer_of(self.content)
        elements = list(footer[SCHEMA].value.values)
        elements[number] = changed(elements[number])
        return self.with_footer({**footer, SCHEMA: thrift.items(Kind.STRUCT, elements)})

    def with_metas(self, changed: Callable[[Struct], Struct]) -> File:
        """The file with something else in its footer about each chunk."""
        footer = footer_of(self.content)
        groups = []
        for group in footer[GROUPS].value.values:
            chunks = [
                {**chunk, META: thrift.struct(changed(chunk[META].value))}
                for chunk in group[CHUNKS].value.values
            ]
            groups.append({**group, CHUNKS: thrift.items(Kind.STRUCT, chunks)})
        return self.with_footer({**footer, GROUPS: thrift.items(Kind.STRUCT, groups)})

    def opened(self) -> Input:
        return Input(InputReader(LocalStorage(), LAYOUT), self.input)

    def footer(self) -> pq.FileMetaData:
        return parquet_input(self.input).footer().arrow

    def rows(self) -> pa.Table:
        opened = self.opened()
        found = pa.Table.from_batches(list(opened.batches(10)), schema=opened.layout.row_schema)
        return found.unify_dictionaries()

    def profile(self) -> None:
        opened = self.opened()
        profile([opened.stored], opened.layout)
        opened.stored.open_bytes(opened.layout)

    def cut(self) -> None:
        source = merge_subcompaction(self.path.parent, COLUMNS, ["k"], [[self.input]]).source
        cut_ranges(source, 3, COLUMNS, LocalStorage())


def written(path: Path, *, has_sizes: bool = True, nulls: bool = True, **options: Any) -> File:
    """Two row groups of several pages, with page indexes."""
    rows = [
        {
            "k": 3 * n,
            "c": None if nulls and n % 9 == 0 else f"class {n % 3}",
            "u": None if nulls and n % 7 == 0 else n * 1_000_000,
            "a": None if n % 8 == 0 else [None if i == n % 4 else i for i in range(n % 4)],
        }
        for n in range(ROWS)
    ]
    settings = {
        "use_dictionary": ["c"],
        "row_group_size": ROWS * 2 // 3,
        "write_page_index": True,
        "write_page_checksum": True,
    }
    write_parquet(path, pa.Table.from_pylist(rows, value_schema(COLUMNS)), **settings | options)
    file = File(input_file(path, ROWS), path.read_bytes())
    assert SIZES in footer_of(file.content)[4].value.values[0][1].value.values[-1][3].value
    return file if has_sizes else file.with_metas(lambda meta: without(meta, SIZES))


def without(fields_: Struct, *numbers: int) -> Struct:
    return {field: value for field, value in fields_.items() if field not in numbers}


# --- any bit --------------------------------------------------------------------------------------


def wrongs(file: File, rows: pa.Table, flips: list[tuple[int, int]]) -> Iterator[str]:
    """Names each flip before it is tried, then what was wrong with it."""
    for number, (place, bit) in enumerate(flips):
        yield f"byte {place}, bit {bit}"
        file.flip(place, bit)
        for look in (file.profile, file.rows, file.cut):
            try:
                found = look()
            except FormatError as error:
                if str(file.path) not in str(error):
                    yield f"! {error}"
                # Whoever reads it comes through the same door.
                if look == file.profile and number % ONE_IN:
                    break
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is not a FormatError
                yield f"! {look.__name__}: {error!r}"
            else:
                if found is not None and not found.equals(rows):
                    yield "! other rows"


def tried(file: File, flips: list[tuple[int, int]]) -> tuple[int, Any]:
    """A process that tries them, and what it writes."""
    rows = file.rows()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, os.fdopen(reading)
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with os.fdopen(writing, "w", buffering=1) as out:
            for line in wrongs(file, rows, flips):
                out.write(line.replace("\n", " ")[:300] + "\n")
        status = 0
    finally:
        os._exit(status)


@pytest.mark.parametrize("has_sizes", [True, False])
def test_no_bit_of_a_footer_ends_the_process_or_changes_rows(tmp_path, cut_points, has_sizes):
    file = written(tmp_path / "in.parquet", has_sizes=has_sizes)
    flips = [
        (place, bit) for place in range(file.footer_start, len(file.content)) for bit in range(8)
    ]
    if not has_sizes:
        # Counts of levels tell of nulls what the schema says; the rest is as it was with them.
        schema_bits = 8 * SCHEMA_BYTES
        flips = flips[:schema_bits] + flips[schema_bits::7]
    flips = [*cut_points.of(flips, 5)]
    children = [
        tried(file.moved(tmp_path / f"{n}.parquet"), flips[n::PROCESSES]) for n in range(PROCESSES)
    ]
    wrong, count = [], 0
    for pid, lines in children:
        last = ""
        for line in lines:
            if line.startswith("!"):
                wrong.append(f"{last}: {line}")
            else:
                last, count = line.strip(), count + 1
        lines.close()
        _, status = os.waitpid(pid, 0)
        if status:
            wrong.append(f"{last}: {signal.strsignal(os.waitstatus_to_exitcode(status) * -1)}")
    assert wrong == []
    assert count == len(flips)


# --- what is wrong, and how it is said ------------------------------------------------------------


def assert_refused(file: File, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        file.rows()
    assert str(file.path) in str(caught.value)


@pytest.fixture
def file(tmp_path) -> File:
    return written(tmp_path / "in.parquet", has_sizes=False)


def test_a_file_that_does_not_end_as_parquet_is_refused(file):
    file.path.write_bytes(file.content[:-4] + b"PARE")
    assert_refused(file, "no Parquet footer")


def test_chunks_of_another_type_are_refused(file):
    assert_refused(file.with_metas(lambda m: {**m, 1: thrift.i32(4)}), "a chunk of it of 4")


def test_unknown_codecs_and_encodings_are_refused(file):
    changed = file.with_metas(lambda m: {**m, 4: thrift.i32(3)})
    assert_refused(changed, "has an unknown codec")
    changed = file.with_metas(lambda m: {**m, 2: thrift.items(Kind.I32, [11])})
    assert_refused(changed, "has an unknown encoding")


def test_level_counts_of_another_column_are_refused(file):
    sizes = {3: thrift.items(Kind.I64, [1, 2, 3, 4, 5, 6])}
    changed = file.with_metas(lambda m: {**m, SIZES: thrift.struct(sizes)})
    assert_refused(changed, "column k has level histograms of the wrong length")


def test_encrypted_chunks_are_refused(file):
    footer = footer_of(file.content)
    group = footer[GROUPS].value.values[0]
    chunks = [{**chunk, 8: thrift.struct({})} for chunk in group[CHUNKS].value.values]
    groups = [{**group, CHUNKS: thrift.items(Kind.STRUCT, chunks)}]
    changed = file.with_footer({**footer, GROUPS: thrift.items(Kind.STRUCT, groups)})
    assert_refused(changed, "is encrypted")


def test_a_row_group_without_one_of_its_columns_is_refused(file):
    footer = footer_of(file.content)
    group = footer[GROUPS].value.values[0]
    chunks = thrift.items(Kind.STRUCT, group[CHUNKS].value.values[:-1])
    groups = [{**group, CHUNKS: chunks}]
    changed = file.with_footer({**footer, GROUPS: thrift.items(Kind.STRUCT, groups)})
    assert_refused(changed, "a row group has 3 of 4 columns")


@pytest.mark.parametrize("look", [File.rows, File.profile, File.cut])
def test_a_name_that_is_not_text_is_refused(file, look):
    changed = file.with_element(1, lambda element: {**element, 4: thrift.binary(b"\xff")})
    with pytest.raises(FormatError, match=r"in\.parquet"):
        look(changed)


@pytest.mark.parametrize("name", ["l", "kk"])
def test_keys_of_another_name_are_refused_where_they_are_cut(tmp_path, name):
    path = tmp_path / "in.parquet"
    write_parquet(path, pa.table({name: pa.array([1, 2])}))
    file = File(input_file(path, 2), path.read_bytes())
    with pytest.raises(FormatError, match=r"no column k: .*in\.parquet"):
        file.cut()


# --- what is said twice of a type, or of nulls ----------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_column_that_is_wrongly_said_to_have_no_nulls_is_refused(tmp_path, codec, version):
    """Its levels would be read as a text of two bytes, and the rows shift by one."""
    options = {"compression": codec, "data_page_version": version, "use_dictionary": False}
    file = written(tmp_path / "in.parquet", has_sizes=False, nulls=False, **options)
    changed = file.with_element(2, lambda element: {**element, 3: thrift.i32(0)})
    assert_refused(
        changed, "column c, row group 0: (its pages and the footer disagree|a page's levels)"
    )


def test_a_column_that_is_wrongly_said_to_have_nulls_is_refused(file):
    changed = file.with_element(1, lambda element: {**element, 3: thrift.i32(1)})
    assert_refused(
        changed,
        "column k, row group 0: its pages and the footer disagree on whether it may be null",
    )


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "lz4"])
def test_a_file_written_when_the_column_could_not_be_null_is_read(tmp_path, codec):
    path = tmp_path / "in.parquet"
    file = written(path, nulls=False)
    table = file.rows().cast(value_schema(COLUMNS))
    schema = table.schema.set(1, table.schema.field(1).with_nullable(False))
    schema = schema.set(0, schema.field(0).with_nullable(True))
    write_parquet(path, table.cast(schema), compression=codec, use_dictionary=["c"])
    assert pq.ParquetFile(path).schema.column(1).max_definition_level == 0
    found = File(input_file(path, ROWS), path.read_bytes()).rows()
    assert found.column("c").cast(pa.string()).equals(table.column("c"))


def test_nanoseconds_that_no_writer_makes_are_refused(file):
    """One bit beside microseconds; whole ones would be taken for a thousandth of what they are."""
    kind = thrift.struct(
        {1: thrift.Typed(Kind.FALSE, False), 2: thrift.struct({3: thrift.struct({})})}
    )
    changed = file.with_element(3, lambda e: {**without(e, 6), 10: thrift.struct({8: kind})})
    assert_refused(changed, r"column u: the file has INT64 \(TIMESTAMP in ns\)")


YES = thrift.Typed(Kind.TRUE, True)
MICROSECONDS = thrift.struct({2: thrift.struct({})})


@pytest.mark.parametrize(
    ("stored", "changed"),
    [
        (pa.decimal128(9, 2), {5: {1: thrift.i32(3), 2: thrift.i32(9)}}),
        (pa.int8(), {10: {1: thrift.Typed(Kind.I8, 16), 2: YES}}),
        (pa.time32("ms"), {7: {1: YES, 2: MICROSECONDS}}),
    ],
)
def test_a_type_that_is_said_in_two_ways_must_be_one(tmp_path, stored, changed):
    path = tmp_path / "in.parquet"
    write_parquet(path, pa.table({"v": pa.nulls(2, stored)}))
    logical = {field: thrift.struct(value) for field, value in changed.items()}
    file = File(input_file(path, 2), path.read_bytes())
    assert file.footer().num_rows == 2
    file = file.with_element(1, lambda element: {**element, 10: thrift.struct(logical)})
    with pytest.raises(FormatError, match="contradictory types of a column"):
        file.footer()


# --- how it is read -------------------------------------------------------------------------------


def test_arrow_does_not_see_what_arrow_says_of_its_types(tmp_path):
    path = tmp_path / "in.parquet"
    write_parquet(path, pa.table({"k": pa.array(["a"], pa.large_string())}), store_schema=True)
    assert pq.read_schema(path).field("k").type == pa.large_string()
    file = File(input_file(path, 1), path.read_bytes())
    assert file.footer().schema.to_arrow_schema().field("k").type == pa.string()


def test_a_footer_that_is_longer_than_one_request_is_read(tmp_path):
    path = tmp_path / "in.parquet"
    table = pa.table({"k": pa.array(range(2_000))})
    write_parquet(path, table, row_group_size=2)
    file = File(input_file(path, 2_000), path.read_bytes())
    assert len(file.content) - file.footer_start > 64 << 10
    assert file.footer().num_row_groups == 1_000
