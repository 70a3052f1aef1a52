"""Stores that report each request: its operation, outcome, duration and bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable

import pyarrow as pa

from compactord.clock import Clock
from compactord.errors import ObjectNotFound
from compactord.storage.base import Creation, ObjectStatus, Storage
from compactord.storage.requests import (
    Report,
    RequestTally,
    StorageOp,
    StorageOutcome,
    StorageRequest,
    both,
)


@runtime_checkable
class ReportsItself(Protocol):
    """A store that reports its requests itself, each attempt of those that it repeats included."""

    def reporting(self, report: Report) -> Storage:
        """The same store, which reports to this one, too."""
        ...


def metered(storage: Storage, report: Report, clock: Clock, *, store: str) -> Storage:
    """The store, reporting its requests; `store` is the scheme that they are counted under.

    `report` is called in the caller's thread after each request, failed ones included; it must not
    raise. The spec is that of the store: who opens it in another process reports nothing.
    """
    if isinstance(storage, ReportsItself):
        return storage.reporting(report)
    return cast(Storage, MeteredStorage(storage, report, clock, store))


def tallied(storage: Storage, tally: RequestTally) -> Storage:
    """The store of a worker, whose requests the driver counts; file systems report none there."""
    return storage.reporting(tally.add) if isinstance(storage, ReportsItself) else storage


# What each call of a store asks for, but for listings and streams that are written.
_OPS = {
    "read": StorageOp.GET,
    "read_range": StorageOp.GET,
    "open_input": StorageOp.GET,
    "status": StorageOp.HEAD,
    "folder_exists": StorageOp.HEAD,
    "may_write": StorageOp.HEAD,
    "create_if_absent": StorageOp.PUT_IF_ABSENT,
    "write_new": StorageOp.PUT,
    "overwrite": StorageOp.PUT,
    "delete": StorageOp.DELETE,
    "remove_empty_folder": StorageOp.DELETE,
    "unfinished_uploads": StorageOp.LIST,
    "abort_upload": StorageOp.DELETE,
}


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
        told = both(self._send, report)
        return cast(Storage, MeteredStorage(self._inner, told, self._clock, self._store))

    def __getattr__(self, name: str) -> Any:
        """A call that is timed, or what the store says of itself."""
        if name in _OPS:
            return partial(self._timed, _OPS[name], getattr(self._inner, name))
        if name in ("spec", "capabilities"):
            return getattr(self._inner, name)
        raise AttributeError(name)

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
        self, op: StorageOp, call: Callable[..., Any], /, *args: object, **how: object
    ) -> Any:
        started = self._now_s()
        try:
            result = call(*args, **how)
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
