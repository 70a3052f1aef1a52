"""Avro files: what is read back, what is refused, and damage."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from compactord.errors import (
    CompactordError,
    DataFileDamaged,
    FileNotSupported,
    UnreadableColumn,
)
from compactord.formats.avro.format import AVRO, AvroEncoding, AvroFile
from compactord.formats.avro.schema import file_schema, holds
from compactord.formats.avro.values import column_of
from compactord.formats.layout import Layout, append_layout
from compactord.model import InputFile
from compactord.paimon.avro.container import open_container
from compactord.paimon.types import DataField, parse_type
from compactord.storage.local import LocalStorage
from compactord.storage.ranges import Fetcher
from tests.unit.rewrite.builders import fields

_COLUMNS = fields(
    id="INT NOT NULL",
    s="STRING",
    d="DECIMAL(20, 3)",
    t="TIMESTAMP(6)",
    z="TIMESTAMP(3) WITH LOCAL TIME ZONE",
    a={"type": "ARRAY", "element": "DATE"},
    m={"type": "MAP", "key": "STRING NOT NULL", "value": "TIME(3)"},
    n={"type": "MAP", "key": "DECIMAL(3, 1) NOT NULL", "value": "INT"},
    r={
        "type": "ROW",
        "fields": [
            {"id": 20, "name": "x", "type": "BYTES"},
            {"id": 21, "name": "y", "type": "DECIMAL(5, 1) NOT NULL"},
        ],
    },
)


def _row(n: int) -> dict[str, Any]:
    return {
        "id": n,
        "s": None if n % 7 == 0 else f"text {n % 50}",
        "d": None if n % 9 == 0 else Decimal(n * (-1) ** n).scaleb(-3),
        "t": 1_700_000_000_000_000 - n * 10**9,
        "z": -n,
        "a": None if n % 5 == 0 else [n, None] * (n % 3),
        "m": None if n % 6 == 0 else [(f"k{i}", i) for i in range(n % 3)],
        "n": [(Decimal(i).scaleb(-1), None if i else n) for i in range(n % 4)],
        "r": None if n % 4 == 0 else {"x": bytes([n % 256]), "y": Decimal(n % 100).scaleb(-1)},
    }


def _rows(count: int) -> pa.Table:
    schema = append_layout(_COLUMNS).row_schema
    return pa.Table.from_pylist([_row(n) for n in range(count)], schema)


def _written(path: Path, rows: pa.Table, layout: Layout, codec: str = "zstd") -> list[Any]:
    output = AVRO.writer(layout, AvroEncoding(compression=codec), ()).open(
        LocalStorage(), str(path)
    )
    try:
        output.write(rows)
    except CompactordError as error:
        output.abort(error)
        raise
    return list(output.close())


def _file(path: Path, rows: int) -> AvroFile:
    storage = LocalStorage()
    known = InputFile(
        path=str(path),
        file_format="avro",
        size_bytes=path.stat().st_size,
        row_count=rows,
        min_sequence_number=0,
        max_sequence_number=rows - 1,
    )
    return AvroFile(storage, Fetcher(storage), known)


def _read(file: AvroFile, columns: tuple[DataField, ...] = _COLUMNS, batch: int = 500) -> pa.Table:
    layout = append_layout(columns)
    batches = [rows for _, rows in file.batches(layout, batch, None)]
    return pa.Table.from_batches(batches, layout.row_schema)


@pytest.mark.parametrize("codec", ["zstd", "snappy", "deflate", "bzip2", "xz", "null"])
def test_rows_come_back(codec: str, tmp_path: Path) -> None:
    path, rows = tmp_path / "f.avro", _rows(3_000)
    bounds = _written(path, rows, append_layout(_COLUMNS), codec)
    assert _read(_file(path, 3_000)).equals(rows)
    nulls = {name: rows[name].null_count for name in rows.column_names}
    assert {each.name: each.null_count for each in bounds} == nulls
    assert (bounds[0].minimum, bounds[0].maximum) == (0, 2_999)
    assert (bounds[5].minimum, bounds[5].maximum) == (None, None)


def test_blocks_end_as_java_s_do(tmp_path: Path) -> None:
    path, columns = tmp_path / "f.avro", fields(v="STRING NOT NULL")
    _written(path, pa.table({"v": ["x" * 998] * 200}), append_layout(columns), "null")
    blocks = list(open_container(path.read_bytes(), str(path)).blocks())
    assert [block.count for block in blocks] == [64, 64, 64, 8]
    assert len(_read(_file(path, 200), columns, 7)) == 200


@pytest.mark.parametrize(
    ("type_", "is_held"),
    [
        ("TIME(3)", True),
        ("TIME(4)", False),
        ("TIMESTAMP(6)", True),
        ("TIMESTAMP(7)", False),
        ("TIMESTAMP(9) WITH LOCAL TIME ZONE", False),
        ({"type": "ARRAY", "element": "TIMESTAMP(9)"}, False),
        ({"type": "MAP", "key": "TIME(9) NOT NULL", "value": "INT"}, False),
        ({"type": "MULTISET", "element": "STRING"}, True),
    ],
)
def test_types_that_java_does_not_write_are_refused(type_: Any, is_held: bool) -> None:
    assert holds(parse_type(type_)) is is_held


def _of_another_writer(path: Path, schema: Any, records: list[Any], codec: str = "null") -> None:
    with path.open("wb") as sink:
        fastavro.writer(sink, fastavro.parse_schema(schema), records, codec=codec)


def _record(**columns: Any) -> dict[str, Any]:
    found = [{"name": name, "type": type_} for name, type_ in columns.items()]
    return {"type": "record", "name": "another", "fields": found}


@pytest.mark.parametrize(
    ("column", "stored", "value", "why"),
    [
        ("v INT", "string", "a", "the file has string"),
        ("v BIGINT", "int", 1, "the file has int"),
        ("v INT NOT NULL", ["null", "int"], None, "NOT NULL and holds nulls"),
        ("V INT", "int", 1, "differs in case"),
        ("w INT NOT NULL", "int", 1, "the file lacks it"),
        ("v TINYINT", {"type": "int"}, 1, None),
        ("v INT", {"type": "int", "logicalType": "date"}, 1, "the file has"),
        ("v TIMESTAMP(3)", {"type": "long", "logicalType": "timestamp-micros"}, 1, "the file has"),
        ("v TIMESTAMP(9)", "long", 1, "not read from"),
        (
            "v DECIMAL(3, 1)",
            {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1},
            Decimal("99.9"),
            None,
        ),
    ],
)
def test_columns_that_are_not_the_tables_are_refused(
    column: str, stored: Any, value: Any, why: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "f.avro"
    _of_another_writer(path, _record(id="int", v=stored), [{"id": 1, "v": value}])
    name, _, type_ = column.partition(" ")
    columns = fields(id="INT", **{name: type_})
    if why is None:
        assert _read(_file(path, 1), columns).to_pylist() == [{"id": 1, name: value}]
        return
    with pytest.raises(UnreadableColumn, match=why):
        _read(_file(path, 1), columns)


@pytest.mark.parametrize(
    ("type_", "value"),
    [("DECIMAL(3, 0)", (1000).to_bytes(2, "big")), ("DECIMAL(38, 0)", b"\x7f" * 17)],
)
def test_digits_beyond_the_decimal_are_refused(type_: str, value: bytes) -> None:
    with pytest.raises(OverflowError, match="more than"):
        column_of([value], parse_type(type_))


def test_absent_columns_are_null_and_others_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "f.avro"
    schema = ["null", _record(id=["null", "int"], other="string")]
    _of_another_writer(path, schema, [{"id": 1, "other": "x"}, {"id": None, "other": "y"}])
    found = _read(_file(path, 2), fields(id="INT", later="INT")).to_pydict()
    assert found == {"id": [1, None], "later": [None, None]}


@pytest.mark.parametrize(
    ("schema", "records"),
    [("int", [1]), (["null", "int"], [1]), ({"type": "array", "items": "int"}, [[1]])],
)
def test_files_without_records_are_refused(schema: Any, records: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "f.avro"
    _of_another_writer(path, schema, records)
    with pytest.raises(DataFileDamaged, match="not records"):
        _read(_file(path, 1), fields(id="INT"))


def test_an_unknown_codec_is_not_supported(tmp_path: Path) -> None:
    path = tmp_path / "f.avro"
    _written(path, _rows(3), append_layout(_COLUMNS), "snappy")
    path.write_bytes(path.read_bytes().replace(b"snappy", b"snoppy"))
    with pytest.raises(FileNotSupported, match="snoppy"):
        _read(_file(path, 3))


@pytest.mark.parametrize("content", [b"", b"Obj\x01", b"PAR1" * 20, b"Obj\x01" + b"\xff" * 99])
def test_what_is_no_avro_file_is_damaged(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "f.avro"
    path.write_bytes(content)
    with pytest.raises(DataFileDamaged):
        _read(_file(path, 1))


@pytest.mark.parametrize("codec", ["zstd", "snappy", "deflate", "null"])
def test_a_file_that_is_cut_is_damaged_wherever_it_ends(codec: str, tmp_path: Path) -> None:
    path = tmp_path / "f.avro"
    _written(path, _rows(2_000), append_layout(_COLUMNS), codec)
    whole = path.read_bytes()
    chance = random.Random(1)
    for length in sorted(chance.sample(range(len(whole)), 40)):
        path.write_bytes(whole[:length])
        # Java reads the whole blocks without an error: the manifest's row count is the judge.
        with pytest.raises(DataFileDamaged):
            _read(_file(path, 2_000))


@pytest.mark.parametrize("codec", ["zstd", "snappy", "deflate", "bzip2", "null"])
def test_a_flipped_bit_ends_in_an_error_or_in_as_many_rows(codec: str, tmp_path: Path) -> None:
    path, rows = tmp_path / "f.avro", _rows(400)
    _written(path, rows, append_layout(_COLUMNS), codec)
    whole = path.read_bytes()
    chance = random.Random(2)
    for _ in range(150):
        place = chance.randrange(len(whole))
        flipped = bytearray(whole)
        flipped[place] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        try:
            found = _read(_file(path, 400))
        except CompactordError:
            continue
        assert found.num_rows == 400
        # Blocks of snappy have a checksum; the header has none.
        assert codec != "snappy" or found.equals(rows) or place < len(whole) // 4


_INNER = {"type": "ROW", "fields": [{"id": 9, "name": "i", "type": "INT"}]}
_OUTER = {"type": "ROW", "fields": [{"id": 8, "name": "s", "type": _INNER}]}
_MAP = {"type": "MAP", "key": "INT NOT NULL", "value": _INNER}


def test_names_of_records_are_java_s() -> None:
    schema = file_schema(fields(r=_OUTER, m=_MAP))
    assert schema["namespace"] == "org.apache.paimon.avro.generated"
    row = schema["fields"][0]["type"][1]
    assert row["name"] == "record_r"
    assert row["fields"][0]["type"][1]["name"] == "record_r_s"
    entry = schema["fields"][1]["type"][1]["items"]
    assert entry["name"] == "record_m"
    assert entry["fields"][1]["type"][1]["name"] == "record_m_value"
