"""Rewrites: commits of writers that name the files which they replace.

Copy-on-write commands on tables without a primary key (DELETE, UPDATE and MERGE INTO of Spark) read
files and commit others in their place. Java refuses such a commit, without a retry, if a compaction
has replaced one of these files. A running command is invisible; the snapshots show that one ran
recently.

Java commits them as OVERWRITE snapshots. It does the same for commands that overwrite or drop whole
partitions, but these find in each attempt which files they delete, and do not fail. The snapshot's
`operation` distinguishes them; if it is missing, as with older writers and Flink, the snapshot
counts as a rewrite. Sources: operation/FileStoreCommitImpl.java (commit, tryOverwritePartition),
Snapshot.java (Operation); spark: PaimonBatchWriteBase.scala, DeleteFromPaimonTableCommand.scala.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from compactord.ids import owner_of

# Views have rewrites, and clients of a service only views.
if TYPE_CHECKING:
    from compactord.paimon.snapshot import CommitKind, Snapshot

# Operations that delete all files that exist when they are committed.
_OVERWRITING = frozenset(
    {
        "OVERWRITE",
        "TRUNCATE",
        "CREATE_TABLE_AS_SELECT",
        "REPLACE_TABLE_AS_SELECT",
        "CREATE_OR_REPLACE_TABLE_AS_SELECT",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """One such commit. `time_ms` is since the epoch; `operation` as in `Snapshot`."""

    snapshot_id: int
    commit_user: str
    operation: str | None
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooldown:
    """A partition is skipped until `until_ms`; its last rewrite was `age_ms` ago."""

    rewrite: Rewrite
    age_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrites:
    """The known rewrites of a table up to one snapshot. Immutable.

    `newest` is the newest of all. `by_partition` has the newest of each partition since `since_ms`,
    or is empty if that is None.
    """

    newest: Rewrite | None = None
    since_ms: int | None = None
    by_partition: Mapping[bytes, Rewrite] = field(default_factory=dict)

    def reaches(self, since_ms: int | None) -> bool:
        """Whether rewrites of partitions are known since then."""
        if since_ms is None:
            return True
        return self.since_ms is not None and self.since_ms <= since_ms

    def with_later(self, snapshot: Snapshot, partitions: Set[bytes]) -> Rewrites:
        """Adds a later rewrite, which deleted files in `partitions`."""
        rewrite = Rewrite(
            snapshot_id=snapshot.id,
            commit_user=snapshot.commit_user,
            operation=snapshot.operation,
            time_ms=snapshot.time_ms,
        )
        by_partition = self.by_partition
        if self.since_ms is not None and rewrite.time_ms >= self.since_ms:
            by_partition = {**by_partition, **dict.fromkeys(partitions, rewrite)}
        return replace(self, newest=rewrite, by_partition=by_partition)

    def remembered(self, *, since_ms: int | None, now_ms: int) -> Rewrites:
        """Removes partitions whose last rewrite is older than `since_ms`, or all if that is None.

        Times are capped at `now_ms`, in case the writer's clock was ahead.
        """
        by_partition = {
            partition: _not_after(rewrite, now_ms)
            for partition, rewrite in self.by_partition.items()
            if since_ms is not None and rewrite.time_ms >= since_ms
        }
        newest = None if self.newest is None else _not_after(self.newest, now_ms)
        return Rewrites(newest=newest, since_ms=since_ms, by_partition=by_partition)

    def cooling_down(self, *, quiet_for_ms: int, now_ms: int) -> dict[bytes, Cooldown]:
        """The partitions whose last rewrite is less than `quiet_for_ms` ago."""
        return {
            partition: Cooldown(
                rewrite=rewrite,
                age_ms=max(0, now_ms - rewrite.time_ms),
                until_ms=rewrite.time_ms + quiet_for_ms,
            )
            for partition, rewrite in self.by_partition.items()
            if rewrite.time_ms + quiet_for_ms > now_ms
        }


def may_rewrite(snapshot: Snapshot) -> bool:
    """Whether the writer may have named the files that the snapshot deletes before its commit."""
    if is_our_removal(snapshot.commit_kind, snapshot.commit_user):
        return False
    from compactord.paimon.snapshot import CommitKind

    is_writers = snapshot.commit_kind in (CommitKind.APPEND, CommitKind.OVERWRITE)
    return is_writers and snapshot.operation not in _OVERWRITING


def is_our_removal(kind: CommitKind, commit_user: str | None) -> bool:
    """Whether compactord removed partitions: it adds no file, and its delta has all deletions."""
    from compactord.paimon.snapshot import CommitKind

    return kind is CommitKind.OVERWRITE and bool(commit_user and owner_of(commit_user))


def _not_after(rewrite: Rewrite, now_ms: int) -> Rewrite:
    return rewrite if rewrite.time_ms <= now_ms else replace(rewrite, time_ms=now_ms)
