"""Finds the newest version of a table that does not need files which are gone."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Collection, Mapping

from compactord.errors import CompactordError
from compactord.maintenance.expire_reader import FileKey, MetadataReader
from compactord.paimon.snapshot import Snapshot, read_snapshot, read_tags, snapshot_ids
from compactord.paimon.table import TableRef
from compactord.storage.base import Storage


def newest_without(storage: Storage, table: TableRef, files: Collection[FileKey]) -> str | None:
    """The newest version, `snapshot 7` or `tag x`, in which none of these files is live, if any.

    Snapshots first, then tags. Of the files that the newest snapshot needs: they are live from some
    snapshot on, which is found by halving. Only versions whose metadata can be read count; their
    other data files are not checked. Raises what listing raises.
    """
    reader = MetadataReader(storage, table.location)
    reader.look_for(files)
    ids = snapshot_ids(storage, table.root)

    def needed(snapshot_id: int) -> frozenset[FileKey] | None:
        """None: it cannot be read."""
        try:
            return reader.live(read_snapshot(storage, table.root, snapshot_id))
        except CompactordError:
            return None

    if ids:
        by_newest = needed(ids[-1])
        if by_newest is not None:
            if not by_newest:
                return f"snapshot {ids[-1]}"
            reader.look_for(by_newest)
    end = bisect_left(ids, True, key=lambda snapshot_id: needed(snapshot_id) != frozenset())
    if end:
        return f"snapshot {ids[end - 1]}"
    return _tag_without(reader, read_tags(storage, table.root))


def _tag_without(reader: MetadataReader, tags: Mapping[str, Snapshot]) -> str | None:
    for name in sorted(tags, key=lambda name: tags[name].id, reverse=True):
        with contextlib.suppress(CompactordError):
            if not reader.live(tags[name]):
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
