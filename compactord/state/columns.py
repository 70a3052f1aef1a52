"""Columns over live files: last compactions, newest files, waiting rows.

Rows wait in files on levels below a certain one (`CompactionOptions.waiting_level`), since the
snapshot that added them, if that was observed. After a full read of the table, existing files
count from their creation. Output of a compaction to a level on which it still waits
counts from the oldest input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from compactord.paimon.data_file import BucketId, EntryKind, FileSource, ManifestEntry
from compactord.paimon.snapshot import Snapshot
from compactord.state.live_files import LiveFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTimes:
    """Creation times, by local wall clock, of each bucket that has such files.

    `last_ms`: the newest live file that a compaction wrote or moved to a higher level.
    `earliest_ms`: the oldest small file that was not compacted.
    """

    last_ms: Mapping[BucketId, int]
    earliest_ms: Mapping[BucketId, int]

    @classmethod
    def of(cls, files: LiveFiles, *, small: int) -> FileTimes:
        """The times of all files; files below `small` bytes are small. O(files), on columns."""
        base, columns = files.base, files.base.columns
        is_done = (columns.level > 0) | (columns.file_source == FileSource.COMPACT)
        is_left = ~is_done & (columns.file_size < small)
        last, earliest = base.created_ms(is_done, np.maximum), base.created_ms(is_left, np.minimum)
        found = cls(last_ms=last, earliest_ms=earliest)
        return found.updated(files, {b for layer in files.layers for b in layer}, small=small)

    def updated(self, files: LiveFiles, changed: Set[BucketId], *, small: int) -> FileTimes:
        """Updates the times of changed buckets."""
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


@dataclass(frozen=True, slots=True)
class NewestFiles:
    """Creation times of a partition's newest files, -1 if unknown.

    `waits`: readers do not see all its rows yet.
    """

    created_ms: int = -1
    appended_ms: int = -1
    waits: bool = False


def newest_files(files: LiveFiles, *, waits: bool) -> dict[bytes, NewestFiles]:
    """The newest files of each partition. O(files), on columns.

    With `waits` readers do not see rows on level 0.
    """
    base, columns = files.base, files.base.columns
    created = base.created_ms(np.ones(len(columns.level), np.bool_), np.maximum)
    appended = base.created_ms(columns.file_source != FileSource.COMPACT, np.maximum)
    waiting = base.created_ms(columns.level == 0, np.maximum) if waits else {}
    by_bucket: dict[BucketId, NewestFiles] = {
        bucket: NewestFiles(ms, appended.get(bucket, -1), bucket in waiting)
        for bucket, ms in created.items()
    }
    for bucket in {bucket for layer in files.layers for bucket in layer}:
        facts = list(files.facts(bucket))
        by_bucket[bucket] = NewestFiles(
            max((ms for ms, *_ in facts), default=-1),
            max((ms for ms, _, _, source in facts if source != FileSource.COMPACT), default=-1),
            waits and any(level == 0 for _, level, _, _ in facts),
        )
    found: dict[bytes, NewestFiles] = {}
    for bucket, newest in by_bucket.items():
        known = found.get(bucket.partition, NewestFiles())
        found[bucket.partition] = NewestFiles(
            max(known.created_ms, newest.created_ms),
            max(known.appended_ms, newest.appended_ms),
            known.waits or newest.waits,
        )
    return found


@dataclass(frozen=True, slots=True)
class AppendedFiles:
    """Creation time of the newest observed file of a writer in each partition.

    A compaction may have replaced it since.
    """

    created_ms: Mapping[bytes, int] = field(default_factory=dict)

    def besides(self, files: LiveFiles) -> AppendedFiles:
        """Adds live files. O(files), on columns."""
        found = dict(self.created_ms)
        for partition, newest in newest_files(files, waits=False).items():
            found[partition] = max(newest.appended_ms, found.get(partition, -1))
        return AppendedFiles(found)

    def without_emptied(self, files: LiveFiles) -> AppendedFiles:
        """Removes partitions that have no live file. O(buckets)."""
        live = {bucket.partition for bucket in files.bucket_ids()}
        return AppendedFiles({each: ms for each, ms in self.created_ms.items() if each in live})

    def after(self, delta: Sequence[ManifestEntry]) -> AppendedFiles:
        """Adds files of a snapshot's delta."""
        found = dict(self.created_ms)
        for entry in delta:
            file = entry.file
            if entry.kind is EntryKind.ADD and file.file_source is not FileSource.COMPACT:
                found[entry.partition] = max(file.created_ms, found.get(entry.partition, -1))
        return AppendedFiles(found)


# Represents all files of a bucket that existed when the table was read.
_READ = ""


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """The waiting rows of a table at one snapshot: rows in files below `level`.

    Creation times are by local wall clock, which is `ahead_ms` ahead of UTC. Files whose creation
    is not known count as not waiting until they are taken with others.
    """

    level: int
    ahead_ms: int
    # In ms since the epoch, by file.
    _since_ms: Mapping[BucketId, Mapping[str, int]] = field(repr=False)

    @classmethod
    def of(cls, files: LiveFiles, level: int, *, ahead_ms: int) -> WaitingRows:
        """The waiting rows of a completely read table. O(files), on columns."""
        base = (files.consolidated() if files.layers else files).base
        oldest = base.created_ms(base.columns.level < level, np.minimum)
        since = {bucket: {_READ: ms - ahead_ms} for bucket, ms in oldest.items()}
        return cls(level, ahead_ms, since)

    def since_ms(self, bucket: BucketId) -> int:
        """Write time of the bucket's oldest waiting row, 0 if none."""
        return min(self._since_ms.get(bucket, {}).values(), default=0)

    @property
    def oldest_ms(self) -> int:
        """Write time of the table's oldest waiting row, 0 if none."""
        return min((min(each.values()) for each in self._since_ms.values()), default=0)

    def applied(
        self, snapshot: Snapshot, delta: Sequence[ManifestEntry], files: LiveFiles
    ) -> WaitingRows:
        """The rows after a snapshot with this delta and `files`. O(change) for most buckets."""
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
        # Rows that a compaction took still wait in its output.
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
