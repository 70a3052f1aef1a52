"""Connections to object stores, one for each store and process, and listings over them.

The library runs its own threads, which a forked child does not have: its calls would hang. A child
of a process that has used a store gets an error instead.

The library's synchronous operator holds the GIL while it waits for a page; its asynchronous one
does not. So each listing has its own event loop, which runs while a page is awaited.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import time
from collections.abc import AsyncIterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import opendal
from opendal import layers

from compactord.errors import StorageError, UsageError
from compactord.storage.base import NO_TIME_MS, ObjectStatus
from compactord.storage.objects.failures import LIBRARY_ERRORS, storage_error
from compactord.storage.objects.options import Bucket
from compactord.text import LateValues, resolve

if TYPE_CHECKING:
    from opendal import AsyncOperator
    from opendal.types import Entry, Metadata


# Retries inside the library, which only streams and listings use.
_RETRIES_MAX = 6
_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 5.0
# Limit of concurrent requests for small objects, for each store and process.
REQUESTS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Connection:
    """The library's operators of a store: `once` makes one attempt, `retrying` several.

    `slots` limits concurrent calls.
    """

    once: opendal.Operator
    retrying: opendal.Operator
    slots: threading.BoundedSemaphore


class _Process:
    """Connections of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connections: dict[Bucket, Connection] = {}
        # They outlive a connection, because they remember when they were read.
        self.options: dict[Bucket, LateValues] = {}
        # Variables that catalogs have set, each with the text it was resolved from.
        self.variables: dict[str, str] = {}
        self.is_used = self.is_forked = False

    def after_fork(self) -> None:
        self.lock = threading.Lock()
        self.is_forked = self.is_used


_process = _Process()
os.register_at_fork(after_in_child=_process.after_fork)


def connection_of(spec: Bucket) -> Connection:
    """This process's connection to a store, opened at the first call.

    Raises `UsageError` if a reference cannot be resolved, `StorageError` in a child of a process
    that has used an object store.
    """
    if _process.is_forked:
        raise StorageError(
            spec.root,
            "this process was forked from one that had used an object store, and requests would "
            "hang; start a new process instead (multiprocessing: spawn)",
        )
    with _process.lock:
        found = _process.connections.get(spec)
        if found is None:
            _process.is_used = True
            found = _process.connections[spec] = _connect(spec)
        return found


def forget(spec: Bucket, connection: Connection) -> None:
    """Reconnect at the next call: credentials behind references may have changed."""
    with _process.lock:
        if _process.connections.get(spec) is connection:
            del _process.connections[spec]


def has_other_keys(spec: Bucket, connection: Connection, now_s: float) -> bool:
    """Whether the next call will use other credentials than `connection`, which was refused.

    References are resolved at most once a minute; `now_s` is monotonic.
    """
    with _process.lock:
        if _process.connections.get(spec) is not connection:
            return True
        if not _process.options[spec].have_changed(now_s):
            return False
        del _process.connections[spec]
        return True


def _set_environment(spec: Bucket) -> None:
    """Set the environment variables that the library reads.

    Raises `UsageError` if catalogs need two identities.
    """
    bundle = os.environ.get("AWS_CA_BUNDLE")
    if spec.service == "s3" and bundle:
        # The library only knows OpenSSL's variable.
        os.environ.setdefault("SSL_CERT_FILE", bundle)
    for name, text in spec.environment:
        value = resolve(text)
        if _process.variables.get(name) == text:
            # The same reference may have a new value.
            os.environ[name] = value
        if os.environ.setdefault(name, value) == value:
            _process.variables[name] = text
        else:
            raise UsageError(
                f"{spec.root}: {name} of the environment differs from the catalog's: a "
                "process can have one identity of Azure; give other catalogs keys or a SAS"
            )


def _connect(spec: Bucket) -> Connection:
    os.environ.setdefault("TOKIO_WORKER_THREADS", "2")
    _set_environment(spec)
    late = _process.options.setdefault(
        spec, LateValues({**dict(spec.options), **dict(spec.environment)})
    )
    values = late.read()
    options = {key: values[key] for key, _ in spec.options}
    try:
        bare = opendal.Operator(spec.service, **options)
    except opendal.exceptions.ConfigInvalid as error:
        # The library looks for a region in variables and profiles; its error only names the option.
        if "region" in str(error):
            raise UsageError(
                f"{spec.root}: the region of the bucket is not known: set s3.endpoint.region, or "
                "AWS_REGION for compactord and for its workers"
            ) from None
        raise storage_error(error, spec.root, "open") from None
    except LIBRARY_ERRORS as error:
        raise storage_error(error, spec.root, "open") from None
    timeout_s = spec.timeout_s
    once = bare.layer(layers.TimeoutLayer(timeout=timeout_s, io_timeout=timeout_s))
    retry = layers.RetryLayer(
        max_times=_RETRIES_MAX,
        min_delay=_FIRST_DELAY_S,
        max_delay=min(_LONGEST_DELAY_S, timeout_s),
        jitter=True,
    )
    return Connection(
        once=once,
        retrying=once.layer(retry),
        slots=threading.BoundedSemaphore(REQUESTS_AT_ONCE),
    )


# A library thread that wakes the event loop of a listing runs Python code for a moment afterwards.
# If the interpreter exits in that moment, the thread cannot continue and the process aborts. So the
# exit waits for such threads, which may take long on a busy machine.
_EXIT_WAIT_S = 5.0
_FOLDER_MARK = "hdi_isfolder"


def _await_foreign_threads() -> None:
    """Wait until no thread that Python did not start runs Python code."""
    ends_s = time.monotonic() + _EXIT_WAIT_S
    while time.monotonic() < ends_s:
        own = {thread.ident for thread in threading.enumerate()}
        if own.issuperset(sys._current_frames()):
            return
        time.sleep(0.001)


atexit.register(_await_foreign_threads)


class Listing:
    """The entries below a prefix, in parts of a page. The caller closes it. Not thread-safe."""

    def __init__(self, store: AsyncOperator, prefix: str, page_entries: int) -> None:
        self._store = store
        self._prefix = prefix
        self._page_entries = page_entries
        self._entries: AsyncIterable[Entry] | None = None
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.close()

    def page(self) -> list[Entry]:
        """The next entries, empty at the end. Raises the library's errors and then ends."""
        return self._loop.run_until_complete(self._portion())

    async def _portion(self) -> list[Entry]:
        entries = self._entries
        if entries is None:
            entries = await self._store.list(self._prefix, limit=self._page_entries)
            self._entries = entries
        found: list[Entry] = []
        async for entry in entries:
            found.append(entry)
            if len(found) == self._page_entries:
                break
        return found


def listed(entry: Entry, prefix: str) -> ObjectStatus | None:
    """The status of a listed entry, or None for the marker object of the folder itself."""
    name = entry.path.removeprefix("" if prefix == "/" else prefix).removesuffix("/")
    if name in ("", "/"):
        return None
    if entry.metadata.is_dir:
        return ObjectStatus(name=name, is_folder=True, size_bytes=0, changed_ms=0)
    return status_of(name, entry.metadata)


def status_of(name: str, found: Metadata) -> ObjectStatus:
    """The status of an object from the library's metadata."""
    changed: datetime | None = found.last_modified
    marks = found.user_metadata or {}
    return ObjectStatus(
        name=name,
        is_folder=marks.get(_FOLDER_MARK) == "true",
        size_bytes=found.content_length,
        changed_ms=NO_TIME_MS if changed is None else int(changed.timestamp() * 1000),
    )
