"""Inputs that are worth copying, and what must hold of the outputs made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactord.model import InputFile, Subcompaction, SubcompactionResult
from compactord.paimon.data_file import DataFile
from compactord.paimon.types import WIDE_TIMESTAMP, DataField, from_nanoseconds, value_schema
from compactord.rewrite.subcompaction import rewrite
from tests.unit.formats.parquet.stored_pages import assert_healthy, is_copied
from tests.unit.rewrite.builders import (
    concat_subcompaction,
    fields,
    input_file,
    output_paths,
    write_parquet,
)

# Beside the columns of a test one that makes files large enough, and that tells whether its pages
# were copied: what is encoded anew has one page where the inputs have one each.
PAD = "pad"
PAD_BYTES = 64
ROWS = 2_000
# As our own writer's files; some tests take one away.
AS_WE_WRITE: dict[str, Any] = {
    "use_dictionary": False,
    "write_page_index": True,
    "write_page_checksum": True,
}
LONG = "long " * 1_000
EXACT = Context(prec=80)
FLAT = {
    "boolean": "BOOLEAN",
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "int": "INT",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "decimal 9": "DECIMAL(9, 2)",
    "decimal 18": "DECIMAL(18, 18)",
    "decimal 19": "DECIMAL(19, 0)",
    "decimal 38": "DECIMAL(38, 10)",
    "char": "CHAR(15)",
    "varchar": "VARCHAR(70)",
    "string": "STRING",
    "binary": "BINARY(15)",
    "bytes": "BYTES",
    "date": "DATE",
    "time": "TIME(3)",
    **{f"timestamp {p}": f"TIMESTAMP({p})" for p in range(10)},
    **{f"local {p}": f"TIMESTAMP({p}) WITH LOCAL TIME ZONE" for p in (0, 3, 6, 9)},
}

_SPECIAL = {
    pa.string(): ["", "a", "z" * 70, "\U0010ffff" * 20, "é", "a\x00"],
    pa.binary(): [b"", b"\x00", b"\xff" * 70, b"\x7f", b"\x80"],
    pa.bool_(): [False, True],
    pa.float32(): [float("nan"), -0.0, 0.0, float("inf"), -float("inf")],
    pa.float64(): [float("nan"), -0.0, 0.0, float("inf"), -float("inf"), 5e-324],
}


def padded(**types: Any) -> tuple[DataField, ...]:
    """Columns of these types, and the pad."""
    return fields(**types, **{PAD: "BYTES"})


def values(type_: pa.DataType, rows: int, chance: np.random.Generator) -> pa.Array:
    """Any values of a type that is not nested, extreme ones among them, without nulls."""
    if pa.types.is_boolean(type_):
        return pa.array(chance.integers(0, 2, rows).astype(bool))
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        texts = [f"{n:x}"[: int(n % 15)] for n in chance.integers(0, 1 << 60, rows)]
        texts = texts if pa.types.is_string(type_) else [text.encode() for text in texts]
        return _with(_SPECIAL[type_], pa.array(texts, type_), chance)
    if type_ == WIDE_TIMESTAMP:
        spread = [int(n) * 1_000_003 for n in chance.integers(-(1 << 62), 1 << 62, rows)]
        return from_nanoseconds(spread)
    if pa.types.is_decimal(type_):
        most = 10**type_.precision - 1
        numbers = [int.from_bytes(chance.bytes(16), "big") % (2 * most + 1) - most] * rows
        numbers = [number * (n + 1) % most * (-1) ** n for n, number in enumerate(numbers)]
        numbers[: min(rows, 3)] = [0, most, -most][: min(rows, 3)]
        unscaled = [Decimal(number).scaleb(-type_.scale, EXACT) for number in numbers]
        return pa.array(unscaled, type_)
    if pa.types.is_floating(type_):
        floats = chance.standard_normal(rows) * 10.0 ** chance.integers(-30, 30, rows)
        return _with(_SPECIAL[type_], pa.array(floats.astype(f"f{type_.bit_width // 8}")), chance)
    low, high = _range(type_)
    numbers = chance.integers(low, high, rows, endpoint=True)
    numbers[: min(rows, 2)] = [low, high][: min(rows, 2)]
    bits = type_.bit_width
    return pa.array(numbers, pa.int64()).cast(f"int{bits}").view(type_)


def _range(type_: pa.DataType) -> tuple[int, int]:
    if pa.types.is_time(type_):
        return 0, 86_399_999
    bits = min(type_.bit_width, 63) if pa.types.is_timestamp(type_) else type_.bit_width
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _with(special: Sequence[Any], column: pa.Array, chance: np.random.Generator) -> pa.Array:
    """Some values replaced by these."""
    found = column.to_pylist()
    for value in special:
        found[int(chance.integers(0, len(found)))] = value
    return pa.array(found, column.type)


def nullable(column: pa.Array, share: float, chance: np.random.Generator) -> pa.Array:
    """About this share of the values is null; all of them for 1."""
    mask = pa.array(chance.random(len(column)) < share)
    return pc.if_else(mask, pa.scalar(None, column.type), column)


def table_of(
    columns: Sequence[DataField], rows: int, seed: int, *, nulls: float = 0.2, **given: pa.Array
) -> pa.Table:
    """Rows of columns that are not nested, but for those that are `given`."""
    chance = np.random.default_rng(seed)
    schema = value_schema(columns)
    arrays = []
    for field in schema:
        if field.name in given:
            arrays.append(given[field.name])
        elif field.name == PAD:
            noise = chance.bytes(rows * PAD_BYTES)
            arrays.append(pa.array([noise[n * PAD_BYTES :][:PAD_BYTES] for n in range(rows)]))
        else:
            column = values(field.type, rows, chance)
            arrays.append(nullable(column, nulls if field.nullable else 0.0, chance))
    return pa.Table.from_arrays(arrays, schema=schema)


def write_small(path: Path, table: pa.Table, **options: Any) -> InputFile:
    """A file as our own writer makes it, but for `options`."""
    write_parquet(path, table, **AS_WE_WRITE | options)
    return input_file(path, table.num_rows)


def inputs(
    folder: Path,
    columns: Sequence[DataField],
    count: int = 3,
    *,
    rows: int = ROWS,
    nulls: float = 0.2,
    **how: Any,
) -> list[InputFile]:
    """Files of random rows, each of its own seed."""
    return [
        write_small(
            folder / f"{seed}.parquet", table_of(columns, rows + seed, seed, nulls=nulls), **how
        )
        for seed in range(count)
    ]


# --- both ways ------------------------------------------------------------------------------------


def decoding(subcompaction: Subcompaction) -> Subcompaction:
    """The same subcompaction, to be decoded and encoded."""
    write = replace(
        subcompaction.write, keeps_encoding=False, folder=f"{subcompaction.write.folder}-decoded"
    )
    return replace(subcompaction, write=write)


def assert_same_as_by_decoding(
    subcompaction: Subcompaction, *, threaded: bool | None = None
) -> SubcompactionResult:
    """Rewrite it both ways; rows, records and statistics are the same. Returns the copy's."""
    twin = decoding(subcompaction)
    copied, decoded = rewrite(subcompaction, threaded=threaded), rewrite(twin, threaded=threaded)
    assert copied.stats.input_records == decoded.stats.input_records
    assert copied.stats.input_bytes == decoded.stats.input_bytes
    ours, others = rows_of(subcompaction, copied), rows_of(twin, decoded)
    assert ours.schema.equals(others.schema, check_metadata=True)
    assert bits(ours).equals(bits(others))
    if len(copied.after) == len(decoded.after) == 1:
        assert described(copied.after[0]) == described(decoded.after[0])
    return copied


def rows_of(subcompaction: Subcompaction, result: SubcompactionResult) -> pa.Table:
    """All rows in their order, checksums verified."""
    found = [
        pq.ParquetFile(path, page_checksum_verification=True).read()
        for path in output_paths(subcompaction, result)
    ]
    return pa.concat_tables(found)


def bits(table: pa.Table) -> pa.Table:
    """Floats as integers, so that NaN equals itself and -0.0 is not 0.0."""
    columns = [
        pa.chunked_array([chunk.view(f"int{column.type.bit_width}") for chunk in column.chunks])
        if pa.types.is_floating(column.type)
        else column
        for column in table.combine_chunks().columns
    ]
    return pa.Table.from_arrays(columns, names=table.column_names)


def described(file: DataFile) -> DataFile:
    """What two records of the same rows agree in."""
    return replace(file, file_name="", file_size=0, creation_time_ms=0)


def copied(
    folder: Path, columns: Sequence[DataField], files: Sequence[InputFile], **write: Any
) -> tuple[Subcompaction, SubcompactionResult]:
    """The subcompaction and the result of copying it, which is compared with decoding."""
    subcompaction = concat_subcompaction(folder, columns, files, keeps_encoding=True, **write)
    result = assert_same_as_by_decoding(subcompaction)
    assert is_copied(subcompaction, result, PAD)
    for path in output_paths(subcompaction, result):
        assert_healthy(path)
    return subcompaction, result
