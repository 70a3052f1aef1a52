"""What halts a table, what ends the halt, and which of two halts people see."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compactord.commit.changes import LossOutcome
from compactord.config.model import Backoff
from compactord.errors import (
    AccessDenied,
    CommitGaveUp,
    DataFileDamaged,
    DataFileMissing,
    FormatError,
    ReadOnlyFileSystem,
    StorageError,
    StoreFull,
    TransientStorageError,
)
from compactord.maintenance.kind import MaintenanceRecord
from compactord.model import FailureKind
from compactord.paimon.data_file import BucketId
from compactord.scheduler.compaction import Halt, HaltReason, Outcome
from compactord.scheduler.effects import CycleJob, DiscardJob, DispatchJob, Submit
from compactord.verify.holds import Hold
from tests.simulation.tables import MIB, TRIGGER
from tests.unit.scheduler.test_scheduler import NAME, Stage, is_expiry, only

TORN = FormatError("/t/snapshot-1", "torn")


def _reason(stage: Stage) -> HaltReason | None:
    halt = stage.scheduler.tables[NAME].halt
    return None if halt is None else halt.reason


def _halted_by_failures() -> Stage:
    """The only bucket of the table has failed."""
    stage = Stage(halt_after_consecutive_failures=1)
    stage.add()
    stage.ends(stage.submitted()[0], FailureKind.POISON)
    stage.cycle_ended(only(stage.decide()))
    assert _reason(stage) is HaltReason.REPEATED_FAILURES
    return stage


def _look(stage: Stage, after_ms: int = 60_000, **how: object) -> None:
    """One look at the table; what it would begin then is left for later."""
    stage.poll()
    stage.cycle_ended(only(stage.decide(after_ms)), **how)


def _compacted_by_others(stage: Stage) -> None:
    table = stage.tables[NAME]
    table.buckets[0].level0.clear()
    table.restarted()


def _try_again(stage: Stage) -> Submit:
    stage.dispatched(stage.next_dispatch(10_000))
    submit = only(stage.decide())
    assert isinstance(submit, Submit)
    return submit


def _both_under_way(stage: Stage) -> list[Submit]:
    """The compactions of both buckets of a table that was looked at."""
    stage.dispatched(only(stage.decide()))
    first, dispatch = stage.decide()
    stage.dispatched(dispatch)
    second = only(stage.decide())
    assert isinstance(first, Submit)
    assert isinstance(second, Submit)
    return [first, second]


def _one_lost_one_under_way(stage: Stage) -> Submit:
    """Of two compactions the first one's snapshot was lost; the other is still to end."""
    stage.add(buckets=2)
    stage.cycle_ended(only(stage.decide()))
    lands, other = _both_under_way(stage)
    stage.ends(lands)
    stage.cycle_ended(only(stage.decide()), lost=True)
    return other


def test_a_commit_that_fails_counts_until_one_succeeds_and_then_halts_are_lifted() -> None:
    stage = Stage(halt_after_consecutive_failures=2)
    table = stage.add()
    submits = stage.submitted()
    for _ in range(2):
        stage.ends(submits[0])
        stage.cycle_ended(only(stage.decide()), error=CommitGaveUp("lost too often"))
        stage.dispatched(stage.next_dispatch(1_000))
        submits = stage.decide()  # type: ignore[assignment]
    scheduled = stage.scheduler.tables[NAME]
    assert scheduled.halt is not None
    assert scheduled.halt.reason is HaltReason.REPEATED_FAILURES
    assert table.snapshot_id == 6
    stage.ends(submits[0])
    stage.cycle_ended(only(stage.decide()))
    assert scheduled.halt is None
    assert stage.observer.events.count("TableHalted") == 1
    assert stage.observer.events.count("TableResumed") == 1


def test_a_halt_for_failures_ends_when_nothing_is_left_that_could_fail() -> None:
    stage = _halted_by_failures()
    _compacted_by_others(stage)
    _look(stage)
    scheduled = stage.scheduler.tables[NAME]
    assert (scheduled.halt, scheduled.failures, scheduled.next_try_ms) == (None, 0, 0)
    assert stage.observer.halts[-1] == "TableResumed"


def test_a_quarantined_bucket_still_counts_as_work_and_does_not_end_the_halt() -> None:
    stage = _halted_by_failures()
    scheduled = stage.scheduler.tables[NAME]
    assert scheduled.planned is not None
    assert (scheduled.offered, scheduled.planned.backlog.tasks, scheduled.failures) == ({}, 1, 1)


def test_a_compaction_under_way_may_still_fail_although_nothing_else_is_due() -> None:
    stage = _halted_by_failures()
    submit = _try_again(stage)
    stage.tables[NAME].restarted()
    _look(stage)
    planned = stage.scheduler.tables[NAME].planned
    assert planned is not None
    assert planned.backlog.tasks == 0
    assert _reason(stage) is HaltReason.REPEATED_FAILURES
    stage.ends(submit)
    stage.cycle_ended(only(stage.decide()))
    assert _reason(stage) is None


def test_failures_too_few_for_a_halt_are_forgotten_when_nothing_is_left() -> None:
    stage = Stage(halt_after_consecutive_failures=2)
    table = stage.add()
    for _ in range(3):
        stage.dispatched(stage.next_dispatch(10_000))
        submit = only(stage.decide())
        assert isinstance(submit, Submit)
        stage.ends(submit, FailureKind.POISON)
        stage.cycle_ended(only(stage.decide()))
        assert stage.scheduler.tables[NAME].failures == 1
        _compacted_by_others(stage)
        _look(stage)
        for _ in range(5):
            table.commit({0: MIB}, stage.now)
    assert "TableHalted" not in stage.observer.events


def test_torn_metadata_halts_at_once_and_a_good_look_lifts_it() -> None:
    stage = Stage()
    stage.add()
    stage.cycle_ended(only(stage.decide()), error=TORN)
    assert _reason(stage) is HaltReason.CORRUPT_METADATA
    stage.poll()
    assert stage.decide(999) == [], "not before its pause is over"
    stage.poll()
    stage.cycle_ended(only(stage.decide(1)))
    assert _reason(stage) is None


def test_a_good_look_does_not_end_a_halt_for_failures_that_torn_metadata_came_to_hide() -> None:
    stage = _halted_by_failures()
    since_ms = stage.scheduler.tables[NAME].halt.since_ms  # type: ignore[union-attr]
    _look(stage, error=TORN)
    assert _reason(stage) is HaltReason.CORRUPT_METADATA, "it comes first: nothing can be tried"
    _look(stage)
    halt = stage.scheduler.tables[NAME].halt
    assert halt is not None
    assert (halt.reason, halt.since_ms) == (HaltReason.REPEATED_FAILURES, since_ms)
    assert stage.scheduler.tables[NAME].failures == 1
    stage.ends(_try_again(stage))
    stage.cycle_ended(only(stage.decide()))
    assert _reason(stage) is None
    told = stage.observer.halts
    assert told == ["TableHalted"] * 3 + ["TableResumed"]


def test_after_a_good_look_what_failed_is_not_tried_before_its_pause_is_over() -> None:
    stage = Stage(halt_after_consecutive_failures=1)
    stage.add(buckets=2)
    stage.cycle_ended(only(stage.decide()))
    submits = _both_under_way(stage)
    _look(stage, 0, error=TORN)
    for submit in submits:
        stage.ends(submit, FailureKind.POISON)
    assert _reason(stage) is HaltReason.CORRUPT_METADATA
    assert stage.observer.events.count("TableHalted") == 1
    stage.cycle_ended(only(stage.decide()))
    assert _reason(stage) is HaltReason.REPEATED_FAILURES
    stage.poll()
    stage.cycle_ended(only(stage.decide(59_999)))
    assert stage.decide() == []
    assert isinstance(only(stage.decide(1)), DispatchJob)


def test_looks_that_fail_now_and_then_never_halt_a_table() -> None:
    stage = Stage(halt_after_consecutive_failures=3)
    stage.add()
    for _ in range(10):
        stage.poll()
        stage.cycle_ended(only(stage.decide(60_000)), error=StorageError("/t", "slow"))
        stage.poll()
        stage.cycle_ended(only(stage.decide(60_000)))
    assert stage.scheduler.tables[NAME].halt is None
    assert stage.scheduler.tables[NAME].error == ""


def test_what_a_store_says_is_kept_without_secrets() -> None:
    stage = Stage(halt_after_consecutive_failures=2)
    stage.add()
    for _ in range(2):
        stage.poll()
        stage.cycle_ended(only(stage.decide(60_000)), error=StorageError("/t", "token=s3same"))
        table = stage.scheduler.tables[NAME]
        assert table.halt is not None or table.error == "token=*** /t"
    assert table.halt is not None
    assert table.halt.message == "token=*** /t"


def test_a_lost_snapshot_stops_all_commits_until_an_operator_says_so() -> None:
    stage = Stage(halt_after_lost_snapshots=2)
    table = stage.add()
    lost = 0
    scheduled = stage.scheduler.tables[NAME]
    submits = stage.submitted()
    while scheduled.halt is None:
        stage.ends(submits[0])
        stage.cycle_ended(only(stage.decide()), lost=True)
        lost += 1
        if scheduled.halt is None:
            for _ in range(5):
                table.commit({0: 10 * MIB}, stage.now)
            stage.poll()
            stage.cycle_ended(only(stage.decide()))
            stage.dispatched(only(stage.decide()))
            submits = stage.decide()  # type: ignore[assignment]
    assert lost == 2
    for _ in range(5):
        table.commit({0: 10 * MIB}, stage.now)
    stage.poll()
    stage.cycle_ended(only(stage.decide(10**9)))
    assert stage.decide(10**9) == []
    stage.scheduler.accounting.acknowledge(scheduled)
    stage.dispatched(only(stage.decide()))
    (submit,) = stage.decide()
    assert isinstance(submit, Submit)
    stage.ends(submit)
    stage.cycle_ended(only(stage.decide()), lost=True)
    assert scheduled.halt is None, "the next one is the first again"


def test_a_writers_lost_commit_halts_at_once_with_its_name_unless_it_was_committed_again() -> None:
    stage = Stage(halt_after_lost_snapshots=9)
    stage.add()
    stage.cycle_ended(only(stage.decide()), late=LossOutcome.HEALED)
    scheduled = stage.scheduler.tables[NAME]
    assert scheduled.halt is None
    _look(stage, late=LossOutcome.HALTED)
    assert _reason(stage) is HaltReason.UNSAFE_COMMIT
    assert scheduled.halt is not None
    for part in ("snapshot 3", "APPEND 7 of writer", "rows: 10", "data-1.parquet", "a changelog"):
        assert part in scheduled.halt.message
    assert "CompactordWriterCommitLost" in scheduled.halt.action
    counted = scheduled.counters
    assert (counted.lost_commits_healed, counted.lost_commits_halted) == (1, 1)
    # Nothing is committed to it, nor looked for, until an operator says so.
    stage.poll()
    cycle = only(stage.decide(60_000))
    assert isinstance(cycle, CycleJob)
    assert not cycle.skip.may_commit
    stage.cycle_ended(cycle)
    stage.scheduler.accounting.acknowledge(scheduled)
    assert scheduled.halt is None


def test_nothing_but_an_operator_ends_or_hides_a_halt_for_lost_snapshots() -> None:
    stage = Stage(halt_after_consecutive_failures=1)
    fails = _one_lost_one_under_way(stage)
    assert _reason(stage) is HaltReason.UNSAFE_COMMIT
    stage.ends(fails, FailureKind.POISON)
    discard = only(stage.decide())
    assert isinstance(discard, DiscardJob)
    stage.tables[NAME].release(discard.ended)
    stage.job_ends(None)
    assert _reason(stage) is HaltReason.UNSAFE_COMMIT
    _look(stage, error=TORN)
    for bucket in stage.tables[NAME].buckets.values():
        bucket.level0.clear()
    stage.tables[NAME].restarted()
    _look(stage)
    assert _reason(stage) is HaltReason.UNSAFE_COMMIT
    assert stage.observer.events.count("TableHalted") == 1
    assert "TableResumed" not in stage.observer.events


def test_an_operator_ends_all_halts_at_once() -> None:
    stage = Stage(halt_after_consecutive_failures=1)
    fails = _one_lost_one_under_way(stage)
    stage.ends(fails, FailureKind.POISON)
    scheduled = stage.scheduler.tables[NAME]
    assert _reason(stage) is HaltReason.UNSAFE_COMMIT
    stage.scheduler.accounting.acknowledge(scheduled)
    assert (scheduled.halt, scheduled.failures, scheduled.next_try_ms) == (None, 0, 0)
    assert stage.observer.halts == [
        "TableHalted",
        "TableResumed",
    ]


def test_a_halt_that_is_renewed_is_as_old_as_it_was() -> None:
    stage = _halted_by_failures()
    first = stage.scheduler.tables[NAME].halt
    stage.ends(_try_again(stage), FailureKind.POISON)
    renewed = stage.scheduler.tables[NAME].halt
    assert first is not None
    assert renewed is not None
    assert renewed.since_ms == first.since_ms
    assert renewed.next_try_ms > first.next_try_ms


def test_a_bucket_that_always_fails_is_told_like_a_halt_and_stops_no_more_than_itself() -> None:
    """Nothing else is due meanwhile, so that no commit comes between its failures."""
    stage = Stage(halt_after_consecutive_failures=3)
    stage.add(buckets=2)
    stage.tables[NAME].buckets[1].level0.clear()
    stage.cycle_ended(only(stage.decide()))
    stage.dispatched(only(stage.decide()))
    submit = only(stage.decide())
    scheduled = stage.scheduler.tables[NAME]
    for failures in (1, 2, 3):
        assert isinstance(submit, Submit)
        assert scheduled.shown_halt is None
        stage.ends(submit, FailureKind.POISON)
        assert scheduled.quarantined[BucketId(b"", 0)].failures == failures
        submit = _try_again(stage) if failures < 3 else None
    assert (scheduled.halt, scheduled.failures) == (None, 1)
    shown = scheduled.shown_halt
    assert shown is not None
    assert shown.action.endswith(" Other buckets are compacted.")
    assert (shown.reason, shown.message) == (HaltReason.REPEATED_FAILURES, "bucket 0: bad")
    assert not scheduled.keeps_snapshots, "no data is lost"
    assert stage.observer.events.count("TableHalted") == 1
    for _ in range(TRIGGER):
        stage.tables[NAME].commit({0: MIB, 1: MIB}, stage.now)
    _look(stage, 3_600_000)
    begun = only(stage.decide())
    assert isinstance(begun, DispatchJob)
    assert begun.bucket.bucket == 1, "the other one comes first"


def _with_a_lost_file(**retry: object) -> tuple[Stage, Submit]:
    """Of two buckets the first lacks a file, as the last cycle has found; the other is merged."""
    stage = Stage(slots=2, **retry)
    stage.add(buckets=2)
    stage.cycle_ended(only(stage.decide()))
    first, other = _both_under_way(stage)
    stage.ends(first, FailureKind.POISON, error="ObjectNotFound")
    number = first.subcompaction.compaction_id
    missing = DataFileMissing("/t/bucket-0/data-1", "a live data file does not exist")
    stage.cycle_ended(only(stage.decide()), causes={number: missing})
    return stage, other


def test_a_lost_file_is_told_like_a_halt_and_stops_no_more_than_its_bucket() -> None:
    stage, other = _with_a_lost_file(halt_after_consecutive_failures=1)
    scheduled = stage.scheduler.tables[NAME]
    assert (scheduled.halt, scheduled.failures) == (None, 0)
    shown = scheduled.shown_halt
    assert shown is not None
    assert shown.reason is HaltReason.DATA_FILE_MISSING
    assert shown.message == ("bucket 0: a live data file does not exist: /t/bucket-0/data-1")
    assert "compactord verify" in shown.action
    assert shown.next_try_ms > stage.now
    assert "TableHalted" in stage.observer.events
    stage.ends(other)
    stage.cycle_ended(only(stage.decide()))
    assert stage.outcomes() == {Outcome.FAILED: 1, Outcome.COMMITTED: 1}
    assert scheduled.shown_halt is not None, "a commit of another bucket mends nothing"
    assert "TableResumed" not in stage.observer.events


def test_snapshots_that_may_be_rolled_back_to_do_not_expire_while_a_file_is_lost() -> None:
    stage, _ = _with_a_lost_file()
    stage.now += 10_000
    effects = stage.scheduler.tick(stage.now)
    assert not [each for each in effects if is_expiry(each)]


def test_the_bucket_is_merged_once_its_file_is_back_and_nothing_is_told_any_more() -> None:
    stage, other = _with_a_lost_file()
    stage.ends(other)
    stage.cycle_ended(only(stage.decide()))
    stage.dispatched(stage.next_dispatch(10_000))
    (again,) = stage.decide()
    assert isinstance(again, Submit)
    scheduled = stage.scheduler.tables[NAME]
    since_ms = scheduled.shown_halt.since_ms if scheduled.shown_halt else 0
    assert 0 < since_ms < stage.now
    stage.ends(again)
    stage.cycle_ended(only(stage.decide()))
    assert scheduled.shown_halt is None
    assert (
        stage.observer.events.count("TableHalted")
        == stage.observer.events.count("TableResumed")
        == 1
    )


def test_a_lost_file_that_the_table_does_not_need_any_more_is_forgotten() -> None:
    stage, other = _with_a_lost_file()
    stage.ends(other)
    stage.cycle_ended(only(stage.decide()))
    stage.tables[NAME].buckets[0].level0.clear()
    stage.tables[NAME].restarted()
    _look(stage)
    assert stage.scheduler.tables[NAME].shown_halt is None
    assert stage.observer.halts[-1] == "TableResumed"


def test_a_dispatch_that_meets_a_lost_file_quarantines_its_bucket_alone() -> None:
    stage = Stage(halt_after_consecutive_failures=1)
    stage.add()
    only(stage.planned())
    error = DataFileMissing("/t/bucket-0/data-1", "a live data file does not exist")
    stage.job_ends(error)
    scheduled = stage.scheduler.tables[NAME]
    assert scheduled.halt is None
    assert scheduled.shown_halt is not None


def _damaged(stage: Stage, submitted: Submit) -> None:
    """A live file is damaged: as a worker has read it twice, and the cycle has found it live."""
    stage.ends(submitted, FailureKind.POISON, error="DataFileDamaged")
    error = DataFileDamaged("/t/bucket-0/data-1", "a checksum does not hold")
    number = submitted.subcompaction.compaction_id
    stage.cycle_ended(only(stage.decide()), causes={number: error})


def test_damage_keeps_snapshots_at_the_first_failure_and_is_told_as_a_halt_at_the_second() -> None:
    stage = Stage()
    stage.add()
    _damaged(stage, stage.submitted()[0])
    scheduled = stage.scheduler.tables[NAME]
    assert scheduled.keeps_snapshots
    assert (scheduled.shown_halt, scheduled.failures) == (None, 0)
    stage.dispatched(stage.next_dispatch(60_000))
    (again,) = stage.decide()
    assert isinstance(again, Submit)
    _damaged(stage, again)
    assert scheduled.halt is None, "no other bucket stops"
    assert _shown(stage).reason is HaltReason.DATA_CHECK_FAILED
    assert _shown(stage).message == "bucket 0: a checksum does not hold: /t/bucket-0/data-1"
    assert "No snapshot expires" in _shown(stage).action


def test_a_hold_is_told_as_a_halt_and_its_end_too() -> None:
    stage = Stage()
    stage.add()
    hold = Hold(
        path="/t/bucket-0/data-1",
        error="DataFileMissing",
        message="a live data file does not exist",
        since_ms=1,
    )
    stage.cycle_ended(only(stage.decide()), hold=hold)
    shown = _shown(stage)
    assert shown.reason is HaltReason.DATA_FILE_MISSING
    assert shown.message == "a live data file does not exist: /t/bucket-0/data-1"
    assert shown.since_ms == stage.now
    assert not stage.scheduler.tables[NAME].keeps_snapshots, "a round finds out when it ends"
    rounds = stage.scheduler.tables[NAME].rounds
    expiry = rounds.setdefault("expire", MaintenanceRecord(has_news=False))
    stage.scheduler.tables[NAME].take_hold(hold, stage.now)
    assert expiry.has_news, "a round follows even if the table does not change"
    _look(stage)
    assert stage.scheduler.tables[NAME].shown_halt is None
    assert stage.observer.halts == ["TableHalted", "TableResumed"]


def _shown(stage: Stage) -> Halt:
    found = stage.scheduler.tables[NAME].shown_halt
    assert found is not None
    return found


def test_a_table_whose_compactions_fail_is_polled_all_the_same() -> None:
    stage = _halted_by_failures()
    halt = stage.scheduler.tables[NAME].halt
    assert halt is not None
    stage.tables[NAME].commit({0: MIB}, stage.now)
    _look(stage, 1_000)
    scheduled = stage.scheduler.tables[NAME]
    assert stage.now < halt.next_try_ms
    assert scheduled.last_poll_ms == stage.now, "its numbers are not old"
    assert scheduled.planned is not None
    assert scheduled.planned.snapshot_id == stage.tables[NAME].snapshot_id
    assert stage.decide() == [], "nothing is tried before its pause is over"


def test_a_poll_ends_the_halt_when_others_compacted_what_failed_although_more_is_due() -> None:
    stage = Stage(halt_after_consecutive_failures=1)
    table = stage.add(buckets=2)
    table.buckets[1].level0.clear()
    stage.ends(stage.submitted()[0], FailureKind.POISON)
    stage.cycle_ended(only(stage.decide()))
    assert _reason(stage) is HaltReason.REPEATED_FAILURES
    table.buckets[0].level0.clear()
    for _ in range(5):
        table.commit({1: MIB}, stage.now)
    table.restarted()
    _look(stage, 1_000)
    assert _reason(stage) is None
    assert stage.scheduler.tables[NAME].failures == 0
    assert isinstance(only(stage.decide()), DispatchJob)


def test_a_halt_for_commits_that_fail_does_not_end_with_a_poll() -> None:
    stage = Stage(halt_after_consecutive_failures=1)
    stage.add()
    stage.ends(stage.submitted()[0])
    stage.cycle_ended(only(stage.decide()), error=CommitGaveUp("lost too often"))
    _look(stage, 1_000)
    assert _reason(stage) is HaltReason.REPEATED_FAILURES
    assert stage.decide() == []


@pytest.mark.parametrize(
    "broken",
    [
        lambda stage: stage.cycle_ended(only(stage.decide()), error=TORN),
        lambda stage: stage.ends(stage.submitted()[0], FailureKind.POISON),
    ],
    ids=["polls", "compactions"],
)
def test_a_reload_tries_again_at_once_whatever_failed(broken: Callable[[Stage], None]) -> None:
    stage = Stage(
        halt_after_consecutive_failures=1,
        backoff=Backoff.model_validate({"min": "1 h", "max": "2 h"}),
    )
    stage.add()
    broken(stage)
    for effect in stage.decide():
        stage.cycle_ended(effect)
    scheduled = stage.scheduler.tables[NAME]
    halt = scheduled.halt
    assert halt is not None
    assert halt.next_try_ms > stage.now
    stage.scheduler.try_again(NAME, stage.now)
    assert scheduled.halt is not None, "it ends when something has succeeded"
    assert scheduled.halt.next_try_ms == stage.now
    stage.cycle_ended(only(stage.decide()))
    stage.dispatched(only(stage.decide()))
    submit = only(stage.decide())
    assert isinstance(submit, Submit)
    stage.ends(submit)
    stage.cycle_ended(only(stage.decide()))
    assert scheduled.halt is None


def test_a_reload_tries_a_bucket_that_lacks_a_file_again_at_once() -> None:
    stage, other = _with_a_lost_file(backoff=Backoff.model_validate({"min": "1 h", "max": "2 h"}))
    stage.ends(other)
    stage.cycle_ended(only(stage.decide()))
    stage.scheduler.try_again(NAME, stage.now)
    stage.cycle_ended(only(stage.decide()))
    assert isinstance(only(stage.decide()), DispatchJob)


@pytest.mark.parametrize(
    ("error", "todo"),
    [
        (AccessDenied("/t", "no"), "read and write permission"),
        (ReadOnlyFileSystem("/t", "no"), "Make the file system writable"),
        (StoreFull("/t", "no"), "Make room"),
        (TransientStorageError("/t", "no"), "in the log"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_halt_says_what_to_do(error: StorageError, todo: str) -> None:
    stage = Stage(halt_after_consecutive_failures=1)
    stage.add()
    only(stage.planned())
    stage.job_ends(error)
    halt = stage.scheduler.tables[NAME].halt
    assert halt is not None
    assert todo in halt.action
