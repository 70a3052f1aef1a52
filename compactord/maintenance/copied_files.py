"""Detects recent copies of snapshots, tags and schemas: a restore may be running.

A restore, a copy of a table and a store's sync copy folders in any order, so versions that need old
files may arrive last. A copied file has changed later than the time recorded in it allows. Java
also copies such files within a table when it makes a branch, fast-forwards main, or rolls back to a
tag: a copy of a file that the table had before is no sign of a restore.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from compactord.errors import FormatError, ObjectNotFound
from compactord.maintenance.kind import OpenedTable
from compactord.maintenance.used_names import MAY_BE_RESTORED, WRITE_DELAY_MAX_MS
from compactord.paimon import paths
from compactord.paimon.schema import parse_object
from compactord.paimon.snapshot import Snapshot, branch_names, parse_snapshot, tag_times
from compactord.storage.base import NO_TIME_MS, ObjectStatus, Storage, require_absent
from compactord.storage.calls import map_concurrently
from compactord.table.opening import OpenTable

# Wall clocks are behind UTC by this at most.
_BEHIND_UTC_MS = 12 * 3_600_000
_SNAPSHOT, _TAG, _SCHEMA = paths.SNAPSHOT_PREFIX, paths.TAG_PREFIX, paths.SCHEMA_PREFIX
Identity = tuple[object, ...]


class _File(NamedTuple):
    root: str
    prefix: str
    path: str
    status: ObjectStatus

    @property
    def name(self) -> str:
        return self.status.name


class _Content(NamedTuple):
    """The version in a file, its number, and the latest normal time to write the file."""

    identity: Identity
    number: int
    until_ms: int


class CheckedFiles:
    """The versions in files that earlier rounds found to be originals or copies within the table.

    By path, change and size.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[str, int, int], Identity] = {}


class CopyWatch:
    """Looks for copies younger than `grace_ms`, unless that is 0. Rounds share `checked`."""

    def __init__(self, grace_ms: int = 0, checked: CheckedFiles | None = None) -> None:
        self.grace_ms = grace_ms
        self.checked = checked or CheckedFiles()

    def why_wait(
        self,
        table: OpenTable,
        now_ms: int,
        snapshot_of: Callable[[int], Snapshot | None] | None = None,
    ) -> str | None:
        """Why no file of the table may be deleted now, or None without a sign of a restore.

        `snapshot_of` reads snapshots of the table's own branch; a caller may have them in memory.
        A file without a time in the store is no sign. Raises what listing and reading raise.
        """
        if not self.grace_ms:
            return None
        search = _Search(table, self.checked.known, now_ms - self.grace_ms, snapshot_of)
        copy = search.found()
        if copy is None:
            return None
        return (
            f"{copy} changed later than the time recorded in it, so {MAY_BE_RESTORED}; no file is "
            "deleted until that file is older than recovery.orphan_grace"
        )


# For callers without a grace for copies.
NO_WATCH = CopyWatch()


def watched(table: OpenedTable, grace_ms: int) -> CopyWatch:
    """A watch for rounds of one table, with the results of the last one."""
    return CopyWatch(grace_ms, table.memory(CheckedFiles))


class _Search:
    def __init__(
        self,
        table: OpenTable,
        known: dict[tuple[str, int, int], Identity],
        since_ms: int,
        snapshot_of: Callable[[int], Snapshot | None] | None,
    ) -> None:
        self._storage, self._root = table.storage, table.ref.root
        self._retained_ms = table.options.expire.time_retained_ms
        self._known = known
        self._since_ms = since_ms
        self._snapshot_of = snapshot_of
        self._contents: dict[str, _Content | None] = {}
        self._files = tuple(_listed(self._storage, table.ref.location))

    def found(self) -> str | None:
        """The path of a recent copy, or None."""
        self._forget()
        recent = [file for file in self._files if self._is_recent(file)]
        new = [file for file in recent if _key(file) not in self._known]
        for file, content in zip(
            new, map_concurrently(self._storage, self._content, new), strict=True
        ):
            if content is None:
                continue
            if not (self._is_original(file, content) or self._has_original(file, content)):
                return file.path
            self._known[_key(file)] = content.identity
        return None

    def _forget(self) -> None:
        """Forget deleted files after the grace: until then they may be originals of copies."""
        there = {_key(file) for file in self._files}
        for key in [key for key in self._known if key not in there and key[1] <= self._since_ms]:
            del self._known[key]

    def _is_recent(self, file: _File) -> bool:
        return self._since_ms < file.status.changed_ms < NO_TIME_MS

    def _is_original(self, file: _File, content: _Content) -> bool:
        return file.status.changed_ms <= content.until_ms

    def _has_original(self, copy: _File, content: _Content) -> bool:
        """Whether the table had the version before, in another file."""
        if any(
            identity == content.identity and path != copy.path
            for (path, *_), identity in self._known.items()
        ):
            return True
        prefix = _SCHEMA if copy.prefix == _SCHEMA else _SNAPSHOT
        for file in self._files:
            may_be = file.name == f"{prefix}{content.number}" or (
                file.prefix == _TAG and prefix == _SNAPSHOT
            )
            if file.path == copy.path or not may_be:
                continue
            found = self._content(file)
            if found is None or found.identity != content.identity:
                continue
            if not self._is_recent(file) or self._is_original(file, found):
                return True
        return False

    def _content(self, file: _File) -> _Content | None:
        """The version in the file, or None if the file is missing."""
        if file.path not in self._contents:
            with contextlib.suppress(ObjectNotFound):
                self._contents[file.path] = self._read(file)
        if file.path not in self._contents:
            require_absent(self._storage, file.path)
            self._contents[file.path] = None
        return self._contents[file.path]

    def _read(self, file: _File) -> _Content | None:
        number = paths.id_of(file.name, _SNAPSHOT)
        if file.root == self._root and number is not None and self._snapshot_of is not None:
            snapshot = self._snapshot_of(number)
            return None if snapshot is None else _of_snapshot(snapshot)
        data = self._storage.read(file.path)
        if file.prefix == _SCHEMA:
            return _of_schema(parse_object(data, file.path, "a schema"))
        content = _of_snapshot(parse_snapshot(data, file.path))
        if file.prefix == _SNAPSHOT:
            return content
        # A tag is made from an existing snapshot, and most snapshots are retained this long.
        until_ms = content.until_ms + max(0, self._retained_ms - WRITE_DELAY_MAX_MS)
        with contextlib.suppress(FormatError):
            times = tag_times(parse_object(data, file.path, "a tag"), file.path)
            if times is not None:
                until_ms = max(until_ms, times.made_ms + _BEHIND_UTC_MS + WRITE_DELAY_MAX_MS)
        return content._replace(until_ms=until_ms)


def _of_snapshot(snapshot: Snapshot) -> _Content:
    return _Content(snapshot.identity, snapshot.id, snapshot.time_ms + WRITE_DELAY_MAX_MS)


def _of_schema(found: Mapping[str, object]) -> _Content | None:
    """The version in a schema, or None without a creation time: it is no sign."""
    number, time_ms = found.get("id"), found.get("timeMillis")
    if type(number) is not int or type(time_ms) is not int or time_ms <= 0:
        return None
    return _Content((_SCHEMA, number, time_ms), number, time_ms + WRITE_DELAY_MAX_MS)


def _listed(storage: Storage, location: str) -> Iterator[_File]:
    """The files of snapshots, tags and schemas of main and of all branches."""
    for branch in (paths.MAIN_BRANCH, *branch_names(storage, location)):
        root = paths.branch_root(location, branch)
        for prefix, folder in (
            (_SCHEMA, paths.schema_folder(root)),
            (_TAG, paths.tag_folder(root)),
            (_SNAPSHOT, paths.snapshot_folder(root)),
        ):
            for status in storage.list(folder):
                is_one = prefix == _TAG or paths.id_of(status.name, prefix) is not None
                if is_one and status.name.startswith(prefix) and not status.is_folder:
                    yield _File(root, prefix, paths.join(folder, status.name), status)


def _key(file: _File) -> tuple[str, int, int]:
    return file.path, file.status.changed_ms, file.status.size_bytes
