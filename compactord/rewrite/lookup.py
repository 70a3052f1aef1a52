"""Looks rows of levels above a compaction's output up by key, while the compaction is merged.

Java builds a sorted local file of each file above that it probes (mergetree/LookupLevels.java).
Here whole windows of ascending keys are compared with the files, which are sorted by key, too.
"""

from __future__ import annotations

import contextlib
import itertools
import posixpath
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from compactord.errors import FormatError
from compactord.formats.keyrange import FLOATS
from compactord.kernels.columns import Int64s
from compactord.kernels.gather import gather
from compactord.kernels.kinds import VALUE_KIND, is_retract
from compactord.kernels.matching import Found
from compactord.paimon.types import AtomicType
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
        for run in runs:
            _check_order(run)
        self._opened = contextlib.ExitStack()
        self._finders: list[InputFinder] = []
        for each in (file for run in runs for file in run):
            finder = each.finder(
                batch_rows, held_bytes, expires=expires, marks=marks, finds_values=finds_values
            )
            self._opened.callback(finder.close)
            self._finders.append(finder)

    def find(self, keys: pa.RecordBatch) -> Found:
        """The rows of these keys, of each that of the lowest level that has one.

        None where values are not found: these are only marked.

        Keys are distinct and ascending, above those of earlier calls. Raises as `InputFinder.find`.
        """
        left = np.arange(keys.num_rows)
        places: list[Int64s] = [left[:0]]
        parts: list[pa.RecordBatch] = []
        for finder in self._finders:
            if not len(left):
                break
            found = finder.find(keys if len(left) == keys.num_rows else keys.take(pa.array(left)))
            if self._ignores_deletes and found.rows:
                found = _without_retracts(found)
            places.append(left[found.places])
            parts += found.rows
            left = np.delete(left, found.places)
        if not self._finds_values:
            return Found(places[0], [])
        of_files = np.concatenate(places)
        if not (np.diff(of_files) < 0).any():
            return Found(of_files, parts)
        order = np.argsort(of_files)
        return Found(of_files[order], list(gather(parts, order)))

    def close(self) -> None:
        """Raises `FormatError` if what was read turns out to be damaged."""
        self._opened.close()


def _without_retracts(found: Found) -> Found:
    kinds = [is_retract(batch.column(VALUE_KIND)) for batch in found.rows]
    return found.filtered(~np.concatenate(kinds))


def _check_order(run: Sequence[Input]) -> None:
    """Raise `FormatError` for a file whose keys, by its statistics, do not follow those before.

    Which files are looked up goes by the ranges in manifests, which say that they do.
    """
    first = run[0].first_key
    if isinstance(first.type, AtomicType) and first.type.root in FLOATS:
        return  # bounds may leave NaN out
    for before, after in itertools.pairwise(run):
        ends = [group.bounds for group in before.row_groups(first) if group.bounds]
        begins = [group.bounds for group in after.row_groups(first) if group.bounds]
        if ends and begins and ends[-1][1] > begins[0][0]:
            name = posixpath.basename(before.file.path)
            why = f"its keys begin before those of {name} end, which is before it on its level"
            raise FormatError(after.file.path, why)
