"""When a table's files were compacted last, and since when others have not been."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np

from compactord.paimon.data_file import BucketId, FileSource
from compactord.state.live_files import LiveFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTimes:
    """Creation times, by local wall clock, of each bucket that has such files.

    `last_ms`: of the newest live file that a compaction wrote or moved to a higher level.
    `earliest_ms`: of the oldest that is small and was not compacted.
    """

    last_ms: Mapping[BucketId, int]
    earliest_ms: Mapping[BucketId, int]

    @classmethod
    def of(cls, files: LiveFiles, *, small: int) -> FileTimes:
        """Of all files; those below `small` bytes are small. O(files), on columns."""
        base, columns = files.base, files.base.columns
        is_done = (columns.level > 0) | (columns.file_source == FileSource.COMPACT)
        is_left = ~is_done & (columns.file_size < small)
        last, earliest = base.created_ms(is_done, np.maximum), base.created_ms(is_left, np.minimum)
        found = cls(last_ms=last, earliest_ms=earliest)
        return found.updated(files, {b for layer in files.layers for b in layer}, small=small)

    def updated(self, files: LiveFiles, changed: Set[BucketId], *, small: int) -> FileTimes:
        """Where the files of these buckets are different ones."""
        last, earliest = dict(self.last_ms), dict(self.earliest_ms)
        for bucket in changed:
            done, left = [], []
            for created_ms, level, size, source in files.facts(bucket):
                if created_ms < 0:
                    continue
                if level > 0 or source == FileSource.COMPACT:
                    done.append(created_ms)
                elif size < small:
                    left.append(created_ms)
            for known, found, pick in ((last, done, max), (earliest, left, min)):
                known.pop(bucket, None)
                if found:
                    known[bucket] = pick(found)
        return FileTimes(last_ms=last, earliest_ms=earliest)
