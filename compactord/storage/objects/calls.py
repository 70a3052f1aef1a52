"""Calls of the library: repeated, timed and reported, with their errors as ours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from compactord.errors import CompactordError, TransientStorageError
from compactord.storage.calls import Breaker, RetryPolicy
from compactord.storage.objects.connection import (
    Connection,
    connection_of,
    forget,
    has_other_keys,
)
from compactord.storage.objects.failures import (
    LIBRARY_ERRORS,
    Failure,
    failure_of,
    storage_error,
)
from compactord.storage.objects.options import Bucket
from compactord.storage.requests import Report, StorageOp, StorageOutcome, StorageRequest

if TYPE_CHECKING:
    from opendal import Operator

T = TypeVar("T")

_OUTCOMES = {
    Failure.NOT_FOUND: StorageOutcome.OK,
    Failure.EXISTS: StorageOutcome.PRECONDITION_FAILED,
    Failure.THROTTLED: StorageOutcome.THROTTLED,
}
# Nothing came, or the store said that it does not work.
_WITHOUT_ANSWER = (Failure.TRANSIENT, Failure.THROTTLED)


@dataclass(slots=True, eq=False)
class Meter:
    """The time of one request, which is spent inside its context, in one go or in several."""

    store: str
    op: StorageOp
    send: Report | None
    now_s: Callable[[], float]
    breaker: Breaker | None
    seconds: float = 0.0

    def __enter__(self) -> None:
        self.seconds -= self.now_s()

    def __exit__(self, *_: object) -> None:
        self.seconds += self.now_s()

    def report(
        self, failure: Failure | None = None, *, size_bytes: int = 0, is_repeated: bool = False
    ) -> None:
        """`size_bytes`: what was read or written."""
        if self.breaker is not None:
            if failure in _WITHOUT_ANSWER:
                self.breaker.failed(self.seconds)
            else:
                self.breaker.answered()
        if self.send is None:
            return
        outcome = StorageOutcome.OK
        if failure is not None:
            outcome = _OUTCOMES.get(failure, StorageOutcome.ERROR)
        self.send(
            StorageRequest(
                store=self.store,
                op=self.op,
                outcome=outcome,
                seconds=self.seconds,
                size_bytes=size_bytes,
                is_repeated=is_repeated,
            )
        )


class CredentialsChanged(TransientStorageError):
    """Refused, and the same request from its beginning would have other credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls to one bucket; `report` gets each, and the breaker may refuse any."""

    spec: Bucket
    policy: RetryPolicy
    report: Report | None
    breaker: Breaker | None

    def tried(
        self,
        path: str,
        action: str,
        op: StorageOp,
        call: Callable[[Operator], T],
        *,
        size_bytes: int = 0,
    ) -> T:
        """A call that may be repeated: nothing is different if its effect comes twice.

        `size_bytes` is what it writes. Raises the last failure as `StorageError`, and as
        `connection` does.
        """
        for is_last in self.policy.attempts():
            connection = self.connection(path)
            meter = self.meter(op)
            try:
                with connection.slots, meter:
                    result = call(connection.once)
                meter.report(size_bytes=len(result) if isinstance(result, bytes) else size_bytes)
                return result
            except LIBRARY_ERRORS as error:
                failure, raised = failure_of(error), storage_error(error, path, action)
            is_over = not self.may_pass(failure, connection) or is_last
            meter.report(failure, is_repeated=not is_over)
            if is_over:
                raise raised
        raise AssertionError("the last attempt returns or raises")

    def connection(self, path: str) -> Connection:
        """The connection, made anew after credentials expired or were replaced.

        Raises `TransientStorageError` where that fails: it worked when the store was opened. What
        an earlier attempt did is unknown then, so nothing may take it for a refusal. The same goes
        for `StoreSilent`, which the breaker raises.
        """
        if self.breaker is not None:
            self.breaker.require(path)
        try:
            return connection_of(self.spec)
        except CompactordError as error:
            raise TransientStorageError(path, f"connect failed ({error})") from error

    def may_pass(self, failure: Failure, connection: Connection) -> bool:
        """Whether another attempt may succeed; with credentials that are read again if need be."""
        if failure is Failure.EXPIRED:
            forget(self.spec, connection)
        if failure is Failure.DENIED:
            now_s = self.policy.clock.monotonic_s()
            return has_other_keys(self.spec, connection, now_s)
        return failure.may_pass

    def meter(self, op: StorageOp) -> Meter:
        return Meter(self.spec.scheme, op, self.report, self.policy.clock.monotonic_s, self.breaker)

    def send(
        self, path: str, call: Callable[[], object], meter: Meter, connection: Connection
    ) -> None:
        with self.named(path, "write", meter, connection), connection.slots:
            call()

    @contextlib.contextmanager
    def named(self, path: str, action: str, meter: Meter, connection: Connection) -> Iterator[None]:
        """Times a step of a longer request, whose failure is reported and raised as ours.

        Where credentials have expired or were replaced, whoever begins the request again reads them
        again.
        """
        try:
            with meter:
                yield
        except LIBRARY_ERRORS as error:
            failure, raised = failure_of(error), storage_error(error, path, action)
            meter.report(failure)
            is_about_keys = failure in (Failure.EXPIRED, Failure.DENIED)
            if is_about_keys and self.may_pass(failure, connection):
                raised = CredentialsChanged(path, raised.message)
            raise raised from None
