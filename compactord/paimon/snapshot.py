"""Snapshots and tags as metadata files.

A snapshot file is one JSON object. Ids are reused after rollbacks and after a table was dropped and
created again: facts about an id are valid only while `Snapshot.identity` is the same.
Sources: Snapshot.java, utils/{SnapshotManager,ChangelogManager,HintFileUtils,TagManager,
BranchManager}.java, consumer/ConsumerManager.java.
"""

from __future__ import annotations

import contextlib
import enum
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from compactord.errors import (
    FormatError,
    ObjectNotFound,
    TransientStorageError,
    UnsupportedTable,
)
from compactord.paimon import paths
from compactord.paimon.schema import parse_object
from compactord.storage.base import ObjectStatus, Storage, listed_but_missing, require_absent
from compactord.storage.calls import map_concurrently

T = TypeVar("T")
_VERSION = 3
_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_ID = re.compile(r"[0-9]{1,18}")
# This many successors of the hint's snapshot are probed before the folder is listed.
_PROBES = 4
# Listings of a folder whose files vanish while they are read.
_LISTINGS_MAX = 10
# Attempts to read an invalid consumer, as in Java.
_READINGS_MAX = 10


class ManifestListRef(NamedTuple):
    """A manifest list that a snapshot names. `size_bytes` is None in old snapshots."""

    name: str
    size_bytes: int | None


class CommitKind(enum.Enum):
    APPEND = "APPEND"
    COMPACT = "COMPACT"
    OVERWRITE = "OVERWRITE"
    ANALYZE = "ANALYZE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One version of a table. None if the key is absent. Keys unknown to release 2.0.0 are dropped.

    `time_ms` is since the epoch. Sizes in bytes. `operation` is a text of the writer's.
    """

    version: int = _VERSION
    uuid: str | None = None
    id: int
    schema_id: int
    base_manifest_list: str
    base_manifest_list_size: int | None = None
    delta_manifest_list: str
    delta_manifest_list_size: int | None = None
    changelog_manifest_list: str | None = None
    changelog_manifest_list_size: int | None = None
    index_manifest: str | None = None
    commit_user: str
    commit_identifier: int
    commit_kind: CommitKind
    time_ms: int
    total_record_count: int
    delta_record_count: int
    changelog_record_count: int | None = None
    watermark: int | None = None
    statistics: str | None = None
    properties: Mapping[str, str] | None = None
    next_row_id: int | None = None
    operation: str | None = None

    @property
    def identity(self) -> SnapshotIdentity:
        """Equal for two readings of one snapshot, different for two that share an id."""
        if self.uuid is not None:
            return (self.uuid,)
        return (self.commit_user, self.commit_identifier, self.time_ms)

    @property
    def base_list(self) -> ManifestListRef:
        """The manifests that the snapshot was built on, perhaps merged."""
        return ManifestListRef(self.base_manifest_list, self.base_manifest_list_size)

    @property
    def delta_list(self) -> ManifestListRef:
        """The manifests that the snapshot itself added."""
        return ManifestListRef(self.delta_manifest_list, self.delta_manifest_list_size)

    @property
    def changelog_list(self) -> ManifestListRef | None:
        """The manifests of its changelog files, or None without a changelog."""
        name = self.changelog_manifest_list
        return None if name is None else ManifestListRef(name, self.changelog_manifest_list_size)


SnapshotIdentity = tuple[str] | tuple[str, int, int]


def _key(field: str) -> str:
    first, *others = field.split("_")
    return first + "".join(map(str.capitalize, others))


# Field of `Snapshot` -> key in the file, in Java's order.
_KEYS = {f.name: _key(f.name) for f in fields(Snapshot)} | {"time_ms": "timeMillis"}
# Files of the manifest folder, except `statistics`.
_FILE_NAMES = (
    "base_manifest_list",
    "delta_manifest_list",
    "changelog_manifest_list",
    "index_manifest",
    "statistics",
)
_PYTHON_TYPES: Mapping[str, type] = {
    "str": str,
    "str | None": str,
    "int": int,
    "int | None": int,
    "CommitKind": str,
    "Mapping[str, str] | None": dict,
}
_FIELDS = tuple(
    (f.name, _KEYS[f.name], _PYTHON_TYPES[str(f.type)], "None" in str(f.type))
    for f in fields(Snapshot)
)


# One snapshot is read repeatedly while others are deleted, or a commit is confirmed.
@lru_cache(maxsize=64)
def parse_snapshot(data: bytes, path: str) -> Snapshot:
    """A snapshot, tag or long-lived changelog file.

    Raises `FormatError` with the invalid key, `UnsupportedTable` for a newer version.
    """
    found = parse_object(data, path, "a snapshot")
    version = found.get("version")
    if type(version) is int and version > _VERSION:
        raise UnsupportedTable(
            paths.table_of_file(path), [f"{path} has snapshot version {version}"]
        )
    values: dict[str, Any] = {}
    for name, key, kind, optional in _FIELDS:
        value = found.get(key)
        if value is None and optional:
            continue
        # isinstance takes a bool for an int, but true is not an id.
        if type(value) is not kind:
            raise FormatError(path, f"snapshot key {key} is {value!r}, expected {kind.__name__}")
        # Java has 64 bits; we would write a larger number into the next snapshot.
        if type(value) is int and not _LONG_MIN <= value <= _LONG_MAX:
            raise FormatError(path, f"snapshot key {key} is {value}, which has more than 64 bits")
        values[name] = value
    for name in _FILE_NAMES:
        if name in values:
            paths.checked_name(values[name], path)
    try:
        values["commit_kind"] = CommitKind(values["commit_kind"])
    except ValueError as error:
        raise FormatError(path, f"unknown commitKind {values['commit_kind']!r}") from error
    properties = values.get("properties")
    if properties is not None and not all(type(v) is str for v in properties.values()):
        raise FormatError(path, "snapshot key properties holds something other than text")
    return Snapshot(**values)


def snapshot_json(snapshot: Snapshot) -> bytes:
    """The file's content: the keys of release 2.0.0 in its order, absent if None."""
    out: dict[str, Any] = {}
    for name, key in _KEYS.items():
        value = getattr(snapshot, name)
        if isinstance(value, CommitKind):
            value = value.value
        elif isinstance(value, Mapping):
            value = dict(value)
        if value is not None:
            out[key] = value
    return json.dumps(out, indent=2, ensure_ascii=False).encode()


def read_snapshot(storage: Storage, location: str, snapshot_id: int) -> Snapshot:
    """The snapshot. Raises `ObjectNotFound` if it has expired, was rolled back or is not yet
    written.
    """
    path = paths.snapshot_path(location, snapshot_id)
    snapshot = parse_snapshot(storage.read(path), path)
    if snapshot.id != snapshot_id:
        raise FormatError(path, f"holds snapshot {snapshot.id}")
    return snapshot


def snapshot_unless_absent(storage: Storage, location: str, snapshot_id: int) -> Snapshot | None:
    """The snapshot, or None if it certainly does not exist: a listing has to agree.

    Raises `TransientStorageError` if it is listed and not found.
    """
    try:
        return read_snapshot(storage, location, snapshot_id)
    except ObjectNotFound as error:
        require_absent(storage, error.path)
        return None


def still_stands(storage: Storage, location: str, snapshot: Snapshot) -> bool:
    """Whether this snapshot still exists: not expired, rolled back or replaced.

    Raises `TransientStorageError` if it is listed and not found.
    """
    found = snapshot_unless_absent(storage, location, snapshot.id)
    return found is not None and found.identity == snapshot.identity


def snapshot_ids(storage: Storage, location: str) -> tuple[int, ...]:
    """All ids in ascending order, from a listing. Temporary and foreign names are ignored."""
    return tuple(sorted(snapshot_files(storage, location)))


def snapshot_files(storage: Storage, location: str) -> Mapping[int, ObjectStatus]:
    """The files of all snapshots by id, from one listing."""
    prefix = paths.SNAPSHOT_PREFIX
    return {
        int(status.name[len(prefix) :]): status
        for status in storage.list(paths.snapshot_folder(location))
        if status.name.startswith(prefix) and _ID.fullmatch(status.name[len(prefix) :])
    }


def latest_snapshot_id(storage: Storage, location: str) -> int | None:
    """The id of the newest snapshot, or None without snapshots.

    The hint is used only if its snapshot exists; the successors are probed. If the hint is absent,
    half-written or wrong, the folder is listed instead.
    """
    hint = _read_hint(storage, paths.latest_hint(location))
    if hint is not None and _exists(storage, location, hint):
        for newest in range(hint, hint + _PROBES):
            if not _exists(storage, location, newest + 1):
                return newest
    return max(snapshot_ids(storage, location), default=None)


def hinted_snapshot_id(storage: Storage, location: str) -> int | None:
    """The number in the hint LATEST, or None. Its snapshot may be missing."""
    return _read_hint(storage, paths.latest_hint(location))


def has_latest_hint(storage: Storage, location: str) -> bool:
    """Whether the hint LATEST exists, with or without a number."""
    return _hint_text(storage, paths.latest_hint(location)) is not None


def has_no_snapshot(storage: Storage, location: str) -> bool:
    """Whether a table that had no snapshot still has none: no hint, and no first snapshot.

    A table that is restored from a later one on, without its hint, has one for `latest_snapshot_id`
    only, until a writer commits.
    """
    return not has_latest_hint(storage, location) and not _exists(storage, location, 1)


def earliest_snapshot_id(storage: Storage, location: str) -> int | None:
    """The id of the oldest snapshot that has not expired, or None without snapshots."""
    hint = _read_hint(storage, paths.earliest_hint(location))
    if hint is not None and _exists(storage, location, hint):
        return hint
    return min(snapshot_ids(storage, location), default=None)


class VersionKind(enum.Enum):
    """A place that keeps a version of a table, or of a branch."""

    SNAPSHOT = "snapshot"
    TAG = "tag"
    CHANGELOG = "changelog"


class VersionFile(NamedTuple):
    """The file of a snapshot, tag or long-lived changelog. A rewritten file has another status.

    `name` is a tag's name, or the id of a snapshot or changelog.
    """

    kind: VersionKind
    name: str
    path: str
    status: ObjectStatus


def version_files(storage: Storage, root: str, *kinds: VersionKind) -> Iterator[VersionFile]:
    """The files of all versions of a table or branch, by default of every kind.

    Snapshots come first, the newest first; so the file of one that expires meanwhile is found among
    the changelogs. Every changelog with the prefix counts, even without a number: it refers to
    files that must be kept.
    """
    for kind in kinds or VersionKind:
        if kind is VersionKind.SNAPSHOT:
            for snapshot_id, status in sorted(snapshot_files(storage, root).items())[::-1]:
                path = paths.snapshot_path(root, snapshot_id)
                yield VersionFile(kind, str(snapshot_id), path, status)
            continue
        folder, prefix = paths.tag_folder(root), paths.TAG_PREFIX
        if kind is VersionKind.CHANGELOG:
            folder, prefix = paths.changelog_folder(root), paths.CHANGELOG_PREFIX
        for status in storage.list(folder):
            if status.name.startswith(prefix) and not status.is_folder:
                name = status.name[len(prefix) :]
                yield VersionFile(kind, name, paths.join(folder, status.name), status)


def read_tags(storage: Storage, location: str) -> Mapping[str, Snapshot]:
    """Every tag by name. Raises as `_read_listed`."""
    return _read_listed(storage, paths.tag_folder(location), paths.TAG_PREFIX, parse_snapshot)


def branch_names(storage: Storage, location: str) -> tuple[str, ...]:
    """Every branch except main, sorted."""
    folders = (status for status in storage.list(paths.branch_folder(location)) if status.is_folder)
    prefix = paths.BRANCH_PREFIX
    return tuple(sorted(f.name[len(prefix) :] for f in folders if f.name.startswith(prefix)))


def read_changelogs(storage: Storage, root: str) -> tuple[Snapshot, ...]:
    """Changelogs that outlive their snapshots. Raises as `_read_listed`."""
    return tuple(changelogs_by_name(storage, root).values())


def changelogs_by_name(storage: Storage, root: str) -> Mapping[str, Snapshot]:
    """Changelogs that outlive their snapshots, by the rest of their name. Raises as `_read_listed`.

    Every file with the prefix counts, even without a number: it refers to files that must be kept.
    """
    folder, prefix = paths.changelog_folder(root), paths.CHANGELOG_PREFIX
    return _read_listed(storage, folder, prefix, parse_snapshot)


def read_consumers(storage: Storage, root: str) -> Mapping[str, int]:
    """The snapshot that each consumer reads next, by the consumer's name. Raises as `_read_listed`.

    It and later ones must not expire.
    """
    folder, prefix = paths.consumer_folder(root), paths.CONSUMER_PREFIX
    # Readers overwrite their consumers, in file systems while others may read them.
    return _read_listed(storage, folder, prefix, parse_consumer, readings=_READINGS_MAX)


def _read_listed(
    storage: Storage,
    folder: str,
    prefix: str,
    parse: Callable[[bytes, str], T],
    *,
    readings: int = 1,
) -> dict[str, T]:
    """The parsed files of the folder with a name that begins with `prefix`, by the rest of the
    name.

    These files protect what they refer to, so a file that may exist is never skipped. A file that
    vanishes during reading may have a new name now, so all are read again. Raises
    `TransientStorageError` for a file that is not found and still listed, and `FormatError` for one
    that stays invalid in `readings` attempts.
    """

    def parsed(name: str) -> T | None:
        path = paths.join(folder, name)
        try:
            for _ in range(readings - 1):
                with contextlib.suppress(FormatError):
                    return parse(storage.read(path), path)
            return parse(storage.read(path), path)
        except ObjectNotFound:
            return None

    for _ in range(_LISTINGS_MAX):
        listed = (status for status in storage.list(folder) if not status.is_folder)
        names = sorted(status.name for status in listed if status.name.startswith(prefix))
        found: dict[str, T] = {}
        missing: set[str] = set()
        for name, value in zip(names, map_concurrently(storage, parsed, names), strict=True):
            if value is None:
                missing.add(name)
            else:
                found[name[len(prefix) :]] = value
        if not missing:
            return found
        for status in storage.list(folder):
            if status.name in missing:
                raise listed_but_missing(paths.join(folder, status.name))
    raise TransientStorageError(folder, "its content changed each time it was read")


def has_earliest_hint(storage: Storage, location: str) -> bool:
    """Whether the hint exists and holds a number. Its snapshot may be missing."""
    return _read_hint(storage, paths.earliest_hint(location)) is not None


def write_earliest_hint(storage: Storage, location: str, snapshot_id: int) -> None:
    """Record the oldest snapshot for readers. Only code that expires snapshots calls this."""
    storage.overwrite(paths.earliest_hint(location), str(snapshot_id).encode())


def parse_consumer(data: bytes, path: str) -> int:
    """The snapshot that a consumer reads next. Raises `FormatError` with `path`."""
    next_snapshot = parse_object(data, path, "a consumer").get("nextSnapshot")
    if type(next_snapshot) is not int:
        raise FormatError(path, f"consumer key nextSnapshot is {next_snapshot!r}, expected int")
    return next_snapshot


def _hint_text(storage: Storage, path: str) -> str | None:
    try:
        return storage.read(path).decode("ascii", "replace").strip()
    except ObjectNotFound:
        return None


def _read_hint(storage: Storage, path: str) -> int | None:
    text = _hint_text(storage, path)
    return int(text) if text is not None and _ID.fullmatch(text) else None


def _exists(storage: Storage, location: str, snapshot_id: int) -> bool:
    return storage.status(paths.snapshot_path(location, snapshot_id)) is not None


class TagTimes(NamedTuple):
    """Creation by the writer's wall clock as if that were UTC, and retention; in milliseconds."""

    made_ms: int
    retained_ms: int


def tag_times(found: Mapping[str, Any], path: str) -> TagTimes | None:
    """The times in a tag's file, or None for a tag without times, which is retained forever.

    Raises `FormatError` for invalid times.
    """
    made, retained = found.get("tagCreateTime"), found.get("tagTimeRetained")
    if made is None or retained is None:
        return None
    try:
        if type(made) is not list or type(retained) not in (int, float):
            raise ValueError("a list and a number are expected")
        # Java omits seconds and nanoseconds of 0.
        year, month, day, hour, minute, second, nanos = [*made, 0, 0][:7]
        moment = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
        made_ms = int(moment.timestamp()) * 1000 + nanos // 1_000_000
        return TagTimes(made_ms, int(retained * 1000))
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError(path, f"tagCreateTime {made!r}, tagTimeRetained {retained!r}") from error
