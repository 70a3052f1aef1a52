"""Encodes rows in the form that Java's reader requires.

The schema defines the mapping of types (`paimon.types`); this module defines the writer's
properties. The important ones: no Arrow schema in the footer (Java reads it), decimals as integers
where they fit, TIME adjusted to UTC, codecs by Paimon's names.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.layout import Layout
from compactord.formats.parquet.conversion import leaf_paths, leaf_types
from compactord.formats.parquet.copying import EncodedChunk, encoded_chunks, footer_of, renamed
from compactord.formats.parquet.footer import restored, restored_meta
from compactord.formats.parquet.int96 import convert, stored_field
from compactord.formats.parquet.options import ColumnOptions, ParquetEncoding, codec_of
from compactord.formats.parquet.thrift import Struct
from compactord.paimon.types import WIDE_TIMESTAMP, arrow_type

# The same as parquet-mr: Java skips pages by their bounds.
_ROWS_PER_PAGE = 20_000
# The number of rows after which Arrow checks the size of a page: Arrow's default, and more where
# values are small, because the checks take 7 % of the encoding time.
_MIN_ROWS_AT_ONCE = 1_024
_SIZE_CHECKS_PER_PAGE = 4
# More bytes of wide values are not written before a check: a merge of the file holds a page.
_MOST_BYTES_AT_ONCE = 4 << 20
# Bytes of a file in addition to its values: headers, indexes, the footer.
_HEADROOM_BYTES = 1 << 20


# Since Arrow 26.
WRITES_BLOOM_FILTERS = "bloom_filter_options" in inspect.signature(pq.ParquetWriter).parameters


class Encoder:
    """Encodes row groups into column chunks in memory.

    `template` is the decoded footer of such a file without rows, `schema` its Parquet schema.
    `shared_chunks` maps file columns to the earlier column that has the same chunk, by name.
    """

    def __init__(
        self, layout: Layout, encoding: ParquetEncoding, *, dictionary_columns: Sequence[str]
    ) -> None:
        self.layout = layout
        self.encoding = encoding
        self._dictionary_columns = dictionary_columns
        self._schema = pa.schema([stored_field(field) for field in layout.file_schema])
        self._leaves = {
            field.name: leaf_types(arrow_type(field.type)) for field, _ in layout.file_columns
        }
        self.shared_chunks = _shared_chunks(layout, self._schema, encoding)
        empty = self._encoded(self._schema.empty_table())
        self.template: Struct = restored(footer_of(empty))
        self.schema: pq.ParquetSchema = pq.ParquetFile(pa.BufferReader(empty)).schema

    @cached_property
    def plain(self) -> Encoder:
        """The same, without dictionaries."""
        return Encoder(self.layout, self.encoding, dictionary_columns=())

    def chunks(self, rows: pa.Table) -> dict[str, list[EncodedChunk]]:
        """The chunks of the file columns whose row column `rows` has, by the file column's name.

        A nested column has several chunks. A key's column and its copy among the values share one
        chunk, which is encoded once.
        """
        present = frozenset(rows.column_names)
        columns = [column for column in self.layout.file_columns if column[1] in present]
        encoded = [column for column in columns if column[0].name not in self.shared_chunks]
        if not encoded:
            return {}
        schema = pa.schema([self._schema.field(field.name) for field, _ in encoded])
        table = pa.Table.from_arrays(
            [
                _stored(rows.column(source), field.type)
                for (_, source), field in zip(encoded, schema, strict=True)
            ],
            schema=schema,
        )
        chunks = iter(encoded_chunks(self._encoded(table)))
        # The leaves come first, so that none of the next column's chunks is taken.
        found = {
            field.name: [
                _restored(chunk, leaf)
                for leaf, chunk in zip(self._leaves[field.name], chunks, strict=False)
            ]
            for field, _ in encoded
        }
        for field, _ in columns:
            if field.name in self.shared_chunks:
                (original,) = found[self.shared_chunks[field.name]]
                found[field.name] = [renamed(original, field.name)]
        return found

    def _encoded(self, rows: pa.Table) -> memoryview:
        """A whole file of one row group, or of none when there are no rows."""
        buffer = pa.allocate_buffer(rows.nbytes + _HEADROOM_BYTES)
        sink = pa.FixedSizeBufferWriter(buffer)
        try:
            self._write(rows, sink)
            return memoryview(buffer)[: sink.tell()]
        except OSError:
            # The file is larger than expected: incompressible values, repeated in bounds. A growing
            # buffer takes any size, but is copied as it grows.
            growing = pa.BufferOutputStream()
            self._write(rows, growing)
            return memoryview(growing.getvalue())

    def _write(self, rows: pa.Table, sink: pa.NativeFile) -> None:
        with open_writer(sink, rows, self.encoding, self._dictionary_columns) as writer:
            if rows.num_rows:
                writer.write_table(rows, row_group_size=rows.num_rows)


def _stored(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """The column as Arrow writes it; the same unless it has timestamps of more than six digits."""
    if column.type == wanted:
        return column
    chunks = [convert(chunk, wanted).cast(wanted) for chunk in column.chunks]
    return pa.chunked_array(chunks, wanted)


def _restored(chunk: EncodedChunk, leaf: pa.DataType) -> EncodedChunk:
    """The chunk of a leaf column; of such timestamps as INT96, without bounds."""
    if leaf != WIDE_TIMESTAMP:
        return chunk
    return replace(chunk, meta=restored_meta(chunk.meta), column_index=None)


def _shared_chunks(layout: Layout, schema: pa.Schema, encoding: ParquetEncoding) -> dict[str, str]:
    """Maps file columns to the earlier column that has the same chunk, by name."""
    first: dict[tuple[str, bool, ColumnOptions], str] = {}
    found = {}
    for field, source in layout.file_columns:
        # A key is not nested, so its name is its path.
        key = source, schema.field(field.name).nullable, encoding.of_column(field.name)
        name = first.setdefault(key, field.name)
        if name != field.name:
            found[field.name] = name
    return found


def open_writer(
    sink: pa.NativeFile,
    rows: pa.Table,
    encoding: ParquetEncoding,
    dictionary_columns: Sequence[str],
) -> pq.ParquetWriter:
    """Open Arrow's writer with our properties, for these rows."""
    widest = max((column.nbytes for column in rows.columns), default=0)
    rows_of = rows.num_rows / max(1, widest)
    least = min(_MIN_ROWS_AT_ONCE, max(1, int(_MOST_BYTES_AT_ONCE * rows_of)))
    rows_at_once = max(least, int(encoding.page_bytes * rows_of / _SIZE_CHECKS_PER_PAGE))
    return pq.ParquetWriter(
        sink,
        rows.schema,
        **_of_columns(rows, encoding, dictionary_columns),
        data_page_size=encoding.page_bytes,
        max_rows_per_page=_ROWS_PER_PAGE,
        write_batch_size=min(_ROWS_PER_PAGE, rows_at_once),
        store_schema=False,
        store_decimal_as_integer=True,
        write_time_adjusted_to_utc=True,
        write_page_index=True,
        write_page_checksum=True,
        write_statistics=_columns_with_statistics(rows.schema),
    )


def _of_columns(
    rows: pa.Table, encoding: ParquetEncoding, dictionary_columns: Sequence[str]
) -> dict[str, Any]:
    """The properties of Arrow's writer that the table's options may set for single columns.

    A bloom filter has no NaN and one zero only, so floats have none: a reader would skip their
    rows. Booleans have none in any file, nor have timestamps of more than six digits.
    """
    if not (encoding.column_options or encoding.bloom_filters):
        # The usual case, in a tenth of the time.
        return {
            "compression": codec_of(encoding.compression),
            "compression_level": encoding.compression_level,
            "use_dictionary": list(dictionary_columns) if encoding.dictionary else False,
        }
    leaves = {
        path: (encoding.of_column(path), type_)
        for field in rows.schema
        for path, type_ in zip(
            leaf_paths(field.name, field.type), leaf_types(field.type), strict=True
        )
    }
    codecs = {path: codec_of(each.compression or "none") for path, (each, _) in leaves.items()}
    levels = {path: each.compression_level for path, (each, _) in leaves.items()}
    filters = {
        path: {
            "ndv": encoding.distinct_values(each, rows.num_rows),
            "fpp": each.false_positives,
        }
        for path, (each, type_) in leaves.items()
        if each.bloom_filter and not _is_without_filter(type_)
    }
    found = {
        "compression": codecs,
        "compression_level": {path: n for path, n in levels.items() if n is not None},
        "use_dictionary": [
            path for path in dictionary_columns if encoding.of_column(path).dictionary
        ],
    }
    return {**found, "bloom_filter_options": filters} if filters else found


def _is_without_filter(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_floating(type_) or pa.types.is_boolean(type_) or type_ == WIDE_TIMESTAMP
    )


def _columns_with_statistics(schema: pa.Schema) -> bool | list[str]:
    """All columns but floats: Arrow's bounds exclude NaN, so Java's reader would skip NaN rows."""
    if not any(pa.types.is_floating(f.type) for f in schema):
        return True
    return [f.name for f in schema if not pa.types.is_floating(f.type)]
