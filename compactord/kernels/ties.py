"""Records of one key that agree in every sequence: the last one by Java's merge tree.

Two writers that started from the same snapshot give the same sequence numbers to different
records. No rule of the format says which of them is newer; Java's answer falls out of its loser
tree (mergetree/compact/LoserTree.java) and depends on what passed through the tree before. We give
the same answer, so that a table reads the same before and after a compaction of all its runs.

How the tree behaves, seen from one inner node, which merges the two sides below it: of two tied
heads the one that came first to the node (the stored one) is popped first; after a pop the same
side goes on as long as it ties. Between keys, the side that stays or is filled up first is the
stored one:

- the last key passed through one side only: the other side's head was there before
- it passed through both: the side popped last is advanced first

So a node is one bit, the side that goes on, and every distinct sequence that passes sets the bit
(it is on one side only) or flips it (it is on both sides: that one first, then the other).
Leaf i hangs under node (i + n) / 2; leaves are first filled from the last to the first.

Exact for a merge that starts where Java's starts: with the first key of a section, its runs in
Java's order, at most `sort-spill-threshold` of them (above it Java reorders), and the default
`sort-engine`. A part of a section that starts at a later key starts with an unknown history:
then ties in front of the first decided key of a node may be settled otherwise than by Java.
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
    """Rows in the order of (key, precedence): their run, key group and distinct sequence.

    `sequences` are dense numbers that rise with every change of group or precedence.
    """

    runs: Int64s
    groups: Int64s
    sequences: Int64s


class MergeTree:
    """The history of each inner node, carried from window to window."""

    def __init__(self, run_count: int) -> None:
        # For inner node p (the root is 1) and run r: r is below the left child 2p (0), below the
        # right child 2p+1 (1), or elsewhere.
        self._sides = np.full((run_count, run_count), _OUTSIDE, np.int64)
        for run in range(run_count):
            child = run + run_count
            while child > 1:
                self._sides[child // 2, run] = child % 2
                child //= 2
        # The side that the first key finds stored: its leaves are filled before the other's.
        self._going_on = np.zeros(run_count, np.int64)
        for node in range(1, run_count):
            lowest = [int(np.flatnonzero(self._sides[node] == side)[0]) for side in (0, 1)]
            self._going_on[node] = int(lowest[1] > lowest[0])

    def pass_run(self, run: int) -> None:
        """Keys of this run alone went through."""
        side = self._sides[:, run]
        self._going_on = np.where(side == _OUTSIDE, self._going_on, 1 - side)

    def pass_rows(self, rows: SequencedRows) -> None:
        """These keys went through."""
        settled = self._after(range(1, len(self._going_on)), rows, is_tail=False)
        assert settled is not None, "all rows settle everything"
        self._going_on = settled

    def pass_tail(self, rows: SequencedRows, present_runs: Sequence[int]) -> bool:
        """Keys of these runs went through, and `rows` are those of the last keys.

        False, and nothing has changed, when these rows alone do not tell the new history.
        """
        touched = (self._sides[:, list(present_runs)] != _OUTSIDE).any(axis=1)
        settled = self._after(np.flatnonzero(touched).tolist(), rows, is_tail=True)
        if settled is not None:
            self._going_on = settled
        return settled is not None

    def _after(self, nodes: Iterable[int], rows: SequencedRows, *, is_tail: bool) -> Int64s | None:
        after = self._going_on.copy()
        for node in nodes:
            states = self._states(node, rows)
            if is_tail and (states is None or not states.is_settled):
                return None
            if states is not None:
                after[node] = states.going_on[-1]
        return after

    def last_of_ties(self, rows: SequencedRows, tied: Int64s) -> Int64s:
        """Of the tied places in `rows` the one popped last, per group.

        The tied places of a group have one and the same sequence. To be asked before the rows pass.
        """
        alive = tied
        for node in range(1, len(self._going_on)):
            side = self._sides[node, rows.runs[alive]]
            here = np.flatnonzero(side != _OUTSIDE)
            states = self._states(node, rows) if len(here) else None
            if states is None:
                continue
            sequence = rows.sequences[alive[here]]
            starts = stretch_starts(sequence)
            both = np.bitwise_or.reduceat(side[here] + 1, starts) == _BOTH
            is_contested = np.repeat(both, np.diff(starts, append=len(here)))
            last_side = states.going_on[np.searchsorted(states.sequences, sequence)]
            loses = is_contested & (side[here] != last_side)
            alive = np.delete(alive, here[loses])
        return alive

    def order_of_ties(self, rows: SequencedRows) -> Int64s:
        """The places of `rows`, with those of one sequence in the order in which they are popped.

        To be asked before the rows pass.
        """
        order = np.arange(len(rows.runs))
        is_same = rows.sequences[1:] == rows.sequences[:-1]
        tied = np.flatnonzero(np.append(is_same, False) | np.append(False, is_same))
        if len(tied) == 0:
            return order
        depth = (len(self._going_on) - 1).bit_length()
        # For each level of the tree, whether a row is on the side that is popped last.
        is_late = np.zeros((depth, len(tied)), np.bool_)
        for node in range(1, len(self._going_on)):
            side = self._sides[node, rows.runs[tied]]
            here = np.flatnonzero(side != _OUTSIDE)
            states = self._states(node, rows) if len(here) else None
            if states is None:
                continue
            sequence = rows.sequences[tied[here]]
            last_side = states.going_on[np.searchsorted(states.sequences, sequence)]
            is_late[node.bit_length() - 1, here] = side[here] == last_side
        order[tied] = tied[np.lexsort([*is_late[::-1], rows.sequences[tied]])]
        return order

    def _states(self, node: int, rows: SequencedRows) -> _NodeStates | None:
        """What each distinct sequence leaves behind at the node; None if no row passes it."""
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
        # A key that passed on one side only leaves the other side's head behind as the stored one.
        set_to = np.where(group_present == _BOTH, present - 1, 2 - group_present)
        places = np.arange(len(present))
        last_set = np.maximum.accumulate(np.where(is_flip, -1, places))
        base = np.where(last_set < 0, self._going_on[node], set_to[last_set])
        return _NodeStates(
            sequence[sequence_starts], base ^ ((places - last_set) & 1), not is_flip.all()
        )


@dataclass(frozen=True, slots=True)
class _NodeStates:
    """The side that goes on after each sequence; settled: the last does not depend on history."""

    sequences: Int64s
    going_on: Int64s
    is_settled: bool
