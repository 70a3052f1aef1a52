"""Reads snapshots after a known one, and the live files of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from compactord.errors import ObjectNotFound
from compactord.paimon import paths
from compactord.paimon.data_file import EntryKind, FileIdentity
from compactord.paimon.manifest.entries import Deletions
from compactord.paimon.manifest.entry_columns import (
    MIN_CURSORS,
    EntryColumns,
    Mask,
    read_entry_columns,
)
from compactord.paimon.manifest.manifest_files import ManifestFile
from compactord.paimon.snapshot import (
    Snapshot,
    hinted_snapshot_id,
    latest_snapshot_id,
    read_snapshot,
)
from compactord.state.base_files import BaseFiles, BaseFilesBuilder
from compactord.state.live_files import LiveFiles
from compactord.storage.base import Storage
from compactord.storage.calls import map_concurrently, prefetch

T = TypeVar("T")

# From this many new snapshots on, a full read is no slower than applying each delta.
MAX_FOLLOWED = 200
# After this many, the hint shows how many more there are.
_HINT_READ_AFTER = 10


def newest_by_hint(storage: Storage, root: str) -> Snapshot | None:
    """The snapshot that the hint names, if it exists and no later one does; else None.

    Raises what reading raises.
    """
    hinted = hinted_snapshot_id(storage, root)
    if hinted is None:
        return None
    following = paths.snapshot_path(root, hinted + 1)
    with prefetch(storage, partial(snapshot_if_there, storage, root, hinted)) as found:
        # One that has a later one may be damaged.
        return found() if storage.status(following) is None else None


def snapshot_if_there(storage: Storage, root: str, snapshot_id: int) -> Snapshot | None:
    try:
        return read_snapshot(storage, root, snapshot_id)
    except ObjectNotFound:
        return None


def read_newest(newest: Callable[[], Snapshot | None], read: Callable[[Snapshot | None], T]) -> T:
    """The result of `read` for the newest snapshot. If it expires meanwhile, reads the next."""
    for is_last in (False, False, True):
        try:
            return read(newest())
        except ObjectNotFound:
            if is_last:
                raise
    raise AssertionError("the last attempt returns or raises")


def later_snapshots(
    storage: Storage,
    root: str,
    known: Snapshot,
    following: Callable[[], Snapshot | None],
    hint: Callable[[], int | None],
) -> Iterator[Snapshot | None]:
    """The snapshots after `known`, in order; then None if there are too many, or one is missing.

    `following` reads the first of them, `hint` what the hint names.
    """
    newest_id = known.id
    while True:
        found = following()
        if found is None:
            if (hint() or 0) <= newest_id:
                return
            # Published just now, or missing, or the hint is wrong.
            found = snapshot_if_there(storage, root, newest_id + 1)
        if found is not None and found.id == known.id + _HINT_READ_AFTER:
            latest = latest_snapshot_id(storage, root) or 0
            found = found if latest - known.id <= MAX_FOLLOWED else None
        if found is None or found.id - known.id > MAX_FOLLOWED:
            yield None
            return
        yield found
        newest_id = found.id
        following = partial(snapshot_if_there, storage, root, newest_id + 1)


# As much as one manifest of the usual size.
_KEPT_BYTES = 8 << 20


def load_live_files(
    storage: Storage,
    location: str,
    manifests: Sequence[ManifestFile],
    *,
    min_cursors: int = MIN_CURSORS,
) -> LiveFiles:
    """Read the live files from a snapshot's manifests (base list, then delta list).

    Reads as Java: files that any manifest adds and none deletes; a DELETE without its ADD has no
    effect. Manifests with deletions are decoded twice, so that only one batch is in memory besides
    the result. Raises `FormatError` for damage and for a file that is added twice.
    """
    kept = _kept(storage, location, manifests)
    read = partial(read_entry_columns, storage, location, min_cursors=min_cursors, kept=kept)
    deleting = [manifest for manifest in manifests if manifest.num_deleted_files]
    identities = _deleted_in(read(deleting))
    deleted = Deletions.of((manifest.file_name for manifest in deleting), identities)
    builder = BaseFilesBuilder(location)
    for entries in read([manifest for manifest in manifests if manifest.num_added_files]):
        builder.add(entries, _live_in(entries, deleted, identities))
    return replace(_of_base(location, builder.build()), deleted=deleted)


def deleted_files(storage: Storage, location: str, manifest: ManifestFile) -> set[FileIdentity]:
    """The files that the manifest deletes."""
    return _deleted_in(read_entry_columns(storage, location, [manifest]))


def _deleted_in(batches: Iterable[EntryColumns]) -> set[FileIdentity]:
    identities: set[FileIdentity] = set()
    for entries in batches:
        rows = np.flatnonzero(entries.kind == EntryKind.DELETE)
        identities.update(entries.identities(rows))
    return identities


def _kept(
    storage: Storage, location: str, manifests: Sequence[ManifestFile]
) -> Mapping[str, bytes] | None:
    """The bytes of small manifests, by path, if reading is a request and some are read twice."""
    is_small = sum(manifest.file_size for manifest in manifests) <= _KEPT_BYTES
    are_read_twice = any(manifest.num_deleted_files for manifest in manifests)
    if not (storage.capabilities.behind_network and is_small and are_read_twice):
        return None
    names = [paths.manifest_path(location, manifest.file_name) for manifest in manifests]
    return dict(zip(names, map_concurrently(storage, storage.read, names), strict=True))


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


def _live_in(entries: EntryColumns, deleted: Deletions, identities: Set[FileIdentity]) -> Mask:
    """A mask of entries that add a file and that no entry deletes; `deleted` has hashes."""
    live: Mask = entries.kind == EntryKind.ADD
    if identities:
        suspects = np.flatnonzero(live & deleted.may_have(entries.files.identity_hash))
        dead = [identity in identities for identity in entries.identities(suspects)]
        live[suspects] = ~np.array(dead, np.bool_)
    return live
