"""Since when rows of a table wait for a compaction before its readers see them.

They wait in files on levels below a certain one (`CompactionOptions.waiting_level`), since the
snapshot that added them, as far as that was seen. Where the table was read as a whole, files that
were there count from their creation. What a compaction writes to a level on which it still waits
counts from the oldest of what it took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from compactord.paimon.data_file import BucketId, EntryKind, ManifestEntry
from compactord.paimon.snapshot import Snapshot
from compactord.state.live_files import LiveFiles

# Stands for all files of a bucket that were there when the table was read.
_READ = ""


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """Of one table at one snapshot. `level`: files on a level below it wait.

    Creation times are by local wall clock, which is `ahead_ms` ahead of UTC. Files whose creation
    is not known count as not waiting until they are taken with others.
    """

    level: int
    ahead_ms: int
    # In ms since the epoch, by file.
    _since_ms: Mapping[BucketId, Mapping[str, int]] = field(repr=False)

    @classmethod
    def of(cls, files: LiveFiles, level: int, *, ahead_ms: int) -> WaitingRows:
        """Those of a table that was read as a whole. O(files), on columns."""
        base = (files.consolidated() if files.layers else files).base
        oldest = base.created_ms(base.columns.level < level, np.minimum)
        since = {bucket: {_READ: ms - ahead_ms} for bucket, ms in oldest.items()}
        return cls(level, ahead_ms, since)

    def since_ms(self, bucket: BucketId) -> int:
        """Since when the bucket's oldest row waits, 0 when none does."""
        return min(self._since_ms.get(bucket, {}).values(), default=0)

    @property
    def oldest_ms(self) -> int:
        """Since when the table's oldest row waits, 0 when none does."""
        return min((min(each.values()) for each in self._since_ms.values()), default=0)

    def applied(
        self, snapshot: Snapshot, delta: Sequence[ManifestEntry], files: LiveFiles
    ) -> WaitingRows:
        """After a snapshot with this delta, which has made `files`. O(change) for most buckets."""
        changes: dict[BucketId, list[ManifestEntry]] = {}
        for entry in delta:
            if entry.file.level < self.level:
                changes.setdefault(entry.bucket_id, []).append(entry)
        since = dict(self._since_ms)
        for bucket, entries in changes.items():
            known = self._after(since.pop(bucket, {}), snapshot, bucket, entries, files)
            if known:
                since[bucket] = known
        return replace(self, _since_ms=since) if changes else self

    def _after(
        self,
        before: Mapping[str, int],
        snapshot: Snapshot,
        bucket: BucketId,
        entries: Sequence[ManifestEntry],
        files: LiveFiles,
    ) -> dict[str, int]:
        counts = files.summary(bucket).level_counts
        waiting = sum(count for level, count in counts.items() if level < self.level)
        if not waiting:
            return {}
        gone = {entry.file.file_name for entry in entries if entry.kind is EntryKind.DELETE}
        known = {name: ms for name, ms in before.items() if name not in gone}
        # Those of rows that a compaction took, which wait on in what it wrote.
        taken = [before[name] for name in gone & before.keys()]
        took_read = len(taken) < len(gone)
        if took_read and (read_ms := known.pop(_READ, None)) is not None:
            taken.append(read_ms)
        added_ms = min(taken, default=snapshot.time_ms)
        added = (entry.file.file_name for entry in entries if entry.kind is EntryKind.ADD)
        known.update(dict.fromkeys(added, added_ms))
        if took_read and len(known) < waiting:
            left = (file for file in files.files_in(bucket) if file.level < self.level)
            created = [file.created_ms for file in left if file.file_name not in known]
            read = [ms - self.ahead_ms for ms in created if ms >= 0]
            known.update({_READ: min(read)} if read else {})
        return known
