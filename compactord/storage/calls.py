"""Calls to stores: deadlines, retries, a circuit breaker, concurrency, rate limits.

Only this module repeats calls: bounded, with exponential backoff.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from compactord.clock import Clock
from compactord.errors import CatalogDown, StorageError, StoreSilent, TransientStorageError
from compactord.storage.base import Storage, StorageSpec, UnfinishedUpload
from compactord.text import age_text

T = TypeVar("T")
_Errors = type[Exception] | tuple[type[Exception], ...]

# A store is not called after this many consecutive failures over this period. Shorter outages are
# covered by the retries of callers.
FAILURES_MAX = 5
PATIENCE_MS = 10_000
# While the breaker is open, one probe is allowed at this interval.
PROBE_MS = 30_000


def _unreported(is_answered: bool) -> None:
    pass


class Breaker:
    """Circuit breaker of one store or server; `name` is shown to operators. Thread-safe.

    It opens once `FAILURES_MAX` consecutive attempts, over `PATIENCE_MS`, got no answer or one that
    reports an outage. Any other answer closes it, including a refusal. Attempts that it blocks
    raise `refusal`. `report` is called after each attempt with whether it got an answer. `now_ms`
    is its clock.
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
        # Start of the first failure, and the time of the next probe if it is open.
        self._since_ms = 0
        self._next_ms: int | None = None

    def require(self, path: str) -> None:
        """Call before each attempt. Raises a `refusal` while it is open, except for one probe."""
        with self._lock:
            now_ms = self.now_ms()
            if self._next_ms is None:
                return
            if now_ms >= self._next_ms:
                self._next_ms = now_ms + PROBE_MS
                return
            raise self._refusal(path, self._why(now_ms, self._next_ms))

    def answered(self) -> None:
        """Record an attempt that got an answer of any kind."""
        self._report(True)
        with self._lock:
            self._failures, self._next_ms = 0, None

    def failed(self, seconds: float) -> None:
        """Record an attempt of `seconds` that got no answer, or one that reports an outage."""
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
        """Start of the outage, or 0 while the breaker is closed."""
        with self._lock:
            return 0 if self._next_ms is None else self._since_ms

    @property
    def why(self) -> str:
        """The reason for an open breaker; empty while it is closed."""
        with self._lock:
            return "" if self._next_ms is None else self._why(self.now_ms(), self._next_ms)

    @property
    def is_probe_due(self) -> bool:
        """Whether the breaker is open and allows the next attempt."""
        with self._lock:
            return self._next_ms is not None and self.now_ms() >= self._next_ms

    def _why(self, now_ms: int, next_ms: int) -> str:
        return (
            f"{self._name} has not answered for {age_text(now_ms - self._since_ms)}: "
            f"next attempt in {age_text(next_ms - now_ms)}"
        )


def call_once(
    breaker: Breaker | None,
    path: str,
    call: Callable[[], T],
    *,
    silent: _Errors,
    answers: _Errors = (),
    is_always_made: bool = False,
) -> T:
    """The result of `call`, one attempt. Errors in `silent` count as no answer, except `answers`.

    Raises the errors of `Breaker.require`, unless `is_always_made`.
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
    """A store whose attempts a breaker may block."""

    def behind(self, breaker: Breaker) -> Storage:
        """The same store; the breaker may block its attempts and records their outcomes."""


@dataclass(frozen=True, slots=True)
class Breakers:
    """The breakers of this process: one for each store and each catalog server.

    Only breakers of servers call `report`; stores report their requests themselves.
    """

    now_ms: Callable[[], int]
    report: Callable[[bool], None] = _unreported
    _known: dict[StorageSpec, Breaker] = field(default_factory=dict)

    def behind(self, storage: Storage, store: str) -> Storage:
        """The store with its breaker; `store` is its name for operators. File systems have none."""
        if not isinstance(storage, BehindBreaker):
            return storage
        breaker = self._known.setdefault(storage.spec, Breaker(f"store {store}", self.now_ms))
        return storage.behind(breaker)

    def of(self, storage: Storage | None) -> Breaker | None:
        """The breaker of a store returned by `behind`, or None."""
        return self._known.get(storage.spec) if storage is not None else None

    def of_server(self, address: str) -> Breaker:
        """A new breaker for a catalog's server."""
        return Breaker(f"the server {address}", self.now_ms, CatalogDown, self.report)


# Limit for one store in one process.
CALLS_AT_ONCE = 64
_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how long a call is repeated.

    The n-th pause lasts between half and all of `0.1 * 2**n` seconds, at most 5. An attempt that
    starts `give_up_after_s` seconds or more after the first one is the last. `jitter` returns
    numbers from 0 to 1.
    """

    clock: Clock
    attempts_max: int = 7
    give_up_after_s: float = 90.0
    jitter: Callable[[], float] = random.random

    def attempts(self) -> Iterator[bool]:
        """Yields once per attempt, after its pause: whether it is the last one."""
        started = self.clock.monotonic_s()
        for number in range(self.attempts_max):
            delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2**number)
            spent_s = self.clock.monotonic_s() - started
            is_last = number == self.attempts_max - 1 or spent_s + delay_s > self.give_up_after_s
            yield is_last
            if is_last:
                return
            self.clock.sleep(delay_s * (0.5 + self.jitter() / 2))


class TimedCalls:
    """At most `at_once` calls at a time. A call that hangs keeps its slot and its thread.

    The threads are daemons: they do not keep the process alive.
    """

    def __init__(self, at_once: int) -> None:
        self._free = threading.BoundedSemaphore(at_once)

    def within(self, seconds: float, call: Callable[[], T]) -> T:
        """The result or error of `call`; `TimeoutError` if it takes longer than `seconds`."""
        if not self._free.acquire(timeout=seconds):
            raise TimeoutError(f"no answer to earlier calls for {seconds:.0f} s")
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - the border of the thread
                future.set_exception(error)
            finally:
                self._free.release()

        threading.Thread(target=run, name="timed-call", daemon=True).start()
        if wait([future], seconds).not_done:
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        return future.result()


class TimedAttempts:
    """Attempts at calls of one store; an optional breaker may block each.

    `named(path, action)` is a context manager that converts the library's errors to ours.
    """

    def __init__(
        self,
        breaker: Breaker | None,
        named: Callable[[str, str], AbstractContextManager[None]],
    ) -> None:
        self.breaker = breaker
        self._named = named
        self._calls = TimedCalls(CALLS_AT_ONCE)

    def one(self, path: str, action: str, call: Callable[[], T], seconds: float) -> T:
        """One attempt with a time limit. Raises the errors of `named`, and `StoreSilent`."""

        def attempt() -> T:
            with self._named(path, action):
                return self._calls.within(seconds, call)

        return call_once(
            self.breaker, path, attempt, silent=TransientStorageError, answers=StorageError
        )


R = TypeVar("R")

# Limit of concurrent requests of one caller, and of results that wait in memory.
AT_ONCE = 8


@contextlib.contextmanager
def prefetch(storage: Storage, call: Callable[[], R]) -> Iterator[Callable[[], R]]:
    """Start a call if the store is behind a network. Yields a function that returns its result.

    That function raises the error of a failed call. For other stores, the call runs when the
    function is called. The context ends once the call has.
    """
    if not storage.capabilities.behind_network:
        yield call
        return
    with ThreadPoolExecutor(1, "request") as pool:
        # A context's copy, so that log lines of the call name the table.
        yield pool.submit(contextvars.copy_context().run, call).result


def map_concurrently(
    storage: Storage, call: Callable[[T], R], items: Sequence[T], *, on_disks: bool = False
) -> Iterator[R]:
    """The result of `call` for each item, in order; up to `AT_ONCE` run ahead behind a network.

    `on_disks` runs calls ahead on file systems as well. Log lines of the calls name the table, as
    in the caller's thread.

    Raises the first error once the calls under way have ended.
    """
    if not (storage.capabilities.behind_network or on_disks) or len(items) < 2:
        yield from map(call, items)
        return
    pool = ThreadPoolExecutor(min(AT_ONCE, len(items)), "request")

    def submit(item: T) -> Future[R]:
        return pool.submit(contextvars.copy_context().run, call, item)

    try:
        left = iter(items)
        under_way: deque[Future[R]] = deque(map(submit, itertools.islice(left, AT_ONCE)))
        while under_way:
            result = under_way.popleft().result()
            under_way.extend(map(submit, itertools.islice(left, 1)))
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def for_each_concurrently(
    storage: Storage,
    call: Callable[[T], object],
    items: Sequence[T],
    *,
    on_disks: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[T]:
    """The items for which `call` has succeeded, with the concurrency of `map_concurrently`.

    After an error, or once `is_stopped` returns true, no more calls start. Raises the first error
    after all successful items were yielded.
    """
    errors: list[Exception] = []

    def done_of(some: Sequence[T]) -> Sequence[T]:
        for number, item in enumerate(some):
            if errors or is_stopped():
                return some[:number]
            try:
                call(item)
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
                return some[:number]
        return some

    # Queueing an item costs as much as deleting a file on a disk, so a few share a call.
    size = max(1, len(items) // (2 * AT_ONCE)) if on_disks else 1
    shares = [items[first : first + size] for first in range(0, len(items), size)]
    for done in map_concurrently(storage, done_of, shares, on_disks=on_disks):
        yield from done
    if errors:
        raise errors[0]


class DeleteRateLimiter:
    """A common limit on deletions of all stores returned by `rate_limited`. Thread-safe.

    `per_second` is None for no limit, and may be changed at any time.
    """

    def __init__(self, clock: Clock, per_second: int | None = None) -> None:
        self.per_second = per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._next_s = 0.0

    def rate_limited(self, storage: Storage) -> Storage:
        """The same store; its deletions wait for their turn."""
        return cast(Storage, _PacedStorage(storage, self))

    def wait(self) -> None:
        """Blocks until the next deletion may start."""
        per_second = self.per_second
        if per_second is None:
            return
        with self._lock:
            now_s = self._clock.monotonic_s()
            at_s = max(self._next_s, now_s)
            self._next_s = at_s + 1 / per_second
        if at_s > now_s:
            self._clock.sleep(at_s - now_s)


class _PacedStorage:
    def __init__(self, inner: Storage, pace: DeleteRateLimiter) -> None:
        self._inner = inner
        self._pace = pace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def delete(self, path: str) -> None:
        self._pace.wait()
        self._inner.delete(path)

    def remove_empty_folder(self, path: str) -> bool:
        self._pace.wait()
        return self._inner.remove_empty_folder(path)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self._pace.wait()
        self._inner.abort_upload(upload)
