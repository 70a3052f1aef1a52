"""Checks the indices of dictionary-encoded columns against their dictionaries."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from compactord.errors import FormatError


def check_indices(batch: pa.RecordBatch, dictionaries: Iterable[str], path: str) -> None:
    """Raise `FormatError` for indices outside a column's dictionary.

    Arrow does not check the bounds of indices when a header understates the dictionary's size.
    """
    for name in dictionaries:
        column = batch.column(name)
        if not isinstance(column, pa.DictionaryArray):
            continue
        indices, size = column.indices, len(column.dictionary)
        # Indices at null rows may have any value, but are rarely out of bounds.
        if not (_are_below(size, indices) or _are_below(size, indices.drop_null())):
            raise FormatError(path, f"column {name} has values outside of its dictionary")


def _are_below(size: int, indices: pa.Array) -> bool:
    """Whether all int32 indices, null or not, are in 0..`size` - 1; much faster than with Arrow."""
    numbers = np.frombuffer(indices.buffers()[1] or b"", np.uint32)
    numbers = numbers[indices.offset : indices.offset + len(indices)]
    return not numbers.size or bool(numbers.max() < size)
