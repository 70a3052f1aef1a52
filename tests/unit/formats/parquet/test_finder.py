"""Rows that are found by their keys: those that a dict finds, and few pages are read for them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.errors import FormatError
from compactord.formats.layout import Layout, keyed_layout
from compactord.formats.parquet import thrift
from compactord.formats.parquet.thrift import Chunk, ColumnIndex, Kind
from compactord.model import InputFile
from compactord.paimon.types import value_schema
from compactord.rewrite.reader import Input, InputReader
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from tests.deletions import numbers_in
from tests.storages import RangeLog, RequestCounter
from tests.unit.formats.parquet.keyed_files import (
    KEYS,
    PAGE_ROWS,
    ROWS,
    WRITERS,
    columns_of,
    footer_leaf,
    indexes,
    key_column,
    refusals_of_damaged_indexes,
    write,
)

# Some keys are missing between others, and at both ends.
NUMBERS = [n for n in range(5, ROWS - 5) if n % 8 != 3]
CASES = [
    *((writer, "number") for writer in WRITERS),
    *(("pages of the same bytes", key) for key in KEYS),
    ("several row groups", "two columns"),
    ("several row groups", "a column of one value"),
    ("no page index", "float"),
]


def keys_of(key: str, numbers: Sequence[int]) -> pa.RecordBatch:
    columns, names = columns_of(key)
    values = [KEYS[key][1](number) for number in numbers]
    schema = value_schema(columns[: len(names)])
    arrays = [
        pa.array(key_column(key, [value[place] for value in values]), field.type)
        for place, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def layout_of(key: str, dictionaries: Sequence[str] = ("c",)) -> Layout:
    columns, names = columns_of(key)
    return keyed_layout(columns, names, thin=False).with_dictionaries(dictionaries)


def found_rows(
    file: InputFile,
    batches: Sequence[Sequence[int]],
    key: str = "number",
    *,
    storage: Storage | None = None,
    batch_rows: int = 300,
    held_bytes: int = 16 << 20,
    dictionaries: Sequence[str] = ("c",),
    finds_values: bool = True,
) -> tuple[list[int], pa.Table, list[int], int]:
    """What was found in the batches: numbers, rows, their positions; and the bytes of reading."""
    layout, numbers, rows = layout_of(key, dictionaries), [], []
    reader = InputReader(storage or LocalStorage(), layout)
    with contextlib.closing(reader):
        opened = Input(reader, file).finder(
            batch_rows, held_bytes, marks=True, finds_values=finds_values
        )
        with contextlib.closing(opened) as finder:
            for batch in batches:
                keys = keys_of(key, batch)
                if "k0" in dictionaries:
                    keys = pa.record_batch([keys.column(0).dictionary_encode()], names=["k0"])
                found = finder.find(keys)
                rows_found = sum(each.num_rows for each in found.rows)
                assert rows_found == (len(found.places) if finds_values else 0)
                numbers += [batch[place] for place in found.places]
                rows += found.rows
        assert reader.found.rows == len(numbers)
    table = pa.Table.from_batches(rows, layout.row_schema)
    plain = table.cast(layout_of(key, ()).row_schema).combine_chunks()
    positions = [row for each in reader.marks() for row in numbers_in(each.positions)]
    return numbers, plain, positions, reader.found.size_bytes


def whole(file: InputFile, key: str = "number") -> pa.Table:
    with contextlib.closing(InputReader(LocalStorage(), layout_of(key, ()))) as reader:
        return pa.Table.from_batches(list(Input(reader, file).batches(5_000))).combine_chunks()


def check(file: InputFile, batches: Sequence[Sequence[int]], **how: Any) -> int:
    """Compares what is found with all rows; returns the bytes that were read."""
    row_of = {number: row for row, number in enumerate(NUMBERS)}
    expected = [number for batch in batches for number in batch if number in row_of]
    places = [row_of[number] for number in expected]
    assert found_rows(file, batches, **how, finds_values=False)[::2] == (expected, places)
    numbers, rows, positions, size = found_rows(file, batches, **how)
    assert (numbers, positions) == (expected, places)
    whole_rows = whole(file, how.get("key", "number"))
    assert rows.equals(whole_rows.take(pa.array(places, pa.int64())))
    return size


def wanted(seeded: random.Random) -> list[list[int]]:
    """Batches of ascending numbers: a few, several clusters, many, or all."""
    all_of_them = range(ROWS)
    starts = sorted(seeded.sample(all_of_them, 3))
    numbers = seeded.choice(
        [
            sorted(seeded.sample(all_of_them, 9)),
            sorted({n for start in starts for n in all_of_them[start : start + 60]}),
            sorted(seeded.sample(all_of_them, ROWS // 3)),
            list(all_of_them),
        ]
    )
    size = seeded.choice([max(1, len(numbers) // 30), max(1, len(numbers) // 3), ROWS])
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize(("writer", "key"), CASES)
def test_the_rows_of_keys_are_those_of_a_dict(
    tmp_path: Path, writer: str, key: str, is_remote: bool
) -> None:
    file = write(tmp_path / "a.parquet", key, NUMBERS, **WRITERS[writer])
    seeded = random.Random(writer + key)
    for _ in range(8):
        check(
            file,
            wanted(seeded),
            key=key,
            storage=RequestCounter(LocalStorage()) if is_remote else None,
            batch_rows=seeded.choice([70, 300, ROWS]),
            held_bytes=seeded.choice([1, 64 << 10, 16 << 20]),
        )


@pytest.mark.parametrize("writer", ["no dictionaries", "full dictionaries"])
def test_keys_may_have_dictionaries(tmp_path: Path, writer: str) -> None:
    file = write(tmp_path / "a.parquet", "text", NUMBERS, **WRITERS[writer])
    seeded = random.Random(writer)
    for _ in range(8):
        check(file, wanted(seeded), key="text", dictionaries=["c", "k0"])


CLUSTERS = [n for start in (200, 1_900, 3_600) for n in range(start, start + 40)]
# Every eighth key, none of which the file has.
MISSING = list(range(11, ROWS - 8, 8))
# Missing between the last row of a page and the first of the next one.
BETWEEN = [
    NUMBERS[row] - 1
    for row in range(PAGE_ROWS, len(NUMBERS), PAGE_ROWS)
    if NUMBERS[row] - NUMBERS[row - 1] > 1
]


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize(
    ("key", "numbers", "size", "share"),
    [
        ("number", CLUSTERS, 1_000, 0.25),
        ("number", CLUSTERS, 40, 0.25),
        ("number", [17], 1, 0.1),
        ("number", BETWEEN, 1, 0.1),
        # The bounds of pages tell the first of its columns.
        ("pairs", BETWEEN, 1, 0.1),
        # Key columns alone are read.
        ("number", MISSING, 1_000, 0.1),
        ("number", [ROWS + n for n in range(100)], 10, 0.0),
        ("number", range(ROWS), 100, 1.2),
    ],
)
def test_few_bytes_are_read(
    tmp_path: Path, *, key: str, numbers: Sequence[int], size: int, share: float, is_remote: bool
) -> None:
    file = write(tmp_path / "a.parquet", key, NUMBERS)
    log = RangeLog(LocalStorage())
    batches = [numbers[start : start + size] for start in range(0, len(numbers), size)]
    # Less than what is read through between two ranges.
    most = share * file.size_bytes + (600_000 if is_remote and share else 0)
    assert check(file, batches, key=key, storage=log if is_remote else None) <= most


def test_pages_of_one_batch_are_asked_for_together(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", "number", NUMBERS)
    log = RangeLog(LocalStorage())
    check(file, [CLUSTERS], storage=log)
    assert len(log.spans) <= 1 + 1 + 2 * 3


def with_bounds(path: Path, change: Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]]):
    """Replaces the bounds of the pages of keys in the column index."""
    content = bytearray(path.read_bytes())
    start, size = indexes(path, footer_leaf(path, "k0"))[Chunk.COLUMN_INDEX_AT]
    index, _ = thrift.decode(bytes(content), start)
    lows, highs = change(
        list(index[ColumnIndex.LOWS].value.values), list(index[ColumnIndex.HIGHS].value.values)
    )
    encoded = thrift.encode(
        {
            **index,
            ColumnIndex.LOWS: thrift.items(Kind.BINARY, lows),
            ColumnIndex.HIGHS: thrift.items(Kind.BINARY, highs),
        }
    )
    assert len(encoded) == size
    content[start : start + size] = encoded
    path.write_bytes(content)


LIES: dict[str, Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]]] = {
    "low and high are swapped": lambda lows, highs: (highs, lows),
    "each is that of the next": lambda lows, highs: (lows[1:] + lows[:1], highs[1:] + highs[:1]),
    "each is that of the one before": lambda lows, highs: (
        lows[-1:] + lows[:-1],
        highs[-1:] + highs[:-1],
    ),
    "reversed": lambda lows, highs: (lows[::-1], highs[::-1]),
    "all are high": lambda lows, highs: (highs[-1:] * len(lows), highs[-1:] * len(highs)),
    "all are low": lambda lows, highs: (lows[:1] * len(lows), lows[:1] * len(highs)),
    "two are swapped": lambda lows, highs: (
        [*lows[:4], lows[9], *lows[5:9], lows[4], *lows[10:]],
        [*highs[:4], highs[9], *highs[5:9], highs[4], *highs[10:]],
    ),
}


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("lie", LIES)
def test_wrong_bounds_lose_no_row(tmp_path: Path, lie: str, is_remote: bool) -> None:
    path = tmp_path / "a.parquet"
    file = write(path, "number", NUMBERS)
    with_bounds(path, LIES[lie])
    seeded = random.Random(lie)
    for batches in ([CLUSTERS], [[n] for n in CLUSTERS[::9]], *(wanted(seeded) for _ in range(6))):
        check(file, batches, storage=RequestCounter(LocalStorage()) if is_remote else None)


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("column", ["k0", "v", "c"])
def test_a_flipped_bit_of_a_page_index_loses_no_row(
    tmp_path: Path, column: str, is_remote: bool
) -> None:
    path = tmp_path / "a.parquet"
    file = write(path, "number", NUMBERS, max_rows_per_page=500)
    batches = [CLUSTERS[:40], CLUSTERS[40:]]
    expected = found_rows(file, batches)[:2]
    storage = RequestCounter(LocalStorage()) if is_remote else None

    def check_rows() -> None:
        assert found_rows(file, batches, storage=storage)[:2] == expected

    assert bool(refusals_of_damaged_indexes(path, column, check_rows)) is is_remote


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize(
    ("place", "low", "high"),
    [(1_000, 1_000, 1_001), (1_000, 991, 1_009), (1_000, 0, ROWS), (1_999, 1_991, 2_009)],
)
def test_rows_that_are_not_sorted_are_refused(
    tmp_path: Path, place: int, low: int, high: int, is_remote: bool
) -> None:
    swapped = [*NUMBERS[:place], NUMBERS[place + 1], NUMBERS[place], *NUMBERS[place + 2 :]]
    file = write(tmp_path / "a.parquet", "number", swapped)
    storage = RequestCounter(LocalStorage()) if is_remote else None
    with pytest.raises(FormatError, match=r"its keys do not ascend.*a\.parquet"):
        found_rows(file, [NUMBERS[low:high]], storage=storage)


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, is_remote: bool) -> None:
    path = tmp_path / "a.parquet"
    file = write(path, "number", NUMBERS)
    path.write_bytes(path.read_bytes()[:-1])
    storage = RequestCounter(LocalStorage()) if is_remote else None
    with pytest.raises(
        FormatError, match=r"size is .* bytes in the manifest, .* in the store.*a\.parquet"
    ):
        found_rows(file, [[7]], storage=storage)


@pytest.mark.parametrize("is_remote", [False, True])
def test_damaged_values_are_found(tmp_path: Path, is_remote: bool) -> None:
    path = tmp_path / "a.parquet"
    file = write(path, "number", NUMBERS)
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(footer_leaf(path, "v"))
    content = bytearray(path.read_bytes())
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    content[middle] ^= 1
    path.write_bytes(content)
    storage = RequestCounter(LocalStorage()) if is_remote else None
    assert found_rows(file, [NUMBERS[:9]], storage=storage)[0] == NUMBERS[:9]
    with pytest.raises(FormatError, match=r"a\.parquet"):
        found_rows(file, [NUMBERS], storage=storage)
