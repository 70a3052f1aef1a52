"""Stores of other schemes, through what fsspec knows. To be chosen for a catalog, never a default.

fsspec leaves open whether an implementation creates a name only once, so each store has to prove it
in a race before the first snapshot is published (`prove_create_if_absent`).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, TypeVar

import pyarrow as pa

from compactord.clock import SystemClock
from compactord.errors import (
    AccessDenied,
    CompactordError,
    ObjectNotFound,
    StorageError,
    StoreSilent,
    TransientStorageError,
    UsageError,
)
from compactord.storage.absence import read_back, require_gone
from compactord.storage.attempts import RetryPolicy, TimedAttempts
from compactord.storage.base import (
    NO_TIME_MS,
    Capabilities,
    Creation,
    Located,
    ObjectStatus,
    Storage,
    Store,
    whole_range,
)
from compactord.storage.breaker import Breaker
from compactord.storage.fsspec.opened import (
    ANSWER_SECONDS_MAX,
    Opened,
    connected,
    named_errors,
    prove_create_if_absent,
    replace,
    require_exclusive_creation,
)
from compactord.storage.ranges import ranged_input
from compactord.text import LateValues, handed_over, is_secret

T = TypeVar("T")
_PREFIX = "fsspec."
# Nobody gets a store of this kind without asking for it.
ENABLED = "fsspec.enabled"
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")
_proved: set[FsspecSpec] = set()
# A listing is many requests, and what is written takes longer the larger it is.
_LISTING_FACTOR = 10
_WRITTEN_BYTES_PER_S = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FsspecSpec:
    """A store by its URL without a path, and fsspec's options for it.

    Values of options are references or JSON, and are read where the store is opened.
    """

    root: str
    options: tuple[tuple[str, str], ...] = field(repr=False)

    def open(self) -> FsspecStorage:
        """Raises what `connected` does."""
        late = LateValues(dict(self.options))
        return FsspecStorage(self, Opened(connected(self.root, late), late))


def _locate(location: str, options: Mapping[str, str]) -> Located:
    """The store of a URL, and the URL without slashes at its end.

    fsspec decides what it knows. Options that may be secret are handed over by the environment of
    this process.
    """
    scheme, mark, rest = location.partition("://")
    authority, _, path = rest.partition("/")
    if not mark or not rest.strip("/"):
        raise UsageError(f"{location}: expected a URL such as {scheme}://host/warehouse")
    secrets = tuple(key for key, text in options.items() if is_secret(key, text))
    given = {
        key.removeprefix(_PREFIX): handed_over(text) if key in secrets else text
        for key, text in options.items()
        if key != ENABLED
    }
    root = f"{scheme.lower()}://{authority}"
    path = path.strip("/")
    spec = FsspecSpec(root=root, options=tuple(sorted(given.items())))
    return Located(spec=spec, path=f"{root}/{path}" if path else root, secrets=secrets)


# Of all schemes that no other store has, where a catalog asks for it.
FSSPEC = Store(schemes=(), locate=_locate, prefixes=(_PREFIX,))


class FsspecStorage(Storage):
    """A file system of fsspec; paths are full URLs.

    Outputs are written to a temporary file of this machine first: what fsspec's own streams do when
    their writer fails, differs. A listing holds a whole folder, since fsspec knows no pages.
    """

    capabilities = Capabilities()

    def __init__(
        self,
        spec: FsspecSpec,
        opened: Opened,
        policy: RetryPolicy | None = None,
        answer_seconds: float = ANSWER_SECONDS_MAX,
        breaker: Breaker | None = None,
    ) -> None:
        self._spec = spec
        self._opened = opened
        self._policy = policy or RetryPolicy(clock=SystemClock())
        self._answer_seconds = answer_seconds
        self._attempts = TimedAttempts(breaker, named_errors)
        # Of one store, so that another one that hangs keeps nobody waiting.
        self._proving = threading.Lock()

    def behind(self, breaker: Breaker) -> FsspecStorage:
        """The same store, whose attempts the breaker may refuse and is told of."""
        return FsspecStorage(self._spec, self._opened, self._policy, self._answer_seconds, breaker)

    @property
    def spec(self) -> FsspecSpec:
        return self._spec

    def read(self, path: str) -> bytes:
        return bytes(self._tried(path, "read", lambda name: self._files.cat_file(name)))

    def read_range(self, path: str, start: int, size: int) -> bytes:
        def read(name: str) -> bytes:
            return bytes(self._files.cat_file(name, start=start, end=start + size))

        return whole_range(path, start, size, self._tried(path, "read", read) if size else b"")

    def open_input(self, path: str, size_bytes: int | None = None) -> pa.NativeFile:
        return ranged_input(self, path, size_bytes)

    @contextlib.contextmanager
    def open_output(self, path: str) -> Iterator[pa.NativeFile]:
        if self.status(path) is not None:
            raise StorageError(path, "create failed (it exists)")
        with tempfile.TemporaryDirectory(prefix="compactord-") as folder:
            local = os.path.join(folder, "output")
            with pa.OSFile(local, "wb") as stream:
                yield stream
            size_bytes = os.path.getsize(local)
            self._into_folder(
                path, "write", lambda name: self._files.put_file(local, name), size_bytes
            )
            written = self.status(path)
            if written is None or written.size_bytes != size_bytes:
                raise StorageError(
                    path, f"write failed (it has not the {size_bytes} bytes written)"
                )

    def status(self, path: str) -> ObjectStatus | None:
        try:
            found = self._tried(path, "status", lambda name: self._files.info(name))
        except ObjectNotFound:
            return None
        return _status(path.rpartition("/")[2], found)

    def folder_exists(self, path: str) -> bool:
        return bool(self._tried(path, "status", lambda name: self._files.isdir(name)))

    def list(self, folder: str) -> Iterator[ObjectStatus]:
        try:
            found = self._tried(
                folder,
                "list",
                lambda name: self._files.ls(name, detail=True),
                seconds=self._answer_seconds * _LISTING_FACTOR,
            )
        except ObjectNotFound:
            if folder != self._spec.root:
                require_gone(self, folder)
            return
        own = self._name(folder, "list").rstrip("/")
        for entry in found:
            path = str(entry["name"]).rstrip("/")
            # A folder's own mark, and of a file the file itself.
            if path.strip("/") != own.strip("/"):
                yield _status(path.rpartition("/")[2], entry)

    def create_if_absent(self, path: str, data: bytes, *, temporary: str) -> Creation:
        """Raises `StorageError` where the store has not proved that it creates a name once."""
        with self._proving:
            if self._spec not in _proved:
                folder = path.rpartition("/")[0]
                require_exclusive_creation(self._files, self._spec.root)
                prove_create_if_absent(self._racer, self.delete, folder)
                _proved.add(self._spec)
        return self._create(path, data, "publish")

    def write_new(self, path: str, data: bytes) -> None:
        if self._create(path, data, "write") is Creation.EXISTS:
            raise StorageError(path, "write failed (exists)")

    def overwrite(self, path: str, data: bytes) -> None:
        self._into_folder(
            path, "overwrite", lambda name: replace(self._files, name, data), len(data)
        )

    def delete(self, path: str) -> None:
        with contextlib.suppress(ObjectNotFound):
            self._tried(path, "delete", lambda name: self._files.rm_file(name))

    def remove_empty_folder(self, path: str) -> bool:
        """Says only whether it is gone: some implementations take a folder for its bucket."""
        return not self.folder_exists(path)

    def _racer(self) -> Callable[[str, bytes], Creation]:
        """Creates names over a connection of its own."""
        opened = self._spec.open()._opened
        limits = self._policy, self._answer_seconds, self._attempts.breaker
        other = FsspecStorage(self._spec, opened, *limits)
        return lambda path, data: other._create(path, data, "publish")

    def _create(self, path: str, data: bytes, action: str) -> Creation:
        """What exists afterwards decides: implementations repeat requests, and then find their own.

        Callers write data that nobody else writes.
        """
        try:
            self._into_folder(
                path,
                action,
                lambda name: self._files.pipe_file(name, data, mode="create"),
                len(data),
            )
        except (AccessDenied, ObjectNotFound):
            raise
        except StorageError as error:
            there = read_back(self, path, error)
            if there is None:
                # Implementations raise anything when an answer does not come.
                message = f"{error.message}; it may appear yet"
                raise TransientStorageError(path, message) from error
            return Creation.CREATED if there == data else Creation.EXISTS
        return Creation.CREATED

    def _into_folder(
        self, path: str, action: str, call: Callable[[str], object], size_bytes: int
    ) -> None:
        """A write, once; where a key was replaced, again after that: a refusal did nothing."""
        seconds = self._answer_seconds + size_bytes / _WRITTEN_BYTES_PER_S
        files = self._files
        try:
            self._written(path, action, call, seconds)
        except AccessDenied:
            if not self._has_other_keys(path, files):
                raise
            self._written(path, action, call, seconds)

    def _written(
        self, path: str, action: str, call: Callable[[str], object], seconds: float
    ) -> None:
        """An attempt to write; where folders have to be made first, another after that."""
        name = self._name(path, action)

        def into_new_folder() -> None:
            self._files.makedirs(name.rpartition("/")[0], exist_ok=True)
            call(name)

        try:
            self._attempts.one(path, action, lambda: call(name), seconds)
        except ObjectNotFound:
            self._attempts.one(path, action, into_new_folder, seconds)

    def _tried(
        self, path: str, action: str, call: Callable[[str], T], *, seconds: float | None = None
    ) -> T:
        name = self._name(path, action)
        seconds = self._answer_seconds if seconds is None else seconds
        for is_last in self._policy.attempts():
            files = self._files
            try:
                return self._attempts.one(path, action, lambda: call(name), seconds)
            except TransientStorageError as error:
                if is_last or isinstance(error, StoreSilent):
                    raise
            except AccessDenied:
                if not self._has_other_keys(path, files) or is_last:
                    raise
        raise AssertionError("the last attempt returns or raises")

    @property
    def _files(self) -> Any:
        return self._opened.files

    def _has_other_keys(self, path: str, refused: Any) -> bool:
        """Whether the next attempt has other credentials than the file system that was refused.

        Raises `TransientStorageError` where it cannot be opened with them; tried again later.
        """
        opened = self._opened
        with opened.lock:
            now_s = self._policy.clock.monotonic_s()
            if opened.files is refused and opened.late.have_changed(now_s):
                try:
                    opened.files = self._attempts.one(
                        path,
                        "connect",
                        lambda: connected(self._spec.root, opened.late),
                        self._answer_seconds,
                    )
                except CompactordError as error:
                    opened.late.forget()
                    if isinstance(error, TransientStorageError):
                        raise
                    # Nothing may take it for an answer that concerns the path.
                    raise TransientStorageError(path, f"connect failed ({error})") from error
            return opened.files is not refused

    def _name(self, path: str, action: str) -> str:
        if path != self._spec.root and not path.startswith(self._spec.root + "/"):
            raise StorageError(path, f"{action} failed (outside the store {self._spec.root})")
        return str(self._files._strip_protocol(path))


def _status(name: str, found: Mapping[str, Any]) -> ObjectStatus:
    is_folder = found.get("type") == "directory"
    changed = next((found[key] for key in _TIMES if found.get(key) is not None), None)
    return ObjectStatus(
        name=name,
        is_folder=is_folder,
        size_bytes=0 if is_folder else int(found.get("size") or 0),
        changed_ms=0 if is_folder else _changed_ms(changed),
    )


def _changed_ms(changed: object) -> int:
    if isinstance(changed, str):
        try:
            changed = datetime.fromisoformat(changed.replace("Z", "+00:00"))
        except ValueError:
            return NO_TIME_MS
    if isinstance(changed, datetime):
        aware = changed if changed.tzinfo else changed.replace(tzinfo=timezone.utc)
        return int(aware.timestamp() * 1000)
    return int(changed * 1000) if isinstance(changed, int | float) else NO_TIME_MS
