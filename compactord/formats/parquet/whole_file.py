"""A Parquet file that was read into memory as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.opening import reading
from compactord.formats.parquet import NAME
from compactord.formats.parquet.checked_footer import Footer
from compactord.formats.parquet.conversion import converted
from compactord.formats.parquet.dictionaries import check_indices
from compactord.model import InputFile

_BATCH_ROWS = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeFile:
    """A small file in memory. `parquet` reads from `content` and verifies checksums."""

    input: InputFile
    content: memoryview
    footer: Footer
    parquet: pq.ParquetFile

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of these columns. Raises `FormatError` as `OpenFile.batches` does."""
        path, rows = self.input.path, 0
        dictionaries = [field.name for field in schema if pa.types.is_dictionary(field.type)]
        with reading(path, NAME):
            for batch in self.parquet.iter_batches(
                batch_size=_BATCH_ROWS, columns=schema.names, use_threads=False
            ):
                rows += batch.num_rows
                check_indices(batch, dictionaries, path)
                yield converted(batch, schema, path)
        self.input.check_rows(rows)
