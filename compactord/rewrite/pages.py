"""How much memory the open pages of a file take, from the headers of its first pages.

Footers do not tell the size of pages, and guesses are far off: Java's and our own pages end after
20,000 rows, others' after a megabyte or later. Writers cut a chunk into pages of one size, so the
first page stands for all; the answer steers memory, never the outcome.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.rewrite.footer import top_column
from compactord.rewrite.int96 import varint

# Both forms of a page, as stored and as decoded, where its header cannot be read.
UNKNOWN_BYTES = 2 << 20
# Three numbers of at most five bytes, each behind the byte that announces it.
_HEADER_BYTES = 18
# Thrift's compact protocol: an i32 whose field id is one more than the last.
_NEXT_I32 = 0x15


def open_pages_bytes(
    stream: pa.NativeFile, footer: pq.FileMetaData, row_columns: Collection[str]
) -> int:
    """Bytes of one page (and dictionary) per leaf of the columns, as stored and as decoded.

    Of the first row group; 0 if there are no rows.
    """
    if not footer.num_rows:
        return 0
    group = footer.row_group(0)
    names = frozenset(row_columns)
    return sum(
        _chunk_bytes(stream, group.column(i))
        for i in range(footer.num_columns)
        if top_column(footer.schema.column(i).path, names) is not None
    )


def _chunk_bytes(stream: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> int:
    starts = [chunk.data_page_offset]
    if chunk.has_dictionary_page:
        starts.append(chunk.dictionary_page_offset)
    size = 0
    for start in starts:
        stream.seek(start)
        size += page_bytes(stream.read(_HEADER_BYTES))
    return size


def page_bytes(header: bytes) -> int:
    """Both sizes of the page that the first bytes of a Thrift PageHeader announce.

    Its first fields are the type, the uncompressed and the compressed size.
    """
    position = 0
    numbers = []
    for _ in range(3):
        if header[position : position + 1] != bytes([_NEXT_I32]):
            return UNKNOWN_BYTES
        try:
            number, position = varint(header, position + 1)
        except IndexError:
            return UNKNOWN_BYTES
        numbers.append(number >> 1)
    return numbers[1] + numbers[2]
