"""What the jobs of a table are asked and what they answer: values that pass between threads."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from compactord.commit.changes import DroppedChange, LostCommit
from compactord.errors import CompactordError, DataFileDamaged, DataFileMissing
from compactord.maintenance.holds import Hold
from compactord.paimon.data_file import BucketId
from compactord.table.backlog import DamagedBucket, PendingCompaction
from compactord.table.shape import TopBucket
from compactord.table.status import Backlog, RestingPartition, TableInfo, TableShape


class Phase(enum.Enum):
    """What a table's job does, for heartbeats."""

    PLAN = "planner"
    COMMIT = "committer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What became of finished compactions, by their numbers. `snapshot_id` None: none was made."""

    snapshot_id: int | None = None
    attempts: int = 0
    published: tuple[int, ...] = ()
    dropped: tuple[tuple[int, DroppedChange], ...] = ()
    # Published, and then replaced by another writer: nothing of them is known to be live.
    replaced: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The table's status and what is due. `appended_bytes` were added since the last plan.

    `workable` is the backlog without the buckets that were to be skipped.
    """

    snapshot_id: int
    info: TableInfo
    shape: TableShape
    offered: tuple[PendingCompaction, ...]
    backlog: Backlog
    workable: Backlog
    top: tuple[TopBucket, ...]
    discovery_interval_ms: int
    appended_bytes: int
    # Buckets that have no files any more.
    gone: frozenset[BucketId] = frozenset()
    manifests_read: int
    entries_read: int
    entries_skipped: int
    seconds: float
    resting: tuple[RestingPartition, ...] = ()
    # Buckets that cannot be planned; the others are.
    damaged: tuple[DamagedBucket, ...] = ()

    @property
    def offers_all(self) -> bool:
        """Whether every due bucket is among the offered ones."""
        return self.backlog.tasks <= sum(pending.tasks for pending in self.offered)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCommit:
    """A commit of compactord, by whichever process; `ended_ms` is steady."""

    snapshot_id: int
    ended_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputsReplaced:
    """A decision that others made void: they replaced and expired an input before it was read."""

    why: str


# That others had replaced and expired an input, or which live file is gone or damaged.
Cause: TypeAlias = InputsReplaced | DataFileMissing | DataFileDamaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """The outcome of a cycle. `planned` is None when nothing is new since the last one.

    `error` ended it: in the commit when `in_commit`, else in polling the table. The compactions
    passed in are settled in any case.
    """

    settled: Settled | None = None
    commit_seconds: float = 0.0
    planned: Planned | None = None
    lost_snapshots: tuple[str, ...] = ()
    replaced_snapshots: int = 0
    error: CompactordError | None = None
    in_commit: bool = False
    # Why manifests that wait for no compaction could not be merged; the plan holds all the same.
    merge_error: CompactordError | None = None
    # What the table is; None where nothing new was read of it.
    info: TableInfo | None = None
    # Of compactions that failed because an input was not found or is damaged, as far as is known.
    causes: Mapping[int, Cause | None] = field(default_factory=dict)
    # What writers lost to late renames, committed again or not.
    lost_commits: tuple[LostCommit, ...] = ()
    # The last commit of ours that the table itself tells of; only after a start.
    last_commit: OwnCommit | None = None
    # How long nothing may be built on our newest snapshot; `planned` is None meanwhile.
    wait_ms: int = 0
    # Why nothing of the table is deleted, as it was known last.
    hold: Hold | None = None
