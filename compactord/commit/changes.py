"""Inputs, conflicts and outcomes of a commit; removal of partitions and of unpublished files.

As operation/FileStoreCommitImpl.java (dropPartitions) and operation/commit/
OverwriteChangesProvider.java: what goes is found anew in the newest state at each attempt, so that
nothing can be in conflict with it.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from compactord.errors import StorageError
from compactord.ids import owner_of
from compactord.model import Marks, Output, data_files
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId, DataFile
from compactord.paimon.deletion_vectors import VectorRef
from compactord.paimon.snapshot import SnapshotIdentity
from compactord.state.table_state import TableState
from compactord.storage.base import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketChange:
    """A finished compaction, ready to be published.

    An upgraded file is in `before` (old level) and in `upgraded` (new level); `outputs` are the new
    files, whatever their kind. `files_above` are names of the bucket's files on `closed_level` and
    above when it was planned: a stranger there at commit time makes the change unsafe.
    `only_read` are names of files that must still be live, since rows were looked up in them.
    `vectors` are the deletion vectors, by file, with which `removed` and `only_read` were read:
    they must still delete the same rows. Those of removed files go; `marks` are added to those of
    files that stay.
    """

    bucket: BucketId
    total_buckets: int
    output_level: int
    before: tuple[DataFile, ...]
    upgraded: tuple[DataFile, ...]
    outputs: tuple[Output, ...]
    files_above: frozenset[str]
    vectors: Mapping[str, VectorRef] = field(default_factory=dict)
    marks: tuple[Marks, ...] = ()
    only_read: frozenset[str] = frozenset()
    looks_up: bool = False
    compaction_id: int = 0

    @property
    def closed_level(self) -> int:
        """Where rows are looked up, a lower level would hide them, made without the new ones."""
        return 1 if self.looks_up else self.output_level

    @property
    def removed(self) -> frozenset[str]:
        """Names of the files that are no more: `before` without what was upgraded."""
        kept = {file.file_name for file in self.upgraded}
        return frozenset(file.file_name for file in self.before).difference(kept)

    @property
    def after(self) -> tuple[DataFile, ...]:
        """The bucket's files in place of `before`."""
        return (*self.upgraded, *data_files(self.outputs))


class Conflict(enum.Enum):
    """What a commit met. `snapshot_race` is harmless and retried; the rest discard work.

    `bucket_damaged`: a live file's entry cannot be read, so nothing can be compared with it.
    """

    SNAPSHOT_RACE = "snapshot_race"
    FILE_REMOVED = "file_removed"
    PARTITION_EXPIRED = "partition_expired"
    BUCKET_COUNT_CHANGED = "bucket_count_changed"
    DV_CHANGED = "dv_changed"
    OUTPUT_LOST = "output_lost"
    BUCKET_DAMAGED = "bucket_damaged"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedChange:
    """A change that was not published because its bucket had moved on."""

    change: BucketChange
    conflict: Conflict
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """`snapshot_id` holds the changes that were not dropped, on top of `base`."""

    snapshot_id: int
    base: SnapshotIdentity
    published: tuple[BucketChange, ...]
    dropped: tuple[DroppedChange, ...]
    attempts: int

    @property
    def compaction_ids(self) -> tuple[int, ...]:
        """Those of the published changes."""
        return tuple(change.compaction_id for change in self.published)


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingCommitted:
    """Every change was dropped; no snapshot was made."""

    dropped: tuple[DroppedChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """The snapshot was published and then replaced by another writer's.

    No file of `changes` may be removed: readers may still be reading them. `dropped` had been left
    out of it.
    """

    changes: tuple[BucketChange, ...]
    dropped: tuple[DroppedChange, ...]
    why: str


CommitOutcome = Committed | NothingCommitted | Replaced


class LossOutcome(enum.Enum):
    """What became of a writer's commit that later snapshots were built without."""

    HEALED = "healed"
    HALTED = "halted"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCommit:
    """A writer's snapshot that is not in the table: its rename came after `above_id` was published.

    `rows` and `files` are what it added (files that it deleted do not count), `file_names` the
    first of them. `again_id` is the snapshot that has its changes now, None with `why` not.
    """

    snapshot_id: int
    above_id: int
    commit_user: str
    commit_identifier: int
    commit_kind: str
    time_ms: int
    files: int
    file_names: tuple[str, ...]
    rows: int
    outcome: LossOutcome
    again_id: int | None
    why: str

    def __str__(self) -> str:
        names = ", ".join(self.file_names) + (", …" if self.files > len(self.file_names) else "")
        what = f"rows: {self.rows:,}, added files: {self.files:,}" + (
            f" ({names})" if names else ""
        )
        who = f"{self.commit_kind} {self.commit_identifier} of {self.commit_user}"
        text = (
            f"snapshot {self.snapshot_id}, {who}, was renamed into its place after "
            f"{self.above_id} had been built without it: {what}"
        )
        if self.again_id is not None:
            return f"{text}; committed again as snapshot {self.again_id}"
        return f"{text}; they are not in the table, and were not committed again: {self.why}"


@dataclass(frozen=True, slots=True)
class Removal:
    """Partitions that go; `chosen` says of the state of each attempt which these are."""

    chosen: Callable[[TableState], Collection[bytes]]

    def changes(self, state: TableState) -> list[BucketChange]:
        """All files of the partitions, but for postponed ones, which no reader has seen yet.

        Raises what `chosen` raises, and `FormatError` for entries that cannot be read.
        """
        partitions = frozenset(self.chosen(state))
        if not partitions:
            return []
        return [
            BucketChange(
                bucket=bucket,
                total_buckets=state.files.summary(bucket).total_buckets,
                output_level=0,
                before=state.files.files_in(bucket),
                upgraded=(),
                outputs=(),
                files_above=frozenset(),
            )
            for bucket in state.files.bucket_ids()
            if bucket.partition in partitions and bucket.bucket >= 0
        ]


def remove_outputs(storage: Storage, folder: str, outputs: Iterable[Output]) -> None:
    """Delete files that workers finished and no commit ever named, of all kinds.

    `folder` is the bucket's. A later orphan sweep finds what cannot be deleted now.
    """
    for output in outputs:
        if owner_of(output.file.file_name) is not None:
            with contextlib.suppress(StorageError):
                storage.delete(paths.join(folder, output.file.file_name))
