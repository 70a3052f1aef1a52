"""Times requests and reports them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from compactord.storage.breaker import Breaker
from compactord.storage.objects.failures import Failure
from compactord.storage.requests import Report, StorageOp, StorageOutcome, StorageRequest

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
