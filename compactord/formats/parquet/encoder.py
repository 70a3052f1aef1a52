"""Rows encoded as Java's reader wants them.

The mapping of types is in the schema (`paimon.arrow`); here are the writer's properties. What
matters: no Arrow schema in the footer (Java looks at it), decimals as integers where they fit, TIME
adjusted to UTC, codecs by Paimon's names.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.errors import TaskError
from compactord.formats.layout import Layout
from compactord.formats.parquet.assembly import EncodedChunk, encoded_chunks, footer_of, renamed
from compactord.formats.parquet.leaves import leaf_count
from compactord.formats.parquet.thrift import Struct
from compactord.model import WriteSpec

# Paimon's `lz4` would be Hadoop's framing of it, which readers have but Arrow does not write.
_CODECS = {
    "none": "none",
    "uncompressed": "none",
    "zstd": "zstd",
    "snappy": "snappy",
    "gzip": "gzip",
    "lz4": "lz4",
    "lz4_raw": "lz4",
}
_LEVELLED = ("zstd", "gzip")
# As parquet-mr does; Java prunes by pages.
_ROWS_PER_PAGE = 20_000
# After how many rows Arrow looks at the size of a page: what it does by itself, and more where
# values are small, as it costs 7 % of encoding.
_MIN_ROWS_AT_ONCE = 1_024
_LOOKS_PER_PAGE = 4
# What a file has beside its values: headers, indexes, the footer.
_HEADROOM_BYTES = 1 << 20


class Encoder:
    """Encodes row groups, in memory, into column chunks.

    `template` is the footer of the files without rows, `schema` how they declare their columns.
    """

    def __init__(
        self, layout: Layout, spec: WriteSpec, *, dictionary_columns: Sequence[str]
    ) -> None:
        self._layout = layout
        self._spec = spec
        self._dictionary_columns = dictionary_columns
        self._schema = layout.file_schema
        self._twins = _twins(layout, self._schema)
        empty = self._encoded(self._schema.empty_table())
        self.template: Struct = footer_of(empty)
        self.schema: pq.ParquetSchema = pq.ParquetFile(pa.BufferReader(empty)).schema

    def chunks(self, rows: pa.Table) -> dict[str, list[EncodedChunk]]:
        """By file column its chunks, several for a nested one, of those whose row column is here.

        A key's column and its copy among the values are one chunk, encoded once.
        """
        present = frozenset(rows.column_names)
        columns = [column for column in self._layout.file_columns if column[1] in present]
        encoded = [column for column in columns if column[0].name not in self._twins]
        if not encoded:
            return {}
        table = pa.Table.from_arrays(
            [rows.column(source) for _, source in encoded],
            schema=pa.schema([self._schema.field(field.name) for field, _ in encoded]),
        )
        leaves = iter(encoded_chunks(self._encoded(table)))
        found = {
            field.name: list(itertools.islice(leaves, leaf_count(field))) for field, _ in encoded
        }
        for field, _ in columns:
            if field.name in self._twins:
                (twin,) = found[self._twins[field.name]]
                found[field.name] = [renamed(twin, field.name)]
        return found

    def _encoded(self, rows: pa.Table) -> memoryview:
        """A whole file of one row group, or of none when there are no rows."""
        buffer = pa.allocate_buffer(rows.nbytes + _HEADROOM_BYTES)
        sink = pa.FixedSizeBufferWriter(buffer)
        try:
            self._write(rows, sink)
            return memoryview(buffer)[: sink.tell()]
        except OSError:
            # Values that no codec makes smaller, with bounds that repeat them: a buffer that grows
            # takes any size, but is copied as it grows.
            growing = pa.BufferOutputStream()
            self._write(rows, growing)
            return memoryview(growing.getvalue())

    def _write(self, rows: pa.Table, sink: pa.NativeFile) -> None:
        with open_writer(sink, rows, self._spec, self._dictionary_columns) as writer:
            if rows.num_rows:
                writer.write_table(rows, row_group_size=rows.num_rows)


def _twins(layout: Layout, schema: pa.Schema) -> dict[str, str]:
    """By name the file columns whose chunk is that of an earlier one."""
    first: dict[tuple[str, bool], str] = {}
    found = {}
    for field, source in layout.file_columns:
        name = first.setdefault((source, schema.field(field.name).nullable), field.name)
        if name != field.name:
            found[field.name] = name
    return found


def open_writer(
    sink: pa.NativeFile, rows: pa.Table, spec: WriteSpec, dictionary_columns: Sequence[str]
) -> pq.ParquetWriter:
    """Arrow's writer with our properties, for these rows."""
    codec = codec_of(spec.compression)
    widest = max((column.nbytes for column in rows.columns), default=0)
    rows_at_once = spec.page_bytes * rows.num_rows // (_LOOKS_PER_PAGE * max(1, widest))
    return pq.ParquetWriter(
        sink,
        rows.schema,
        compression=codec,
        compression_level=spec.compression_level if codec in _LEVELLED else None,
        use_dictionary=list(dictionary_columns) if spec.dictionary else False,
        data_page_size=spec.page_bytes,
        max_rows_per_page=_ROWS_PER_PAGE,
        write_batch_size=min(_ROWS_PER_PAGE, max(_MIN_ROWS_AT_ONCE, rows_at_once)),
        store_schema=False,
        store_decimal_as_integer=True,
        write_time_adjusted_to_utc=True,
        write_page_index=True,
        write_page_checksum=True,
        write_statistics=_columns_with_statistics(rows.schema),
    )


def _columns_with_statistics(schema: pa.Schema) -> bool | list[str]:
    """All columns but floats: Arrow leaves NaN out of bounds, and Java's reader then skips it."""
    if not any(pa.types.is_floating(f.type) for f in schema):
        return True
    return [f.name for f in schema if not pa.types.is_floating(f.type)]


def codec_of(compression: str) -> str:
    """Arrow's name of a codec of Paimon's; `TaskError` for one that we cannot write."""
    codec = _CODECS.get(compression.lower())
    if codec is None:
        raise TaskError(f"Parquet files cannot be written with compression {compression!r}")
    return codec
