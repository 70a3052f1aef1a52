"""Reads row groups from their first row to their last, and small files that are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.base import NumberedBatches, reading
from compactord.formats.layout import Layout
from compactord.formats.parquet import NAME
from compactord.formats.parquet.checked_footer import Footer
from compactord.formats.parquet.conversion import check_indices, converted
from compactord.model import InputFile

# Bytes per open column chunk. A larger buffer costs memory (times runs, times columns) and is not
# faster: pages are larger than the buffer and are read without it.
BUFFER_BYTES = 32 << 10
# Of a file in memory.
_BATCH_ROWS = 64 << 10


def arrow_file(stream: pa.NativeFile, footer: Footer, layout: Layout) -> pq.ParquetFile:
    """The open file, whose pages are checked as they are read."""
    return pq.ParquetFile(
        stream,
        metadata=footer.arrow,
        read_dictionary=sorted(layout.dictionaries),
        pre_buffer=False,
        buffer_size=BUFFER_BYTES,
        # A rewrite would make flipped bits permanent; files by Java and by us have checksums.
        page_checksum_verification=True,
    )


def read_groups(
    parquet: pq.ParquetFile, groups: Sequence[int], layout: Layout, batch_rows: int
) -> NumberedBatches:
    """All rows of row groups, counted from 0."""
    row = 0
    for batch in parquet.iter_batches(
        batch_size=batch_rows,
        row_groups=groups,
        columns=list(layout.row_names),
        use_threads=False,
    ):
        yield row, batch
        row += batch.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeFile:
    """A small file in memory. `parquet` reads from `content` and verifies checksums.

    `absent` columns are null, or have the one value that `partition` has for them.
    """

    input: InputFile
    content: memoryview
    footer: Footer
    parquet: pq.ParquetFile
    absent: frozenset[str] = frozenset()
    partition: Mapping[str, pa.Array] = field(default_factory=dict)

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of these columns. Raises `FormatError` as `OpenFile.batches` does."""
        path, rows = self.input.path, 0
        present = [each for each in schema if each.name not in self.absent]
        names = [each.name for each in present]
        dictionaries = [each.name for each in present if pa.types.is_dictionary(each.type)]
        with reading(path, NAME):
            for batch in self.parquet.iter_batches(
                batch_size=_BATCH_ROWS, columns=names, use_threads=False
            ):
                rows += batch.num_rows
                check_indices(batch, dictionaries, path)
                yield converted(batch, schema, path, self.partition)
        self.input.check_rows(rows)
