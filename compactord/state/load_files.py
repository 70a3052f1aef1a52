"""Reads the live files of a snapshot from its manifests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compactord.paimon.data_file import EntryKind, FileIdentity
from compactord.paimon.manifest.entry_columns import (
    MIN_CURSORS,
    EntryColumns,
    Mask,
    read_entry_columns,
)
from compactord.paimon.manifest.identity_hashes import Hashes, identity_hashes
from compactord.paimon.manifest.manifest_files import ManifestFile
from compactord.state.base_files import BaseFiles, BaseFilesBuilder
from compactord.state.live_files import LiveFiles
from compactord.storage.base import Storage


def load_live_files(
    storage: Storage,
    location: str,
    manifests: Sequence[ManifestFile],
    *,
    min_cursors: int = MIN_CURSORS,
) -> LiveFiles:
    """Read the live files from a snapshot's manifests (base list, then delta list).

    As Java reads: files that any manifest adds and none deletes; a DELETE without its ADD has no
    effect. Manifests with deletions are decoded twice, so that only one batch is in memory beside
    the result. Raises `FormatError` for damage and for a file that is added twice.
    """
    deleted = _Deleted.of(deleted_files(storage, location, manifests, min_cursors=min_cursors))
    builder = BaseFilesBuilder(location)
    adding = [manifest for manifest in manifests if manifest.num_added_files]
    for entries in read_entry_columns(storage, location, adding, min_cursors=min_cursors):
        builder.add(entries, deleted.spares(entries))
    return _of_base(location, builder.build())


def deleted_files(
    storage: Storage,
    location: str,
    manifests: Sequence[ManifestFile],
    *,
    min_cursors: int = MIN_CURSORS,
) -> set[FileIdentity]:
    """The files that these manifests delete; manifests without deletions are not read."""
    identities: set[FileIdentity] = set()
    deleting = [manifest for manifest in manifests if manifest.num_deleted_files]
    for entries in read_entry_columns(storage, location, deleting, min_cursors=min_cursors):
        rows = np.flatnonzero(entries.kind == EntryKind.DELETE)
        identities.update(entries.identities(rows))
    return identities


def no_files(location: str) -> LiveFiles:
    """The live files of a table without a snapshot."""
    return _of_base(location, BaseFilesBuilder(location).build())


def _of_base(location: str, base: BaseFiles) -> LiveFiles:
    schema_ids, counts = np.unique(base.columns.schema_id, return_counts=True)
    return LiveFiles(
        base=base,
        schema_id_counts=dict(zip(schema_ids.tolist(), counts.tolist(), strict=True)),
        file_count=len(base),
        size_bytes=int(base.columns.file_size.sum()),
        row_count=int(base.columns.row_count.sum()),
        location=location,
    )


@dataclass(frozen=True, slots=True)
class _Deleted:
    """Identities that some manifest deletes, with their sorted hashes for fast lookup."""

    identities: frozenset[FileIdentity]
    hashes: Hashes

    @staticmethod
    def of(identities: set[FileIdentity]) -> _Deleted:
        return _Deleted(frozenset(identities), np.sort(identity_hashes(list(identities))))

    def spares(self, entries: EntryColumns) -> Mask:
        """Which entries add a file that no entry deletes (one bool per entry)."""
        live: Mask = entries.kind == EntryKind.ADD
        if len(self.hashes):
            hashes = entries.files.identity_hash
            index = np.searchsorted(self.hashes, hashes)
            index[index == len(self.hashes)] = 0
            suspects = np.flatnonzero(live & (self.hashes[index] == hashes))
            dead = [identity in self.identities for identity in entries.identities(suspects)]
            live[suspects] = ~np.array(dead, np.bool_)
        return live
