from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from compactord.engine.base import Engine
from compactord.errors import EngineUnavailable, ErrorKind
from compactord.model import (
    FailureKind,
    RewriteStats,
    Subcompaction,
    SubcompactionFailure,
    SubcompactionOutcome,
    SubcompactionResult,
)
from compactord.service.engine_host import EngineHost

STATS = RewriteStats(
    input_records=1, output_records=1, input_bytes=1, output_bytes=1, cpu_s=0, peak_rss_bytes=0
)
WAIT_S = 180.0


def subcompaction(number: int) -> Subcompaction:
    """Only its numbers matter here."""
    made = object.__new__(Subcompaction)
    object.__setattr__(made, "compaction_id", 1)
    object.__setattr__(made, "index", number)
    return made


def result(number: int) -> SubcompactionResult:
    return SubcompactionResult(compaction_id=1, index=number, outputs=(), stats=STATS)


def lost(number: int) -> SubcompactionFailure:
    return SubcompactionFailure(
        compaction_id=1,
        index=number,
        kind=FailureKind.LOST,
        error=ErrorKind("E"),
        message="",
        traceback="",
    )


class FakeEngine:
    """Does what it is told to: outcomes are what the test puts."""

    def __init__(self, capacity: int = 2) -> None:
        self.capacity = capacity
        self.submitted: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.outcomes: queue.SimpleQueue[SubcompactionOutcome | Exception] = queue.SimpleQueue()
        self.gone: str | None = None
        self.refuses = False
        self.watch_error: Exception | None = None
        self.is_closed = False
        self.cancelled = threading.Event()
        self.cancelled_one: list[tuple[int, int]] = []

    def submit(self, subcompaction: Subcompaction) -> None:
        if self.gone is not None or self.refuses:
            raise EngineUnavailable(self.gone or "no more")
        self.submitted.put(subcompaction.index)

    def next_outcome(self, timeout_s: float | None) -> SubcompactionOutcome | None:
        try:
            found = self.outcomes.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            raise found
        return found

    def why_failed(self) -> str | None:
        if self.watch_error is not None:
            raise self.watch_error
        return self.gone

    def cancel(self) -> None:
        self.cancelled.set()

    def cancel_one(self, compaction: int, index: int) -> None:
        self.cancelled_one.append((compaction, index))

    def close(self) -> None:
        self.is_closed = True

    def __enter__(self) -> Engine:
        return self  # type: ignore[return-value]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Heard:
    """A listener; `next` is what it was told next."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()

    def engine_up(self, slots: int) -> None:
        self._told.put(("up", slots))

    def engine_down(self, why: str) -> None:
        self._told.put(("down", why))

    def engine_failed(self, why: str) -> None:
        self._told.put(("failed", why))

    def subcompaction_ended(self, outcome: SubcompactionOutcome) -> None:
        self._told.put(("subcompaction", outcome.index))

    def next(self) -> tuple[str, object]:
        return self._told.get(timeout=WAIT_S)

    @property
    def is_quiet(self) -> bool:
        return self._told.empty()


@contextmanager
def hosted(start: Callable[[], Engine | FakeEngine]) -> Iterator[tuple[EngineHost, Heard]]:
    heard = Heard()
    host = EngineHost(start, heard, post=lambda event: event())  # type: ignore[arg-type]
    host.start()
    try:
        yield host, heard
    finally:
        assert host.close(seconds_max=WAIT_S)
    assert not [t for t in threading.enumerate() if t.name in ("engine", "outcomes")]


def one_after_the_other(*engines: FakeEngine | Exception) -> Callable[[], FakeEngine]:
    left = iter(engines)

    def start() -> FakeEngine:
        found = next(left)
        if isinstance(found, Exception):
            raise found
        return found

    return start


def test_subcompactions_go_to_the_engine_and_outcomes_come_back() -> None:
    engine = FakeEngine(capacity=3)
    with hosted(lambda: engine) as (host, heard):
        assert heard.next() == ("up", 3)
        for number in range(4):
            host.submit(subcompaction(number))
        for number in (2, 0, 3, 1):
            engine.outcomes.put(result(number))
        assert [heard.next()[1] for _ in range(4)] == [2, 0, 3, 1]
    assert engine.is_closed
    assert engine.cancelled.is_set(), "what runs is stopped before the end"


def test_an_engine_that_does_not_start_is_told_and_tried_again() -> None:
    for error in (EngineUnavailable("no Java"), OSError("too many open files")):
        engine = FakeEngine()
        with hosted(one_after_the_other(error, engine)) as (_, heard):
            what, why = heard.next()
            assert what == "failed"
            assert str(error) in str(why)
            assert heard.next() == ("up", 2)


def test_an_engine_that_died_is_told_and_another_one_takes_its_place() -> None:
    first, second = FakeEngine(), FakeEngine(capacity=5)
    with hosted(one_after_the_other(first, second)) as (host, heard):
        assert heard.next() == ("up", 2)
        host.submit(subcompaction(1))
        first.gone = "the JVM has ended"
        assert heard.next() == ("down", "the JVM has ended")
        assert heard.next() == ("up", 5)
        assert first.is_closed
        host.submit(subcompaction(2))
        second.outcomes.put(result(2))
        assert heard.next() == ("subcompaction", 2)


def test_a_subcompaction_that_a_dead_engine_refuses_is_told_at_once() -> None:
    first, second = FakeEngine(), FakeEngine()
    with hosted(one_after_the_other(first, second)) as (host, heard):
        heard.next()
        first.gone = "the JVM has ended"
        host.submit(subcompaction(1))
        assert heard.next() == ("down", "the JVM has ended")


def test_an_engine_that_refuses_subcompactions_and_calls_itself_well_is_taken_for_dead() -> None:
    first, second = FakeEngine(), FakeEngine()
    with hosted(one_after_the_other(first, second)) as (host, heard):
        heard.next()
        first.refuses = True
        host.submit(subcompaction(1))
        assert heard.next() == ("down", "no more"), (
            "else the subcompaction would be under way for ever"
        )
        assert heard.next() == ("up", 2)


def test_subcompactions_that_were_lost_with_the_engine_have_no_outcome_of_their_own() -> None:
    first, second = FakeEngine(), FakeEngine()
    with hosted(one_after_the_other(first, second)) as (host, heard):
        heard.next()
        host.submit(subcompaction(1))
        first.gone = "the JVM has ended"
        first.outcomes.put(lost(1))
        assert heard.next() == ("down", "the JVM has ended")
        assert heard.next() == ("up", 2)


def test_a_subcompaction_that_was_lost_alone_is_an_outcome() -> None:
    engine = FakeEngine()
    with hosted(lambda: engine) as (host, heard):
        heard.next()
        host.submit(subcompaction(1))
        engine.outcomes.put(lost(1))
        assert heard.next() == ("subcompaction", 1)


def test_an_engine_whose_outcomes_cannot_be_taken_is_replaced() -> None:
    first, second = FakeEngine(), FakeEngine()
    with hosted(one_after_the_other(first, second)) as (host, heard):
        heard.next()
        host.submit(subcompaction(1))
        first.outcomes.put(ValueError("what is this"))
        what, why = heard.next()
        assert what == "down"
        assert "what is this" in str(why)
        assert heard.next() == ("up", 2)


def test_an_engine_that_cannot_be_watched_is_replaced() -> None:
    first, second = FakeEngine(), FakeEngine()
    with hosted(one_after_the_other(first, second)) as (_, heard):
        heard.next()
        first.watch_error = RuntimeError("py4j has gone")
        what, why = heard.next()
        assert what == "down"
        assert "py4j has gone" in str(why)
        assert heard.next() == ("up", 2)
        assert first.is_closed


def test_another_number_of_slots_is_told() -> None:
    engine = FakeEngine(capacity=2)
    with hosted(lambda: engine) as (_, heard):
        assert heard.next() == ("up", 2)
        engine.capacity = 7
        assert heard.next() == ("up", 7)


def test_without_an_engine_subcompactions_and_cancelling_are_ignored() -> None:
    released = threading.Event()

    def never() -> FakeEngine:
        released.wait(WAIT_S)
        raise EngineUnavailable("gave up")

    with hosted(never) as (host, heard):
        host.submit(subcompaction(1))
        host.cancel()
        assert heard.is_quiet
        released.set()


def test_one_is_cancelled_and_a_restart_ends_the_engine_and_starts_another() -> None:
    engines: list[FakeEngine] = []

    def start() -> FakeEngine:
        engines.append(FakeEngine())
        return engines[-1]

    with hosted(start) as (host, heard):
        assert heard.next() == ("up", 2)
        host.cancel_one(1, 1)
        assert engines[0].cancelled_one == [(1, 1)]
        host.restart("its workers hang")
        assert heard.next() == ("down", "its workers hang")
        assert heard.next() == ("up", 2)
        assert [engine.is_closed for engine in engines] == [True, False]


def test_closing_waits_no_longer_than_it_is_told() -> None:
    released = threading.Event()

    class Stuck(FakeEngine):
        def close(self) -> None:
            released.wait(WAIT_S)

    heard = Heard()
    host = EngineHost(Stuck, heard, post=lambda event: event())  # type: ignore[arg-type]
    host.start()
    assert heard.next() == ("up", 2)
    assert not host.close(seconds_max=0.05)
    released.set()
    assert host.close(seconds_max=WAIT_S)
