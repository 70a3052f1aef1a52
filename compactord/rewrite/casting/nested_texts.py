"""ARRAY, MAP and ROW as texts.

Sources: casting/{Array,Map,Row}ToStringCastRule.java.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from compactord.paimon.types import DataType, MapType, RowType
from compactord.rewrite.casting.values import nulls_of

ToText = Callable[[pa.Array, DataType], pa.Array]


def array_texts(array: pa.Array, element: DataType, to_text: ToText) -> pa.Array:
    """`[a, b]`; `to_text` makes the texts of elements."""
    elements = _words(to_text(array.values, element))
    return _texts(array, lambda start, end: b"[" + b", ".join(elements[start:end]) + b"]")


def map_texts(array: pa.Array, type_: MapType, to_text: ToText) -> pa.Array:
    """`{k -> v, k -> v}`."""
    keys = _words(to_text(array.keys, type_.key))
    values = _words(to_text(array.items, type_.value))

    def entries(start: int, end: int) -> bytes:
        pairs = zip(keys[start:end], values[start:end], strict=True)
        return b"{" + b", ".join(key + b" -> " + value for key, value in pairs) + b"}"

    return _texts(array, entries)


def row_texts(array: pa.Array, type_: RowType, to_text: ToText) -> pa.Array:
    """`{a, b}`, the values of all fields in their order."""
    nulls = nulls_of(array).tolist()
    fields = [_words(to_text(array.field(f.name), f.type)) for f in type_.fields]
    texts = [
        None if nulls[row] else b"{" + b", ".join(words[row] for words in fields) + b"}"
        for row in range(len(array))
    ]
    return pa.array(texts, pa.binary()).view(pa.string())


def _words(texts: pa.Array) -> list[bytes]:
    return [b"null" if text is None else text for text in texts.view(pa.binary()).to_pylist()]


def _texts(array: pa.Array, text: Callable[[int, int], bytes]) -> pa.Array:
    """The text of each collection, from the numbers of its first element and the one after."""
    offsets: Sequence[int] = np.asarray(array.offsets).tolist()
    nulls = nulls_of(array).tolist()
    texts = [
        None if nulls[row] else text(offsets[row], offsets[row + 1]) for row in range(len(array))
    ]
    return pa.array(texts, pa.binary()).view(pa.string())
