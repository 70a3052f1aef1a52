"""Whether a store, or a catalog's server, is asked at all: a silent one would keep threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

from compactord.errors import CatalogDown, StorageError, StoreSilent
from compactord.storage.base import Storage, StorageSpec

T = TypeVar("T")
_Errors = type[Exception] | tuple[type[Exception], ...]

# A store is asked no more after so many failures in a row, over so long: shorter troubles are what
# callers repeat their requests for.
FAILURES_MAX = 5
PATIENCE_MS = 10_000
# Then one request goes through now and then, to find out whether it answers again.
PROBE_MS = 30_000


def _unreported(is_answered: bool) -> None:
    pass


class Breaker:
    """Of one store or server, `name`d for people; any thread. Times are those of `now_ms`.

    Open once `FAILURES_MAX` attempts in a row, over `PATIENCE_MS`, had no answer or one that says
    that it does not work. Any other answer closes it, a refusal too. Attempts that are not made
    raise a `refusal`. `report` is told of each that is made whether it had an answer.
    """

    def __init__(
        self,
        name: str,
        now_ms: Callable[[], int],
        refusal: type[StorageError] = StoreSilent,
        report: Callable[[bool], None] = _unreported,
    ) -> None:
        self._name = name
        self._refusal = refusal
        self._report = report
        self.now_ms = now_ms
        self._lock = threading.Lock()
        self._failures = 0
        # When the first of them began, and when the next attempt may be made if it is open.
        self._since_ms = 0
        self._next_ms: int | None = None

    def require(self, path: str) -> None:
        """Called before each attempt. Raises a `refusal` while it is open, but for one probe."""
        with self._lock:
            now_ms = self.now_ms()
            if self._next_ms is None:
                return
            if now_ms >= self._next_ms:
                self._next_ms = now_ms + PROBE_MS
                return
            raise self._refusal(path, self._why(now_ms, self._next_ms))

    def answered(self) -> None:
        """An attempt got an answer, whatever it says."""
        self._report(True)
        with self._lock:
            self._failures, self._next_ms = 0, None

    def failed(self, seconds: float) -> None:
        """An attempt of so many seconds got no answer, or one of a store that does not work."""
        self._report(False)
        with self._lock:
            now_ms = self.now_ms()
            began_ms = now_ms - int(seconds * 1000)
            self._since_ms = min(self._since_ms, began_ms) if self._failures else began_ms
            self._failures += 1
            if self._failures < FAILURES_MAX or now_ms - self._since_ms < PATIENCE_MS:
                return
            if self._next_ms is None:
                self._next_ms = now_ms + PROBE_MS

    @property
    def open_since_ms(self) -> int:
        """Since when there has been no answer; 0 while it is asked."""
        with self._lock:
            return 0 if self._next_ms is None else self._since_ms

    @property
    def why(self) -> str:
        """What is said of an open one; empty while it is asked."""
        with self._lock:
            return "" if self._next_ms is None else self._why(self.now_ms(), self._next_ms)

    @property
    def is_probe_due(self) -> bool:
        """Whether it is open and the next attempt goes through."""
        with self._lock:
            return self._next_ms is not None and self.now_ms() >= self._next_ms

    def _why(self, now_ms: int, next_ms: int) -> str:
        return (
            f"{self._name} has not answered for {(now_ms - self._since_ms) // 1000} s: "
            f"next attempt in {max(0, next_ms - now_ms) // 1000} s"
        )


def attempted(
    breaker: Breaker | None,
    path: str,
    call: Callable[[], T],
    *,
    silent: _Errors,
    answers: _Errors = (),
    is_always_made: bool = False,
) -> T:
    """What `call` returns, one attempt, which has no answer if it raises one of `silent`.

    Errors of `answers` are some. Raises as `Breaker.require`, unless it `is_always_made`.
    """
    if breaker is None:
        return call()
    if not is_always_made:
        breaker.require(path)
    start_ms = breaker.now_ms()
    try:
        result = call()
    except silent:
        breaker.failed((breaker.now_ms() - start_ms) / 1000)
        raise
    except answers:
        breaker.answered()
        raise
    breaker.answered()
    return result


@runtime_checkable
class BehindBreaker(Protocol):
    """A store each of whose attempts may be refused, and is told of."""

    def behind(self, breaker: Breaker) -> Storage:
        """The same store, behind the breaker."""


@dataclass(frozen=True, slots=True)
class Breakers:
    """The breakers of this process: one for each store, and for the server of each catalog.

    Those of servers `report`: stores have reports of their own.
    """

    now_ms: Callable[[], int]
    report: Callable[[bool], None] = _unreported
    _known: dict[StorageSpec, Breaker] = field(default_factory=dict)

    def behind(self, storage: Storage, store: str) -> Storage:
        """The store behind its breaker; `store` is its name for people. File systems have none."""
        if not isinstance(storage, BehindBreaker):
            return storage
        breaker = self._known.setdefault(storage.spec, Breaker(f"store {store}", self.now_ms))
        return storage.behind(breaker)

    def of(self, storage: Storage | None) -> Breaker | None:
        """The breaker of a store that is `behind` one."""
        return self._known.get(storage.spec) if storage is not None else None

    def of_server(self, address: str) -> Breaker:
        """One for the server of a catalog."""
        return Breaker(f"the server {address}", self.now_ms, CatalogDown, self.report)
