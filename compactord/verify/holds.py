"""Holds: they stop deletions in a table while live files of its newest snapshot are damaged.

After a start, deletions begin once these files have been listed and agree with the manifests. A
hold is kept in a file of the table's own folder, for all branches, processes and commands, and is
removed once the damage is gone: the file has its size again, or is not live. A file that could not
be read is held until it is not live or has another size.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import structlog

from compactord.clock import Clock
from compactord.errors import CompactordError, ErrorKind, FormatError, ObjectNotFound, StorageError
from compactord.ids import Owner
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId
from compactord.paimon.schema import TableRef
from compactord.state.table_state import TableState
from compactord.storage.base import Creation, Storage
from compactord.verify.damage import Damage, DamageKind, damaged_files, described

_log = structlog.get_logger()
# In the table's own folder, which neither our sweeps nor Java's list
# (operation/OrphanFilesClean.java, listPaimonFileDirs). Hadoop hides names with this prefix.
HOLD_FILE = "_compactord-hold.json"
_ABOUT = "compactord stops deletions in this table while these files are missing or damaged"
# Files that a hold names; a listing finds all further ones again.
_NAMED_MAX = 100


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A damaged file and the branch that needs it; `since_ms`: when it was found (wall clock)."""

    damage: Damage
    branch: str
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The damage that stops a table's deletions.

    `error` is the name of the error's class, `path` the damaged file. `since_ms` is of the wall
    clock.
    """

    path: str
    error: ErrorKind
    message: str
    since_ms: int

    def __str__(self) -> str:
        return f"{self.message}: {self.path}"


def text_of(hold: Hold | None) -> str | None:
    """Why deletions are stopped, or None if there is no hold."""
    return None if hold is None else str(hold)


def hold_path(location: str) -> str:
    """The path of a table's hold file."""
    return paths.join(location, HOLD_FILE)


def hold_json(files: Sequence[HeldFile]) -> bytes:
    """The contents of the hold file."""
    found = [
        {
            "path": each.damage.path,
            "damage": each.damage.kind.value,
            "message": each.damage.message,
            "safe_version": each.damage.version,
            "since_ms": each.since_ms,
            "branch": each.branch,
            "partition": each.damage.bucket.partition.hex(),
            "bucket": each.damage.bucket.bucket,
            "size_bytes": each.damage.size_bytes,
        }
        for each in files
    ]
    return json.dumps({"version": 1, "about": _ABOUT, "files": found}, indent=1).encode()


def parse_hold(data: bytes, path: str) -> Sequence[HeldFile]:
    """The files of a hold, at least one. Raises `FormatError`."""
    try:
        found: Any = json.loads(data)
        files = [_held_file(each) for each in found["files"]]
        if not files:
            raise ValueError("it names no file")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(path, f"not a hold of compactord ({error})") from error
    return files


def _held_file(found: Any) -> HeldFile:
    version, texts = found["safe_version"], [found["path"], found["message"], found["branch"]]
    numbers = [found[key] for key in ("since_ms", "bucket", "size_bytes")]
    is_version = version is None or isinstance(version, str)
    are_texts = all(isinstance(text, str) for text in texts)
    if not (is_version and are_texts and all(type(number) is int for number in numbers)):
        raise ValueError("a value is of another type")
    return HeldFile(
        Damage(
            path=found["path"],
            kind=DamageKind(found["damage"]),
            message=found["message"],
            bucket=BucketId(bytes.fromhex(found["partition"]), found["bucket"]),
            version=version,
            size_bytes=found["size_bytes"],
        ),
        found["branch"],
        found["since_ms"],
    )


def stored_hold(storage: Storage, location: str) -> Hold | None:
    """The hold in a table's folder, without a check, or None. Raises `StorageError`."""
    path = hold_path(location)
    try:
        return _hold_of(parse_hold(storage.read(path), path))
    except ObjectNotFound:
        return None
    except FormatError as error:
        return _unreadable(path, error, 0)


class TableHolds:
    """The hold of one table, or branch, for one process. Any thread may call it.

    Without `is_kept`, as in a dry run, holds are neither written nor lifted.
    """

    def __init__(
        self,
        storage: Storage,
        table: TableRef,
        clock: Clock,
        owner: Owner,
        *,
        is_kept: bool = True,
    ) -> None:
        self._storage = storage
        self._table = table
        self._clock = clock
        self._owner = owner
        self._path = hold_path(table.location)
        self._is_kept = is_kept
        self._turn = threading.Lock()
        # Whether the newest snapshot's files have been listed since the start.
        self._is_listed = False
        self._had_file = False
        # Files that are not yet written, and files that could not be written.
        self._added: deque[HeldFile] = deque()
        self._unwritten: Sequence[HeldFile] = ()
        # The hold as of the last call; needs no store.
        self.known: Hold | None = None

    def add(self, damage: Damage) -> None:
        """Hold the table for a damaged file; never waits for a thread that lists the table."""
        self._added.append(HeldFile(damage, self._table.branch, self._clock.now_ms()))
        self._write_added()

    def why_held(
        self, newest: Callable[[], TableState], bucket_folder: Callable[[BucketId], str]
    ) -> Hold | None:
        """The hold that stops deletions now, or None.

        `newest` reads the newest state, `bucket_folder` is where a bucket's files are. Reads the
        hold's file. Lists the files of the newest snapshot the first time, and when the damage
        seems to be gone. Raises what reading raises; the table's condition is unknown then.
        """
        try:
            with self._turn:
                self._look(newest, bucket_folder)
        finally:
            self._write_added()
        return self.known

    def _write_added(self) -> None:
        # The thread that holds the lock writes what was added in the meantime.
        while self._added and self._turn.acquire(blocking=False):
            try:
                self._add([self._added.popleft() for _ in range(len(self._added))])
            finally:
                self._turn.release()

    def _add(self, new: Sequence[HeldFile]) -> None:
        try:
            stored = self._stored()
        except (StorageError, FormatError) as error:
            self._keep_in_memory(_joined(self._unwritten, new), error)
        else:
            self._write(stored, _joined(stored, self._unwritten, new))

    def _look(
        self, newest: Callable[[], TableState], bucket_folder: Callable[[BucketId], str]
    ) -> None:
        try:
            stored = self._stored()
        except FormatError as error:
            self._set(_unreadable(self._path, error, self._clock.now_ms()))
            return
        if self._had_file and not stored:
            # Another process or an operator has removed it: list again.
            self._is_listed, self._unwritten = False, ()
        files = _joined(stored, self._unwritten)
        standing = self._standing(files, newest)
        if not self._is_listed or (files and not standing):
            found = damaged_files(self._storage, newest, bucket_folder)
            # A file without a known version is looked up again: its version may be readable now.
            known = {each.damage.path for each in standing if each.damage.version is not None}
            new = [each for each in found if each.path not in known]
            standing = _joined(self._found(new, standing), standing)
            self._is_listed = True
        self._write(stored, standing)

    def _stored(self) -> Sequence[HeldFile]:
        """The files of the stored hold, empty if there is none. Raises `FormatError`."""
        try:
            return parse_hold(self._storage.read(self._path), self._path)
        except ObjectNotFound:
            return ()

    def _standing(
        self, files: Sequence[HeldFile], newest: Callable[[], TableState]
    ) -> Sequence[HeldFile]:
        """The files that are still damaged.

        Once the table was listed, all files that are live here or belong to other branches, if any
        of them is still damaged.
        """
        if not files:
            return ()
        state, own = newest(), self._table.branch
        files = [each for each in files if each.branch != own or each.damage.is_in(state)]
        standing = (each for each in files if self._stands(each))
        if self._is_listed:
            return files if next(standing, None) is not None else ()
        return list(standing)

    def _stands(self, file: HeldFile) -> bool:
        branch, location = file.branch, self._table.location
        may_be_gone = branch not in (self._table.branch, paths.MAIN_BRANCH)
        if may_be_gone and not self._storage.folder_exists(paths.branch_root(location, branch)):
            return False
        return file.damage.stands(self._storage.status(file.damage.path))

    def _found(self, damages: Sequence[Damage], before: Sequence[HeldFile]) -> Sequence[HeldFile]:
        if not damages:
            return ()
        now_ms, branch = self._clock.now_ms(), self._table.branch
        since_ms = {each.damage.path: each.since_ms for each in before}
        return [
            HeldFile(each, branch, since_ms.get(each.path, now_ms))
            for each in described(self._storage, self._table, damages)
        ]

    def _write(self, stored: Sequence[HeldFile], files: Sequence[HeldFile]) -> None:
        """Replace the stored hold by one with these files; without files, lift it.

        Raises `StorageError` if it cannot be lifted.
        """
        # Files that no listing can find again come first.
        files = sorted(files, key=lambda each: each.damage.kind is not DamageKind.CONTENT)
        files = files[:_NAMED_MAX]
        if not files:
            if stored and self._is_kept:
                self._storage.delete(self._path)
            self._had_file, self._unwritten = False, ()
            self._set(None)
            return
        if files != list(stored) and self._is_kept:
            try:
                self._replace(stored, files)
            except (StorageError, FormatError) as error:
                self._keep_in_memory(files, error)
                return
        self._had_file, self._unwritten = self._is_kept, () if self._is_kept else files
        self._set(_hold_of(files))

    def _replace(self, stored: Sequence[HeldFile], files: Sequence[HeldFile]) -> None:
        if not stored:
            folder = self._table.location
            aside = paths.join(folder, f".{HOLD_FILE}.{self._owner.unique_name()}.tmp")
            made = self._storage.create_if_absent(self._path, hold_json(files), temporary=aside)
            if made is Creation.CREATED:
                return
            # Another process was faster.
            files = _joined(self._stored(), files)
        self._storage.overwrite(self._path, hold_json(files))

    def _keep_in_memory(self, files: Sequence[HeldFile], error: CompactordError) -> None:
        self._unwritten = files
        hold = _hold_of(files)
        text = f"{hold.message}; kept until this process ends, since it cannot be written ({error})"
        if self._set(replace(hold, message=text)):
            _log.warning("hold_not_written", error=str(error))

    def _set(self, hold: Hold | None) -> bool:
        """Log the hold if it changed, and return whether it did."""
        before, self.known = self.known, hold
        if hold is None:
            if before is not None:
                _log.info("hold_lifted", path=before.path)
            return before is not None
        is_new = before is None or (before.path, before.message) != (hold.path, hold.message)
        if is_new:
            _log.warning("hold_placed", path=hold.path, message=hold.message)
        return is_new


def _hold_of(files: Sequence[HeldFile]) -> Hold:
    first = files[0]
    return Hold(
        path=first.damage.path,
        error=ErrorKind.of(first.damage.error),
        message=first.damage.message,
        since_ms=min(each.since_ms for each in files),
    )


def _unreadable(path: str, error: FormatError, now_ms: int) -> Hold:
    message = (
        f"{error.message}, so deletions in the table are stopped; run `compactord verify --pages "
        "all`, and delete this file if it finds nothing"
    )
    return Hold(path=path, error=ErrorKind.FORMAT_ERROR, message=message, since_ms=now_ms)


def _joined(*parts: Sequence[HeldFile]) -> Sequence[HeldFile]:
    """All files, each path once: its first entry."""
    found: dict[str, HeldFile] = {}
    for each in chain.from_iterable(parts):
        found.setdefault(each.damage.path, each)
    return list(found.values())
