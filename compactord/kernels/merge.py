"""Merges sorted runs into one: a merge function reduces the records of each key.

The merge is streaming and vectorised. It cuts the runs into windows of rows (see `window`) and
sorts each window by key codes (`grouping`). As the function needs, it selects the last record of
each key or orders all of them (`precedence`, `ties`). The function then copies the rows that it
keeps (`gather`) or computes new ones. A window with rows of one run only is returned unchanged.
The merge uses one thread, apart from Arrow's own.

Memory: the rows that `window` buffers, a second copy of the window's key and sequence columns,
about 32 bytes per row of a window for codes and order, a copy of one other column, and the output
batches that the caller holds. A function that needs all records adds a sorted copy of the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from compactord.kernels.columns import Int64s
from compactord.kernels.functions.base import MergeFunction, Needs, OrderedRecords
from compactord.kernels.gather import concat_column, hand_on
from compactord.kernels.grouping import group_rows, last_rows
from compactord.kernels.kinds import SEQUENCE_NUMBER, VALUE_KIND
from compactord.kernels.order import MergeOrder
from compactord.kernels.records import Records
from compactord.kernels.ties import MergeTree
from compactord.kernels.window import Window, windows

# How many of a window's last rows are read first to find the history of the merge tree.
_TAIL_ROWS = 128


def merge_runs(
    runs: Sequence[Iterator[pa.RecordBatch]],
    order: MergeOrder,
    function: MergeFunction,
    *,
    window_rows: int,
    window_bytes: int,
    keys_repeat: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the function's result rows, in key order, in batches of at most one window.

    All batches, of input and output, have one schema with `_SEQUENCE_NUMBER` (int64) and
    `_VALUE_KIND` (int8). A run is sorted by key and has each key once; with `keys_repeat` it may
    have several records of a key, in their order. The dictionary of a dictionary-encoded column may
    differ between batches, in input and output; its indices are int32. Raises `TaskError` when a
    run is not sorted or a key is null.
    """
    merge = _Merge(order, function, len(runs), keys_repeat=keys_repeat)
    for window in windows(
        runs,
        order.key_columns,
        window_rows=window_rows,
        window_bytes=window_bytes,
        keys_repeat=keys_repeat,
    ):
        yield from merge.merge_window(window)


class _Merge:
    """The state of a merge between windows: the history of the tie-breaking tree."""

    def __init__(
        self, order: MergeOrder, function: MergeFunction, run_count: int, *, keys_repeat: bool
    ) -> None:
        self._order = order
        self._function = function
        self._keys_repeat = keys_repeat
        self._tree = None if order.disjoint_sequences else MergeTree(run_count)
        names = [*order.key_columns, *order.sequence_fields]
        if not order.disjoint_sequences:
            names.append(SEQUENCE_NUMBER)
        if order.ignore_delete:
            names.append(VALUE_KIND)
        self._compared_columns = tuple(dict.fromkeys(names))

    def merge_window(self, window: Window) -> Iterator[pa.RecordBatch]:
        present = [run for run, batches in enumerate(window) if batches]
        parts = [batch for batches in window for batch in batches]
        if len(present) == 1 and not self._keys_repeat:
            if self._tree is not None:
                self._tree.pass_run(present[0])
            return hand_on(parts)
        order = self._order
        columns = {
            name: concat_column([part.column(name) for part in parts])
            for name in self._compared_columns
        }
        keys = [columns[name] for name in order.key_columns]
        needs_last = self._function.needs is Needs.LAST
        by_run = order.disjoint_sequences and not order.sequence_fields and not order.ignore_delete
        if needs_last and by_run:
            rows, starts = last_rows(keys, len(present)), None
        else:
            groups = group_rows(keys, len(present))
            run_ends = np.cumsum([sum(batch.num_rows for batch in run) for run in window])
            records = Records(order, groups, columns, run_ends)
            if needs_last:
                rows, starts = self._pick(records, present), None
            else:
                rows, starts = records.in_order(self._tree)
        return self._function.merge(OrderedRecords(parts, rows, starts, columns, order.key_columns))

    def _pick(self, records: Records, present: Sequence[int]) -> Int64s:
        """The row numbers of the last record of each key, in key order."""
        latest, starts = records.latest()
        if len(starts) < len(latest):
            if self._tree is None:
                latest = latest[np.append(starts[1:], len(latest)) - 1]
            else:
                rows, places = records.sequenced(0)
                is_latest = np.zeros(len(places), np.bool_)
                is_latest[latest] = True
                tied = np.flatnonzero(is_latest.take(places))
                latest = np.sort(places[self._tree.last_of_ties(rows, tied)])
                self._tree.pass_rows(rows)
        elif self._tree is not None:
            self._follow(self._tree, records, present)
        return records.rows_at(latest)

    @staticmethod
    def _follow(tree: MergeTree, records: Records, present: Sequence[int]) -> None:
        """Update the tree's history, from as few of the last records as suffice."""
        size = _TAIL_ROWS
        while (start := records.tail_start(size)) > 0:
            rows, _ = records.sequenced(start)
            if tree.pass_tail(rows, present):
                return
            size *= 8
        rows, _ = records.sequenced(0)
        tree.pass_rows(rows)
