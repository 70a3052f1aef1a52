"""What becomes of a bucket that a plan found to be damaged, and of its table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactord.errors import DataFileMissing, UnreadableColumn
from compactord.model import Conflict, FailureKind
from compactord.paimon.data_file import BucketId
from compactord.scheduler.compaction import HaltReason, Outcome
from compactord.scheduler.effects import CycleJob, MaintenanceJob, Submit
from compactord.table.backlog import DamagedBucket
from tests.unit.scheduler.test_scheduler import NAME, Stage, is_sweep, only

BAD = BucketId(b"", 3)
DAMAGED = DamagedBucket(bucket=BAD, partition="", message="two files overlap")


class Damaged(Stage):
    """A table of eight buckets, whose plans find bucket 3 damaged as long as `damaged` says so."""

    def __init__(self, **how: object) -> None:
        super().__init__(**how)  # type: ignore[arg-type]
        self.damaged: tuple[DamagedBucket, ...] = (DAMAGED,)
        self.add(buckets=8)

    def cycle_ended(self, effect: object, **how: object) -> None:
        assert isinstance(effect, CycleJob)
        cycle = self.tables[effect.name].cycle(effect.ended, effect.skip, error=None)
        if cycle.planned is not None:
            whole = (each for each in self.damaged if each.error != UnreadableColumn.__name__)
            bad = {each.bucket for each in whole}
            offered = tuple(p for p in cycle.planned.offered if p.bucket not in bad)
            gone = {p for p in cycle.planned.offered if p.bucket in bad}
            backlog = replace(cycle.planned.backlog, tasks=cycle.planned.backlog.tasks - len(gone))
            planned = replace(cycle.planned, offered=offered, damaged=self.damaged, backlog=backlog)
            cycle = replace(cycle, planned=planned)
        self.job_ends(cycle)

    def look(self, *, is_changed: bool = True) -> None:
        """One look at the table; what it would begin then is left for later."""
        if is_changed:
            self.tables[NAME].restarted()
        self.poll()
        self.cycle_ended(only([e for e in self.decide(1_000) if isinstance(e, CycleJob)]))

    @property
    def quarantined(self) -> dict[int, tuple[str, int]]:
        known = self.scheduler.tables[NAME].quarantined
        return {b.bucket: (each.message, each.until_ms) for b, each in known.items()}


def test_the_other_buckets_are_compacted_and_the_table_is_not_to_blame() -> None:
    stage = Damaged(halt_after_consecutive_failures=1, slots=8)
    for _ in range(60):
        for effect in stage.decide(1_000):
            match effect:
                case CycleJob():
                    stage.cycle_ended(effect)
                case Submit():
                    stage.ends(effect)
                case _:
                    stage.dispatched(effect)
    scheduled = stage.scheduler.tables[NAME]
    assert stage.outcomes() == {Outcome.COMMITTED: 7}
    assert stage.quarantined == {3: ("two files overlap", 0)}
    assert (scheduled.halt, scheduled.failures, scheduled.poll_failures) == (None, 0, 0)
    assert stage.observer.events.count("BucketQuarantined") == 1


def test_the_table_is_swept_and_expires_after_its_first_plan() -> None:
    stage = Damaged(halt_after_consecutive_failures=1)
    stage.cycle_ended(only(stage.decide()))
    begun = []
    for _ in range(5):
        stage.now += 1_000
        effects = stage.scheduler.tick(stage.now)
        begun += [each.kind.name for each in effects if isinstance(each, MaintenanceJob)]
        for effect in effects:
            if is_sweep(effect):
                stage.maintained(effect)
    assert begun == ["sweep", "expire"]


def test_it_is_released_by_a_plan_that_succeeds_and_by_nothing_else() -> None:
    stage = Damaged()
    stage.cycle_ended(only(stage.decide()))
    for _ in range(3):
        stage.now += 10**9
        stage.look()
    assert stage.quarantined == {3: ("two files overlap", 0)}
    assert stage.observer.events.count("BucketQuarantined") == 1
    stage.damaged = (replace(DAMAGED, message="a key is junk"),)
    stage.look()
    assert stage.quarantined == {3: ("a key is junk", 0)}
    assert stage.observer.events.count("BucketQuarantined") == 2
    stage.damaged = ()
    stage.look()
    assert stage.quarantined == {}


def test_a_failure_of_the_bucket_before_does_not_hide_the_damage() -> None:
    stage = Damaged(slots=1)
    stage.damaged = ()
    stage.ends(stage.submitted()[0], FailureKind.POISON)
    ((failed, (message, until_ms)),) = stage.quarantined.items()
    assert (message, until_ms > stage.now) == ("bad", True)
    stage.damaged = (replace(DAMAGED, bucket=BucketId(b"", failed)),)
    stage.look()
    assert stage.quarantined == {failed: ("two files overlap", 0)}


@pytest.mark.parametrize("is_partly", [False, True])
def test_files_that_cannot_be_read_hide_no_failure_of_the_others(*, is_partly: bool) -> None:
    """In a table without buckets: the other files are compacted, with pauses of their own."""
    stage = Damaged(slots=1)
    stage.damaged = ()
    stage.ends(stage.submitted()[0], FailureKind.POISON)
    ((failed, before),) = stage.quarantined.items()
    unreadable = replace(DAMAGED, bucket=BucketId(b"", failed), error=UnreadableColumn.__name__)
    stage.damaged = (unreadable if is_partly else replace(unreadable, error="FormatError"),)
    stage.look()
    assert (stage.quarantined == {failed: before}) is is_partly


@pytest.mark.parametrize(
    ("is_planned", "lost", "message"),
    [
        (False, None, "a key is junk"),
        (True, None, "two files overlap"),
        (False, DataFileMissing("/t/index/index-1", "it is gone"), "it is gone: /t/index/index-1"),
    ],
)
def test_a_result_that_its_damaged_bucket_makes_void_quarantines_the_bucket_at_once(
    message: str, lost: DataFileMissing | None, *, is_planned: bool
) -> None:
    stage = Stage(halt_after_consecutive_failures=1)
    table = stage.add()
    stage.ends(stage.submitted()[0])
    (effect,) = stage.decide()
    assert isinstance(effect, CycleJob)
    ended = effect.ended[0]
    cycle = table.cycle(
        effect.ended, effect.skip, error=None, conflicts=frozenset({ended.compaction_id})
    )
    assert cycle.commit is not None
    assert cycle.planned is not None
    (drop,) = cycle.commit.dropped
    drop = replace(drop, conflict=Conflict.BUCKET_DAMAGED, why="a key is junk")
    commit = replace(cycle.commit, dropped=(drop,))
    bucket = ended.compaction.bucket
    named = (replace(DAMAGED, bucket=bucket),) if is_planned else ()
    planned = replace(cycle.planned, damaged=named)
    causes = {ended.compaction_id: lost}
    stage.job_ends(replace(cycle, commit=commit, planned=planned, causes=causes))
    scheduled = stage.scheduler.tables[NAME]
    known = scheduled.quarantined[bucket]
    assert known.message == message
    assert (known.halt is HaltReason.DATA_FILE_MISSING) == (lost is not None)
    assert known.is_damaged is is_planned
    assert known.until_ms == 0 if is_planned else known.until_ms > stage.now
    assert stage.observer.events.count("BucketQuarantined") == 1
    assert stage.outcomes() == {Outcome.CONFLICT: 1}
    assert scheduled.counters.conflicts == {Conflict.BUCKET_DAMAGED: 1}
    assert (scheduled.failures, scheduled.halt) == (0, None)
