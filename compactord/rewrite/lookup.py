"""Looks rows of levels above a compaction's output up by key, while the compaction is merged.

Java builds a sorted local file of each file above that it probes (mergetree/LookupLevels.java).
Here whole windows of ascending keys are compared with the files, which are sorted by key, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from compactord.kernels.columns import Int64s
from compactord.kernels.gather import gather
from compactord.kernels.matching import Found
from compactord.rewrite.reader import Input


class Lookup:
    """Finds rows in files, of which those of the lowest level come first."""

    def __init__(
        self, files: Iterable[Input], batch_rows: int, held_bytes: int, *, expires: bool
    ) -> None:
        """`expires`: rows that have expired are not found."""
        self._opened = contextlib.ExitStack()
        self._finders = [each.finder(batch_rows, held_bytes, expires=expires) for each in files]
        for finder in self._finders:
            self._opened.callback(finder.close)

    def find(self, keys: pa.RecordBatch) -> Found:
        """The rows of these keys, of each that of the lowest level that has one.

        Keys are distinct and ascending, above those of earlier calls. Raises as `InputFinder.find`.
        """
        left = np.arange(keys.num_rows)
        places: list[Int64s] = [left[:0]]
        parts: list[pa.RecordBatch] = []
        for finder in self._finders:
            if not len(left):
                break
            found = finder.find(keys if len(left) == keys.num_rows else keys.take(pa.array(left)))
            places.append(left[found.places])
            parts += found.rows
            left = np.delete(left, found.places)
        of_files = np.concatenate(places)
        if not (np.diff(of_files) < 0).any():
            return Found(of_files, parts)
        order = np.argsort(of_files)
        return Found(of_files[order], list(gather(parts, order)))

    def close(self) -> None:
        """Raises `FormatError` if what was read turns out to be damaged."""
        self._opened.close()
