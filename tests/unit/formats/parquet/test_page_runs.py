"""Ranges of keys that begin inside a row group: the rows are those that lie in the range."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from compactord.errors import FormatError
from compactord.formats.layout import RowRange, keyed_layout, row_range
from compactord.formats.parquet import thrift
from compactord.formats.parquet.copying import decoded_locations
from compactord.formats.parquet.thrift import Chunk, ColumnIndex, Kind
from compactord.model import InputFile, KeyRange
from compactord.paimon.binary_row import encode_row
from compactord.rewrite.reader import Input, InputReader
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from compactord.storage.ranges import SMALL_FILE
from tests.storages import RangeLog, RequestCounter
from tests.unit.formats.parquet.keyed_files import (
    KEYS,
    PAGE_ROWS,
    ROWS,
    WRITERS,
    columns_of,
    decoded,
    footer_leaf,
    indexes,
    refusals_of_damaged_indexes,
    write,
)


def between(key: str, low: int | None, high: int | None) -> RowRange | None:
    columns, names = columns_of(key)
    key_fields = columns[: len(names)]
    lower, upper = (
        None
        if number is None
        else encode_row(KEYS[key][1](number), [field.type for field in key_fields])
        for number in (low, high)
    )
    return row_range(KeyRange(lower=lower, upper=upper), key_fields)


def read(
    file: InputFile,
    rows: RowRange | None,
    key: str = "number",
    *,
    storage: Storage | None = None,
    batch_rows: int = 300,
    held_bytes: int = 1 << 20,
) -> pa.Table:
    columns, names = columns_of(key)
    layout = keyed_layout(columns, names, thin=False).with_dictionaries(["c"])
    reader = InputReader(storage or LocalStorage(), layout, rows)
    with contextlib.closing(reader):
        batches = list(Input(reader, file).batches(batch_rows, held_bytes))
    assert all(0 < batch.num_rows <= batch_rows for batch in batches)
    table = pa.Table.from_batches(batches, layout.row_schema)
    return table.unify_dictionaries().combine_chunks()


RANGES: Sequence[tuple[int | None, int | None]] = [
    (None, None),
    (None, 0),
    (None, 1),
    (0, None),
    (1, None),
    (PAGE_ROWS, PAGE_ROWS + 1),
    (PAGE_ROWS - 1, 2 * PAGE_ROWS),
    (2_345, 3_100),
    (ROWS - 1, None),
    (None, ROWS),
]


CASES = [
    *((writer, "number") for writer in WRITERS),
    *(
        (writer, key)
        for writer in ("pages of the same rows", "pages of the same bytes")
        for key in KEYS
    ),
]


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize(("writer", "key"), CASES)
def test_a_range_has_the_rows_of_the_range(
    tmp_path: Path, writer: str, key: str, is_remote: bool
) -> None:
    file = write(tmp_path / "a.parquet", key, **WRITERS[writer])
    assert file.size_bytes > SMALL_FILE
    # Not by pages, as one batch has all rows.
    whole = decoded(read(file, None, key, batch_rows=ROWS))
    assert whole.num_rows == ROWS
    seeded = random.Random(writer + key)
    drawn = [sorted(seeded.sample(range(ROWS), 2)) for _ in range(2)]
    for low, high in [*RANGES, *drawn]:
        found = decoded(
            read(
                file,
                between(key, low, high),
                key,
                storage=RequestCounter(LocalStorage()) if is_remote else None,
                batch_rows=seeded.choice([1, 70, 300, ROWS]) if high == 1 else 300,
                held_bytes=seeded.choice([1, 16 << 20]),
            )
        )
        assert found.equals(whole.slice(low or 0, (ROWS if high is None else high) - (low or 0)))


@pytest.mark.parametrize(
    ("writer", "key", "first"),
    [
        ("pages of the same rows", "number", 2_200),
        ("pages of the same rows", "text", 2_200),
        ("pages of the same rows", "wide decimal", 2_200),
        ("pages of the same rows", "date", 2_200),
        # The keys of two pages have the same first column.
        ("pages of the same rows", "two columns", 2_000),
        ("pages of the same rows", "a column of one value", 0),
        # Bounds may leave out NaN.
        ("pages of the same rows", "float", 0),
        ("full dictionaries", "number", 2_300),
        ("several row groups", "number", 2_200),
        ("no page index", "number", 0),
        ("one page", "number", 0),
    ],
)
def test_reading_begins_at_the_page_that_can_have_the_first_key(
    tmp_path: Path, writer: str, key: str, first: int
) -> None:
    file = write(tmp_path / "a.parquet", key, **WRITERS[writer])
    bounds = between(key, 2_345, None)
    columns, names = columns_of(key)
    with contextlib.closing(
        InputReader(LocalStorage(), keyed_layout(columns, names, thin=False), bounds)
    ) as reader:
        opened = Input(reader, file)
        batches = opened.stored.batches(opened.layout, 100, bounds)
        assert next(batches)[0] == first
        batches.close()


def test_an_object_store_is_not_asked_for_pages_before_the_range(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet")
    bounds = between("number", 3_500, None)
    asked = {}
    for index in (True, False):
        file = write(tmp_path / "a.parquet", write_page_index=index)
        log = RangeLog(LocalStorage())
        assert read(file, bounds, storage=log).num_rows == 500
        # Besides the end, which has footer and page index.
        asked[index] = [size for start, size in log.spans if start + size < file.size_bytes]
    assert sum(asked[True]) < 0.25 * sum(asked[False])
    assert len(asked[True]) < len(asked[False])


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("low", [0, 4_000, 1_000_000])
def test_a_wrong_column_index_loses_no_row(tmp_path: Path, low: int, is_remote: bool) -> None:
    path = tmp_path / "a.parquet"
    file = write(path)
    bounds = between("number", 2_345, 3_000)
    expected = decoded(read(file, bounds))
    content = bytearray(path.read_bytes())
    leaf = footer_leaf(path, "k0")
    start, size = indexes(path, leaf)[Chunk.COLUMN_INDEX_AT]
    index, _ = thrift.decode(bytes(content), start)
    lows = index[ColumnIndex.LOWS].value.values
    wrong = thrift.items(Kind.BINARY, [low.to_bytes(8, "little", signed=True)] * len(lows))
    encoded = thrift.encode({**index, ColumnIndex.LOWS: wrong})
    assert len(encoded) == size
    content[start : start + size] = encoded
    path.write_bytes(content)
    storage = RequestCounter(LocalStorage()) if is_remote else None
    assert decoded(read(file, bounds, storage=storage)).equals(expected)


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("column", ["k0", "v", "c"])
def test_a_flipped_bit_of_a_page_index_changes_no_row(
    tmp_path: Path, column: str, is_remote: bool
) -> None:
    path = tmp_path / "a.parquet"
    file = write(path, max_rows_per_page=500)
    bounds = between("number", 2_345, 3_000)
    expected = decoded(read(file, bounds))
    storage = RequestCounter(LocalStorage()) if is_remote else None

    def check_rows() -> None:
        assert decoded(read(file, bounds, storage=storage)).equals(expected)

    # By headers only: a local file has all of them read, and its offset index not.
    assert bool(refusals_of_damaged_indexes(path, column, check_rows)) is is_remote


def test_a_damaged_header_is_found_before_its_rows_are_used(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    file = write(path)
    bounds = between("number", 2_345, 3_000)
    expected = decoded(read(file, bounds))
    sound = path.read_bytes()
    found = 0
    for column in ("k0", "v", "c"):
        at, _ = indexes(path, footer_leaf(path, column))[Chunk.OFFSET_INDEX_AT]
        locations = decoded_locations(sound[at:])
        # Before the range, the first page that is read, one in the middle.
        for page in (2, 11, 13):
            for bit in range(0, 8 * 14, 9):
                damaged = bytearray(sound)
                damaged[locations[page].offset + bit // 8] ^= 1 << bit % 8
                path.write_bytes(damaged)
                for storage in (None, RequestCounter(LocalStorage())):
                    try:
                        assert decoded(read(file, bounds, storage=storage)).equals(expected)
                    except FormatError:
                        found += 1
    assert found > 50
