"""The merge as plain Python over lists: slow, and simple enough to be read as the definition."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from compactord.paimon.types import WIDE_TIMESTAMP, from_nanoseconds


class Record(NamedTuple):
    """`key` and `user_sequence` hold Python values in the order of their columns."""

    key: tuple[Any, ...]
    sequence: int
    kind: int = 0
    user_sequence: tuple[Any, ...] = ()
    value: str = ""


def sort_key(value: Any) -> Any:
    """Something that Python orders as Paimon orders the value."""
    if isinstance(value, float):
        if math.isnan(value):
            return (2, 0)
        return (1, value, math.copysign(1, value))
    if isinstance(value, str):
        return value.encode()
    return value


def key_order(key: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(sort_key(value) for value in key)


def later(record: Record, *, descending: bool) -> Any:
    """Greater for the later of two records; nulls are first in both directions."""

    def part(value: Any) -> Any:
        if value is None:
            return (0,)
        return (1, _Reversed(sort_key(value)) if descending else sort_key(value))

    return (*(part(value) for value in record.user_sequence), record.sequence)


class _Reversed:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and bool(other.value == self.value)


class Tournament:
    """Java's loser tree, seen as a tree of merges of two with one bit of memory each."""

    def __init__(self, run_count: int) -> None:
        self.run_count = run_count
        self.first_side = {
            node: int(self._lowest(2 * node + 1) > self._lowest(2 * node))
            for node in range(1, run_count)
        }

    def _lowest(self, node: int) -> int:
        if node >= self.run_count:
            return node - self.run_count
        return min(self._lowest(2 * node), self._lowest(2 * node + 1))

    def pops(self, heads: dict[int, Any]) -> list[int]:
        """Runs in the order in which their heads (all of one key) come out."""
        return self._pops(1, heads)

    def _pops(self, node: int, heads: dict[int, Any]) -> list[int]:
        if node >= self.run_count:
            run = node - self.run_count
            return [run] if run in heads else []
        sides = [self._pops(2 * node, heads), self._pops(2 * node + 1, heads)]
        if not all(sides):
            if any(sides):
                self.first_side[node] = 0 if sides[1] else 1
            return sides[0] + sides[1]
        popped = []
        side = self.first_side[node]
        while sides[0] or sides[1]:
            if not sides[side] or (
                sides[1 - side] and heads[sides[1 - side][0]] < heads[sides[side][0]]
            ):
                side = 1 - side
            popped.append(sides[side].pop(0))
        self.first_side[node] = side
        return popped


def ordered(
    runs: Sequence[Sequence[Record]],
    *,
    descending: bool = False,
    ignore_delete: bool = False,
    disjoint: bool = False,
) -> list[list[Record]]:
    """The records of each key from first to last; `disjoint`: ties by run, not through the tree."""
    tree = Tournament(len(runs))
    by_key: dict[Any, dict[int, Record]] = {}
    for run, records in enumerate(runs):
        for record in records:
            by_key.setdefault(key_order(record.key), {})[run] = record
    groups = []
    for key in sorted(by_key):
        heads = by_key[key]
        order = {run: later(record, descending=descending) for run, record in heads.items()}
        pops = sorted(order, key=lambda run: (order[run], run)) if disjoint else tree.pops(order)
        if ignore_delete and len(pops) > 1:
            pops = [run for run in pops if heads[run].kind in (0, 2)]
        if pops:
            groups.append([heads[run] for run in pops])
    return groups


def merge(runs: Sequence[Sequence[Record]], **how: bool) -> list[Record]:
    """What deduplicate keeps."""
    return [group[-1] for group in ordered(runs, **how)]


def batches_of(
    records: Sequence[Record],
    key_types: Sequence[pa.DataType],
    *,
    sequence_types: Sequence[pa.DataType] = (),
    cuts: Sequence[int] = (),
    encode: Callable[[pa.Array, int], pa.Array] = lambda array, column: array,
) -> list[pa.RecordBatch]:
    """A run as batches that end at the given record numbers; `encode` may change a key column."""
    edges = [0, *sorted(cuts), len(records)]
    batches = []
    for start, end in itertools.pairwise(edges):
        part = records[start:end]
        columns: dict[str, pa.Array] = {}
        for column, type_ in enumerate(key_types):
            values = [record.key[column] for record in part]
            columns[f"k{column}"] = encode(array_of(values, type_), column)
        for column, type_ in enumerate(sequence_types):
            values = [record.user_sequence[column] for record in part]
            columns[f"s{column}"] = array_of(values, type_)
        columns["_SEQUENCE_NUMBER"] = pa.array([record.sequence for record in part], pa.int64())
        columns["_VALUE_KIND"] = pa.array([record.kind for record in part], pa.int8())
        columns["value"] = pa.array([record.value for record in part], pa.string())
        batches.append(pa.RecordBatch.from_pydict(columns))
    return batches


def array_of(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Times and timestamps are given as the integers that are stored, wide ones as nanoseconds."""
    if type_ == WIDE_TIMESTAMP:
        return from_nanoseconds(values)
    if pa.types.is_temporal(type_):
        storage = pa.int32() if type_.bit_width == 32 else pa.int64()
        return pa.array(values, storage).view(type_)
    return pa.array(values, type_)


def nan_with_payload() -> float:
    """A NaN whose bits are not those of float('nan')."""
    value: float = struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0]
    return value
