"""When a table's files were compacted last, and since when others have not been."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from compactord.paimon.data_file import BucketId, FileSource
from compactord.state.live_files import LiveFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTimes:
    """Creation times, by local wall clock.

    `last_compacted_ms`: of the newest file that a compaction wrote or moved to a higher level, as
    far as was seen, 0 for none. `earliest_ms`: of the oldest live file that is small and was not
    compacted, for each bucket that has any.
    """

    last_compacted_ms: int
    earliest_ms: Mapping[BucketId, int]

    @classmethod
    def of(cls, files: LiveFiles, *, small: int) -> FileTimes:
        """Of all files; those below `small` bytes are small. O(files), on columns."""
        columns = files.base.columns
        is_done = (columns.level > 0) | (columns.file_source == FileSource.COMPACT)
        last_ms = int(columns.creation_time_ms[is_done].max(initial=0))
        earliest = files.base.oldest_created(~is_done & (columns.file_size < small))
        found = cls(last_compacted_ms=last_ms, earliest_ms=earliest)
        return found.updated(files, {b for layer in files.layers for b in layer}, small=small)

    def updated(self, files: LiveFiles, changed: Set[BucketId], *, small: int) -> FileTimes:
        """Where the files of these buckets are different ones."""
        last_ms, earliest = self.last_compacted_ms, dict(self.earliest_ms)
        for bucket in changed:
            times = []
            for created_ms, level, size, source in files.facts(bucket):
                if level > 0 or source == FileSource.COMPACT:
                    last_ms = max(last_ms, created_ms)
                elif size < small and created_ms >= 0:
                    times.append(created_ms)
            earliest.pop(bucket, None)
            if times:
                earliest[bucket] = min(times)
        return FileTimes(last_compacted_ms=last_ms, earliest_ms=earliest)
