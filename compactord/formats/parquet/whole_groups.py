"""Reads row groups from their first row to their last, as Arrow does."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.base import NumberedBatches
from compactord.formats.layout import Layout
from compactord.formats.parquet.checked_footer import Footer

# Bytes per open column chunk. A larger buffer costs memory (times runs, times columns) and is not
# faster: pages are larger than the buffer and are read without it.
BUFFER_BYTES = 32 << 10


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
