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

from compactord.formats.avro.values import column_of, of_numbers
from compactord.paimon.avro.columns import DecodedBlocks, Span, UnusualEncoding, decode_blocks
from compactord.paimon.avro.container import (
    AvroSchema,
    Block,
    compile_schema,
    decode_with_bytes,
    values_at,
)
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


def column_schemas(schema: Any) -> Mapping[str, Any]:
    """The schema of each column of a record, or of a union of null and a record.

    Raises `ValueError` for the schema of other values.
    """
    record = without_null(schema)
    if not isinstance(record, dict) or "fields" not in record:
        raise ValueError("an Avro file whose values are not records")
    return {each["name"]: each["type"] for each in record["fields"]}


class RecordDecoder:
    """Decodes records of a file into the columns `fields`; `schema` is the file's, resolved.

    `records` is the same schema for records that are decoded one by one.
    """

    def __init__(
        self, schema: Any, records: AvroSchema, fields: Sequence[DataField], path: str
    ) -> None:
        self._plain, self._records = plain_type(schema), records
        self._fields, self._path = fields, path
        self._flat = [each.name for each in fields if isinstance(each.type, AtomicType)]
        schemas = column_schemas(schema)
        self._nested = {
            each.name: compile_schema(renamed(schemas[each.name], "r"))
            for each in fields
            if not isinstance(each.type, AtomicType)
        }

    def columns(self, blocks: Sequence[Block]) -> pa.RecordBatch:
        """The columns of all records of these blocks.

        Raises `FormatError` for damage, and `pa.ArrowInvalid` and `OverflowError` for values that a
        column's type does not hold.
        """
        try:
            decoded = decode_blocks(
                self._plain, blocks, values=self._flat, raw=self._nested, path=self._path
            )
        except UnusualEncoding:
            columns = self._one_by_one(blocks)
        else:
            columns = [self._column(decoded, field) for field in self._fields]
        return pa.RecordBatch.from_arrays(columns, names=[each.name for each in self._fields])

    def _one_by_one(self, blocks: Sequence[Block]) -> list[pa.Array]:
        records = [
            record
            for block in blocks
            for record, _ in decode_with_bytes(self._records, block, self._path)
        ]
        return [
            column_of([each[field.name] for each in records], field.type) for field in self._fields
        ]

    def _column(self, decoded: DecodedBlocks, field: DataField) -> pa.Array:
        if isinstance(field.type, AtomicType):
            return _atomic(decoded, field.name, field.type)
        starts = decoded.spans[field.name].start.tolist()
        schema = self._nested[field.name]
        values = values_at(schema, decoded.data.tobytes(), starts, self._path)
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
    return of_numbers(numbers, type_, wanted)


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
