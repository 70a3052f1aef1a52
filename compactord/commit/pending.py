"""What one commit is still to publish: compared with the state of each attempt, or made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from compactord.commit.added_files import AddedFilesCheck
from compactord.commit.attempt import CommitSettings
from compactord.commit.changes import BucketChange, Conflict, DroppedChange
from compactord.commit.conflicts import still_valid
from compactord.commit.index_files import NextIndex, index_without, next_index
from compactord.commit.manifest_merge import ManifestMerge
from compactord.commit.metadata import MetadataFiles
from compactord.commit.recommit import Recommit
from compactord.commit.removal import Removal
from compactord.paimon.manifest.manifest_files import ManifestFile
from compactord.paimon.snapshot import CommitKind
from compactord.state.table_state import TableState
from compactord.storage.base import Storage


@dataclass(slots=True)
class Pending:
    """The changes of one commit, and what was dropped of them; `merge` is kept if it fits.

    With `again` they are those of another writer's lost snapshot: all are published, or none. With
    `removal` they are made anew of each state.
    """

    changes: list[BucketChange]
    settings: CommitSettings
    again: Recommit | None = None
    removal: Removal | None = None
    merges_only: bool = False
    dropped: list[DroppedChange] = field(default_factory=list)
    merge: ManifestMerge | None = None

    @classmethod
    def of(
        cls,
        changes: Sequence[BucketChange] | Removal,
        settings: CommitSettings,
        again: Recommit | None,
    ) -> Pending:
        """See `Committer.commit`."""
        if isinstance(changes, Removal):
            return cls([], settings, removal=changes)
        return cls(list(changes), settings, again, merges_only=not changes)

    @property
    def kind(self) -> CommitKind:
        return CommitKind.COMPACT if self.removal is None else CommitKind.OVERWRITE

    def index_on(
        self,
        storage: Storage,
        state: TableState,
        manifests: Sequence[ManifestFile],
        files: MetadataFiles,
        added_files: AddedFilesCheck,
    ) -> NextIndex:
        """Write the index files that follow those of `state`; from now on `changes` fit both.

        `manifests` are those of its snapshot. Raises what reading and writing raise.
        """
        if self.removal is not None:
            index = index_without(storage, state, self.removal.changes(state), files)
        else:
            valid = self._publishable(storage, state, manifests, added_files)
            index = next_index(storage, state, valid, self.settings.options.vectors, files)
        self.changes = index.changes
        self.dropped += index.dropped
        return index

    def _publishable(
        self,
        storage: Storage,
        state: TableState,
        manifests: Sequence[ManifestFile],
        added_files: AddedFilesCheck,
    ) -> list[BucketChange]:
        """Changes that fit the state, with complete files; the others are dropped."""
        again, settings = self.again, self.settings
        if again is None:
            valid, dropped = still_valid(storage, state, self.changes, settings)
        else:
            valid, dropped = self.changes, []
            why = again.objection(state)
            if why is not None:
                self._drop_all(Conflict.OTHER, why)
                return []
        valid, lost = added_files.passed(state, valid, manifests)
        if again is not None and lost:
            self._drop_all(lost[0].conflict, lost[0].why)
            return []
        self.dropped += [*dropped, *lost]
        return valid

    def _drop_all(self, conflict: Conflict, why: str) -> None:
        self.dropped += [
            DroppedChange(change=change, conflict=conflict, why=why) for change in self.changes
        ]
