"""Facts from the inputs' footers, read before any row: which columns are dictionary-encoded, how
wide rows are.

The profile is a sample of a few inputs: it affects speed and memory, never the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.parquet as pq

from compactord.formats.base import InputProfile
from compactord.formats.layout import Layout, is_binary_like
from compactord.formats.parquet.leaves import top_column
from compactord.formats.parquet.reader import ParquetInput

# Row groups that are sampled.
SAMPLE_GROUPS = 2
# A chunk is dictionary-encoded to its end if its values take less than this many bytes: indices
# take at most two and a half bytes, whereas plain values follow a full dictionary (1 MiB).
_DICTIONARY_BYTES = {"INT32": 2.5, "FLOAT": 2.5, "BYTE_ARRAY": 5.0}
_DEFAULT_DICTIONARY_BYTES = 4.0
_DICTIONARY_ENCODINGS = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}
_OFFSET_BYTES = 5
_INDEX_BYTES = 4


def profile(files: Sequence[ParquetInput], layout: Layout) -> InputProfile:
    """Profile the footers of `files` (see `InputProfile`).

    `dictionaries` are columns that are dictionary-encoded in every sampled chunk,
    `dictionary_paths` those in most of their rows. `plain_share` counts chunks without a dictionary
    of columns that are not nested.
    """
    names = frozenset(layout.row_names)
    leaves: dict[str, _Leaf] = {}
    for file in files:
        file.expect()
    for file in files:
        footer = file.footer().arrow
        for group_index in range(min(footer.num_row_groups, SAMPLE_GROUPS)):
            group = footer.row_group(group_index)
            for column_index in range(footer.num_columns):
                chunk = group.column(column_index)
                path = chunk.path_in_schema
                if top_column(path, names) is not None:
                    leaves.setdefault(path, _Leaf()).add(chunk, group.num_rows)
    binary = {field.name for field in layout.row_fields if is_binary_like(field)}
    dictionaries = frozenset(
        path for path, leaf in leaves.items() if path in binary and leaf.is_always_encoded
    )
    return InputProfile(
        dictionary_paths=tuple(path for path, leaf in leaves.items() if leaf.is_mostly_encoded),
        dictionaries=dictionaries,
        row_bytes=sum(
            _INDEX_BYTES if path in dictionaries else leaf.row_bytes
            for path, leaf in leaves.items()
        ),
        columns=max(1, len(leaves)),
        plain_share=sum(leaf.plain_bytes for path, leaf in leaves.items() if path in names)
        / max(1, sum(leaf.stored_bytes for leaf in leaves.values())),
    )


class _Leaf:
    """Sums over the sampled chunks of one leaf column."""

    __slots__ = ("_bytes", "_encoded_rows", "_rows", "_values", "plain_bytes", "stored_bytes")

    def __init__(self) -> None:
        self._rows = self._values = self._encoded_rows = 0
        self.plain_bytes = self.stored_bytes = 0
        self._bytes = 0.0

    def add(self, chunk: pq.ColumnChunkMetaData, rows: int) -> None:
        self._rows += rows
        self._values += chunk.num_values
        self.stored_bytes += chunk.total_compressed_size
        if not chunk.has_dictionary_page:
            self.plain_bytes += chunk.total_compressed_size
        encoded = _is_dictionary_encoded(chunk)
        if encoded:
            self._encoded_rows += rows
        width = _WIDTHS.get(chunk.physical_type)
        if width is not None:
            self._bytes += width * chunk.num_values
        else:
            # An encoded text is assumed to be as long as the smallest value.
            text = chunk.num_values * _typical_length(chunk) if encoded else 0
            self._bytes += max(text, chunk.total_uncompressed_size)
            self._bytes += _OFFSET_BYTES * chunk.num_values

    @property
    def is_always_encoded(self) -> bool:
        return 0 < self._rows == self._encoded_rows

    @property
    def is_mostly_encoded(self) -> bool:
        return 2 * self._encoded_rows > self._rows

    @property
    def row_bytes(self) -> float:
        return self._bytes / max(1, self._rows)


def _is_dictionary_encoded(chunk: pq.ColumnChunkMetaData) -> bool:
    """Whether the whole chunk is dictionary-encoded, and smaller for it.

    The list of encodings is not enough: a writer of Parquet format 2 lists PLAIN for the dictionary
    page, and also after falling back to plain pages.
    """
    if not _DICTIONARY_ENCODINGS.intersection(chunk.encodings):
        return False
    if "PLAIN_DICTIONARY" in chunk.encodings and "PLAIN" in chunk.encodings:
        return False
    limit = _DICTIONARY_BYTES.get(chunk.physical_type, _DEFAULT_DICTIONARY_BYTES)
    return bool(chunk.total_uncompressed_size <= limit * max(1, chunk.num_values) + 64)


def _typical_length(chunk: pq.ColumnChunkMetaData) -> int:
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max:
        return 16
    low, high = statistics.min_raw, statistics.max_raw
    return max(len(low), len(high)) if isinstance(low, bytes) else 16
