"""ORC as a format of data files, by Arrow's library: columns decoded by batches, rows encoded.

ORC has no checksums: a flipped bit inside a value is not found. The size of a file, its structure
and the number of its rows are checked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import orc

from compactord.errors import SubcompactionError
from compactord.formats.base import FileFormat, InputProfile, NumberedBatches, OpenFile, reading
from compactord.formats.layout import (
    Layout,
    RowRange,
    absent_columns,
    partition_arrays,
    table_columns,
)
from compactord.formats.orc import NAME
from compactord.formats.orc.tail import checked_schema
from compactord.formats.orc.values import (
    holds,
    recorded,
    stored_field,
    stored_type,
    trimmed,
    unusable_moment,
    without_ids,
)
from compactord.formats.row_bounds import RowBounds
from compactord.model import InputFile
from compactord.paimon.data_file import ColumnBounds
from compactord.paimon.options import values as option_values
from compactord.paimon.options.texts import OptionTexts
from compactord.paimon.types import DataField, arrow_field, type_text
from compactord.storage.base import Storage
from compactord.storage.ranges import Fetcher, opened

# Arrow's names by Paimon's.
_CODECS = {"zstd": "zstd", "snappy": "snappy", "zlib": "zlib", "lz4": "lz4", "none": "uncompressed"}
_COMPRESSION = "orc.compress"
_OPTIONS: Mapping[str, Callable[[str], object]] = {_COMPRESSION: option_values.codec}
_MIB = 1 << 20
# As Java's writer; the library buffers a stripe before it writes it.
_STRIPE_BYTES = 64 * _MIB
# Rows that the writer gets at once.
_GROUP_BYTES = 16 * _MIB
# The library holds the compressed streams of a stripe, and buffers for their columns.
_READER_BYTES = 32 * _MIB
_SAMPLED_ROWS = 1024
# The library decodes the next batch while one is used; the buffers of both are not always full.
_BATCHES_HELD = 1.5
# Size of buffered rows in the file, relative to their memory. Source: OrcBulkWriter.
_ESTIMATED_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class OrcEncoding:
    """The encoding of ORC files; the level of a codec cannot be chosen."""

    compression: str
    group_bytes: int = _GROUP_BYTES

    @property
    def compressions(self) -> Sequence[str]:
        """The codec by Paimon's name."""
        return (self.compression,)


class OrcFile(OpenFile):
    def __init__(self, storage: Storage, fetcher: Fetcher, file: InputFile) -> None:
        super().__init__(storage, fetcher, file)
        # The file's columns, once its metadata are checked.
        self._schema: pa.Schema | None = None

    def open_bytes(self, layout: Layout) -> int:
        return min(self.file.size_bytes, _STRIPE_BYTES) + _READER_BYTES

    def check(self, layout: Layout) -> None:
        with self._opened() as (_, schema):
            self._present(schema, layout)

    def column_names(self) -> Sequence[str]:
        with self._opened() as (_, schema):
            return list(schema.names)

    def batches(
        self, layout: Layout, batch_rows: int, row_range: RowRange | None
    ) -> NumberedBatches:
        with self._opened() as (stream, schema):
            present = self._present(schema, layout)
            partition = partition_arrays(layout, set(layout.row_names) - set(present.row_names))
            # A fragment decodes by batches; ORCFile would decode whole stripes.
            fragment = ds.OrcFileFormat().make_fragment(stream)
            scanner = ds.Scanner.from_fragment(
                fragment,
                columns=list(present.row_names),
                batch_size=batch_rows,
                batch_readahead=1,
                use_threads=False,
            )
            row = 0
            for batch in scanner.to_batches():
                if batch.num_rows:
                    yield row, self._converted(batch, layout, partition)
                    row += batch.num_rows
            self.require_rows(row)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[pa.NativeFile, pa.Schema]]:
        """The open file and its columns. Raises as `checked_schema`."""
        with reading(self.file.path, NAME), opened(self.storage, self.file) as stream:
            if self._schema is None:
                self._schema = checked_schema(stream, self.file)
                stream.seek(0)
            yield stream, self._schema

    def _present(self, schema: pa.Schema, layout: Layout) -> Layout:
        """The layout of the columns that are read from the file. Raises as `absent_columns`."""
        absent = absent_columns(layout, schema, self.file.path, self._check_column)
        return layout.without(absent)

    def _check_column(self, there: pa.Field, field: DataField, wanted: pa.Field) -> None:
        if not holds(field.type):
            raise self.unreadable(field, f"{type_text(field.type)} is not read from ORC files")
        if without_ids(there.type) != without_ids(stored_type(wanted.type)):
            text = f"the file has {there.type}, the table {type_text(field.type)}"
            raise self.unreadable(field, text)

    def _converted(
        self, batch: pa.RecordBatch, layout: Layout, partition: Mapping[str, pa.Array]
    ) -> pa.RecordBatch:
        fields = [f for f in layout.row_fields if batch.schema.get_field_index(f.name) >= 0]
        usable = [self._usable(batch.column(field.name), field) for field in fields]
        found = pa.RecordBatch.from_arrays(usable, names=[field.name for field in fields])
        return table_columns(found, layout.row_schema, self.file.path, partition, self._cast)

    def _usable(self, column: pa.Array, field: DataField) -> pa.Array:
        why = unusable_moment(column, written=False)
        if why is not None:
            raise self.unreadable(field, why)
        return trimmed(column, field)

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return column.cast(field.type)
        except pa.ArrowInvalid as error:
            raise self.unreadable(field, f"a value does not fit its type ({error})") from error


def _profile(files: Sequence[OrcFile], layout: Layout) -> InputProfile:
    widest = 1.0
    for file in files:
        rows = file.batches(layout, _SAMPLED_ROWS, None)
        with contextlib.closing(rows):
            for _, batch in rows:
                widest = max(widest, _BATCHES_HELD * batch.nbytes / batch.num_rows)
                break
    return InputProfile(row_bytes=widest, columns=len(layout.row_fields))


class OrcOutput:
    """An `OutputFile`. Stripes reach the file when they are full."""

    companions: tuple[str, ...] = ()

    def __init__(self, storage: Storage, path: str, layout: Layout, encoding: OrcEncoding) -> None:
        self.path = path
        self.rows = 0
        self._size = 0
        self._columns = layout.file_columns
        self._schema = pa.schema([stored_field(arrow_field(f)) for f, _ in layout.file_columns])
        self._bounds = RowBounds(layout.file_columns)
        self._buffered, self._flushed = 0, 0
        self._context = storage.open_output(path)
        self._sink = self._context.__enter__()
        self._writer = orc.ORCWriter(
            self._sink,
            compression=_CODECS[encoding.compression],
            stripe_size=_STRIPE_BYTES,
        )

    @property
    def bytes_written(self) -> int:
        return self._size or self._flushed + int(_ESTIMATED_SHARE * self._buffered)

    def write(self, rows: pa.Table) -> None:
        columns = [self._stored(rows, source, field.name) for field, source in self._columns]
        self._writer.write(pa.Table.from_arrays(columns, schema=self._schema))
        self._bounds.add(rows)
        self.rows += rows.num_rows
        self._buffered += rows.nbytes
        if self._sink.tell() != self._flushed:
            self._flushed, self._buffered = self._sink.tell(), 0

    def close(self) -> list[ColumnBounds]:
        self._writer.close()
        self._size = self._sink.tell()
        self._context.__exit__(None, None, None)
        return [recorded(each) for each in self._bounds.result()]

    def abort(self, error: BaseException) -> None:
        self._context.__exit__(type(error), error, error.__traceback__)

    def _stored(self, rows: pa.Table, source: str, name: str) -> pa.ChunkedArray:
        column = rows.column(source)
        try:
            stored = column.cast(self._schema.field(name).type)
        except pa.ArrowInvalid as error:
            raise SubcompactionError(
                f"column {name} holds a value that ORC files cannot hold ({error})"
            ) from error
        for chunk in stored.chunks:
            if (why := unusable_moment(chunk, written=True)) is not None:
                raise SubcompactionError(f"column {name} cannot be written to ORC: {why}")
        return stored


class OrcWriter:
    """A `FileWriter`; dictionaries cannot be chosen by column."""

    def __init__(
        self, layout: Layout, encoding: OrcEncoding, dictionary_columns: Sequence[str]
    ) -> None:
        del dictionary_columns
        self._layout = layout.with_dictionaries(())
        self._encoding = encoding

    def open(self, storage: Storage, path: str) -> OrcOutput:
        return OrcOutput(storage, path, self._layout, self._encoding)


def _encoding(texts: OptionTexts, compression: str) -> OrcEncoding:
    own: Any = texts.maybe(_COMPRESSION, option_values.codec)
    return OrcEncoding(compression=own or compression)


ORC = FileFormat(
    name="orc",
    open=OrcFile,
    profile=_profile,
    writer=OrcWriter,
    encoding=_encoding,
    codecs=tuple(_CODECS),
    options=_OPTIONS,
    refused=(("orc.bloom.filter.columns", "new files would have no bloom filters"),),
    holds=holds,
)
