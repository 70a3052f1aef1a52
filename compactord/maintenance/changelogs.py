"""Files and hints of changelogs that outlive their snapshots (utils/ChangelogManager.java)."""

from __future__ import annotations

import structlog

from compactord import ids
from compactord.errors import FormatError, ObjectNotFound, StorageError
from compactord.maintenance.planned_deletion import TableChanged
from compactord.paimon import paths
from compactord.paimon.snapshot import Snapshot, parse_snapshot
from compactord.storage.base import Creation, Storage, require_absent

_log = structlog.get_logger()


def keep_changelog(storage: Storage, root: str, snapshot: Snapshot) -> bool:
    """Copy a snapshot's file to the changelog of its id; False if it is missing or replaced.

    An existing changelog of that id may belong to an earlier snapshot with the same id.
    """
    source, path = paths.snapshot_path(root, snapshot.id), paths.changelog_path(root, snapshot.id)
    try:
        data = storage.read(source)
    except ObjectNotFound:
        require_absent(storage, source)
        return False
    if parse_snapshot(data, source).identity != snapshot.identity:
        return False
    folder, name = path.rsplit("/", 1)
    temporary = f"{folder}/.{name}.{ids.this_process().unique_name()}.tmp"
    if storage.create_if_absent(path, data, temporary=temporary) is Creation.EXISTS:
        if _holds(storage, path, snapshot):
            return True
        storage.delete(path)
        storage.create_if_absent(path, data, temporary=temporary)
    return True


def _holds(storage: Storage, path: str, snapshot: Snapshot) -> bool:
    try:
        return parse_snapshot(storage.read(path), path).identity == snapshot.identity
    except (FormatError, ObjectNotFound):
        return False


def write_changelog_hint(storage: Storage, root: str, name: str, id_: int) -> None:
    """Record the oldest or newest changelog. Readers that do not find the hint list the folder."""
    try:
        storage.overwrite(paths.join(paths.changelog_folder(root), name), str(id_).encode())
    except StorageError as error:
        _log.warning("changelog_hint_not_written", hint=name, error=str(error))


def require_same(expected: Snapshot, found: Snapshot | None, what: str) -> None:
    """Raises `TableChanged` unless this snapshot or changelog was found again."""
    if found is None:
        raise TableChanged(f"{what} {expected.id} is gone")
    if found.identity != expected.identity:
        raise TableChanged(f"{what} {expected.id} was replaced by another one")


def changelog_ids(storage: Storage, root: str) -> tuple[int, ...]:
    """All ids in ascending order, from a listing."""
    prefix = paths.CHANGELOG_PREFIX
    names = {status.name for status in storage.list(paths.changelog_folder(root))}
    found = (paths.id_of(name, prefix) for name in names)
    return tuple(sorted(id_ for id_ in found if id_ is not None and f"{prefix}{id_}" in names))


def read_changelog(storage: Storage, root: str, id_: int) -> Snapshot | None:
    """The changelog, or None if a listing confirms that it does not exist."""
    path = paths.changelog_path(root, id_)
    try:
        return parse_snapshot(storage.read(path), path)
    except ObjectNotFound:
        require_absent(storage, path)
        return None
