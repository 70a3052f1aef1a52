"""Checks of the files that a commit adds, before it publishes them.

Each file still exists with the length that was written: a sweep of another host, or Java's orphan
cleaning (operation/OrphanFilesClean.java), deletes files that waited too long for their commit. And
no manifest deletes a file of its name: for readers a file is live if some manifest adds it and none
deletes it, in whichever order, so a file with a reused name would never be live.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from compactord.commit.changes import BucketChange, Conflict, DroppedChange
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId, DataFile, FileIdentity
from compactord.paimon.manifest.identity_hashes import Hashes, identity_hashes
from compactord.paimon.manifest.manifest_files import ManifestFile
from compactord.state.load_files import deleted_files
from compactord.storage.base import Storage
from compactord.storage.parallel import ahead

_STATUS_THREADS = 16


class AddedFilesCheck:
    """For the commits to one table.

    Costs one status call for each new file, and one read of each manifest with deletions while this
    object lives. It remembers 8 bytes for each deletion in a manifest that is in use.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._deleted: dict[str, Hashes] = {}

    def passed(
        self,
        location: str,
        changes: Sequence[BucketChange],
        manifests: Sequence[ManifestFile],
        bucket_folder: Callable[[BucketId], str],
    ) -> tuple[list[BucketChange], list[DroppedChange]]:
        """The changes whose files all pass, and the other changes with the reason.

        `manifests` are those of the snapshot to build on. Raises what reading raises.
        """
        with ahead(self._storage, partial(self._lost, changes, bucket_folder)) as lost:
            troubles = self._already_deleted(location, changes, manifests)
            troubles.update(lost())
        dropped = [
            DroppedChange(change=changes[index], conflict=Conflict.OUTPUT_LOST, why=why)
            for index, why in troubles.items()
        ]
        return [c for index, c in enumerate(changes) if index not in troubles], dropped

    def _lost(
        self, changes: Sequence[BucketChange], bucket_folder: Callable[[BucketId], str]
    ) -> dict[int, str]:
        """Why the files of a change are missing or incomplete, by the change's index."""
        wanted: list[tuple[int, DataFile, str]] = []
        for index, change in enumerate(changes):
            folder = bucket_folder(change.bucket)
            wanted.extend(
                (index, output.file, paths.join(folder, output.file.file_name))
                for output in change.outputs
            )
        if not wanted:
            return {}
        with ThreadPoolExecutor(min(_STATUS_THREADS, len(wanted))) as pool:
            statuses = list(pool.map(self._storage.status, (path for _, _, path in wanted)))
        troubles: dict[int, str] = {}
        for (index, file, path), status in zip(wanted, statuses, strict=True):
            if status is None:
                troubles[index] = f"output {path} was removed before it was committed"
            elif status.size_bytes != file.file_size:
                found, written = status.size_bytes, file.file_size
                troubles[index] = f"output {path} has {found} bytes, {written} were written"
        return troubles

    def _already_deleted(
        self, location: str, changes: Sequence[BucketChange], manifests: Sequence[ManifestFile]
    ) -> dict[int, str]:
        """Why a file of a change would not be live after its commit, by the change's index."""
        deleting = [manifest for manifest in manifests if manifest.num_deleted_files]
        # Only those in use are remembered.
        self._deleted = {each.file_name: self._deletions(location, each) for each in deleting}
        added: dict[FileIdentity, int] = {
            file.identity(change.bucket): index
            for index, change in enumerate(changes)
            for file in change.after
        }
        hashes = identity_hashes(list(added))
        troubles: dict[int, str] = {}
        for manifest in deleting:
            deleted = self._deleted[manifest.file_name]
            if not len(deleted):
                continue
            places = np.minimum(np.searchsorted(deleted, hashes), len(deleted) - 1)
            if not (deleted[places] == hashes).any():
                continue
            # Hashes of different files may be equal: their identities decide.
            again = added.keys() & deleted_files(self._storage, location, [manifest])
            for identity in again:
                troubles[added[identity]] = (
                    f"manifest {manifest.file_name} deletes a file called {identity.file_name}: "
                    "readers would take a new file of that name for deleted"
                )
        return troubles

    def _deletions(self, location: str, manifest: ManifestFile) -> Hashes:
        known = self._deleted.get(manifest.file_name)
        if known is not None:
            return known
        found = deleted_files(self._storage, location, [manifest])
        return np.sort(identity_hashes(list(found)))
