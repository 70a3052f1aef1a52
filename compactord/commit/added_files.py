"""Checks of the files that a commit adds, before it publishes them.

Each file exists with the length that was written: a sweep of another host, or Java's orphan
cleaning (operation/OrphanFilesClean.java), deletes files that waited too long for their commit. And
no manifest deletes a file of its name: for readers a file is live if some manifest adds it and none
deletes it, in whichever order, so a file with a reused name would never be live.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from compactord.commit.changes import BucketChange, Conflict, DroppedChange
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId, DataFile, FileIdentity
from compactord.paimon.manifest.entries import Deletions, identity_hashes
from compactord.paimon.manifest.manifest_files import ManifestFile
from compactord.state.loading import deleted_files
from compactord.state.table_state import TableState
from compactord.storage.base import Storage
from compactord.storage.calls import ahead

_STATUS_THREADS = 16


class AddedFilesCheck:
    """For the commits to one table.

    Costs one status call for each new file, and one read of each manifest with deletions while this
    object lives, unless the state was read from it. It remembers 8 bytes for each deletion in a
    manifest that is in use.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._deleted: dict[str, Deletions] = {}
        self._lost: Callable[[], dict[int, str]] = dict

    @contextlib.contextmanager
    def looking(
        self, changes: Sequence[BucketChange], bucket_folder: Callable[[BucketId], str]
    ) -> Iterator[None]:
        """For each attempt: meanwhile, look for the new files of what it may publish."""
        with ahead(self._storage, partial(self._found, changes, bucket_folder)) as self._lost:
            yield

    def passed(
        self, state: TableState, changes: Sequence[BucketChange], manifests: Sequence[ManifestFile]
    ) -> tuple[list[BucketChange], list[DroppedChange]]:
        """The changes whose files all pass, and the other changes with the reason.

        `manifests` are those of the snapshot of `state`, to build on. `looking` was called for all
        of the changes. Raises what reading raises.
        """
        deleted, lost = self._already_deleted(state, changes, manifests), self._lost()
        troubles = {id(each): lost[id(each)] or deleted.get(id(each), "") for each in changes}
        dropped = [
            DroppedChange(change=change, conflict=Conflict.OUTPUT_LOST, why=why)
            for change in changes
            if (why := troubles[id(change)])
        ]
        return [change for change in changes if not troubles[id(change)]], dropped

    def _found(
        self, changes: Sequence[BucketChange], bucket_folder: Callable[[BucketId], str]
    ) -> dict[int, str]:
        """Why the files of a change are missing or incomplete, or "", by the change's `id`."""
        wanted: list[tuple[int, DataFile, str]] = []
        for change in changes:
            folder = bucket_folder(change.bucket)
            wanted.extend(
                (id(change), output.file, paths.join(folder, output.file.file_name))
                for output in change.outputs
            )
        troubles = dict.fromkeys(map(id, changes), "")
        if not wanted:
            return troubles
        with ThreadPoolExecutor(min(_STATUS_THREADS, len(wanted))) as pool:
            statuses = list(pool.map(self._storage.status, (path for _, _, path in wanted)))
        for (key, file, path), status in zip(wanted, statuses, strict=True):
            if status is None:
                troubles[key] = f"output {path} was removed before it was committed"
            elif status.size_bytes != file.file_size:
                found, written = status.size_bytes, file.file_size
                troubles[key] = f"output {path} has {found} bytes, {written} were written"
        return troubles

    def _already_deleted(
        self, state: TableState, changes: Sequence[BucketChange], manifests: Sequence[ManifestFile]
    ) -> dict[int, str]:
        """Why a file of a change would not be live after its commit, by the change's `id`."""
        location, known = state.table.location, state.files.deleted
        added: dict[FileIdentity, int] = {
            file.identity(change.bucket): id(change) for change in changes for file in change.after
        }
        if not added:
            return {}
        hashes = identity_hashes(list(added))
        deleting = [manifest for manifest in manifests if manifest.num_deleted_files]
        if not known.may_have(hashes).any():
            deleting = [each for each in deleting if each.file_name not in known.manifests]
        # Only those in use are remembered.
        self._deleted = {each.file_name: self._deletions(location, each) for each in deleting}
        troubles: dict[int, str] = {}
        for manifest in deleting:
            if not self._deleted[manifest.file_name].may_have(hashes).any():
                continue
            # Hashes of different files may be equal: their identities decide.
            again = added.keys() & deleted_files(self._storage, location, manifest)
            for identity in again:
                troubles[added[identity]] = (
                    f"manifest {manifest.file_name} deletes a file called {identity.file_name}: "
                    "readers would take a new file of that name for deleted"
                )
        return troubles

    def _deletions(self, location: str, manifest: ManifestFile) -> Deletions:
        known = self._deleted.get(manifest.file_name)
        if known is not None:
            return known
        found = deleted_files(self._storage, location, manifest)
        return Deletions.of([manifest.file_name], found)
