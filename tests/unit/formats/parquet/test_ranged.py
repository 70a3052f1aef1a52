"""Files of object stores: which requests are made, and that their rows are those of local files."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from compactord.errors import FormatError, ObjectNotFound, TransientStorageError
from compactord.formats.layout import RowRange, keyed_layout, row_range
from compactord.formats.parquet.footer import read_footer
from compactord.formats.parquet.pages import Pages, extent
from compactord.formats.parquet.thrift import Chunk
from compactord.model import InputFile, KeyRange
from compactord.paimon.binary_row import encode_row
from compactord.paimon.types import file_schema
from compactord.rewrite.reader import Input, InputReader
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from compactord.storage.ranges import END_BYTES
from tests.storages import Fault, FaultyStorage, RangeLog, RequestCounter
from tests.unit.rewrite.builders import (
    fields,
    input_file,
    write_parquet,
)

COLUMNS = fields(k="BIGINT NOT NULL", v="BYTES", n="BIGINT", s="STRING")
ROWS = 20_000
# Fetched bytes that may be in memory: no more than a piece of each column, some, all.
HELD = {"little": 1, "some": 1 << 20, "all": 64 << 20}


def write(path: Path, rows: int = ROWS, *, value_bytes: int = 100, **options: int) -> InputFile:
    """A file of about `value_bytes` a row, which cannot be compressed."""
    random = np.random.default_rng(1)
    values = random.bytes(value_bytes * rows)
    numbers = np.arange(rows, dtype=np.int64)
    table = pa.table(
        {
            "_KEY_k": numbers,
            "_SEQUENCE_NUMBER": numbers,
            "_VALUE_KIND": np.zeros(rows, np.int8),
            "k": numbers,
            "v": pa.array([values[i * value_bytes : (i + 1) * value_bytes] for i in range(rows)]),
            "n": random.integers(0, 1 << 60, rows),
            "s": pa.array([f"name {number % 7}" for number in range(rows)]),
        },
        schema=file_schema(COLUMNS, ["k"], thin=False),
    )
    settings = {
        "row_group_size": rows,
        "data_page_size": 16 << 10,
        "write_batch_size": 100,
        "write_page_checksum": True,
        "write_page_index": True,
        "use_dictionary": ["s"],
    }
    write_parquet(path, table, **settings | options)
    return input_file(path, rows, 0, rows - 1)


def reader_of(storage: Storage, rows: RowRange | None = None) -> InputReader:
    layout = keyed_layout(COLUMNS, ["k"], thin=False)
    return InputReader(storage, layout.with_dictionaries(["s"]), rows)


def looked_at(reader: InputReader, file: InputFile) -> Input:
    """The file as it is before its rows are read."""
    opened = Input(reader, file)
    reader.profile([opened])
    opened.stored.open_bytes(opened.layout)
    opened.stored.held_bytes(opened.layout)
    return opened


def rows_of(
    file: InputFile, storage: Storage, held_bytes: int = 64 << 20, rows: RowRange | None = None
) -> pa.Table:
    with contextlib.closing(reader_of(storage, rows)) as reader:
        return pa.Table.from_batches(Input(reader, file).batches(3_000, held_bytes))


def between(low: int, high: int) -> RowRange:
    key = COLUMNS[0]
    lower, upper = (encode_row([number], [key.type]) for number in (low, high))
    found = row_range(KeyRange(lower=lower, upper=upper), (key,))
    assert found is not None
    return found


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("group_rows", [ROWS, 3_001])
def test_rows_are_those_of_a_local_file(tmp_path: Path, held: str, group_rows: int) -> None:
    file = write(tmp_path / "a.parquet", row_group_size=group_rows)
    local = rows_of(file, LocalStorage())
    remote = rows_of(file, RequestCounter(LocalStorage()), HELD[held])
    assert local.num_rows == ROWS
    assert remote.unify_dictionaries().equals(local.unify_dictionaries())


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize(("low", "high"), [(0, 10), (5_000, 9_000), (19_000, 40_000)])
def test_a_key_range_has_the_rows_of_a_local_file(
    tmp_path: Path, held: str, low: int, high: int
) -> None:
    file = write(tmp_path / "a.parquet", row_group_size=3_001)
    rows = between(low, high)
    local = rows_of(file, LocalStorage(), rows=rows)
    remote = rows_of(file, RequestCounter(LocalStorage()), HELD[held], rows)
    assert local.num_rows == min(high, ROWS) - low
    assert remote.unify_dictionaries().equals(local.unify_dictionaries())


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("rows", [500, ROWS])
def test_row_groups_are_read_by_themselves(tmp_path: Path, held: str, rows: int) -> None:
    group_rows = 3_001 if rows == ROWS else 100
    file = write(tmp_path / "a.parquet", rows, row_group_size=group_rows)
    layout = keyed_layout(COLUMNS, ["k"], thin=False)
    whole = rows_of(file, LocalStorage()).column("k").to_pylist()
    for storage in (LocalStorage(), RequestCounter(LocalStorage())):
        for groups in ([0], [1, 4], [2, 3, 4]):
            with contextlib.closing(reader_of(storage)) as reader:
                opened = looked_at(reader, file).stored
                for row, batch in opened.group_batches(layout, 1_000, groups, HELD[held]):
                    found = batch.column("k").to_pylist()
                    assert found == whole[row : row + batch.num_rows]
                    assert row // group_rows in groups
            with contextlib.closing(reader_of(storage)) as reader:
                batches = Input(reader, file).stored.group_batches(layout, 70, groups, HELD[held])
                assert sum(batch.num_rows for _, batch in batches) == len(groups) * group_rows


def test_a_small_file_is_one_request(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", 500)
    counter = RequestCounter(LocalStorage())
    with contextlib.closing(reader_of(counter)) as reader:
        opened = looked_at(reader, file)
        opened.row_groups()
        assert sum(rows.num_rows for rows in opened.batches(100)) == 500
    assert [call.method for call in counter.requests] == ["read"]


def test_a_file_that_fits_is_its_end_and_its_columns(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet")
    counter = RequestCounter(LocalStorage())
    with contextlib.closing(reader_of(counter)) as reader:
        assert sum(rows.num_rows for rows in looked_at(reader, file).batches(1000)) == ROWS
    assert [call.method for call in counter.requests] == ["read_range", "read_range"]


@pytest.mark.parametrize("held", HELD)
def test_no_byte_is_asked_for_twice(tmp_path: Path, held: str) -> None:
    file = write(tmp_path / "a.parquet", row_group_size=7_000)
    log = RangeLog(LocalStorage())
    rows_of(file, log, HELD[held])
    in_columns = sorted(span for span in log.spans if span[0] + span[1] < file.size_bytes)
    ends = [start + size for start, size in in_columns]
    assert len(in_columns) == len(log.spans) - 1
    assert all(end <= start for end, (start, _) in zip(ends, in_columns[1:], strict=False))


def test_with_little_memory_no_more_than_pieces_are_asked_for(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet")
    log = RangeLog(LocalStorage())
    with contextlib.closing(reader_of(log)) as reader:
        batches = Input(reader, file).batches(100, 512 << 10)
        next(batches)
        fetched = sum(size for _, size in log.spans)
        # Some of it was read, and given back, for the first rows.
        assert fetched < (1 << 20) + END_BYTES
        assert sum(rows.num_rows for rows in batches) == ROWS - 100
    assert len(log.spans) > 5


def test_the_end_of_a_key_range_ends_the_reading(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", 200_000)
    log = RangeLog(LocalStorage())
    rows_of(file, log, 1 << 20, between(0, 20_000))
    assert sum(size for _, size in log.spans) < file.size_bytes / 4


def test_a_page_index_far_from_the_end_is_fetched_for_a_key_range(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", 100_000, max_rows_per_page=50)
    log = RangeLog(LocalStorage())
    rows_of(file, log, 1 << 20, between(60_000, 70_000))
    index_bytes = max(size for start, size in log.spans if start + size == file.size_bytes)
    assert index_bytes > 2 * END_BYTES
    assert sum(size for _, size in log.spans) - index_bytes < file.size_bytes / 3


def test_without_a_page_index_headers_behind_a_key_range_are_read(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", 40_000, write_page_index=False)
    log = RangeLog(LocalStorage())
    rows_of(file, log, 1 << 20, between(0, 5_000))
    assert sum(size for _, size in log.spans) > file.size_bytes * 0.9


def page_positions(file: InputFile, column: str) -> list[int]:
    """Where the pages of a column of the only row group begin."""
    content = Path(file.path).read_bytes()
    footer = read_footer(lambda start, size: content[start : start + size], len(content), file.path)
    leaf = footer.arrow.schema.names.index(column)
    position, end = extent(footer.chunk(0, leaf)[Chunk.META].value)
    pages = Pages(lambda start, size: content[start : start + size], len(content))
    found = []
    while position < end:
        found.append(position)
        header = pages.header(position)
        position += header.length + header.stored_size
    return found


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("column", ["v", "n", "s"])
def test_a_damaged_header_is_found_before_its_rows_are_used(
    tmp_path: Path, column: str, index: bool
) -> None:
    path = tmp_path / "a.parquet"
    file = write(path, write_page_index=index)
    rows = between(0, 9_000)
    expected = rows_of(file, LocalStorage(), rows=rows).unify_dictionaries()
    sound = path.read_bytes()
    pages = page_positions(file, column)
    found = 0
    for position in (pages[0], pages[len(pages) // 3]):
        for bit in range(0, 8 * 14, 5):
            damaged = bytearray(sound)
            damaged[position + bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            try:
                read = rows_of(file, RequestCounter(LocalStorage()), 1 << 19, rows)
            except FormatError:
                found += 1
                continue
            assert read.unify_dictionaries().equals(expected)
    assert found > 20


def test_an_error_of_a_range_names_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet")
    for at in (1, 2, 5):
        fault = Fault(
            at=at, error=TransientStorageError, concerns=lambda call: call.method == "read_range"
        )
        storage = FaultyStorage(RequestCounter(LocalStorage()), fault)
        with pytest.raises(TransientStorageError, match=r"a\.parquet"):
            rows_of(file, storage, 1 << 19)


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet")
    Path(file.path).unlink()
    with pytest.raises(ObjectNotFound):
        rows_of(file, RequestCounter(LocalStorage()))


# The end of a long file may be followed by anything: only its own bytes are asked for.
@pytest.mark.parametrize(("rows", "change"), [(500, -1), (500, 1), (ROWS, -1)])
def test_a_file_of_another_size_is_refused(tmp_path: Path, rows: int, change: int) -> None:
    path = tmp_path / "a.parquet"
    file = write(path, rows)
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + b"1")
    with pytest.raises(FormatError, match=r"size is .* bytes in the manifest, .* in the store"):
        rows_of(file, RequestCounter(LocalStorage()))


class Interrupting(RequestCounter):
    """Interrupts the reader as a signal would."""

    def read_range(self, path: str, start: int, size: int) -> bytes:
        if start:
            raise KeyboardInterrupt
        return super().read_range(path, start, size)


def test_no_thread_is_left_after_an_interruption(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet")
    with pytest.raises(KeyboardInterrupt):
        rows_of(file, Interrupting(LocalStorage()), 1 << 19)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fetch")]
