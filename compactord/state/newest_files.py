"""When the newest files of each partition were created, by local wall clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from compactord.paimon.data_file import BucketId, EntryKind, FileSource, ManifestEntry
from compactord.state.live_files import LiveFiles


@dataclass(frozen=True, slots=True)
class NewestFiles:
    """When those of a partition were created, -1: none is known.

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
    """When the newest file was created that was seen of a writer in each partition.

    A compaction may have replaced it since.
    """

    created_ms: Mapping[bytes, int] = field(default_factory=dict)

    def besides(self, files: LiveFiles) -> AppendedFiles:
        """With those that are live. O(files), on columns."""
        found = dict(self.created_ms)
        for partition, newest in newest_files(files, waits=False).items():
            found[partition] = max(newest.appended_ms, found.get(partition, -1))
        return AppendedFiles(found)

    def without_gone(self, files: LiveFiles) -> AppendedFiles:
        """Without the partitions that have no live file. O(buckets)."""
        live = {bucket.partition for bucket in files.bucket_ids()}
        return AppendedFiles({each: ms for each, ms in self.created_ms.items() if each in live})

    def after(self, delta: Sequence[ManifestEntry]) -> AppendedFiles:
        """With those that a snapshot adds."""
        found = dict(self.created_ms)
        for entry in delta:
            file = entry.file
            if entry.kind is EntryKind.ADD and file.file_source is not FileSource.COMPACT:
                found[entry.partition] = max(file.created_ms, found.get(entry.partition, -1))
        return AppendedFiles(found)
