from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from compactord.service.settings import Timetable

WAIT_S = 180.0


@pytest.fixture
def timetable() -> Iterator[Timetable]:
    made = Timetable(lambda call: call())
    made.start()
    yield made
    made.close()
    assert not [t for t in threading.enumerate() if "APScheduler" in t.name]


def test_calls_again_and_again(timetable: Timetable) -> None:
    calls: queue.SimpleQueue[None] = queue.SimpleQueue()
    timetable.every("\ud800", 30, lambda: calls.put(None))
    for _ in range(4):
        calls.get(timeout=WAIT_S)


def test_a_call_that_fails_is_called_again(timetable: Timetable) -> None:
    calls: queue.SimpleQueue[None] = queue.SimpleQueue()

    def call() -> None:
        calls.put(None)
        raise RuntimeError("as the test asked")

    timetable.every("a", 30, call)
    for _ in range(3):
        calls.get(timeout=WAIT_S)


def test_a_new_interval_takes_the_place_of_the_old_one(timetable: Timetable) -> None:
    calls: queue.SimpleQueue[str] = queue.SimpleQueue()
    timetable.every("a", 10**8, lambda: calls.put("old"))
    timetable.every("a", 30, lambda: calls.put("new"))
    assert calls.get(timeout=WAIT_S) == "new"


def test_the_same_interval_again_does_not_begin_anew(timetable: Timetable) -> None:
    """Else a table whose interval is set after each poll would never be polled."""
    calls: queue.SimpleQueue[str] = queue.SimpleQueue()
    timetable.every("a", 200, lambda: calls.put("first"))
    stop = threading.Event()

    def again() -> None:
        while not stop.wait(0.01):
            timetable.every("a", 200, lambda: calls.put("second"))

    thread = threading.Thread(target=again)
    thread.start()
    assert calls.get(timeout=WAIT_S) == "first"
    stop.set()
    thread.join()


def test_what_is_stopped_is_not_called_and_may_begin_again(timetable: Timetable) -> None:
    calls: queue.SimpleQueue[str] = queue.SimpleQueue()
    timetable.every("a", 10**8, lambda: calls.put("a"))
    timetable.stop_calling("a")
    timetable.stop_calling("a")
    timetable.stop_calling("never known")
    timetable.every("b", 30, lambda: calls.put("b"))
    assert calls.get(timeout=WAIT_S) == "b"
    timetable.stop_calling("b")
    timetable.every("a", 30, lambda: calls.put("a again"))
    while (heard := calls.get(timeout=WAIT_S)) == "b":
        pass
    assert heard == "a again"


def test_may_be_filled_before_it_starts_and_closed_without_a_start() -> None:
    made = Timetable(lambda call: call())
    made.every("a", 1_000, lambda: None)
    made.close()


def test_calls_that_are_due_together_are_posted_as_one() -> None:
    """Each posting wakes a loop."""
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    called: list[str] = []
    made = Timetable(posted.put)
    for name in ("a", "b"):
        made.every(name, 30, partial(called.append, name))
    made.start()
    posted.get(timeout=WAIT_S)()
    made.close()
    assert called == ["a", "b"]
