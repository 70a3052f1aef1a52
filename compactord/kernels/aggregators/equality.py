"""Values of any type as Python objects that are equal and hash alike where Java's are equal."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable
from typing import Any

import pyarrow as pa

from compactord.kernels.columns import integer_words, is_text


class Unequal:
    """A value that equals nothing, in Java not even itself: callers must look for it."""


def comparable(column: pa.Array) -> list[Hashable]:
    """One object per value, None for null.

    Floats are equal as Java compares them: NaN equals NaN, and -0.0 is not 0.0. Binaries are equal
    by their bytes. Of maps the order of entries does not count. Fields of rows that are null are
    equal, but an array or a map with a null inside is `Unequal` (codegen/ScalarOperatorGens), and
    so is what contains it.
    """
    type_ = column.type
    if pa.types.is_dictionary(type_):
        return comparable(column.dictionary_decode())
    if is_text(type_):
        return list(column.to_pylist())
    if pa.types.is_struct(type_):
        fields = [comparable(column.field(place)) for place in range(type_.num_fields)]
        rows = list(zip(*fields, strict=True)) if fields else [()] * len(column)
        found: list[Any] = [_whole(row, row) for row in rows]
    elif pa.types.is_map(type_):
        keys, items = comparable(column.keys), comparable(column.items)
        entries = list(zip(keys, items, strict=True))
        found = [
            Unequal()
            if None in items[start:end]
            else _whole(items[start:end], frozenset(entries[start:end]))
            for start, end in _ranges(column)
        ]
    elif pa.types.is_list(type_):
        elements = comparable(column.values)
        found = [
            Unequal()
            if None in elements[start:end]
            else _whole(elements[start:end], tuple(elements[start:end]))
            for start, end in _ranges(column)
        ]
    else:
        found = list(zip(*(word.tolist() for word in integer_words(column)), strict=True))
    if column.null_count:
        valid = column.is_valid().to_pylist()
        return [value if known else None for value, known in zip(found, valid, strict=True)]
    return found


def _whole(parts: Iterable[Hashable], value: Hashable) -> Hashable:
    """The value, unless one of its parts equals nothing."""
    return Unequal() if any(isinstance(part, Unequal) for part in parts) else value


def _ranges(column: pa.Array) -> list[tuple[int, int]]:
    offsets = column.offsets.to_pylist()
    return list(itertools.pairwise(offsets))
