"""One Parquet output file, as Java's reader wants it.

The mapping of types is in the schema (`paimon.arrow`); here are the writer's properties. What
matters: no Arrow schema in the footer (Java looks at it), decimals as integers where they fit, TIME
adjusted to UTC, codecs by Paimon's names.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.errors import TaskError
from compactord.model import WriteSpec
from compactord.rewrite.outputs import OutputStream
from compactord.storage.base import Storage

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


class ParquetOutput:
    """A file of rows that are encoded here.

    Not for several threads at once, but one may go on where another stopped.
    """

    def __init__(
        self,
        storage: Storage,
        path: str,
        schema: pa.Schema,
        spec: WriteSpec,
        *,
        dictionary_columns: Sequence[str],
    ) -> None:
        self.rows = 0
        self._footers: list[pq.FileMetaData] = []
        self._stream = OutputStream(storage, path)
        self._writer: pq.ParquetWriter | None = None
        try:
            self._writer = open_writer(
                self._stream.sink,
                schema,
                spec,
                dictionary_columns=dictionary_columns,
                footers=self._footers,
            )
        except BaseException as error:
            self.abort(error)
            raise

    @property
    def path(self) -> str:
        return self._stream.path

    @property
    def bytes_written(self) -> int:
        """Bytes of the finished row groups."""
        return int(self._stream.sink.tell())

    def write_group(self, rows: pa.Table) -> None:
        """One row group."""
        assert self._writer is not None, "the file is open"
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self.rows += rows.num_rows

    def close(self) -> pq.FileMetaData:
        """Write the footer, make the file durable, return the footer. Aborts when that fails."""
        assert self._writer is not None, "the file is open"
        try:
            self._writer.close()
        except BaseException as error:
            self.abort(error)
            raise
        self._stream.close()
        return self._footers[0]

    def abort(self, error: BaseException) -> None:
        """Remove the file; raises the store's form of `error`."""
        if self._writer is not None:
            self._writer.is_open = False  # or it would write a footer when it is collected
        self._stream.abort(error)


def open_writer(
    sink: pa.NativeFile,
    schema: pa.Schema,
    spec: WriteSpec,
    *,
    dictionary_columns: Sequence[str] = (),
    footers: list[pq.FileMetaData] | None = None,
) -> pq.ParquetWriter:
    """Arrow's writer with our properties; `footers` receives the footer when it is closed."""
    codec = codec_of(spec.compression)
    return pq.ParquetWriter(
        sink,
        schema,
        compression=codec,
        compression_level=spec.compression_level if codec in _LEVELLED else None,
        use_dictionary=list(dictionary_columns) if spec.dictionary else False,
        data_page_size=spec.page_bytes,
        max_rows_per_page=_ROWS_PER_PAGE,
        store_schema=False,
        store_decimal_as_integer=True,
        write_time_adjusted_to_utc=True,
        write_page_index=True,
        write_page_checksum=True,
        write_statistics=_columns_with_statistics(schema),
        metadata_collector=footers,
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
