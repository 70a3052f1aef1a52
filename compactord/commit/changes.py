"""Inputs, conflicts and outcomes of a commit; removal of partitions and of unpublished files."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from compactord.errors import StorageError
from compactord.ids import owner_of
from compactord.model import Conflict, Marks, Output, data_files
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
    files of all kinds. `files_above` are names of the bucket's files on `closed_level` and above at
    plan time: another file there at commit time makes the change unsafe.
    `only_read` are names of files that must still be live, because rows were looked up in them.
    `vectors` are the deletion vectors, by file, with which `removed` and `only_read` were read:
    they must still delete the same rows. Vectors of removed files are dropped; `marks` are added to
    vectors of files that stay.
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
        """The lowest level on which a new file makes the change unsafe; level 1 with lookups."""
        return 1 if self.looks_up else self.output_level

    @property
    def removed(self) -> frozenset[str]:
        """Names of the removed files: `before` without the upgraded files."""
        kept = {file.file_name for file in self.upgraded}
        return frozenset(file.file_name for file in self.before).difference(kept)

    @property
    def after(self) -> tuple[DataFile, ...]:
        """The bucket's files that replace `before`."""
        return (*self.upgraded, *data_files(self.outputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedChange:
    """A change that was not published because its bucket had changed."""

    change: BucketChange
    conflict: Conflict
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """`snapshot_id` has the changes that were not dropped, on top of `base`."""

    snapshot_id: int
    base: SnapshotIdentity
    published: tuple[BucketChange, ...]
    dropped: tuple[DroppedChange, ...]
    attempts: int

    @property
    def compaction_ids(self) -> tuple[int, ...]:
        """The ids of the published changes."""
        return tuple(change.compaction_id for change in self.published)


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingCommitted:
    """Every change was dropped; no snapshot was made."""

    dropped: tuple[DroppedChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """The snapshot was published and then replaced by another writer's.

    No file of `changes` may be removed: readers may still be reading them. `dropped` were not part
    of it.
    """

    changes: tuple[BucketChange, ...]
    dropped: tuple[DroppedChange, ...]
    why: str


CommitOutcome = Committed | NothingCommitted | Replaced


class LossOutcome(enum.Enum):
    """The outcome for a writer's commit that later snapshots do not contain."""

    HEALED = "healed"
    HALTED = "halted"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCommit:
    """A writer's snapshot missing from the table: its rename came after `above_id` was published.

    `rows` and `files` count its additions (not its deletions), `file_names` are the first of them.
    `again_id` is the snapshot that has its changes now, or None, with the reason in `why`.
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
    """Removal of partitions. `chosen` selects them from the state of each attempt.

    As in operation/FileStoreCommitImpl.java (dropPartitions) and
    operation/commit/OverwriteChangesProvider.java, the removed files are determined from the newest
    state at each attempt, so no conflict is possible.
    """

    chosen: Callable[[TableState], Collection[bytes]]

    def changes(self, state: TableState) -> list[BucketChange]:
        """All files of the partitions, except postponed ones, which are not visible to readers yet.

        Raises the errors of `chosen`, and `FormatError` for unreadable entries.
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
    """Delete finished files of all kinds, with their companions, that no commit ever named.

    `folder` is the bucket's. A later orphan sweep finds files that cannot be deleted now.
    """
    for output in outputs:
        for name in (output.file.file_name, *output.companions):
            if owner_of(name) is not None:
                with contextlib.suppress(StorageError):
                    storage.delete(paths.join(folder, name))
