"""Looks rows of levels above a compaction's output up by key, while the compaction is merged.

Java builds a sorted local file of each file above that it probes (mergetree/LookupLevels.java).
Here whole windows of ascending keys are compared with the files, which are sorted by key, too.
"""

from __future__ import annotations

import contextlib
import itertools
import posixpath
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from compactord.errors import FormatError
from compactord.kernels.columns import VALUE_KIND, Int64s, gather, is_retract
from compactord.kernels.keys import BatchKeys, Found
from compactord.paimon.types import FLOATS, AtomicType
from compactord.rewrite.reader import Input, InputFinder


class Lookup:
    """Finds rows in runs of files, of which that of the lowest level comes first."""

    def __init__(
        self,
        runs: Sequence[Sequence[Input]],
        batch_rows: int,
        held_bytes: int,
        *,
        expires: bool,
        ignores_deletes: bool,
        marks: bool = False,
        finds_values: bool = True,
    ) -> None:
        """`expires`: rows that have expired are not found; `ignores_deletes`: nor are retracts.

        `marks` and `finds_values` as in `Input.finder`. Raises as `Input.batches`.
        """
        self._ignores_deletes = ignores_deletes
        self._finds_values = finds_values
        for each in (file for run in runs for file in run):
            each.stored.expect()
        opened = partial(
            Input.finder,
            batch_rows=batch_rows,
            held_bytes=held_bytes,
            expires=expires,
            marks=marks,
            finds_values=finds_values,
        )
        self._files: list[_File] = []
        for run in runs:
            files = [_File(each, opened) for each in run]
            _check_order(files)
            self._files += files

    def find(self, keys: pa.RecordBatch) -> Found:
        """The rows of these keys, of each that of the lowest level that has one.

        None where values are not found: these are only marked.

        Keys are distinct and ascending, above those of earlier calls. Raises as `InputFinder.find`.
        """
        left, wanted = np.arange(keys.num_rows), keys
        places: list[Int64s] = [left[:0]]
        parts: list[pa.RecordBatch] = []
        for file in self._files:
            if not len(left):
                break
            found = file.find(wanted)
            if self._ignores_deletes and found.rows:
                found = _without_retracts(found)
            if len(found.places):
                places.append(left[found.places])
                parts += found.rows
                left = np.delete(left, found.places)
                wanted = keys.take(pa.array(left))
        if not self._finds_values:
            return Found(places[0], [])
        of_files = np.concatenate(places)
        if not (np.diff(of_files) < 0).any():
            return Found(of_files, parts)
        order = np.argsort(of_files)
        return Found(of_files[order], list(gather(parts, order)))

    def close(self) -> None:
        """Raises `FormatError` if what was read turns out to be damaged."""
        with contextlib.ExitStack() as closing:
            for file in self._files:
                closing.callback(file.close)


def _without_retracts(found: Found) -> Found:
    kinds = [is_retract(batch.column(VALUE_KIND)) for batch in found.rows]
    return found.filtered(~np.concatenate(kinds))


class _File:
    """A file above, which is open while keys are looked up that it may have.

    `first` and `last` are bounds of its first key column, None if it does not tell them.
    """

    def __init__(self, source: Input, opened: Callable[[Input], InputFinder]) -> None:
        self.source = source
        self.first: Any = None
        self.last: Any = None
        self._opened = opened
        self._finder: InputFinder | None = None
        column = source.first_key
        # Bounds of floats may leave NaN out.
        if not (isinstance(column.type, AtomicType) and column.type.root in FLOATS):
            bounds = [group.bounds for group in source.row_groups(column)]
            if bounds and bounds[0] is not None and bounds[-1] is not None:
                self.first, self.last = bounds[0][0], bounds[-1][1]

    def find(self, keys: pa.RecordBatch) -> Found:
        """As `InputFinder.find`, of keys that may be none."""
        start, end = 0, keys.num_rows
        if self.last is not None:
            firsts = BatchKeys(keys, keys.schema.names[:1])
            start = firsts.count_below((self.first,))
            end = firsts.count_up_to((self.last,), start)
        found = Found(np.empty(0, np.int64), [])
        if start < end:
            self._finder = self._finder or self._opened(self.source)
            inside = self._finder.find(keys.slice(start, end - start))
            found = Found(inside.places + start, inside.rows)
        if end < keys.num_rows:
            # All keys to come are above it.
            self.close()
        return found

    def close(self) -> None:
        """Read nothing more. Raises as `InputFinder.close`."""
        finder, self._finder = self._finder, None
        if finder is not None:
            finder.close()


def _check_order(run: Sequence[_File]) -> None:
    """Raise `FormatError` for a file whose keys, by its statistics, do not follow those before.

    Which files are looked up goes by the ranges in manifests, which say that they do.
    """
    for before, after in itertools.pairwise(run):
        if before.last is not None and after.last is not None and before.last > after.first:
            name = posixpath.basename(before.source.file.path)
            why = f"its keys begin before those of {name} end, which is before it on its level"
            raise FormatError(after.source.file.path, why)
