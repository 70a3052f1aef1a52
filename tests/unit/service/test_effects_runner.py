"""Every job ends with one answer, whatever happens in it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from compactord.errors import CompactordError, StorageError
from compactord.model import Subcompaction, TableName
from compactord.paimon.data_file import BucketId
from compactord.paimon.table import TableRef
from compactord.scheduler.effects import (
    Discard,
    Forget,
    StartExpire,
    StartSweep,
    StartTakeOff,
    StartTurn,
    Submit,
)
from compactord.service.effects_runner import Answers, Performer, TableSpec
from compactord.table.backlog import Skip
from compactord.table.compactor import TakeOff, Turn
from compactord.table.session import SessionRequest, UnderWay
from compactord.table.subcompactions import WorkerSpec
from tests.builders import FIRST, VirtualClock, fill_keyed, keyed_table, writer
from tests.storages import Call, HookedStorage, MemoryStorage
from tests.unit.service.test_engine_host import part
from tests.unit.table.compacting import flown

NAME = TableName("c", "db", "t")
WAIT_S = 30.0
ERRORS = [StorageError("/t", "no"), OSError("too many open files"), MemoryError(), KeyError("x")]


class Theatre:
    """A performer, one table, and the answers in the order in which they come."""

    def __init__(self) -> None:
        self.inner = MemoryStorage()
        self.table: TableRef = keyed_table(self.inner, "/wh/db.db/t")
        fill_keyed(writer(self.inner, self.table), commits=6)
        self.error: Exception | None = None
        self.events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.answers: list[tuple[str, object]] = []
        self.submitted: list[Subcompaction] = []
        clock = VirtualClock()
        self.performer = Performer(
            post=self.events.put,
            answers=Answers(
                turned=lambda name, turn, seconds: self.answers.append(("turned", turn)),
                took_off=lambda name, result: self.answers.append(("took_off", result)),
                expired=lambda name, result, seconds: self.answers.append(("expired", result)),
                swept=lambda name, removed: self.answers.append(("swept", removed)),
                discarded=lambda name: self.answers.append(("discarded", None)),
            ),
            submit=self.submitted.append,
            clock=clock,
            worker=WorkerSpec(owner=FIRST, memory_bytes=64 << 20, zone=clock.time_zone),
            orphan_grace_ms=1,
            jobs_max=2,
        )
        self.performer.specs[NAME] = TableSpec(
            ref=self.table,
            request=SessionRequest(),
            storage=HookedStorage(self.inner, before=self._before),
            stop_trigger_fallback=3,
        )

    def _before(self, call: Call) -> None:
        if self.error is not None:
            raise self.error

    def answer(self) -> tuple[str, object]:
        self.events.get(timeout=WAIT_S)()
        return self.answers[-1]

    def turn(self) -> Turn:
        self.performer.perform(StartTurn(name=NAME, ended={}, skip=Skip()))
        what, turn = self.answer()
        assert what == "turned"
        assert isinstance(turn, Turn)
        return turn

    def take_off(self, bucket: int) -> object:
        effect = StartTakeOff(name=NAME, bucket=_bucket(self, bucket), number=1, free_slots=1)
        self.performer.perform(effect)
        what, result = self.answer()
        assert what == "took_off"
        return result


def _bucket(theatre: Theatre, bucket: int) -> BucketId:
    compactor = theatre.performer.compactors[NAME]
    assert compactor.seen is not None
    found = [b for b in compactor.seen[1].files.bucket_ids() if b.bucket == bucket]
    return found[0]


@pytest.fixture
def theatre() -> Iterator[Theatre]:
    made = Theatre()
    # Stacks are written for people, which takes its time.
    with capture_logs():
        yield made
    made.performer.close(seconds_max=10.0)


def test_a_turn_opens_the_table_and_a_take_off_decides(theatre: Theatre) -> None:
    turn = theatre.turn()
    assert turn.error is None
    assert turn.planned is not None
    assert len(turn.planned.dues) == 2
    assert isinstance(theatre.take_off(0), TakeOff)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_turn_that_fails_is_an_answer_and_the_next_one_works(
    theatre: Theatre, error: Exception
) -> None:
    theatre.error = error
    turn = theatre.turn()
    assert isinstance(turn.error, CompactordError)
    assert not turn.in_commit
    theatre.error = None
    assert theatre.turn().planned is not None


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_commit_that_fails_is_an_answer_and_leaves_no_bucket_busy(
    theatre: Theatre, error: Exception
) -> None:
    theatre.turn()
    took_off = theatre.take_off(0)
    assert isinstance(took_off, TakeOff)
    landed = flown(took_off)
    theatre.error = error
    theatre.performer.perform(StartTurn(name=NAME, ended={1: landed}, skip=Skip()))
    _, turn = theatre.answer()
    assert isinstance(turn, Turn)
    assert turn.error is not None
    assert turn.in_commit
    theatre.error = None
    planned = theatre.turn().planned
    assert planned is not None
    assert {due.bucket.bucket for due in planned.dues} == {0, 1}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_care_and_discarding_that_fail_are_answered(theatre: Theatre, error: Exception) -> None:
    theatre.turn()
    took_off = theatre.take_off(0)
    assert isinstance(took_off, TakeOff)
    landed = flown(took_off)
    theatre.error = error
    theatre.performer.perform(StartExpire(name=NAME, keep_from=1))
    what, result = theatre.answer()
    assert what == "expired"
    assert isinstance(result, CompactordError)
    theatre.performer.perform(StartSweep(name=NAME, under_way=UnderWay(since_ms=0, for_ms=0)))
    assert theatre.answer() == ("swept", 0)
    theatre.performer.perform(Discard(name=NAME, ended={1: landed}))
    assert theatre.answer() == ("discarded", None)


def test_what_concerns_a_table_that_was_never_opened_is_answered(theatre: Theatre) -> None:
    effect = StartTakeOff(name=NAME, bucket=BucketId(b"", 0), number=1, free_slots=1)
    theatre.performer.perform(effect)
    what, result = theatre.answer()
    assert what == "took_off"
    assert isinstance(result, CompactordError)


def test_parts_go_to_the_engine_at_once(theatre: Theatre) -> None:
    made = part(3)
    theatre.performer.perform(Submit(part=made))
    assert theatre.submitted == [made]


def test_a_new_specification_takes_effect_with_the_next_turn(theatre: Theatre) -> None:
    theatre.turn()
    known = theatre.performer.compactors[NAME]
    spec = theatre.performer.specs[NAME]
    options = {"num-sorted-run.compaction-trigger": "50"}
    theatre.performer.specs[NAME] = replace(spec, request=SessionRequest(overrides=options))
    planned = theatre.turn().planned
    assert planned is not None
    assert planned.dues == ()
    assert theatre.performer.compactors[NAME] is known


def test_a_forgotten_table_is_opened_anew(theatre: Theatre) -> None:
    theatre.turn()
    known, spec = theatre.performer.compactors[NAME], theatre.performer.specs[NAME]
    theatre.performer.perform(Forget(name=NAME))
    theatre.performer.specs[NAME] = spec
    theatre.turn()
    assert theatre.performer.compactors[NAME] is not known
