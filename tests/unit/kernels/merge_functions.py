"""Merge functions that only the tests know, in as few lines as a new engine may have; and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from compactord.kernels.aggregators.base import Values
from compactord.kernels.columns import concat_column
from compactord.kernels.functions.base import Needs, OrderedRecords
from compactord.kernels.functions.folding import Action, Step, added_at_once
from compactord.kernels.merge import merge_runs
from compactord.paimon.options.merge import ColumnRule


def batches_of(run: Sequence[Sequence[Any]], schema: pa.Schema, rows: int) -> list[pa.RecordBatch]:
    """The rows of a run in batches of so many."""
    found = []
    for first in range(0, len(run), rows):
        columns = list(zip(*run[first : first + rows], strict=True))
        arrays = [pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)]
        found.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return found


def merged_rows(*arguments: Any, **how: Any) -> Iterator[pa.RecordBatch]:
    """The rows alone of `merge_runs`."""
    return (keys.rows for keys in merge_runs(*arguments, **how))


class FirstRow:
    """Selects rows: the first record of a key."""

    needs = Needs.ALL
    ignores_deletes = True
    merges_again = True

    def merge(self, records: OrderedRecords) -> Iterator[pa.RecordBatch]:
        return records.rows_at(records.starts)


@dataclass(frozen=True)
class Sum:
    """The sum of an INT64 column without nulls in the last record; sums can be summed up again."""

    column: str
    needs = Needs.ALL
    ignores_deletes = True
    merges_again = True

    def merge(self, records: OrderedRecords) -> Iterator[pa.RecordBatch]:
        for batch, starts in _whole(records):
            sums = np.add.reduceat(batch.column(self.column).to_numpy(), starts)
            yield _of_the_last(batch, starts, self.column, pa.array(sums))


@dataclass(frozen=True)
class Joined:
    """Texts as `[a,b]` in the order of the records: of results one could not go on."""

    column: str
    merges_again: bool = False
    needs = Needs.ALL
    ignores_deletes = True

    def merge(self, records: OrderedRecords) -> Iterator[pa.RecordBatch]:
        for batch, starts in _whole(records):
            texts = batch.column(self.column).to_pylist()
            joined = [
                texts[start] if end - start == 1 else f"[{','.join(map(str, texts[start:end]))}]"
                for start, end in zip(starts, [*starts[1:], len(texts)], strict=True)
            ]
            type_ = batch.schema.field(self.column).type
            yield _of_the_last(
                batch, starts, self.column, pa.array(joined, pa.string()).cast(type_)
            )


def _whole(records: OrderedRecords) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    """All records in one batch, if there are any, and the rows at which keys begin."""
    if not (parts := list(records.all_rows())):
        return
    columns = [concat_column([part.column(n) for part in parts]) for n in records.schema.names]
    yield pa.RecordBatch.from_arrays(columns, schema=records.schema), records.starts


def _of_the_last(
    batch: pa.RecordBatch, starts: np.ndarray, column: str, values: pa.Array
) -> pa.RecordBatch:
    """The last record of each key with one column's values replaced."""
    last = batch.take(pa.array(np.append(starts[1:], batch.num_rows) - 1))
    position = batch.schema.get_field_index(column)
    return last.set_column(position, batch.schema.field(position), values)


def united_at_once(aggregator: str, before: bytes, value: bytes) -> bytes:
    """The bytes of a union of two sets, made as those of many keys are."""
    values = Values(pa.array([before, value], pa.binary()), np.arange(2), 1)
    steps = [Step(Action.ADD, np.zeros(1, np.int64), np.array([row])) for row in range(2)]
    found = added_at_once(values, ColumnRule(column="v", aggregator=aggregator), steps)
    assert found is not None
    [data] = found.to_pylist()
    return bytes(data)


def united(kind: Callable[[Values, ColumnRule], Any], before: bytes, value: bytes) -> bytes:
    """The bytes of a union of two sketches."""
    column, used = pa.array([before, value], pa.binary()), np.arange(2)
    made = kind(Values(column, used, 1), ColumnRule(column="v", aggregator=""))
    found = made.united(before, value)
    return found if isinstance(found, bytes) else made.stored(found)
