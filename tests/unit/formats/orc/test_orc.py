"""ORC files: what is read back, what is refused, and damage."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from compactord.errors import (
    CompactordError,
    DataFileDamaged,
    FormatError,
    SubcompactionError,
    UnreadableColumn,
)
from compactord.formats.layout import Layout, append_layout
from compactord.formats.orc.format import ORC, OrcEncoding, OrcFile
from compactord.formats.registry import FORMATS
from compactord.model import InputFile
from compactord.paimon.types import DataField
from compactord.storage.local import LocalStorage
from compactord.storage.ranges import Fetcher
from tests.unit.rewrite.builders import fields

_CODECS = ("zstd", "snappy", "zlib", "lz4", "none")
_COLUMNS = fields(id="INT NOT NULL", s="STRING", d="DECIMAL(20, 3)", t="TIMESTAMP(3)")
_MS = pa.timestamp("ms")


def _rows(count: int) -> pa.Table:
    numbers = list(range(count))
    return pa.table(
        {
            "id": pa.array(numbers, pa.int32()),
            "s": [None if n % 7 == 0 else f"text {n % 50}" for n in numbers],
            "d": pa.array([None if n % 9 == 0 else n for n in numbers], pa.decimal128(20, 3)),
            "t": pa.array([1_700_000_000_000 + n for n in numbers], _MS),
        }
    ).cast(append_layout(_COLUMNS).row_schema)


def _written(path: Path, rows: pa.Table, layout: Layout, codec: str = "zstd") -> list[Any]:
    output = ORC.writer(layout, OrcEncoding(compression=codec), ()).open(LocalStorage(), str(path))
    try:
        output.write(rows)
    except CompactordError as error:
        output.abort(error)
        raise
    return list(output.close())


def _file(path: Path, rows: int, size_bytes: int | None = None) -> OrcFile:
    storage = LocalStorage()
    known = InputFile(
        path=str(path),
        file_format="orc",
        size_bytes=path.stat().st_size if size_bytes is None else size_bytes,
        row_count=rows,
        min_sequence_number=0,
        max_sequence_number=rows - 1,
    )
    return OrcFile(storage, Fetcher(storage), known)


def _read(file: OrcFile, columns: tuple[DataField, ...] = _COLUMNS, batch: int = 500) -> pa.Table:
    layout = append_layout(columns)
    batches = [rows for _, rows in file.batches(layout, batch, None)]
    return pa.Table.from_batches(batches, layout.row_schema)


@pytest.mark.parametrize("codec", _CODECS)
def test_rows_come_back(codec: str, tmp_path: Path) -> None:
    path, rows = tmp_path / "f.orc", _rows(3_000)
    bounds = _written(path, rows, append_layout(_COLUMNS), codec)
    assert _read(_file(path, 3_000)).equals(rows)
    assert [(b.name, b.null_count) for b in bounds] == [("id", 0), ("s", 429), ("d", 334), ("t", 0)]
    assert (bounds[0].minimum, bounds[0].maximum) == (0, 2_999)
    ids = [field.metadata[b"paimon.id"] for field in orc.ORCFile(path).schema]
    assert ids == [str(field.id).encode() for field in _COLUMNS]


def test_several_stripes_are_read_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "f.orc"
    count = 200_000
    rows = _rows(count)
    rows = rows.set_column(3, "t", rows["t"].cast(pa.timestamp("ns")))
    with orc.ORCWriter(str(path), stripe_size=1 << 16, compression="zstd") as writer:
        for start in range(0, count, 20_000):
            writer.write(rows.slice(start, 20_000))
    assert orc.ORCFile(path).nstripes > 1
    assert _read(_file(path, count), batch=700)["id"].to_pylist() == list(range(count))


def test_char_has_no_blanks_to_its_length_and_absent_columns_are_null(tmp_path: Path) -> None:
    path = tmp_path / "f.orc"
    orc.write_table(pa.table({"c": ["ab  ", None, " a"]}), path)
    columns = fields(c="CHAR(4)", later="INT")
    found = _read(_file(path, 3), columns).to_pydict()
    assert found == {"c": ["ab", None, " a"], "later": [None] * 3}


_DAY = 86_400_000


@pytest.mark.parametrize(
    ("moment_us", "is_read", "is_written"),
    [
        (0, True, True),
        (-1_000_000, True, True),
        (-1_000, False, False),
        (999_000, False, False),
        (_DAY * 1_000 + 1, True, True),
        (-_DAY * 1_000 - 1_000, True, True),
        (-_DAY * 1_000 - 1, True, False),
        (1_700_000_000_123_456, True, True),
        (-9_223_372_036_000_000, True, True),
        (-9_300_000_000_000_000, False, False),
    ],
)
def test_moments_that_both_libraries_take_for_the_same(
    moment_us: int, is_read: bool, is_written: bool, tmp_path: Path
) -> None:
    columns = fields(id="INT", t="TIMESTAMP(6)")
    rows = pa.table({"id": [1], "t": pa.array([moment_us], pa.timestamp("us"))}).cast(
        append_layout(columns).row_schema
    )
    ours, theirs = tmp_path / "ours.orc", tmp_path / "theirs.orc"
    if is_written:
        _written(ours, rows, append_layout(columns))
    else:
        with pytest.raises(SubcompactionError, match="column t"):
            _written(ours, rows, append_layout(columns))
        assert not ours.exists()
    if abs(moment_us) > 2**63 // 1_000:
        return
    orc.write_table(rows.set_column(1, "t", rows["t"].cast(pa.timestamp("ns"))), theirs)
    if is_read:
        assert _read(_file(theirs, 1), columns).equals(rows)
    else:
        with pytest.raises(UnreadableColumn, match="column t: 19"):
            _read(_file(theirs, 1), columns)


@pytest.mark.parametrize(
    ("column", "stored", "why"),
    [
        ("v INT", pa.array(["a"]), "the file has string"),
        ("v STRING", pa.array([1], pa.int64()), "the file has int64"),
        ("v INT NOT NULL", pa.array([None], pa.int32()), "NOT NULL and holds nulls"),
        ("V INT", pa.array([1], pa.int32()), "differs in case"),
        ("w INT NOT NULL", pa.array([1], pa.int32()), "the file lacks it"),
        ("v TIMESTAMP(3) WITH LOCAL TIME ZONE", pa.array([1], pa.timestamp("ns")), "not read from"),
        ("v DECIMAL(9, 2)", pa.array([1], pa.decimal128(10, 2)), "the file has decimal128"),
        ("v TIMESTAMP(3)", pa.array([10**18 + 1], pa.timestamp("ns")), "does not fit its type"),
    ],
)
def test_columns_that_are_not_the_tables_are_refused(
    column: str, stored: pa.Array, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "f.orc"
    orc.write_table(pa.table({"id": pa.array([1], pa.int32()), "v": stored}), path)
    name, _, type_ = column.partition(" ")
    with pytest.raises(UnreadableColumn, match=why):
        _read(_file(path, 1), fields(id="INT", **{name: type_}))


@pytest.mark.parametrize("format", ["orc", "parquet"])
@pytest.mark.parametrize("stored", [{"v": ["a"]}, {"V": [1]}, {}])
def test_a_partition_s_column_has_the_partition_s_value_whatever_the_file_has(
    format: str, stored: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / f"f.{format}"
    rows = pa.table({"id": pa.array([1], pa.int32()), **stored})
    orc.write_table(rows, path) if format == "orc" else pq.write_table(rows, path)
    columns = fields(id="INT", v="INT NOT NULL")
    storage = LocalStorage()
    opened = FORMATS[format].open(storage, Fetcher(storage), _file(path, 1).file)
    batches = opened.batches(append_layout(columns, partition=(("v", 5),)), 500, None)
    assert [batch.to_pylist() for _, batch in batches] == [[{"id": 1, "v": 5}]]


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (b"", 1),
        (b"ORC", 1),
        (b"PAR1" * 20, 1),
        (b"ORC" + bytes(300), 1),
        (b"ORC" + b"\xff" * 99, 1),
    ],
)
def test_what_is_no_orc_file_is_damaged(content: bytes, rows: int, tmp_path: Path) -> None:
    path = tmp_path / "f.orc"
    path.write_bytes(content)
    with pytest.raises(DataFileDamaged, match="not a readable ORC file"):
        _file(path, rows).check(append_layout(_COLUMNS))


def test_other_rows_or_bytes_than_in_the_manifest_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "f.orc"
    _written(path, _rows(100), append_layout(_COLUMNS))
    with pytest.raises(DataFileDamaged, match="100 rows, the manifest 99"):
        _read(_file(path, 99))
    with pytest.raises(DataFileDamaged, match="size is 12 bytes in the manifest"):
        _read(_file(path, 100, size_bytes=12))


@pytest.mark.parametrize("codec", _CODECS)
def test_damaged_metadata_are_errors_of_the_file(codec: str, tmp_path: Path) -> None:
    """Arrow's library would end the process for some of them."""
    path = tmp_path / "f.orc"
    _written(path, _rows(3_000), append_layout(_COLUMNS), codec)
    whole, chance, found = path.read_bytes(), random.Random(3), 0
    (length,) = struct.unpack("B", whole[-1:])
    for _ in range(400):
        data = bytearray(whole)
        place = len(data) - 1 - chance.randrange(length + 260)
        if chance.random() < 0.2:
            del data[place:]
        else:
            data[place] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        try:
            _file(path, 3_000).check(append_layout(_COLUMNS))
        except FormatError:
            found += 1
    # Other flips hit statistics, names of columns that are read by place, and the writer's version.
    assert found > 100
