"""Avro as a format of data files: blocks are decoded and rows encoded in columns.

Avro has no checksums, unless the codec has one: a flipped bit inside a value may not be found. The
size of the file, the frames of its blocks and the number of its rows are checked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from compactord.errors import (
    DataFileDamaged,
    FileNotSupported,
    FormatError,
    UnreadableColumn,
    UnsupportedTable,
)
from compactord.formats.avro import NAME
from compactord.formats.avro.decoding import RecordDecoder, column_schemas
from compactord.formats.avro.encoding import encoded_rows
from compactord.formats.avro.schema import column_schema, comparable, file_schema, holds
from compactord.formats.base import FileFormat, InputProfile, NumberedBatches, OpenFile, reading
from compactord.formats.layout import (
    Layout,
    RowRange,
    absent_columns,
    partition_arrays,
    table_columns,
)
from compactord.formats.row_bounds import RowBounds
from compactord.model import InputFile
from compactord.paimon.avro.container import (
    Block,
    BlockWriter,
    Cursor,
    Header,
    checked_block,
    compile_schema,
    packed_blocks,
    read_header,
)
from compactord.paimon.avro.types import BLOCK_BYTES_MAX, Codec, decompressed
from compactord.paimon.avro.types import resolved_schema as resolved
from compactord.paimon.data_file import ColumnBounds
from compactord.paimon.options import values as option_values
from compactord.paimon.options.texts import OptionTexts
from compactord.paimon.types import DataField, type_text
from compactord.storage.base import Storage
from compactord.storage.ranges import opened

# Avro's names by Paimon's.
_CODECS = {
    "zstd": "zstandard",
    "zstandard": "zstandard",
    "snappy": "snappy",
    "deflate": "deflate",
    "bzip2": "bzip2",
    "xz": "xz",
    "null": "null",
}
_CODEC = "avro.codec"
_OPTIONS: Mapping[str, Callable[[str], object]] = {_CODEC: option_values.codec}
_MIB = 1 << 20
# Rows that the writer gets at once.
_GROUP_BYTES = 16 * _MIB
_AHEAD_BYTES = _MIB
# Decompressed bytes that are decoded together. Blocks have 64 KB unless a record is larger. Each is
# a lane of the decoder, which is slow with few. Numbers and spans take twice as much again.
_DECODED_BYTES = 8 * _MIB
_READER_BYTES = 3 * _DECODED_BYTES + _AHEAD_BYTES
# Rows that are encoded at once; their encoding must not reach 2 GiB.
_ROWS_WRITTEN_AT_ONCE = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroEncoding:
    """The encoding of Avro files. `level` is None for codecs without levels."""

    compression: str
    level: int | None = None
    group_bytes: int = _GROUP_BYTES

    @property
    def compressions(self) -> Sequence[str]:
        """The codec by Paimon's name."""
        return (self.compression,)


class _Stream(Cursor):
    """A cursor over an open file."""

    def __init__(self, stream: pa.NativeFile, file: InputFile) -> None:
        super().__init__(file.path, file.size_bytes)
        self._stream = stream

    def _bytes(self, start: int, size: int) -> memoryview:
        found = self._stream.read(size)
        if len(found) != size:
            raise FormatError(self.path, f"cut off at byte {start + len(found)}")
        return memoryview(found)


class AvroFile(OpenFile):
    """An Avro file; its records are decoded in the order of the file."""

    def open_bytes(self, layout: Layout) -> int:
        return min(_READER_BYTES, 8 * self.file.size_bytes + _AHEAD_BYTES)

    def check(self, layout: Layout) -> None:
        with self._opened() as (_, header):
            self._present(header, layout)

    def column_names(self) -> Sequence[str]:
        with self._opened() as (_, header):
            return list(self._columns(header))

    def batches(
        self, layout: Layout, batch_rows: int, row_range: RowRange | None
    ) -> NumberedBatches:
        with self._opened() as (cursor, header):
            present = self._present(header, layout)
            absent = set(layout.row_names) - set(present.row_names)
            partition = partition_arrays(layout, absent)
            row = 0
            decoder = self._decoder(header, present)
            for blocks in self._blocks(cursor, header):
                found = self._decoded(decoder, blocks)
                rows = table_columns(
                    found, layout.row_schema, self.file.path, partition, self._cast
                )
                for start in range(0, rows.num_rows, batch_rows):
                    yield row + start, rows.slice(start, batch_rows)
                row += rows.num_rows
            self.require_rows(row)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[Cursor, Header]]:
        """A cursor behind the header of the open file, and the header.

        Raises `DataFileDamaged` for bytes that do not follow the format.
        """
        path = self.file.path
        try:
            with reading(path, NAME), opened(self.storage, self.file) as stream:
                ahead = pa.BufferedInputStream(stream, _AHEAD_BYTES)
                cursor = _Stream(ahead, self.file)
                yield cursor, read_header(cursor)
        except UnsupportedTable as error:
            raise FileNotSupported(path, "; ".join(error.reasons)) from error
        except FormatError as error:
            if type(error) is FormatError:
                raise DataFileDamaged(path, error.message) from error
            raise

    def row_bytes(self, layout: Layout) -> float:
        """Mean bytes of a decoded row in memory, by the first block; 0 without rows."""
        with self._opened() as (cursor, header):
            decoder = self._decoder(header, self._present(header, layout))
            for blocks in self._blocks(cursor, header, size_bytes_min=1):
                rows = self._decoded(decoder, blocks)
                mean: float = rows.nbytes / max(1, rows.num_rows)
                return mean
        return 0

    def _blocks(
        self, cursor: Cursor, header: Header, *, size_bytes_min: int = _DECODED_BYTES
    ) -> Iterator[list[Block]]:
        """The blocks of the file in lists of `size_bytes_min` or more; the last may be smaller."""
        blocks: list[Block] = []
        size_bytes = 0
        for count, packed in packed_blocks(cursor, header):
            data = decompressed(header.codec, packed, BLOCK_BYTES_MAX, self.file.path)
            blocks.append(checked_block(count, data, self.file.path))
            size_bytes += len(data)
            if size_bytes >= size_bytes_min:
                yield blocks
                blocks, size_bytes = [], 0
        if blocks:
            yield blocks

    def _decoder(self, header: Header, present: Layout) -> RecordDecoder:
        schema = self._schema(header)
        return RecordDecoder(schema, header.schema, present.row_fields, self.file.path)

    def _decoded(self, decoder: RecordDecoder, blocks: Sequence[Block]) -> pa.RecordBatch:
        try:
            return decoder.columns(blocks)
        except (pa.ArrowInvalid, OverflowError) as error:
            why = f"a value does not fit its column ({error})"
            raise UnreadableColumn(self.file.path, why) from error

    def _schema(self, header: Header) -> Any:
        """The resolved schema of the records, which are perhaps in a union with null."""
        return resolved(header.schema.json, self.file.path)

    def _columns(self, header: Header) -> Mapping[str, Any]:
        """The schema of each column. Raises `FormatError` for a file of other values."""
        try:
            return column_schemas(self._schema(header))
        except ValueError as error:
            raise FormatError(self.file.path, str(error)) from error

    def _present(self, header: Header, layout: Layout) -> Layout:
        """The layout of the columns that are read from the file. Raises as `absent_columns`."""
        columns = self._columns(header)

        def check(there: pa.Field, field: DataField, wanted: pa.Field) -> None:
            if not holds(field.type):
                raise self.unreadable(field, f"{type_text(field.type)} is not read from Avro files")
            found, own = comparable(columns[there.name]), comparable(_schema_of(field))
            if found != own:
                text = f"the file has {found}, the table {type_text(field.type)}"
                raise self.unreadable(field, text)

        names = pa.schema([pa.field(name, pa.null()) for name in columns])
        return layout.without(absent_columns(layout, names, self.file.path, check))

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        return column.cast(field.type)


def _schema_of(field: DataField) -> Any:
    """The resolved schema of a column, without names that matter."""
    return resolved(column_schema(field.name, field.type), "")


def _profile(files: Sequence[AvroFile], layout: Layout) -> InputProfile:
    widest = max((file.row_bytes(layout) for file in files), default=0)
    return InputProfile(row_bytes=max(1.0, widest), columns=len(layout.row_fields))


class AvroOutput:
    """An `OutputFile`. Blocks reach the file when they are full."""

    companions: tuple[str, ...] = ()

    def __init__(self, storage: Storage, path: str, layout: Layout, encoding: AvroEncoding) -> None:
        self.path = path
        self.rows = 0
        self._columns = layout.file_columns
        schema = compile_schema(file_schema([field for field, _ in self._columns]))
        self._bounds = RowBounds(self._columns)
        self._context = storage.open_output(path)
        self._sink = self._context.__enter__()
        codec = Codec(_CODECS[encoding.compression], encoding.level)
        try:
            self._writer = BlockWriter(schema, codec, self._sink)
        except BaseException as error:
            self.abort(error)
            raise

    @property
    def bytes_written(self) -> int:
        return self._writer.flushed_bytes

    def write(self, rows: pa.Table) -> None:
        types = [field.type for field, _ in self._columns]
        for batch in rows.to_batches(max_chunksize=_ROWS_WRITTEN_AT_ONCE):
            columns = [batch.column(source) for _, source in self._columns]
            self._writer.extend(encoded_rows(columns, types))
        self._bounds.add(rows)
        self.rows += rows.num_rows

    def close(self) -> list[ColumnBounds]:
        try:
            self._writer.flush()
        except BaseException as error:
            self.abort(error)
            raise
        self._context.__exit__(None, None, None)
        return self._bounds.result()

    def abort(self, error: BaseException) -> None:
        self._context.__exit__(type(error), error, error.__traceback__)


class AvroWriter:
    """A `FileWriter`; Avro has no dictionaries."""

    def __init__(
        self, layout: Layout, encoding: AvroEncoding, dictionary_columns: Sequence[str]
    ) -> None:
        del dictionary_columns
        self._layout = layout.with_dictionaries(())
        self._encoding = encoding

    def open(self, storage: Storage, path: str) -> AvroOutput:
        return AvroOutput(storage, path, self._layout, self._encoding)


def _encoding(texts: OptionTexts, compression: str) -> AvroEncoding:
    own: Any = texts.maybe(_CODEC, option_values.codec)
    codec = own or compression
    level = texts.read("file.compression.zstd-level", 1, option_values.zstd_level)
    return AvroEncoding(compression=codec, level=level if codec.startswith("zst") else None)


AVRO = FileFormat(
    name="avro",
    open=AvroFile,
    profile=_profile,
    writer=AvroWriter,
    encoding=_encoding,
    codecs=tuple(_CODECS),
    options=_OPTIONS,
    holds=holds,
)
