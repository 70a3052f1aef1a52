"""Looks rows of levels above a compaction's output up by key, while the compaction is merged.

Java builds a sorted local file of each file above that it probes (mergetree/LookupLevels.java).
Here whole windows of ascending keys are compared with the files, which are sorted by key, too.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
import pyarrow as pa

from compactord.kernels.columns import Int64s
from compactord.kernels.gather import concat_column, gather
from compactord.kernels.grouping import key_numbers
from compactord.kernels.keys import BatchKeys
from compactord.kernels.lookup import Found
from compactord.rewrite.reader import Input


class Lookup:
    """Finds rows in runs of files, those of the lowest level first.

    Keys ascend from call to call. At most one batch of each run is in memory.
    """

    def __init__(
        self,
        runs: Sequence[Sequence[Input]],
        key_columns: Sequence[str],
        batch_rows: int,
    ) -> None:
        self._keys = list(key_columns)
        self._runs = [_Run(run, self._keys, batch_rows) for run in runs]

    def find(self, keys: pa.RecordBatch) -> Found:
        """The rows of these keys, of each that of the lowest level that has one."""
        left = np.arange(keys.num_rows)
        places: list[Int64s] = []
        parts: list[pa.RecordBatch] = []
        for run in self._runs:
            found, rows = run.find(keys.take(pa.array(left)))
            places.append(left[found])
            parts += rows
            left = np.delete(left, found)
        of_runs = np.concatenate([np.empty(0, np.int64), *places])
        if len(self._runs) < 2 or not parts:
            return Found(of_runs, parts)
        order = np.argsort(of_runs, kind="stable")
        return Found(of_runs[order], list(gather(parts, order)))

    def close(self) -> None:
        for run in self._runs:
            run.close()


class _Run:
    """Files with ascending keys, read forward."""

    def __init__(self, files: Sequence[Input], keys: Sequence[str], batch_rows: int) -> None:
        self._key_columns = keys
        self._batches = _rows(files, batch_rows)
        self._batch: pa.RecordBatch | None = None
        self._is_begun = False

    def find(self, keys: pa.RecordBatch) -> tuple[Int64s, list[pa.RecordBatch]]:
        places, parts = [np.empty(0, np.int64)], []
        wanted, start = BatchKeys(keys, self._key_columns), 0
        if not self._is_begun and keys.num_rows:
            self._is_begun = True
            self._batch = next(self._batches, None)
        while start < keys.num_rows and self._batch is not None:
            last = BatchKeys(self._batch, self._key_columns)[self._batch.num_rows - 1]
            end = wanted.count_up_to(last, start)
            if end > start:
                at, rows = _matches(keys.slice(start, end - start), self._batch, self._key_columns)
                if len(at):
                    places.append(start + at)
                    parts.append(self._batch.take(pa.array(rows)))
                start = end
            if start < keys.num_rows:
                self._batch = next(self._batches, None)
        return np.concatenate(places), parts

    def close(self) -> None:
        self._batches.close()


def _rows(files: Sequence[Input], batch_rows: int) -> Generator[pa.RecordBatch, None, None]:
    for each in files:
        yield from each.batches(batch_rows)


def _matches(
    keys: pa.RecordBatch, rows: pa.RecordBatch, names: Sequence[str]
) -> tuple[Int64s, Int64s]:
    """Which of the keys have a row, and which one."""
    numbers = key_numbers(
        [concat_column([rows.column(name), keys.column(name)]) for name in names], 2
    )
    row_of = np.full(int(numbers.max()) + 1, -1, np.int64)
    row_of[numbers[: rows.num_rows]] = np.arange(rows.num_rows)
    found = row_of[numbers[rows.num_rows :]]
    places: Int64s = np.flatnonzero(found >= 0)
    return places, found[places]
