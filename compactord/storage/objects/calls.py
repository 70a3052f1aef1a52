"""Calls of the library: repeated, timed and reported, with their errors converted to ours."""

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
# There was no answer, or the store reported an outage.
_WITHOUT_ANSWER = (Failure.TRANSIENT, Failure.THROTTLED)


@dataclass(slots=True, eq=False)
class Meter:
    """The time of one request, spent inside its context at once or in several steps."""

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
        """Report the request; `size_bytes` were read or written."""
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
    """The request was refused, but a new one would use other credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls to one bucket. `report` is called for each, and the breaker may block any."""

    spec: Bucket
    policy: RetryPolicy
    report: Report | None
    breaker: Breaker | None

    def call_with_retry(
        self,
        path: str,
        action: str,
        op: StorageOp,
        call: Callable[[Operator], T],
        *,
        size_bytes: int = 0,
    ) -> T:
        """The result of a call that may be repeated: a second execution must not change the effect.

        `size_bytes` is what it writes. Raises the last failure as `StorageError`, and the errors of
        `connection`.
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
        """The connection, renewed after credentials expired or were replaced.

        Raises `TransientStorageError` if renewing fails. The outcome of an earlier attempt is
        unknown then, so callers must not take the error for a refusal. The same holds for
        `StoreSilent`, which the breaker raises.
        """
        if self.breaker is not None:
            self.breaker.require(path)
        try:
            return connection_of(self.spec)
        except CompactordError as error:
            raise TransientStorageError(path, f"connect failed ({error})") from error

    def may_pass(self, failure: Failure, connection: Connection) -> bool:
        """Whether another attempt may succeed; it reads credentials again if necessary."""
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
        """Times a step of a longer request. A failure is reported and raised as our error.

        If credentials expired or were replaced, a retry of the whole request reads them again.
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
