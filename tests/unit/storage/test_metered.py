from __future__ import annotations

import pickle
import time
from collections.abc import Callable

import pytest

from compactord.errors import StorageError, TransientStorageError
from compactord.storage.base import Creation
from compactord.storage.local import LocalStorage
from compactord.storage.requests import (
    MeteredStorage,
    Report,
    RequestTally,
    StorageOp,
    StorageOutcome,
    StorageRequest,
    metered,
    reporting,
)
from tests.storages import Fault, FaultyStorage, MemoryStorage


class TickingClock:
    """Each look at it takes a second."""

    time_zone = None

    def __init__(self) -> None:
        self.looks = 0

    def now_ms(self) -> int:
        raise AssertionError("spans of time are no wall clock's business")

    def monotonic_s(self) -> float:
        self.looks += 1
        return float(self.looks)

    def sleep(self, seconds: float) -> None:
        raise AssertionError("a meter does not wait")


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, float]] = []
        self.sizes: list[int] = []

    def __call__(self, request: StorageRequest) -> None:
        assert (request.store, request.is_repeated) == ("mem", False)
        self.lines.append((request.op.value, request.outcome.value, request.seconds))
        self.sizes.append(request.size_bytes)


OBJECTS = {"t/a": b"1", "t/b": b"22"}


def use(call: Callable[[MeteredStorage], object], fault: Fault | None = None) -> Log:
    """What is reported of one use of a store with two objects."""
    memory = MemoryStorage(OBJECTS)
    log = Log()
    inner = memory if fault is None else FaultyStorage(memory, fault)
    storage = MeteredStorage(inner, log, TickingClock(), "mem")
    if fault is None:
        call(storage)
    else:
        with pytest.raises(TransientStorageError):
            call(storage)
    return log


def write(storage: MeteredStorage) -> None:
    with storage.open_output("t/new") as stream:
        stream.write(b"333")


# What is called, its operation, and the bytes that it reads or writes.
CALLS: dict[str, tuple[Callable[[MeteredStorage], object], str, int]] = {
    "read": (lambda s: s.read("t/a"), "get", 1),
    "open_input": (lambda s: s.open_input("t/a"), "get", 0),
    "open_output": (write, "put", 3),
    "status": (lambda s: s.status("t/a"), "head", 0),
    "list": (lambda s: list(s.list("t")), "list", 0),
    "list_some": (lambda s: list(s.list_some("t", "a".__eq__)), "list", 0),
    "create_if_absent": (
        lambda s: s.create_if_absent("t/c", b"22", temporary="x"),
        "put_if_absent",
        2,
    ),
    "write_new": (lambda s: s.write_new("t/c", b"4444"), "put", 4),
    "overwrite": (lambda s: s.overwrite("t/a", b"55555"), "put", 5),
    "delete": (lambda s: s.delete("t/a"), "delete", 0),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_is_reported_once_with_its_time(name: str) -> None:
    call, op, size = CALLS[name]
    log = use(call)
    ((reported, outcome, seconds),) = log.lines
    assert (reported, outcome, log.sizes) == (op, "ok", [size])
    assert seconds > 0


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_fails_is_reported_as_an_error_and_fails_as_it_would(name: str) -> None:
    call, op, _ = CALLS[name]
    log = use(call, Fault(at=1, error=TransientStorageError))
    ((reported, outcome, seconds),) = log.lines
    assert (reported, outcome, log.sizes) == (op, "error", [0])
    assert seconds > 0


def test_a_stream_whose_closing_fails_is_an_error() -> None:
    fault = Fault(at=1, error=TransientStorageError, concerns=lambda c: c.method == "close_output")
    ((op, outcome, _),) = use(write, fault).lines
    assert (op, outcome) == ("put", "error")


def test_a_stream_given_up_is_nobodys_request_and_leaves_nothing() -> None:
    memory, log = MemoryStorage(), Log()
    storage = MeteredStorage(memory, log, TickingClock(), "mem")
    with pytest.raises(RuntimeError, match="enough"), storage.open_output("t/new"):
        raise RuntimeError("enough")
    assert (log.lines, memory.objects) == ([], {})


def test_the_time_of_a_stream_is_without_its_writers() -> None:
    clock, log = TickingClock(), Log()
    storage = MeteredStorage(MemoryStorage(), log, clock, "mem")
    with storage.open_output("t/new"):
        clock.looks += 1000
    assert log.lines == [("put", "ok", 2.0)]


def test_the_time_of_a_listing_is_without_its_readers() -> None:
    clock, log = TickingClock(), Log()
    for _ in MeteredStorage(MemoryStorage(OBJECTS), log, clock, "mem").list("t"):
        clock.looks += 1000
    assert log.lines == [("list", "ok", 3.0)]


def test_a_listing_that_is_left_early_is_reported() -> None:
    log = Log()
    listing = MeteredStorage(MemoryStorage(OBJECTS), log, TickingClock(), "mem").list("t")
    next(listing)
    listing.close()  # type: ignore[attr-defined]
    assert log.lines == [("list", "ok", 1.0)]


def test_a_name_that_is_taken_is_a_failed_precondition() -> None:
    log = use(lambda s: s.create_if_absent("t/a", b"x", temporary="t/tmp"))
    assert [line[:2] for line in log.lines] == [("put_if_absent", "precondition_failed")]


def test_that_nothing_is_there_is_an_answer() -> None:
    log = Log()
    storage = MeteredStorage(MemoryStorage(), log, TickingClock(), "mem")
    with pytest.raises(StorageError):
        storage.read("t/none")
    assert storage.status("t/none") is None
    assert [line[:2] for line in log.lines] == [("get", "ok"), ("head", "ok")]


def test_results_are_those_of_the_store_inside() -> None:
    storage = MeteredStorage(MemoryStorage(OBJECTS), Log(), TickingClock(), "mem")
    assert storage.read("t/b") == b"22"
    assert {entry.name for entry in storage.list("t")} == {"a", "b"}
    write(storage)
    assert storage.read("t/new") == b"333"
    assert storage.create_if_absent("t/n", b"1", temporary="x") is Creation.CREATED


def test_a_worker_gets_the_store_without_the_meter() -> None:
    storage = MeteredStorage(LocalStorage(), Log(), TickingClock(), "mem")
    assert pickle.loads(pickle.dumps(storage.spec)).open() == LocalStorage()


def test_a_store_that_reports_itself_is_not_reported_twice() -> None:
    class Frank(MemoryStorage):
        report: Report

        def reporting(self, report: Report) -> Frank:
            other = Frank(self.objects)
            other.report = report
            return other

    log = Log()
    storage = metered(Frank(OBJECTS), log, TickingClock(), store="mem")
    assert isinstance(storage, Frank)
    assert storage.report is log
    assert isinstance(metered(MemoryStorage(), log, TickingClock(), store="mem"), MeteredStorage)


def test_a_tally_adds_up_what_a_worker_asked_for() -> None:
    class Frank(MemoryStorage):
        def reporting(self, report: Report) -> MeteredStorage:
            return MeteredStorage(self, report, TickingClock(), "mem")

    tally = RequestTally()
    storage = reporting(Frank(OBJECTS), tally.add)
    for name in ("t/a", "t/b", "t/b"):
        storage.read(name)
    storage.create_if_absent("t/a", b"x", temporary="")
    tally.add(
        StorageRequest(
            store="mem",
            op=StorageOp.GET,
            outcome=StorageOutcome.THROTTLED,
            seconds=1.0,
            is_repeated=True,
        )
    )
    shown = {
        (total.op.value, total.outcome.value): (total.requests, total.size_bytes, total.repeated)
        for total in pickle.loads(pickle.dumps(tally.totals()))
    }
    assert shown == {
        ("get", "ok"): (3, 5, 0),
        ("put_if_absent", "precondition_failed"): (1, 0, 0),
        ("get", "throttled"): (1, 0, 1),
    }
    assert reporting(LocalStorage(), tally.add) == LocalStorage()


def test_metering_costs_microseconds() -> None:
    memory = MemoryStorage(OBJECTS)

    class RealClock(TickingClock):
        def monotonic_s(self) -> float:
            return time.monotonic()

    storage = MeteredStorage(memory, lambda request: None, RealClock(), "mem")

    def best_s(read: Callable[[str], bytes]) -> float:
        spans = []
        for _ in range(20):
            started = time.perf_counter()
            for _ in range(500):
                read("t/a")
            spans.append((time.perf_counter() - started) / 500)
        return min(spans)

    # Half a microsecond on an idle machine, and a busy one must not fail.
    assert best_s(storage.read) - best_s(memory.read) < 20e-6
