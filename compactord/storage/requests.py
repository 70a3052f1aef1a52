"""What stores report of each request: operation, outcome, duration and bytes; who reports it."""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ParamSpec, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from compactord.clock import Clock
from compactord.errors import ObjectNotFound
from compactord.storage.base import (
    Capabilities,
    Creation,
    ObjectStatus,
    Storage,
    StorageSpec,
    UnfinishedUpload,
)

P = ParamSpec("P")
T = TypeVar("T")


class StorageOp(enum.Enum):
    """Requests as object stores name them."""

    GET = "get"
    PUT = "put"
    PUT_IF_ABSENT = "put_if_absent"
    LIST = "list"
    DELETE = "delete"
    HEAD = "head"


class StorageOutcome(enum.Enum):
    """The outcome of a request; a missing object is an answer, hence `ok`."""

    OK = "ok"
    THROTTLED = "throttled"
    ERROR = "error"
    PRECONDITION_FAILED = "precondition_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRequest:
    """One request. `store` is the scheme of its URL, `size_bytes` what was read or written.

    `is_repeated`: it failed, and the same is asked for again.
    """

    store: str
    op: StorageOp
    outcome: StorageOutcome
    seconds: float
    size_bytes: int = 0
    is_repeated: bool = False


Report = Callable[[StorageRequest], None]


def both(first: Report | None, second: Report) -> Report:
    """Tells two of each request."""
    if first is None:
        return second

    def told(request: StorageRequest) -> None:
        first(request)
        second(request)

    return told


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTotal:
    """Requests that had the same outcome; sums of what `StorageRequest` says of one."""

    store: str
    op: StorageOp
    outcome: StorageOutcome
    requests: int = 0
    size_bytes: int = 0
    repeated: int = 0


class RequestTally:
    """Adds requests up, for a process that exposes no metrics itself. Any thread may report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[tuple[str, StorageOp, StorageOutcome], RequestTotal] = {}

    def add(self, request: StorageRequest) -> None:
        key = (request.store, request.op, request.outcome)
        first = RequestTotal(store=request.store, op=request.op, outcome=request.outcome)
        with self._lock:
            known = self._totals.get(key, first)
            self._totals[key] = replace(
                known,
                requests=known.requests + 1,
                size_bytes=known.size_bytes + request.size_bytes,
                repeated=known.repeated + request.is_repeated,
            )

    def totals(self) -> tuple[RequestTotal, ...]:
        with self._lock:
            return tuple(self._totals.values())


@runtime_checkable
class ReportsItself(Protocol):
    """A store that reports its requests itself, each attempt of those that it repeats included."""

    def reporting(self, report: Report) -> Storage:
        """The same store, which reports to this one, too."""


def metered(storage: Storage, report: Report, clock: Clock, *, store: str) -> Storage:
    """The store, reporting its requests; `store` is the scheme that they are counted under.

    `report` is called in the caller's thread after each request, failed ones included; it must not
    raise. The spec is that of the store: who opens it in another process reports nothing.
    """
    if isinstance(storage, ReportsItself):
        return storage.reporting(report)
    return MeteredStorage(storage, report, clock, store)


def tallied(storage: Storage, tally: RequestTally) -> Storage:
    """The store of a worker, whose requests the driver counts; file systems report none there."""
    return storage.reporting(tally.add) if isinstance(storage, ReportsItself) else storage


class MeteredStorage:
    """Another store, each call reported as one request.

    For streams only the time of opening and closing counts: a read is reported when its stream is
    open, without bytes; a write when its stream is closed, and an abandoned write never. A listing
    is reported when it ends.
    """

    __slots__ = ("_clock", "_inner", "_now_s", "_send", "_store")

    def __init__(self, inner: Storage, report: Report, clock: Clock, store: str) -> None:
        self._inner = inner
        self._send = report
        self._clock = clock
        self._now_s = clock.monotonic_s
        self._store = store

    def reporting(self, report: Report) -> Storage:
        """As `ReportsItself`."""
        return MeteredStorage(self._inner, both(self._send, report), self._clock, self._store)

    @property
    def spec(self) -> StorageSpec:
        return self._inner.spec

    def read(self, path: str) -> bytes:
        return self._timed(StorageOp.GET, self._inner.read, path)

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def read_range(self, path: str, start: int, size: int) -> bytes:
        return self._timed(StorageOp.GET, self._inner.read_range, path, start, size)

    def open_input(self, path: str, size_bytes: int | None = None) -> pa.NativeFile:
        return self._timed(StorageOp.GET, self._inner.open_input, path, size_bytes)

    @contextlib.contextmanager
    def open_output(self, path: str) -> Iterator[pa.NativeFile]:
        opened = self._now_s()
        closed = opened
        with contextlib.ExitStack() as entered:
            try:
                stream = entered.enter_context(self._inner.open_output(path))
            except Exception as error:
                self._report(StorageOp.PUT, _outcome(error), self._now_s() - opened)
                raise
            closed -= self._now_s()
            yield stream
            closed += self._now_s()
            size_bytes = 0 if stream.closed else stream.tell()
            try:
                entered.close()
            except Exception as error:
                self._report(StorageOp.PUT, _outcome(error), self._now_s() - closed)
                raise
            self._report(StorageOp.PUT, StorageOutcome.OK, self._now_s() - closed, size_bytes)

    def status(self, path: str) -> ObjectStatus | None:
        return self._timed(StorageOp.HEAD, self._inner.status, path)

    def folder_exists(self, path: str) -> bool:
        return self._timed(StorageOp.HEAD, self._inner.folder_exists, path)

    def list(self, folder: str) -> Iterator[ObjectStatus]:
        return self._listed(lambda: self._inner.list(folder))

    def list_some(self, folder: str, is_wanted: Callable[[str], bool]) -> Iterator[ObjectStatus]:
        return self._listed(lambda: self._inner.list_some(folder, is_wanted))

    def _listed(self, begin: Callable[[], Iterator[ObjectStatus]]) -> Iterator[ObjectStatus]:
        now_s = self._now_s
        seconds = 0.0
        outcome = StorageOutcome.OK
        asked = now_s()
        try:
            entries = begin()
            while (entry := next(entries, None)) is not None:
                seconds += now_s() - asked
                yield entry
                asked = now_s()
            seconds += now_s() - asked
        except Exception as error:
            seconds += now_s() - asked
            outcome = _outcome(error)
            raise
        finally:
            self._report(StorageOp.LIST, outcome, seconds)

    def create_if_absent(self, path: str, data: bytes, *, temporary: str) -> Creation:
        create = self._inner.create_if_absent
        return self._timed(StorageOp.PUT_IF_ABSENT, create, path, data, temporary=temporary)

    def write_new(self, path: str, data: bytes) -> None:
        self._timed(StorageOp.PUT, self._inner.write_new, path, data)

    def overwrite(self, path: str, data: bytes) -> None:
        self._timed(StorageOp.PUT, self._inner.overwrite, path, data)

    def delete(self, path: str) -> None:
        self._timed(StorageOp.DELETE, self._inner.delete, path)

    def remove_empty_folder(self, path: str) -> bool:
        return self._timed(StorageOp.DELETE, self._inner.remove_empty_folder, path)

    def unfinished_uploads(self, folder: str) -> Iterator[UnfinishedUpload]:
        return self._timed(StorageOp.LIST, self._inner.unfinished_uploads, folder)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self._timed(StorageOp.DELETE, self._inner.abort_upload, upload)

    def may_write(self, folder: str) -> bool | None:
        return self._timed(StorageOp.HEAD, self._inner.may_write, folder)

    def _timed(
        self, op: StorageOp, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        started = self._now_s()
        try:
            result = call(*args, **kwargs)
        except Exception as error:
            self._report(op, _outcome(error), self._now_s() - started)
            raise
        is_taken = result is Creation.EXISTS
        outcome = StorageOutcome.PRECONDITION_FAILED if is_taken else StorageOutcome.OK
        moved = (each for each in (result, *args) if isinstance(each, bytes))
        size_bytes = 0 if is_taken else sum(map(len, moved))
        self._report(op, outcome, self._now_s() - started, size_bytes)
        return result

    def _report(
        self, op: StorageOp, outcome: StorageOutcome, seconds: float, size_bytes: int = 0
    ) -> None:
        self._send(
            StorageRequest(
                store=self._store, op=op, outcome=outcome, seconds=seconds, size_bytes=size_bytes
            )
        )


def _outcome(error: Exception) -> StorageOutcome:
    return StorageOutcome.OK if isinstance(error, ObjectNotFound) else StorageOutcome.ERROR
