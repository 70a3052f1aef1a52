"""Tables alternate by the slots they got; time in which they wanted nothing does not count."""

from __future__ import annotations

from compactord.config.choices import Mode
from compactord.model import TableName
from compactord.scheduler.effects import CycleJob, DispatchJob, Effect, Submit
from tests.simulation.tables import MIB
from tests.simulation.world import policy
from tests.unit.scheduler.test_scheduler import Stage

URGENT = {"max_backlog_age_ms": 1}
BUSY, IDLE, THIRD = (TableName("c", "db", name) for name in ("busy", "idle", "third"))
SUBCOMPACTIONS = 8
# So large that a compaction is cut into subcompactions, so small that they all cost about the same.
SIZE = 14 * MIB


class OneSlot(Stage):
    """Tables whose work is urgent at once compete for a single slot."""

    def __init__(self, *names: TableName) -> None:
        super().__init__(slots=1)
        # Tables whose cycles with results take until `answer_slow`.
        self.slow: TableName | None = None
        self._held: list[Effect] = []
        for name in names:
            self.join(name)

    def join(self, name: TableName, **settings: object) -> None:
        """With its first compaction due."""
        self.add(name, size=SIZE, **{**URGENT, **settings})

    def write(self, *names: TableName) -> None:
        """Enough for one more compaction of each."""
        for name in names:
            for _ in range(5):
                self.tables[name].commit({0: SIZE}, self.now)
            self.poll(name)

    def work(self, at_most: int = 1_000) -> list[TableName]:
        """Until nobody wants the slot, or it was given so often; who got it, in order."""
        given: list[TableName] = []
        while len(given) < at_most and (effects := self.decide(10)):
            for effect in effects:
                match effect:
                    case CycleJob(name=name, ended=ended) if name == self.slow and ended:
                        self._held.append(effect)
                    case CycleJob():
                        self.cycle_ended(effect)
                    case DispatchJob():
                        self.dispatched(effect, subcompactions=SUBCOMPACTIONS)
                    case Submit(subcompaction=subcompaction):
                        number = subcompaction.compaction_id
                        tables = self.scheduler.tables.items()
                        given += [name for name, each in tables if number in each.compactions]
                        self.ends(effect)
        return given

    def answer_slow(self) -> None:
        self.slow = None
        self.cycle_ended(self._held.pop())

    def work_long(self, name: TableName) -> None:
        """It alone, for many times what one compaction takes."""
        for _ in range(10):
            self.write(name)
            assert self.work() == [name] * SUBCOMPACTIONS


def _longest_row(given: list[TableName], *names: TableName) -> int:
    """How often in a row one of these got the slot while another one of them wanted it."""
    left = dict.fromkeys(names, SUBCOMPACTIONS)
    rows, last = [0], None
    for name in (name for name in given if name in names):
        rows.append(rows[-1] + 1 if name == last else 1)
        last = name
        left[name] -= 1
        if not left[name]:
            return max(rows)
    raise AssertionError(f"{left} are left")


def test_a_table_that_wakes_up_alternates_with_one_that_never_slept() -> None:
    stage = OneSlot(BUSY, IDLE)
    stage.work()
    stage.work_long(BUSY)
    stage.write(BUSY, IDLE)
    assert _longest_row(stage.work(), BUSY, IDLE) <= 2


def test_a_table_that_is_new_alternates_with_one_that_was_given_much() -> None:
    stage = OneSlot(BUSY)
    stage.work()
    stage.work_long(BUSY)
    stage.join(THIRD)
    stage.write(BUSY)
    assert _longest_row(stage.work(), BUSY, THIRD) <= 2


def test_a_table_that_was_paused_is_owed_nothing() -> None:
    stage = OneSlot(BUSY)
    stage.join(IDLE, mode=Mode.PAUSED)
    stage.work()
    stage.work_long(BUSY)
    stage.write(BUSY)
    stage.scheduler.set_policy(IDLE, policy(**URGENT))
    assert _longest_row(stage.work(), BUSY, IDLE) <= 2


def test_a_table_that_catches_up_does_not_turn_the_time_back_for_those_that_wake_up() -> None:
    stage = OneSlot(BUSY)
    stage.join(IDLE, buckets=2)
    stage.slow = IDLE
    stage.work()
    stage.work_long(BUSY)
    # The store answers at last: the other bucket has been due all the time.
    stage.answer_slow()
    assert stage.work(1) == [IDLE]
    stage.join(THIRD)
    stage.write(BUSY)
    given = stage.work()
    assert given[: SUBCOMPACTIONS - 1] == [IDLE] * (SUBCOMPACTIONS - 1), (
        "what it waited for is owed to it"
    )
    assert _longest_row(given, BUSY, THIRD) <= 2
