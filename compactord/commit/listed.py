"""Which list of a snapshot names the files of each kind: the one place that says it.

A new kind of output is a line of `LISTS`. Whoever discards, checks or expires files walks all kinds
of outputs, or all lists of snapshots.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from compactord.commit.changes import BucketChange
from compactord.errors import CommitError
from compactord.model import CHANGELOG, DATA
from compactord.paimon.data_file import EMPTY_STATS, DataFile, EntryKind, ManifestEntry


class SnapshotList(enum.Enum):
    """The lists of manifests of a snapshot that a commit writes anew."""

    DELTA = "delta"
    CHANGELOG = "changelog"


LISTS: Mapping[str, SnapshotList] = {
    DATA: SnapshotList.DELTA,
    CHANGELOG: SnapshotList.CHANGELOG,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEntries:
    """The entries of a commit by list, in the order in which they are written."""

    delta: tuple[ManifestEntry, ...]
    changelog: tuple[ManifestEntry, ...]

    @property
    def delta_rows(self) -> int:
        """The rows that are added, less those that are deleted."""
        return _row_count(self.delta)

    @property
    def changelog_rows(self) -> int | None:
        """The rows that are told; None without a list of them."""
        return _row_count(self.changelog) if self.changelog else None


def listed_entries(
    changes: Sequence[BucketChange],
    *,
    drop_stats: bool,
    lists: Mapping[str, SnapshotList] = LISTS,
) -> ListedEntries:
    """The entries of the changes: of the delta, per bucket the deletions, then the additions.

    `drop_stats`: entries that delete files have no statistics. Raises `CommitError` for outputs of
    a kind that is in none of the `lists`.
    """
    found: dict[SnapshotList, list[ManifestEntry]] = {each: [] for each in SnapshotList}
    delta = found[SnapshotList.DELTA]
    for change in changes:
        delta += [
            _entry(change, EntryKind.DELETE, _without_stats(file) if drop_stats else file)
            for file in change.before
        ]
        delta += [_entry(change, EntryKind.ADD, file) for file in change.upgraded]
        for kind, file in change.outputs:
            if kind not in lists:
                raise CommitError(
                    f"output {file.file_name} is of kind {kind}, which no manifest lists"
                )
            found[lists[kind]].append(_entry(change, EntryKind.ADD, file))
    return ListedEntries(delta=tuple(delta), changelog=tuple(found[SnapshotList.CHANGELOG]))


def _row_count(entries: Iterable[ManifestEntry]) -> int:
    return sum(
        entry.file.row_count if entry.kind is EntryKind.ADD else -entry.file.row_count
        for entry in entries
    )


def _entry(change: BucketChange, kind: EntryKind, file: DataFile) -> ManifestEntry:
    return ManifestEntry(
        kind=kind,
        partition=change.bucket.partition,
        bucket=change.bucket.bucket,
        total_buckets=change.total_buckets,
        file=file,
    )


def _without_stats(file: DataFile) -> DataFile:
    return replace(file, value_stats=EMPTY_STATS, value_stats_columns=())
