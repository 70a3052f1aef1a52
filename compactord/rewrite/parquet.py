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
    """A file that is being written; exists for readers once `close` has returned.

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
        self.path = path
        self.rows = 0
        self._schema = schema
        self._spec = spec
        self._dictionary_columns = list(dictionary_columns)
        self._footers: list[pq.FileMetaData] = []
        self._context = storage.open_output(path)
        self._stream: pa.NativeFile = self._context.__enter__()
        self._writer: pq.ParquetWriter | None = None
        try:
            self._writer = self._new_writer()
        except BaseException as error:
            self.abort(error)
            raise

    @property
    def bytes_written(self) -> int:
        """Bytes of the finished row groups."""
        return int(self._stream.tell())

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
        self._context.__exit__(None, None, None)
        return self._footers[0]

    def abort(self, error: BaseException) -> None:
        """Leave the storage's context with `error`, which removes the file.

        Raises what the storage makes of the error: one with the path, of our own kinds.
        """
        if self._writer is not None:
            self._writer.is_open = False  # or it would write a footer when it is collected
        suppressed = self._context.__exit__(type(error), error, error.__traceback__)
        assert not suppressed, "a store does not swallow errors"

    def _new_writer(self) -> pq.ParquetWriter:
        codec = _codec(self._spec.compression)
        return pq.ParquetWriter(
            self._stream,
            self._schema,
            compression=codec,
            compression_level=self._spec.compression_level if codec in _LEVELLED else None,
            use_dictionary=self._dictionary_columns if self._spec.dictionary else False,
            data_page_size=self._spec.page_bytes,
            max_rows_per_page=_ROWS_PER_PAGE,
            store_schema=False,
            store_decimal_as_integer=True,
            write_time_adjusted_to_utc=True,
            write_page_index=True,
            write_page_checksum=True,
            write_statistics=_columns_with_statistics(self._schema),
            metadata_collector=self._footers,
        )


def _columns_with_statistics(schema: pa.Schema) -> bool | list[str]:
    """All columns but floats: Arrow leaves NaN out of bounds, and Java's reader then skips it."""
    if not any(pa.types.is_floating(f.type) for f in schema):
        return True
    return [f.name for f in schema if not pa.types.is_floating(f.type)]


def _codec(compression: str) -> str:
    codec = _CODECS.get(compression.lower())
    if codec is None:
        raise TaskError(f"Parquet files cannot be written with compression {compression!r}")
    return codec
