"""Rows of an input that are found by their keys: those that `Input.batches` has."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compactord.errors import FormatError
from compactord.formats.layout import keyed_layout
from compactord.formats.registry import FORMATS
from compactord.model import InputFile, Marks
from compactord.paimon.deletion_vectors import VectorKind
from compactord.paimon.types import DataField, value_schema
from compactord.rewrite.reader import Expiry, Input, InputReader
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from tests.deletions import bitmap_of, numbers_in
from tests.storages import RequestCounter
from tests.unit.formats.arrow_files import ARROW, as_arrow
from tests.unit.rewrite.builders import fields, without_rows, write_run

ROWS = 30_000
# Rows of 2,000 to 4,000 are expired.
FIELDS = fields(k="BIGINT NOT NULL", t="INT", v="STRING", n="BIGINT")
OLDER = (
    replace(FIELDS[0], name="old key"),
    FIELDS[1],
    FIELDS[2],
)
NESTED = (*FIELDS, *fields(l={"type": "ARRAY", "element": "INT"}))
PAGES = {"max_rows_per_page": 1_000, "write_batch_size": 500, "write_page_index": True}


def rows_of(columns: Sequence[DataField]) -> list[dict[str, Any]]:
    """Every second number is a key; texts so long that the file is not a small one."""
    made = {
        "t": lambda n: 1 if 2_000 <= n < 4_000 else 1_000,
        "v": lambda n: f"{hash((n, 1)):x}{hash((n, 2)):x}{hash((n, 3)):x}{hash((n, 4)):x}",
        "n": lambda n: n * n,
        "l": lambda n: list(range(n % 3)),
    }
    return [
        {field.name: made.get(field.name, int)(number) for field in columns}
        for number in range(0, 2 * ROWS, 2)
    ]


def keys_of(batch: Sequence[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(batch, pa.int64())], schema=value_schema(FIELDS[:1]))


def write(path: Path, columns: Sequence[DataField] = FIELDS, **options: Any) -> InputFile:
    key = columns[0].name
    return write_run(path, columns, [key], rows_of(columns), **{**PAGES, **options})


FILES: dict[str, Callable[[Path], InputFile]] = {
    "latest schema": write,
    "without copies of keys": lambda path: write(path, thin=True),
    "several row groups": lambda path: write(path, row_group_size=7_000),
    "older schema": lambda path: replace(write(path, OLDER), older_schema=0),
    "numbered": lambda path: replace(write(path), sequence_number=77),
    "nested values": lambda path: write(path, NESTED, row_group_size=7_000),
    "another format": lambda path: as_arrow(write(path)),
    "small": lambda path: write_run(path, FIELDS, ["k"], rows_of(FIELDS)[:1_500], **PAGES),
}
# Rows that vectors delete.
DELETED = {*range(100), *range(200, 1_000, 3), 7_000, 13_999, *range(20_000, 21_000), 29_999}
BATCHES: dict[str, list[Sequence[int]]] = {
    "few": [[], [-4, 0, 1, 998], [2_000, 39_999, 40_000], [60_001]],
    "many": [range(start, start + 1_000) for start in range(0, 60_000, 1_000)],
    "a row group": [range(15_000, 16_000, 2), range(30_000, 30_010)],
    "expired": [range(1_990, 4_010)],
}


def reader_of(name: str, storage: Storage, expiry: Expiry | None) -> InputReader:
    columns = NESTED if name == "nested values" else FIELDS
    return InputReader(
        storage,
        keyed_layout(columns, ["k"], thin=name == "without copies of keys"),
        formats={**FORMATS, "arrow": ARROW},
        older=[OLDER],
        expiry=expiry,
    )


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("has_vector", [False, True])
@pytest.mark.parametrize("expires", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_found_rows_are_those_of_a_merge(
    tmp_path: Path, name: str, expires: bool, has_vector: bool, is_remote: bool
) -> None:
    file = FILES[name](tmp_path / "a.parquet")
    if has_vector:
        file = without_rows(file, [row for row in DELETED if row < file.row_count])
    expiry = Expiry("t", 500)
    with contextlib.closing(reader_of(name, LocalStorage(), expiry if expires else None)) as reader:
        whole = pa.Table.from_batches(list(Input(reader, file).batches(5_000)))
        assert reader.counts.rows == file.row_count
    row_of = {key: row for row, key in enumerate(whole.column("k").to_pylist())}
    storage = RequestCounter(LocalStorage()) if is_remote and name != "another format" else None
    for batches in BATCHES.values():
        with contextlib.closing(reader_of(name, storage or LocalStorage(), expiry)) as reader:
            finder = Input(reader, file).finder(1_500, 1 << 20, expires=expires)
            with contextlib.closing(finder):
                for batch in batches:
                    found = finder.find(keys_of(batch))
                    expected = [key for key in batch if key in row_of]
                    assert [batch[place] for place in found.places] == expected
                    rows = pa.Table.from_batches(found.rows, whole.schema)
                    assert rows.equals(
                        whole.take(pa.array([row_of[key] for key in expected], pa.int64()))
                    )
            assert (reader.found.size_bytes > 0) or not reader.found.rows
            assert reader.marks() == ()


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("finds_values", [False, True])
def test_marked_are_all_rows_that_are_not_deleted(
    tmp_path: Path, name: str, finds_values: bool, is_remote: bool
) -> None:
    file = FILES[name](tmp_path / "a.parquet")
    deleted = {row for row in DELETED if row < file.row_count}
    file = without_rows(file, deleted, VectorKind.BITS_64)
    storage = RequestCounter(LocalStorage()) if is_remote and name != "another format" else None
    read = {}
    for case, batches in BATCHES.items():
        # Of values those that have expired are not found.
        expiry = Expiry("t", 500)
        with contextlib.closing(reader_of(name, storage or LocalStorage(), expiry)) as reader:
            finder = Input(reader, file).finder(
                1_500, 1 << 20, marks=True, finds_values=finds_values
            )
            places = []
            with contextlib.closing(finder):
                for batch in batches:
                    found = finder.find(keys_of(batch))
                    places += [batch[place] for place in found.places]
                    assert bool(found.rows) == (finds_values and len(found.places) > 0)
            rows = [key // 2 for batch in batches for key in batch if key >= 0 and not key % 2]
            marked = [row for row in rows if row < file.row_count and row not in deleted]
            [marks] = reader.marks() if marked else [Marks("a", bitmap_of(()))]
            assert numbers_in(marks.positions) == marked
            assert not marked or marks.file_name == posixpath.basename(file.path)
            expired = range(2_000, 4_000) if finds_values else ()
            assert places == [2 * row for row in marked if 2 * row not in expired]
            read[case] = reader.found.size_bytes
    if not finds_values and name not in ("another format", "small"):
        # The column of keys is far smaller than those of texts.
        assert read["many"] < file.size_bytes / 3


@pytest.mark.parametrize("name", ["another format", "latest schema"])
@pytest.mark.parametrize(("recorded", "key"), [(ROWS + 1, 99_999), (ROWS - 20, 2 * ROWS - 10)])
def test_a_file_with_other_rows_than_recorded_is_refused(
    tmp_path: Path, name: str, recorded: int, key: int
) -> None:
    file = replace(FILES[name](tmp_path / "a.parquet"), row_count=recorded)
    with (
        contextlib.closing(reader_of(name, LocalStorage(), None)) as reader,
        pytest.raises(FormatError, match=f"{recorded}"),
        contextlib.closing(Input(reader, file).finder(1_500, marks=True)) as finder,
    ):
        finder.find(keys_of([key]))
