"""Finds the newest version of a table that does not need files which are gone."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Collection, Set

from compactord.errors import FormatError, ObjectNotFound, UnsupportedTable
from compactord.maintenance.expire_reader import FileKey, MetadataReader
from compactord.paimon.manifest.index_manifest import read_index_entries
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import Snapshot, read_snapshot, read_tags, snapshot_ids
from compactord.storage.base import Storage

# What is wrong with a version itself, not with the store that is asked for it.
_UNREADABLE = (FormatError, ObjectNotFound, UnsupportedTable)


def newest_without(
    storage: Storage,
    table: TableRef,
    files: Collection[FileKey],
    index_files: Set[str] = frozenset(),
) -> str | None:
    """The newest version, `snapshot 7` or `tag x`, in which none of these files is live, if any.

    `index_files` are names of such files.
    Snapshots first, then tags. Of the files that the newest snapshot needs: they are live from some
    snapshot on, which is found by halving. Only versions whose metadata can be read count; their
    other data files are not checked. Raises what listing raises, and what a
    store raises that fails.
    """
    reader = MetadataReader(storage, table.location)
    reader.look_for(files)
    ids = snapshot_ids(storage, table.root)

    def indexes(snapshot: Snapshot) -> frozenset[str]:
        if not index_files or snapshot.index_manifest is None:
            return frozenset()
        entries = read_index_entries(storage, table.location, snapshot.index_manifest)
        return frozenset(entry.file_name for entry in entries) & index_files

    def is_without(snapshot: Snapshot) -> bool:
        return not (indexes(snapshot) or reader.live(snapshot))

    def is_known_without(snapshot_id: int) -> bool:
        """False, too, if it cannot be read."""
        with contextlib.suppress(*_UNREADABLE):
            return is_without(read_snapshot(storage, table.root, snapshot_id))
        return False

    if ids:
        with contextlib.suppress(*_UNREADABLE):
            newest = read_snapshot(storage, table.root, ids[-1])
            if is_without(newest):
                return f"snapshot {ids[-1]}"
            reader.look_for(reader.live(newest))
            index_files = indexes(newest)
    end = bisect_left(ids, True, key=lambda snapshot_id: not is_known_without(snapshot_id))
    if end:
        return f"snapshot {ids[end - 1]}"
    tags = read_tags(storage, table.root)
    for name in sorted(tags, key=lambda name: tags[name].id, reverse=True):
        with contextlib.suppress(*_UNREADABLE):
            if is_without(tags[name]):
                return f"tag {name}"
    return None


def rollback_advice(version: str | None, newest: str) -> str:
    """What to do about data files that are gone.

    `version` is what `newest_without` returned, `newest` the name of the newest snapshot.
    """
    if version == newest:
        return f"Only reads of older versions need it: {newest}, the newest, does not."
    restore = (
        "Readers fail on it, too. Restore it from a backup or from an older version of the object"
    )
    if version is None:
        return f"{restore}; no snapshot or tag is without it."
    return (
        f"{restore}; or roll the table back to {version}, which does not need it (later commits "
        "are lost)."
    )
