"""Finds the newest version of a table that does not need files which are gone."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from compactord.errors import CompactordError, ErrorAtPath
from compactord.maintenance.expire_reader import FileKey, MetadataReader
from compactord.paimon.snapshot import Snapshot, read_snapshot, read_tags, snapshot_ids
from compactord.storage.base import Storage


def newest_without(storage: Storage, location: str, files: Collection[FileKey]) -> str | None:
    """`snapshot 7` or `tag x`, in which none of these files is live; None if there is none.

    Snapshots first, from the newest down, then tags. Only those whose metadata can be read count;
    their other data files are not checked. Raises what listing raises.
    """
    reader = MetadataReader(storage, location)
    reader.look_for(files)
    for name, snapshot in _versions(storage, location):
        try:
            if not reader.live(snapshot):
                return name
        except CompactordError:
            continue
    return None


def _versions(storage: Storage, location: str) -> Iterator[tuple[str, Snapshot]]:
    for snapshot_id in reversed(snapshot_ids(storage, location)):
        try:
            yield f"snapshot {snapshot_id}", read_snapshot(storage, location, snapshot_id)
        except ErrorAtPath:
            continue
    tags = read_tags(storage, location)
    for name in sorted(tags, key=lambda name: tags[name].id, reverse=True):
        yield f"tag {name}", tags[name]


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
