"""Decodes the blocks of an Avro file into columns of Arrow, many blocks at a time.

Columns that are not nested come from `paimon.avro.columns`; each value of a nested one is decoded
by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactord.formats.avro.schema import moment_unit
from compactord.formats.avro.values import UNITS, column_of
from compactord.paimon.avro.columns import DecodedBlocks, Span, decode_blocks
from compactord.paimon.avro.container import Block, compile_schema, values_at
from compactord.paimon.avro.types import plain_type, renamed, without_null
from compactord.paimon.types import (
    BINARIES,
    FLOATS,
    TEXTS,
    AtomicType,
    DataField,
    TypeRoot,
    arrow_type,
)

_DECIMAL_BYTES = 16
_FLOATS: dict[TypeRoot, np.dtype[Any]] = {
    TypeRoot.FLOAT: np.dtype("<f4"),
    TypeRoot.DOUBLE: np.dtype("<f8"),
}


def columns_of(
    schema: Any, blocks: Sequence[Block], fields: Sequence[DataField], path: str
) -> list[pa.Array]:
    """The columns `fields` of all records; `schema` is the resolved schema of a record.

    Raises `FormatError` and `UnusualEncoding` as `decode_blocks`, and `pa.ArrowInvalid` and
    `OverflowError` for values that a column's type does not hold.
    """
    flat = [each.name for each in fields if isinstance(each.type, AtomicType)]
    nested = [each.name for each in fields if not isinstance(each.type, AtomicType)]
    decoded = decode_blocks(plain_type(schema), blocks, values=flat, raw=nested, path=path)
    schemas = column_schemas(schema)
    return [_column(decoded, field, schemas[field.name], path) for field in fields]


def column_schemas(schema: Any) -> Mapping[str, Any]:
    """The schema of each column of a record, or of a union of null and a record.

    Raises `ValueError` for the schema of other values.
    """
    record = without_null(schema)
    if not isinstance(record, dict) or "fields" not in record:
        raise ValueError("an Avro file whose values are not records")
    return {each["name"]: each["type"] for each in record["fields"]}


def _column(decoded: DecodedBlocks, field: DataField, schema: Any, path: str) -> pa.Array:
    if isinstance(field.type, AtomicType):
        return _atomic(decoded, field.name, field.type)
    starts = decoded.spans[field.name].start.tolist()
    values = values_at(compile_schema(renamed(schema, "r")), decoded.data.tobytes(), starts, path)
    return column_of(values, field.type)


def _atomic(decoded: DecodedBlocks, name: str, type_: AtomicType) -> pa.Array:
    valid, wanted, root = decoded.valid.get(name), arrow_type(type_), type_.root
    mask = None if valid is None or valid.all() else ~valid
    if root in TEXTS or root in BINARIES:
        return _binary(decoded, decoded.spans[name], mask).cast(wanted)
    if root is TypeRoot.DECIMAL:
        return _decimals(decoded, decoded.spans[name], mask, wanted)
    if root in FLOATS or root is TypeRoot.BOOLEAN:
        return pa.array(_fixed(decoded, name, root), mask=mask)
    numbers = pa.array(decoded.integers[name], pa.int64(), mask=mask)
    if root in (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ):
        return numbers.cast(pa.timestamp(UNITS[moment_unit(type_)], wanted.tz)).cast(wanted)
    if root in (TypeRoot.DATE, TypeRoot.TIME):
        return numbers.cast(pa.int32()).cast(wanted)
    return numbers.cast(wanted)


def _fixed(decoded: DecodedBlocks, name: str, root: TypeRoot) -> npt.NDArray[Any]:
    places = decoded.places[name]
    if root is TypeRoot.BOOLEAN:
        return np.not_equal(decoded.data[places], 0)
    kind = _FLOATS[root]
    data = decoded.data[places[:, None] + np.arange(kind.itemsize)]
    found: npt.NDArray[Any] = np.frombuffer(data.tobytes(), kind)
    return found


def _binary(decoded: DecodedBlocks, span: Span, mask: npt.NDArray[Any] | None) -> pa.Array:
    """The bytes of each span; records are in the order of their bytes."""
    count = len(span.start)
    start, length = span.start, span.length
    if mask is not None:
        # An absent value lies where the one before it ends.
        ends = np.maximum.accumulate(np.where(mask, 0, start + length))
        start, length = np.where(mask, ends, start), np.where(mask, 0, length)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2], offsets[1::2] = start, start + length
    offsets[-1] = offsets[-2] if count else 0
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(decoded.data)]
    between = pa.Array.from_buffers(pa.binary(), 2 * count, buffers)
    found = between.take(pa.array(np.arange(0, 2 * count, 2)))
    return found if mask is None else pc.if_else(pa.array(mask), None, found)


def _decimals(
    decoded: DecodedBlocks, span: Span, mask: npt.NDArray[Any] | None, wanted: pa.DataType
) -> pa.Array:
    """Decimals from the two's complement of their digits, the first byte highest."""
    if span.length.max(initial=0) > _DECIMAL_BYTES:
        raise OverflowError(f"a decimal has more than {wanted.precision} digits")
    ends = span.start + span.length
    places = np.maximum(ends[:, None] - np.arange(1, _DECIMAL_BYTES + 1), 0)
    lowest_first = decoded.data[places]
    sign = np.where(decoded.data[span.start] >> 7, 0xFF, 0).astype(np.uint8)
    sign[span.length == 0] = 0
    is_own = np.arange(_DECIMAL_BYTES) < span.length[:, None]
    data = np.where(is_own, lowest_first, sign[:, None])
    bits = None
    if mask is not None:
        bits = pa.py_buffer(np.packbits(~mask, bitorder="little"))
    found = pa.Array.from_buffers(wanted, len(data), [bits, pa.py_buffer(data)])
    found.validate(full=True)
    return found
