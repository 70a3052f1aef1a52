"""Indices of dictionary-encoded columns, held against their dictionaries."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from compactord.errors import FormatError


def check_indices(batch: pa.RecordBatch, dictionaries: Iterable[str], path: str) -> None:
    """Raise `FormatError` for indices that a column's dictionary does not have.

    Of a dictionary whose header says too few values Arrow hands out what there is, unlooked at.
    """
    for name in dictionaries:
        column = batch.column(name)
        if not isinstance(column, pa.DictionaryArray):
            continue
        indices, size = column.indices, len(column.dictionary)
        # What stands in the places of nulls may be anything, but rarely is.
        if not (_are_below(size, indices) or _are_below(size, indices.drop_null())):
            raise FormatError(path, f"column {name} has values outside of its dictionary")


def _are_below(size: int, indices: pa.Array) -> bool:
    """Whether 32-bit indices are from 0 to `size`, nulls or not; far quicker than Arrow's way."""
    numbers = np.frombuffer(indices.buffers()[1] or b"", np.uint32)
    numbers = numbers[indices.offset : indices.offset + len(indices)]
    return not numbers.size or bool(numbers.max() < size)
