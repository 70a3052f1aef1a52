"""Looks keys up in higher levels, and derives changelog rows from the rows before.

In a table that looks up, a record above level 0 is the whole state of its key: only the record on
the lowest of these levels counts. Agrees with mergetree/compact/{LookupMergeFunction,
LookupChangelogMergeFunctionWrapper,FirstRowMergeFunctionWrapper,FullChangelogMergeFunctionWrapper}
.java, with two exceptions: the state above counts for any number of a key's records, and a key
whose merge yields no row changes nothing, whereas Java fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactord.errors import SubcompactionError
from compactord.kernels.aggregators.base import comparable
from compactord.kernels.columns import (
    DELETE,
    INSERT,
    SEQUENCE_NUMBER,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    VALUE_KIND,
    Bools,
    Int64s,
    concat_column,
    fixed_values,
    gather,
    is_retract,
    stretch_starts,
)
from compactord.kernels.functions.base import MergeFunction, Needs, OrderedRecords
from compactord.kernels.keys import Found
from compactord.kernels.order import MergeOrder, precedence_words
from compactord.paimon.options.merge import ChangelogRule

# The earlier state of a key: no row, the same row, a row that was merged, or no row with a result
# that is written to the changelog unchanged.
NEW, SAME, MERGED, FIRST = range(4)


class MergedKeys(NamedTuple):
    """The result rows of some keys, one for each, with the keys' earlier state.

    `change_kinds` (int8, one per key) are NEW, SAME, MERGED or FIRST. `before` has the earlier
    records of MERGED keys, in the order of keys. Both are empty unless requested.
    """

    rows: pa.RecordBatch
    change_kinds: npt.NDArray[np.int8] = np.empty(0, np.int8)
    before: Sequence[pa.RecordBatch] = ()


def keys_with_before(
    batches: Iterator[pa.RecordBatch],
    keys: Int64s,
    change_kinds: npt.NDArray[np.int8],
    before_rows: Int64s,
    *,
    parts: Sequence[pa.RecordBatch],
    columns: Mapping[str, pa.Array],
) -> Iterator[MergedKeys]:
    """The results of a merge function, combined with the earlier state of their keys.

    `keys` (int64): the numbers of the keys that have a result, one in each row of the batches.
    `change_kinds` and `before_rows` are by the number of a key: as in `MergedKeys`, and the row
    number of its record before, counted over `parts`; `columns` are concatenated already.
    """
    for batch in batches:
        those, keys = np.split(keys, [batch.num_rows])
        of_batch = change_kinds[those]
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
    merged = np.flatnonzero(keys.change_kinds == MERGED)
    stays = adds[merged]
    new = np.flatnonzero(((keys.change_kinds == NEW) | (keys.change_kinds == FIRST)) & adds)
    own = fixed_values(keys.rows.column(VALUE_KIND), np.int8)[new]
    inserts = np.where(keys.change_kinds[new] == FIRST, own, INSERT)
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
    """A mask of the keys `merged` whose row differs from the row before in a compared column."""
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
    """A mask of values in the first half that differ, as Java compares, from the same place of the
    second.
    """
    half = len(column) // 2
    if pa.types.is_nested(column.type):
        values = comparable(column)
        pairs = zip(values[:half], values[half:], strict=True)
        return np.array([before != now for before, now in pairs], np.bool_)
    differs = np.zeros(half, np.bool_)
    for word in precedence_words([column], None, np.arange(len(column)), is_descending=False):
        differs |= word[:half] != word[half:]
    return differs


_NO_LEVEL = np.iinfo(np.int16).max


# Finds rows above by distinct keys, which ascend from call to call.
Find: TypeAlias = Callable[[pa.RecordBatch], Found]


class Candidates:
    """The records of a window in the order of keys, each key's from first to last.

    Row numbers (`rows`) count the records of all `parts`; `starts` are the places in them where
    keys begin, `levels` (int16) the levels of the records at all places. `columns` as in
    `OrderedRecords`, with keys, sequence fields, sequence numbers and kinds. With `ignores_deletes`
    a retract counts as no state. Raises `SubcompactionError` for a key twice on one level.
    """

    def __init__(
        self,
        parts: Sequence[pa.RecordBatch],
        rows: Int64s,
        starts: Int64s,
        columns: Mapping[str, pa.Array],
        levels: npt.NDArray[np.int16],
        *,
        ignores_deletes: bool,
    ) -> None:
        self.parts = list(parts)
        self.rows = rows
        self.columns = dict(columns)
        # A row of each key.
        self._of_key = rows[starts]
        # The number of the key at each place.
        self.keys: Int64s = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(rows)))
        self.has_several = np.diff(starts, append=len(rows)) > 1
        above = levels > 0
        self.has_level_0 = ~np.logical_and.reduceat(above, starts)
        may_count = above
        if ignores_deletes:
            may_count = above & ~is_retract(columns[VALUE_KIND])[rows]
        lowest = np.minimum.reduceat(np.where(may_count, levels, _NO_LEVEL), starts)
        counts = may_count & (levels == lowest[self.keys])
        # The state above of each key, or -1.
        self.state = np.full(len(starts), -1, np.int64)
        self.state[self.keys[counts]] = rows[counts]
        if np.count_nonzero(self.state >= 0) < np.count_nonzero(counts):
            raise SubcompactionError("a key has two records on one level above 0")
        self._is_shadowed = above & ~counts

    def drop_shadowed(self) -> None:
        """Remove records that another state shadows."""
        self._keep(~self._is_shadowed)

    def drop(self, where: Bools) -> None:
        """Remove the records for which `where` is True, by row number."""
        self._keep(~where[self.rows])

    def drop_keys(self, keys: Int64s) -> None:
        is_gone = np.zeros(len(self.state), np.bool_)
        is_gone[keys] = True
        self._keep(~is_gone[self.keys])

    def find_missing(self, find: Find, key_columns: Sequence[str]) -> tuple[Int64s, Found]:
        """Look up the keys without a state above. Returns the numbers of the found keys, and their
        rows.
        """
        missing = np.flatnonzero(self.state < 0)
        if not len(missing):
            return missing, Found(missing, [])
        firsts = pa.array(self._of_key[missing])
        names = list(key_columns)
        found = find(
            pa.RecordBatch.from_arrays([self.columns[n].take(firsts) for n in names], names=names)
        )
        return missing[found.places], found

    def insert(self, keys: Int64s, found: Sequence[pa.RecordBatch], order: MergeOrder) -> None:
        """Insert a record of each of the keys before the first one that comes later."""
        added = sum(part.num_rows for part in self.parts) + np.arange(len(keys))
        self.parts += found
        for name, column in self.columns.items():
            self.columns[name] = concat_column([column, *(part.column(name) for part in found)])
        self.state[keys] = added
        all_rows = np.concatenate([self.rows, added])
        all_keys = np.concatenate([self.keys, keys])
        is_added = np.arange(len(all_rows)) >= len(self.rows)
        # Records stay in order: the sort is stable, and equal records keep their order.
        words = precedence_words(
            [self.columns[name] for name in order.sequence_fields],
            self.columns[SEQUENCE_NUMBER],
            all_rows,
            is_descending=order.sequence_descending,
        )
        by_key = np.lexsort([is_added, *reversed(list(words)), all_keys])
        self.rows, self.keys = all_rows[by_key], all_keys[by_key]

    def _keep(self, kept: Bools) -> None:
        self.rows, self.keys = self.rows[kept], self.keys[kept]


def looked_up(
    records: Candidates, order: MergeOrder, function: MergeFunction, find: Find | None
) -> Iterator[MergedKeys]:
    """The results of keys, in their order, with the keys' earlier state.

    Without `find` no file is from level 0, and the keys have not changed.
    """
    is_first_row = function.needs is Needs.FIRST
    if find is None and not is_first_row:
        yield from map(MergedKeys, _states(records, order, function))
        return
    if not is_first_row:
        records.drop_shadowed()
    if find is not None:
        keys, found = records.find_missing(find, order.key_columns)
        if is_first_row:
            records.drop_keys(keys)
        elif len(keys):
            records.insert(keys, found.rows, order)
    if order.ignore_delete:
        records.drop(is_retract(records.columns[VALUE_KIND]))
    yield from _merged(records, order, function, find is not None)


def _states(
    records: Candidates, order: MergeOrder, function: MergeFunction
) -> Iterator[pa.RecordBatch]:
    """The states of all keys, merged as if their other records did not exist."""
    known = records.state >= 0
    state, several = records.state[known], records.has_several[known]
    if function.needs is Needs.LAST or not several.any():
        if len(state):
            yield from gather(records.parts, state, records.columns)
        return
    states = OrderedRecords(
        records.parts,
        state[several],
        np.arange(np.count_nonzero(several)),
        records.columns,
        order.key_columns,
        folds_all=True,
    )
    parts = [*function.merge(states)]
    if not several.all():
        parts += gather(records.parts, state[~several], records.columns)
    numbers = np.empty(len(several), np.int64)
    numbers[np.concatenate([np.flatnonzero(several), np.flatnonzero(~several)])] = np.arange(
        len(several)
    )
    yield from gather(parts, numbers)


def _merged(
    records: Candidates, order: MergeOrder, function: MergeFunction, folds_all: bool
) -> Iterator[MergedKeys]:
    if not len(records.rows):
        return
    rows, starts = records.rows, stretch_starts(records.keys)
    found = records.keys[starts]
    if function.needs is Needs.LAST:
        rows = rows[np.append(starts[1:], len(rows)) - 1]
    ordered = OrderedRecords(
        records.parts,
        rows,
        None if function.needs is Needs.LAST else starts,
        records.columns,
        order.key_columns,
        folds_all=folds_all,
    )
    change_kinds = _fates(records, is_first_row=function.needs is Needs.FIRST)
    yield from keys_with_before(
        function.merge(ordered),
        found,
        change_kinds,
        records.state,
        parts=records.parts,
        columns=records.columns,
    )


def _fates(records: Candidates, *, is_first_row: bool) -> npt.NDArray[np.int8]:
    """As in `MergedKeys`, of all keys."""
    has_state = records.state >= 0
    if is_first_row:
        return np.where(has_state, SAME, FIRST).astype(np.int8)
    # A delete is no state.
    retracts = is_retract(records.columns[VALUE_KIND])
    is_none = ~has_state | retracts[np.where(has_state, records.state, 0)]
    changed = np.where(is_none, NEW, MERGED)
    return np.where(records.has_level_0, changed, SAME).astype(np.int8)
