"""Metering of store requests: operation, outcome, duration and bytes."""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Concatenate, ParamSpec, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from compactord.clock import Clock
from compactord.errors import ObjectNotFound
from compactord.storage.base import (
    Capabilities,
    Creation,
    ObjectStatus,
    Storage,
    StorageSpec,
)

P = ParamSpec("P")
T = TypeVar("T")


class StorageOp(enum.Enum):
    GET = "get"
    PUT = "put"
    PUT_IF_ABSENT = "put_if_absent"
    LIST = "list"
    DELETE = "delete"
    HEAD = "head"


class StorageOutcome(enum.Enum):
    """The outcome of a request. A missing object counts as `ok`."""

    OK = "ok"
    THROTTLED = "throttled"
    ERROR = "error"
    PRECONDITION_FAILED = "precondition_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRequest:
    """One request. `store` is the scheme of its URL, `size_bytes` the bytes read or written.

    `is_repeated`: it failed and is retried.
    """

    store: str
    op: StorageOp
    outcome: StorageOutcome
    seconds: float
    size_bytes: int = 0
    is_repeated: bool = False


Report = Callable[[StorageRequest], None]


def both(first: Report | None, second: Report) -> Report:
    """Reports each request to both."""
    if first is None:
        return second

    def report_all(request: StorageRequest) -> None:
        first(request)
        second(request)

    return report_all


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTotal:
    """The sum of requests with the same store, operation and outcome."""

    store: str
    op: StorageOp
    outcome: StorageOutcome
    requests: int = 0
    size_bytes: int = 0
    repeated: int = 0


class RequestTally:
    """Sums of requests, for a process without metrics of its own. Thread-safe."""

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
    """A store that reports each of its requests, including each retry."""

    def reporting(self, report: Report) -> Storage:
        """The same store, which also reports to `report`."""


def metered(storage: Storage, report: Report, clock: Clock, *, store: str) -> Storage:
    """The store, reporting its requests. They are counted under `store`, the scheme.

    `report` is called in the caller's thread after each request, including failed ones, and must
    not raise. `spec` is the inner store's, so other processes that open it report no requests.
    """
    if isinstance(storage, ReportsItself):
        return storage.reporting(report)
    return MeteredStorage(storage, report, clock, store)


def reporting(storage: Storage, report: Report) -> Storage:
    """The store, reporting its requests if it supports that. File systems do not."""
    return storage.reporting(report) if isinstance(storage, ReportsItself) else storage


def _counted(
    op: StorageOp, method: Callable[Concatenate[Storage, P], T]
) -> Callable[Concatenate[MeteredStorage, P], T]:
    """Wraps a method of the inner store so that each call is reported."""
    name = method.__name__

    def counted(self: MeteredStorage, /, *args: P.args, **kwargs: P.kwargs) -> T:
        call: Callable[P, T] = getattr(self._inner, name)
        return self._timed(op, call, *args, **kwargs)

    return counted


class MeteredStorage:
    """Reports each call of an inner store as one request.

    For streams only opening and closing is timed. A read is reported, without bytes, when its
    stream is open; a write when its stream is closed, and an abandoned write never. A listing is
    reported when it ends.
    """

    __slots__ = ("_clock", "_inner", "_now_s", "_send", "_store")

    def __init__(self, inner: Storage, report: Report, clock: Clock, store: str) -> None:
        self._inner = inner
        self._send = report
        self._clock = clock
        self._now_s = clock.monotonic_s
        self._store = store

    def reporting(self, report: Report) -> Storage:
        return MeteredStorage(self._inner, both(self._send, report), self._clock, self._store)

    @property
    def spec(self) -> StorageSpec:
        return self._inner.spec

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def real_folder(self, path: str) -> str:
        return self._inner.real_folder(path)

    read = _counted(StorageOp.GET, Storage.read)
    read_range = _counted(StorageOp.GET, Storage.read_range)
    open_input = _counted(StorageOp.GET, Storage.open_input)
    status = _counted(StorageOp.HEAD, Storage.status)
    folder_exists = _counted(StorageOp.HEAD, Storage.folder_exists)
    may_write = _counted(StorageOp.HEAD, Storage.may_write)
    create_if_absent = _counted(StorageOp.PUT_IF_ABSENT, Storage.create_if_absent)
    write_new = _counted(StorageOp.PUT, Storage.write_new)
    overwrite = _counted(StorageOp.PUT, Storage.overwrite)
    delete = _counted(StorageOp.DELETE, Storage.delete)
    remove_empty_folder = _counted(StorageOp.DELETE, Storage.remove_empty_folder)
    abort_upload = _counted(StorageOp.DELETE, Storage.abort_upload)
    unfinished_uploads = _counted(StorageOp.LIST, Storage.unfinished_uploads)

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
