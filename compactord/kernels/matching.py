"""Finds the rows of sorted batches that have one of some keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from compactord.errors import TaskError
from compactord.kernels.codes import pack
from compactord.kernels.columns import Bools, Int64s
from compactord.kernels.gather import concat_column
from compactord.kernels.grouping import key_numbers


class Found(NamedTuple):
    """The places of the keys that have a row, ascending, and these rows in the same order."""

    places: Int64s
    rows: list[pa.RecordBatch]

    def filtered(self, kept: Bools) -> Found:
        """Those for which `kept` is True, by their order."""
        rows, start = [], 0
        for batch in self.rows:
            part = kept[start : start + batch.num_rows]
            start += batch.num_rows
            if part.any():
                rows.append(batch if part.all() else batch.filter(pa.array(part)))
        return Found(self.places[kept], rows)


def ascends(columns: list[pa.Array]) -> bool:
    """Whether each row's key is above the one before; key columns as for `group_rows`."""
    codes = pack(columns)
    rises = bool((codes.values[1:] > codes.values[:-1]).all())
    if rises or not codes.rest:
        return rises
    try:
        numbers = key_numbers(columns, 1)
    except TaskError:
        return False
    return bool((numbers[1:] > numbers[:-1]).all())


def matches(rows: Sequence[pa.Array], keys: Sequence[pa.Array]) -> tuple[Int64s, Int64s]:
    """The numbers of the rows that have one of the keys, and the places of these keys.

    Both are key columns as for `group_rows`, of the same types, whose rows ascend.
    """
    columns = [concat_column(pair) for pair in zip(rows, keys, strict=True)]
    count = len(rows[0])
    codes = pack(columns)
    numbers = codes.values if not codes.rest else key_numbers(columns, 2)
    of_rows, of_keys = numbers[:count], numbers[count:]
    found = np.minimum(np.searchsorted(of_rows, of_keys), count - 1)
    places = np.flatnonzero(of_rows[found] == of_keys)
    return found[places], places
