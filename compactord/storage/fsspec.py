"""Stores of schemes that no other store has, through fsspec.

Only the operator names such a scheme, by a warehouse or by `allow_schemes`.

fsspec does not guarantee that an implementation creates a name only once, so each store has to
prove it in a race before the first snapshot is published (`prove_create_if_absent`).
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, TypeVar

import pyarrow as pa

from compactord import ids
from compactord.clock import SystemClock
from compactord.errors import (
    AccessDenied,
    CompactordError,
    ObjectNotFound,
    StorageError,
    StoreSilent,
    TransientStorageError,
    UnsafeStore,
    UsageError,
)
from compactord.storage.base import (
    NO_TIME_MS,
    Capabilities,
    Creation,
    ObjectStatus,
    Storage,
    Store,
    StoreLocation,
    aside,
    read_back,
    require_absent,
    whole_range,
)
from compactord.storage.calls import Breaker, RetryPolicy, TimedAttempts, TimedCalls
from compactord.storage.objects.options import INSTALL_STORES
from compactord.storage.ranges import ranged_input
from compactord.text import LateValues, handed_over, is_secret, redact_text

# hdfs-native registers it, and takes fsspec's own arguments for Hadoop's configuration.
_UNUSABLE = frozenset({"viewfs"})
RACERS, NAMES = 8, 20
_START_SECONDS = 60
# Creates an object with this content unless the name exists.
Create = Callable[[str, bytes], Creation]
_LONGEST_TEXT = 200
# Raised by http.client, json, requests, aiohttp, botocore, google-auth and azure-core if there is
# no answer or an unreadable one. Implementations let these pass.
_UNANSWERED = {
    *("HTTPException", "JSONDecodeError", "RequestException", "ClientError", "HTTPClientError"),
    *("TransportError", "ServiceRequestError", "ServiceResponseError"),
}
# Time limit of a call. Implementations have different limits, and many have none.
ANSWER_SECONDS_MAX = 30.0


@dataclass(slots=True)
class Opened:
    """The fsspec file system that serves a store, and the options that it was opened with."""

    files: Any
    late: LateValues = field(default_factory=lambda: LateValues({}))
    # Held while the file system is reopened with other keys.
    lock: threading.Lock = field(default_factory=threading.Lock)


def knows_scheme(scheme: str) -> bool:
    """Whether fsspec is installed and names an implementation for the scheme."""
    try:
        from fsspec.registry import known_implementations, registry
    except ImportError:
        return False
    is_known = scheme in known_implementations or scheme in registry
    return is_known and scheme not in _UNUSABLE


def connected(root: str, late: LateValues) -> Any:
    """The fsspec file system for a URL without a path, with the current values of options.

    Raises `UsageError` if fsspec, or its package for the scheme, is not installed. Raises
    `StorageError` for a store that does not answer, if the implementation connects at once.
    """
    protocol = root.partition(":")[0]
    try:
        import fsspec

        options = {name: _value(text) for name, text in late.read().items()}
        # Otherwise instances are shared and listings cached.
        given = {"skip_instance_cache": True, "use_listings_cache": False, **options}
        return TimedCalls(1).within(
            ANSWER_SECONDS_MAX, lambda: fsspec.filesystem(protocol, **given)
        )
    except ImportError as error:
        raise UsageError(
            f"{root}: {protocol}:// needs packages that are not installed ({error}): "
            f"{INSTALL_STORES} and fsspec's package for the scheme"
        ) from None
    except (TypeError, ValueError) as error:
        reason = redact_text(str(error))[:_LONGEST_TEXT]
        raise UsageError(f"{root}: fsspec cannot open it ({reason})") from None
    except Exception as error:
        # Some implementations connect here.
        with named_errors(root, "open"):
            raise error
    raise AssertionError("raised as one of ours")


def require_exclusive_creation(files: Any, root: str) -> None:
    """Raises `UnsafeStore` for implementations that only check whether a name exists."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    kind = type(files)
    if isinstance(files, AsyncFileSystem) and files.async_impl:
        is_own = kind._pipe_file is not AsyncFileSystem._pipe_file
    else:
        is_own = kind.pipe_file is not AbstractFileSystem.pipe_file
    if not is_own:
        raise _unable(files, root)
    # Such as `dir://`: a wrapper hands the call on.
    wrapped = getattr(files, "fs", None)
    if isinstance(wrapped, AbstractFileSystem):
        require_exclusive_creation(wrapped, root)


def _unable(files: Any, path: str) -> UnsafeStore:
    return UnsafeStore(
        path,
        f"fsspec's {type(files).__name__} cannot create a name only once, so two writers could "
        "replace each other's snapshots; put the warehouse into a store that can",
    )


def replace(files: Any, name: str, data: bytes) -> None:
    """Replace a file: write and rename a temporary one if the implementation has real renames.

    Implementations with renames are file systems, which truncate a file that they overwrite. An
    object store replaces an object atomically, and would have to copy it for a rename.
    """
    from fsspec.spec import AbstractFileSystem

    if type(files).mv is AbstractFileSystem.mv:
        files.pipe_file(name, data)
        return
    temporary = aside(name)
    try:
        files.pipe_file(temporary, data)
    except Exception:
        with contextlib.suppress(Exception):
            files.rm_file(temporary)
        raise
    with contextlib.suppress(Exception):
        files.mv(temporary, name)
    # Some renames do not replace an existing file, and not all of these raise.
    if files.exists(temporary):
        files.pipe_file(name, data)
        files.rm_file(temporary)


@contextlib.contextmanager
def named_errors(path: str, action: str) -> Iterator[None]:
    """Raises all errors of implementations as `CompactordError`; they have no common base."""
    try:
        yield
    except CompactordError:
        raise
    except Exception as error:  # noqa: BLE001
        text = redact_text(str(error).split("\n", 1)[0])[:_LONGEST_TEXT]
        message = f"{action} failed ({type(error).__name__}{': ' if text else ''}{text})"
        match error:
            case FileNotFoundError():
                raise ObjectNotFound(path, f"{action} failed (no such object)") from None
            case FileExistsError():
                raise StorageError(path, f"{action} failed (it exists)") from None
            case PermissionError():
                raise AccessDenied(path, message) from None
            case TimeoutError() | ConnectionError():
                raise TransientStorageError(path, message) from None
        if _UNANSWERED.intersection(each.__name__ for each in type(error).__mro__):
            raise TransientStorageError(path, message) from None
        raise StorageError(path, message) from None


def _value(text: str) -> object:
    """The parsed JSON, or the text itself: options may be numbers, flags and mappings."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def prove_create_if_absent(
    connect: Callable[[], Create], delete: Callable[[str], None], folder: str
) -> None:
    """Race eight connections to create 20 names in `folder`, then remove them.

    Raises `UnsafeStore` unless each name had exactly one winner, and the errors of `connect` and of
    the creations.
    """
    own = f"{folder}/.compactord-race-{ids.this_process().unique_name()}"
    start = threading.Barrier(RACERS)

    def race(number: int, create: Create) -> list[Creation]:
        outcomes = []
        try:
            for name in range(NAMES):
                start.wait(_START_SECONDS)
                # All contents differ, because an outcome may be found out by reading back.
                outcomes.append(create(f"{own}-{name}", f"{number} of {RACERS}".encode()))
        except BaseException:
            # A failure must not leave the other threads waiting.
            start.abort()
            raise
        return outcomes

    try:
        racers = [connect() for _ in range(RACERS)]
        with ThreadPoolExecutor(RACERS) as pool:
            runs = [pool.submit(race, *each) for each in enumerate(racers)]
        errors = [error for run in runs if (error := run.exception()) is not None]
        # Threads that waited for the failed one only report a broken barrier: raise it last.
        for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
            raise error
        outcomes = [run.result() for run in runs]
    finally:
        for name in range(NAMES):
            try:
                delete(f"{own}-{name}")
            except TransientStorageError:
                # Do not retry 20 deletions: a sweep removes the rest.
                break
            except CompactordError:
                continue
    for name in range(NAMES):
        winners = sum(each[name] is Creation.CREATED for each in outcomes)
        if winners != 1:
            raise UnsafeStore(
                own,
                f"{winners} of {RACERS} concurrent creations of one name succeeded, so two "
                "writers could replace each other's snapshots; put the warehouse into another "
                "store",
            )


T = TypeVar("T")
_PREFIX = "fsspec."
# Earlier releases used fsspec only with this option.
ENABLED = "fsspec.enabled"
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")
_proved: set[FsspecSpec] = set()
# A listing is many requests, and large writes take longer.
_LISTING_FACTOR = 10
_WRITTEN_BYTES_PER_S = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FsspecSpec:
    """A store by its URL without a path, and fsspec's options for it.

    Values of options are references or JSON, and are resolved when the store is opened.
    """

    root: str
    options: tuple[tuple[str, str], ...] = field(repr=False)

    def open(self) -> FsspecStorage:
        """The store. Raises the errors of `connected`."""
        late = LateValues(dict(self.options))
        return FsspecStorage(self, Opened(connected(self.root, late), late))


def _locate(location: str, options: Mapping[str, str]) -> StoreLocation:
    """The store of a URL, and the URL without trailing slashes.

    fsspec checks the options. Options that may be secret are passed on through environment
    variables of this process.
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
    return StoreLocation(spec=spec, path=f"{root}/{path}" if path else root, secrets=secrets)


# For all schemes of fsspec without a store.
FSSPEC = Store(schemes=(), locate=_locate, prefixes=(_PREFIX,))


class FsspecStorage(Storage):
    """A file system of fsspec; paths are full URLs.

    Outputs are written to a local temporary file first, because implementations differ in what
    happens to a stream whose writer fails. A listing holds a whole folder in memory, because fsspec
    has no pages.
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
        # One lock per store, so that a hanging store does not block others.
        self._proving = threading.Lock()

    def behind(self, breaker: Breaker) -> FsspecStorage:
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
                require_absent(self, folder)
            return
        own = self._name(folder, "list").rstrip("/")
        for entry in found:
            path = str(entry["name"]).rstrip("/")
            # A folder's marker object, and the entry of a file that was listed itself.
            if path.strip("/") != own.strip("/"):
                yield _status(path.rpartition("/")[2], entry)

    def create_if_absent(self, path: str, data: bytes, *, temporary: str) -> Creation:
        """Raises `StorageError` if the store has not proved that it creates a name only once."""
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
        """Never removes the folder: some implementations would remove the bucket."""
        return not self.folder_exists(path)

    def _racer(self) -> Callable[[str, bytes], Creation]:
        """Creates names over its own connection."""
        opened = self._spec.open()._opened
        limits = self._policy, self._answer_seconds, self._attempts.breaker
        other = FsspecStorage(self._spec, opened, *limits)
        return lambda path, data: other._create(path, data, "publish")

    def _create(self, path: str, data: bytes, action: str) -> Creation:
        """Decides by the content found afterwards: an implementation that retries may find its own
        object.

        Callers write data that no other writer writes. Raises `UnsafeStore` for an implementation
        without exclusive creation.
        """

        def create(name: str) -> None:
            try:
                self._files.pipe_file(name, data, mode="create")
            except (NotImplementedError, TypeError):
                raise _unable(self._files, path) from None

        try:
            self._into_folder(path, action, create, len(data))
        except (AccessDenied, ObjectNotFound, UnsafeStore):
            raise
        except StorageError as error:
            there = read_back(self, path, error)
            if there is None:
                # Implementations raise many errors if there is no answer.
                message = f"{error.message}; it may appear yet"
                raise TransientStorageError(path, message) from error
            return Creation.CREATED if there == data else Creation.EXISTS
        return Creation.CREATED

    def _into_folder(
        self, path: str, action: str, call: Callable[[str], object], size_bytes: int
    ) -> None:
        """One write; after a refusal, a second one if the keys were replaced in between."""
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
        """One write attempt; a second one if folders have to be created first."""
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
        """Whether the next attempt uses other credentials than the refused file system.

        Raises `TransientStorageError` if the store cannot be opened with them; a later call tries
        again.
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
                    # The caller must not take the error for an answer about the path.
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
