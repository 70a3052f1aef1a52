"""What a compaction changes above the highest level, as rows of a changelog.

Agrees with mergetree/compact/FullChangelogMergeFunctionWrapper.java, except that a key whose merge
yields no row changes nothing: there Java fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactord.kernels.aggregators.equality import comparable
from compactord.kernels.columns import Bools, Int64s, fixed_values
from compactord.kernels.gather import concat_column, gather
from compactord.kernels.kinds import (
    DELETE,
    INSERT,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    VALUE_KIND,
    is_retract,
)
from compactord.kernels.order import precedence_words
from compactord.paimon.options.merge import ChangelogRule

# What a key had before: nothing, nothing but the row that it has now, a row that was merged, or
# nothing, so that its row is told as it is.
NEW, SAME, MERGED, FIRST = range(4)


class MergedKeys(NamedTuple):
    """The result rows of some keys, one for each, and what these keys had before.

    `fates` (int8, one per key) are NEW, SAME, MERGED or FIRST. `before` has the earlier records of
    keys that are MERGED, in the order of keys. Both are empty where nobody asks for them.
    """

    rows: pa.RecordBatch
    fates: npt.NDArray[np.int8] = np.empty(0, np.int8)
    before: Sequence[pa.RecordBatch] = ()


def keys_with_before(
    batches: Iterator[pa.RecordBatch],
    keys: Int64s,
    fates: npt.NDArray[np.int8],
    before_rows: Int64s,
    parts: Sequence[pa.RecordBatch],
    columns: Mapping[str, pa.Array],
) -> Iterator[MergedKeys]:
    """The results of a merge function beside what their keys had before.

    `keys` (int64): the numbers of the keys that have a result, one in each row of the batches.
    `fates` and `before_rows` are by the number of a key: as in `MergedKeys`, and the row number of
    its record before, counted over `parts`; `columns` are concatenated already.
    """
    for batch in batches:
        those, keys = np.split(keys, [batch.num_rows])
        of_batch = fates[those]
        merged = before_rows[those[of_batch == MERGED]]
        yield MergedKeys(
            batch, of_batch, tuple(gather(parts, merged, columns)) if len(merged) else ()
        )
    assert not len(keys), "a function returns one row for each key"


def changelog_rows(keys: MergedKeys, rule: ChangelogRule) -> Iterator[pa.RecordBatch]:
    """The changes in key order, a row of kind -U directly before its +U.

    Batches have the schema of the rows.
    """
    adds = ~is_retract(keys.rows.column(VALUE_KIND))
    merged = np.flatnonzero(keys.fates == MERGED)
    stays = adds[merged]
    new = np.flatnonzero(((keys.fates == NEW) | (keys.fates == FIRST)) & adds)
    own = fixed_values(keys.rows.column(VALUE_KIND), np.int8)[new]
    inserts = np.where(keys.fates[new] == FIRST, own, INSERT)
    updated, gone = stays & _differs(keys, merged, rule.compared), ~stays
    told = np.sort(np.concatenate([new, merged[updated]]))
    # Mostly few rows of many: copied before columns are concatenated.
    rows = keys.rows if len(told) == len(adds) else keys.rows.take(pa.array(told))
    # A row number counts the records before, then these rows.
    first = len(merged)
    found: list[tuple[Int64s, Int64s, npt.ArrayLike]] = [
        (first + np.searchsorted(told, new), 2 * new, inserts),
        (
            first + np.searchsorted(told, merged[updated]),
            2 * merged[updated] + 1,
            UPDATE_AFTER,
        ),
    ]
    if rule.updates_before:
        found.append((np.flatnonzero(updated), 2 * merged[updated], UPDATE_BEFORE))
    if rule.deletes:
        found.append((np.flatnonzero(gone), 2 * merged[gone], DELETE))
    order = np.argsort(np.concatenate([places for _, places, _ in found]))
    kinds = np.concatenate([np.full(len(n), kind, np.int8) for n, _, kind in found])[order]
    if not len(order):
        return
    at = 0
    place = rows.schema.get_field_index(VALUE_KIND)
    numbers = np.concatenate([numbers for numbers, _, _ in found])[order]
    for batch in gather([*keys.before, rows], numbers):
        kind = pa.array(kinds[at : at + batch.num_rows])
        at += batch.num_rows
        yield batch.set_column(place, batch.schema.field(place), kind)


def _differs(keys: MergedKeys, merged: Int64s, compared: Sequence[str] | None) -> Bools:
    """Whether the rows of the keys `merged` differ from those before in a compared column."""
    if compared is None or not len(merged):
        return np.ones(len(merged), np.bool_)
    differs = np.zeros(len(merged), np.bool_)
    for name in compared:
        now = keys.rows.column(name).take(pa.array(merged))
        differs |= _unequal_halves(
            concat_column([*(part.column(name) for part in keys.before), now])
        )
    return differs


def _unequal_halves(column: pa.Array) -> Bools:
    """Whether values differ from those half the column further on, as Java compares them."""
    half = len(column) // 2
    if pa.types.is_nested(column.type):
        values = comparable(column)
        pairs = zip(values[:half], values[half:], strict=True)
        return np.array([before != now for before, now in pairs], np.bool_)
    differs = np.zeros(half, np.bool_)
    for word in precedence_words([column], None, np.arange(len(column)), is_descending=False):
        differs |= word[:half] != word[half:]
    return differs
