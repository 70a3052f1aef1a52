"""Orders records of one key that are equal in all sequence fields and numbers, as Java does.

Two writers that started from the same snapshot give the same sequence numbers to different
records. No rule of the format says which of them is newer. In Java the result depends on the state
of its loser tree (mergetree/compact/LoserTree.java), that is, on the records that passed through
the tree before. This module computes the same result, so that a table has the same rows before and
after a compaction of all its runs.

An inner node of the tree merges the two sides below it. Of two tied heads it pops the one that
reached the node first (the stored one). After a pop it continues with the same side while that
side ties. Between keys, the stored head is that of the side that stayed or was refilled first:

- the last key passed through one side only: the head of the other side was there before
- the last key passed through both sides: the side that was popped last is refilled first

So the state of a node is one bit, the side to continue with. Each distinct sequence that passes
sets the bit (if it is on one side only) or flips it (if it is on both sides: first the side of the
bit, then the other).
For n runs, the parent of leaf i is node (i + n) / 2. Leaves are first filled from last to first.

The result is exact for a merge that starts as Java's does: with the first key of a section, its
runs in Java's order, at most `sort-spill-threshold` runs (above it Java reorders them), and the
default `sort-engine`. A subcompaction that starts at a later key of a section does not know the
history: ties before the first key that decides a node's state may be ordered unlike Java's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from compactord.kernels.columns import Int64s, stretch_starts

_OUTSIDE = 2
_BOTH = 3


@dataclass(frozen=True, slots=True)
class SequencedRows:
    """Rows ordered by (key, precedence): the run, key group and distinct sequence of each.

    All arrays are int64 with one item per row. `sequences` are dense numbers that increase with
    every change of group or precedence.
    """

    runs: Int64s
    groups: Int64s
    sequences: Int64s


class MergeTree:
    """The state of each inner node of the tree; it is kept from window to window."""

    def __init__(self, run_count: int) -> None:
        # For inner node p (the root is 1) and run r: r is below the left child 2p (0), below the
        # right child 2p+1 (1), or elsewhere.
        self._sides = np.full((run_count, run_count), _OUTSIDE, np.int64)
        for run in range(run_count):
            child = run + run_count
            while child > 1:
                self._sides[child // 2, run] = child % 2
                child //= 2
        # The side that is stored before the first key: its leaves are filled before the other's.
        self._next_side = np.zeros(run_count, np.int64)
        for node in range(1, run_count):
            lowest = [int(np.flatnonzero(self._sides[node] == side)[0]) for side in (0, 1)]
            self._next_side[node] = int(lowest[1] > lowest[0])

    def pass_run(self, run: int) -> None:
        """Update the state after keys that only this run has."""
        side = self._sides[:, run]
        self._next_side = np.where(side == _OUTSIDE, self._next_side, 1 - side)

    def pass_rows(self, rows: SequencedRows) -> None:
        """Update the state after these rows, which are all rows of their keys."""
        decided = self._after(range(1, len(self._next_side)), rows, is_tail=False)
        assert decided is not None, "all rows decide every node"
        self._next_side = decided

    def pass_tail(self, rows: SequencedRows, present_runs: Sequence[int]) -> bool:
        """Update the state after keys of these runs, from `rows`, which are those of the last keys.

        Returns False, without a change, when these rows alone do not determine the new state.
        """
        touched = (self._sides[:, list(present_runs)] != _OUTSIDE).any(axis=1)
        decided = self._after(np.flatnonzero(touched).tolist(), rows, is_tail=True)
        if decided is not None:
            self._next_side = decided
        return decided is not None

    def _after(self, nodes: Iterable[int], rows: SequencedRows, *, is_tail: bool) -> Int64s | None:
        after = self._next_side.copy()
        for node in nodes:
            states = self._states(node, rows)
            if is_tail and (states is None or not states.is_decided):
                return None
            if states is not None:
                after[node] = states.next_side[-1]
        return after

    def last_of_ties(self, rows: SequencedRows, tied: Int64s) -> Int64s:
        """The place that is popped last among the tied places in `rows`, one per group (int64).

        The tied places of a group have the same sequence. Call it before `pass_rows`.
        """
        remaining = tied
        for node in range(1, len(self._next_side)):
            side = self._sides[node, rows.runs[remaining]]
            here = np.flatnonzero(side != _OUTSIDE)
            states = self._states(node, rows) if len(here) else None
            if states is None:
                continue
            sequence = rows.sequences[remaining[here]]
            starts = stretch_starts(sequence)
            both = np.bitwise_or.reduceat(side[here] + 1, starts) == _BOTH
            is_contested = np.repeat(both, np.diff(starts, append=len(here)))
            last_side = states.next_side[np.searchsorted(states.sequences, sequence)]
            loses = is_contested & (side[here] != last_side)
            remaining = np.delete(remaining, here[loses])
        return remaining

    def order_of_ties(self, rows: SequencedRows) -> Int64s:
        """The places of `rows` (int64), those of the same sequence in the order of popping.

        Call it before `pass_rows`.
        """
        order = np.arange(len(rows.runs))
        is_same = rows.sequences[1:] == rows.sequences[:-1]
        tied = np.flatnonzero(np.append(is_same, False) | np.append(False, is_same))
        if len(tied) == 0:
            return order
        depth = (len(self._next_side) - 1).bit_length()
        # For each level of the tree, whether a row is on the side that is popped last.
        is_late = np.zeros((depth, len(tied)), np.bool_)
        for node in range(1, len(self._next_side)):
            side = self._sides[node, rows.runs[tied]]
            here = np.flatnonzero(side != _OUTSIDE)
            states = self._states(node, rows) if len(here) else None
            if states is None:
                continue
            sequence = rows.sequences[tied[here]]
            last_side = states.next_side[np.searchsorted(states.sequences, sequence)]
            is_late[node.bit_length() - 1, here] = side[here] == last_side
        order[tied] = tied[np.lexsort([*is_late[::-1], rows.sequences[tied]])]
        return order

    def _states(self, node: int, rows: SequencedRows) -> _NodeStates | None:
        """The node's state after each distinct sequence; None if no row passes the node."""
        side = self._sides[node, rows.runs]
        through = np.flatnonzero(side != _OUTSIDE)
        if len(through) == 0:
            return None
        bit = side[through] + 1
        sequence, group = rows.sequences[through], rows.groups[through]
        sequence_starts, group_starts = stretch_starts(sequence), stretch_starts(group)
        present = np.bitwise_or.reduceat(bit, sequence_starts)
        group_present = np.repeat(
            np.bitwise_or.reduceat(bit, group_starts), np.diff(group_starts, append=len(bit))
        )[sequence_starts]
        is_flip = present == _BOTH
        # After a key that passed on one side only, the head of the other side is the stored one.
        set_to = np.where(group_present == _BOTH, present - 1, 2 - group_present)
        places = np.arange(len(present))
        last_set = np.maximum.accumulate(np.where(is_flip, -1, places))
        base = np.where(last_set < 0, self._next_side[node], set_to[last_set])
        return _NodeStates(
            sequence[sequence_starts], base ^ ((places - last_set) & 1), not is_flip.all()
        )


@dataclass(frozen=True, slots=True)
class _NodeStates:
    """The side to continue with after each sequence; decided: the last one needs no history."""

    sequences: Int64s
    next_side: Int64s
    is_decided: bool
