from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from compactord.config.model import Backoff, Retry
from compactord.errors import StorageError, TransientStorageError
from compactord.maintenance.rounds import RoundResult
from compactord.maintenance.snapshots import ExpireSnapshots
from compactord.model import Conflict, FailureKind
from compactord.paimon.data_file import BucketId
from compactord.scheduler import accounting
from compactord.scheduler.compaction import Outcome
from compactord.scheduler.effects import DispatchJob, MaintenanceJob
from compactord.scheduler.halts import FruitlessAttempts
from compactord.table.backlog import DispatchFilter
from compactord.table.jobs import InputsReplaced, OwnCommit
from compactord.table.status import TableShape
from tests.simulation.tables import MIB
from tests.unit.scheduler.test_scheduler import NAME, STATS, Stage, only

EXPIRY = ExpireSnapshots(interval_ms=1)
BACKOFF = Backoff.model_validate({"min": "1 s", "max": "10 s"})


@pytest.mark.parametrize(
    ("failures", "pause_ms"), [(1, 1_000), (2, 2_000), (4, 8_000), (5, 10_000), (10_000, 10_000)]
)
def test_pauses_grow_up_to_the_longest(failures: int, pause_ms: int) -> None:
    assert accounting.pause_ms(BACKOFF, failures) == pause_ms


def _expired(stage: Stage, result: RoundResult[int] | StorageError) -> None:
    """A round of expiry has come to this."""
    job = MaintenanceJob(name=NAME, kind=EXPIRY, under_way=None)
    stage.maintained(job, EXPIRY.ended(result, 1.0))


def test_rounds_of_expiry_are_summed_up_and_failures_counted() -> None:
    stage = Stage()
    stage.add()
    figures = Counter(data_files=3, manifests=4, index_files=1)
    _expired(stage, RoundResult(items=[1, 2], figures=figures))
    _expired(stage, StorageError("/t", "no"))
    counters = stage.scheduler.tables[NAME].counters
    assert counters.expired_snapshots == 2
    assert counters.expired_files == 8
    assert counters.expire_failures == 1


def test_the_cpu_time_of_workers_is_summed_up_over_all_subcompactions() -> None:
    stage = Stage()
    stage.add(size=40 * MIB)
    for submit in stage.submitted(subcompactions=2):
        stage.ends(submit)
    stage.cycle_ended(only(stage.decide()))
    counters = stage.scheduler.tables[NAME].counters
    assert counters.worker_cpu_seconds == 2 * STATS.cpu_s > 0


@pytest.mark.parametrize(
    ("counted", "end", "left"),
    # The plan may have counted while the round ran, and by then others may have expired more.
    [(12, 11, 2), (12, 3, 10), (1, 11, 1)],
)
def test_the_count_of_snapshots_follows_a_round_of_expiry_without_a_new_plan(
    counted: int, end: int, left: int
) -> None:
    stage = Stage()
    stage.add()
    stage.cycle_ended(only(stage.decide()))
    scheduled = stage.scheduler.tables[NAME]
    assert scheduled.planned is not None
    scheduled.planned = replace(
        scheduled.planned, snapshot_id=12, shape=TableShape(snapshots=counted)
    )
    _expired(stage, RoundResult())
    assert scheduled.planned.shape.snapshots == counted, "nothing expired"
    _expired(stage, RoundResult(first=1, end=end, items=[*range(1, end)]))
    assert scheduled.planned.shape.snapshots == left


def test_an_expiry_that_failed_is_not_the_last_expiry() -> None:
    stage = Stage()
    stage.add()
    succeeded_ms = stage.now
    _expired(stage, RoundResult())
    stage.now += 2
    _expired(stage, StorageError("/t", "no"))
    assert stage.scheduler.tables[NAME].last_expired_ms == succeeded_ms


def _failed_once(stage: Stage) -> BucketId:
    effect = only(stage.planned())
    stage.tables[NAME].restarted()
    stage.job_ends(StorageError("/t", "no"))
    return effect.bucket  # type: ignore[union-attr]


def test_a_quarantined_bucket_that_has_nothing_to_do_any_more_is_forgotten_after_its_pause() -> (
    None
):
    stage = Stage()
    table = stage.add()
    bucket = _failed_once(stage)
    table.buckets[bucket.bucket].level0.clear()
    stage.poll()
    stage.cycle_ended(only(stage.decide()))
    assert bucket in stage.scheduler.tables[NAME].quarantined
    table.restarted()
    stage.poll()
    stage.cycle_ended(only(stage.decide(1_000)))
    assert stage.scheduler.tables[NAME].quarantined == {}


def test_a_quarantined_bucket_that_is_tried_again_is_not_forgotten() -> None:
    stage = Stage()
    table = stage.add()
    bucket = _failed_once(stage)
    dispatch = stage.next_dispatch(1_000)
    stage.dispatched(dispatch)
    stage.decide()
    table.commit({0: MIB}, stage.now)
    stage.poll()
    stage.cycle_ended(only(stage.decide()))
    assert stage.scheduler.tables[NAME].quarantined[bucket].failures == 1


def test_of_a_bucket_that_is_gone_nothing_is_remembered_although_others_wait() -> None:
    stage = Stage()
    stage.add(buckets=2)
    scheduled = stage.scheduler.tables[NAME]
    bucket = _failed_once(stage)
    scheduled.drops[bucket] = FruitlessAttempts(count=2)
    planned = stage.tables[NAME].cycle((), DispatchFilter(), error=None)
    assert planned.planned is not None
    # More is due than was offered: the other bucket.
    cycle = replace(
        planned, planned=replace(planned.planned, offered=(), emptied=frozenset({bucket}))
    )
    stage.scheduler.accounting.polled(scheduled, cycle, stage.now)
    assert (scheduled.quarantined, scheduled.drops) == ({}, {})


def test_one_act_of_a_writer_counts_once_however_many_compactions_it_ends() -> None:
    stage = Stage()
    stage.add()
    number = stage.submitted()[0].subcompaction.compaction_id
    scheduled = stage.scheduler.tables[NAME]
    record = scheduled.compactions[number]

    def dropped(number: int) -> None:
        retry = Retry(backoff=BACKOFF)
        accounting.dropped(replace(record, compaction_id=number), "gone", retry, stage.now)

    # Each act ends a hundred; those of the next one were dispatched after it.
    for act in range(accounting.FRUITLESS_MAX):
        assert not scheduled.quarantined, f"after {act} acts"
        scheduled.last_compaction_id = (act + 1) * 100
        for each in range(act * 100, scheduled.last_compaction_id):
            dropped(each + 1)
    assert list(scheduled.quarantined) == [record.pending.bucket]
    assert scheduled.quarantined[record.pending.bucket].failures == 1


@pytest.mark.parametrize(
    ("replaced_inputs", "outcome", "failures", "conflicts"),
    [
        (True, Outcome.CONFLICT, 0, {Conflict.FILE_REMOVED: 1}),
        (False, Outcome.FAILED, 1, {}),
        # Nobody could find out: the next attempt tells.
        (None, Outcome.CANCELLED, 0, {}),
    ],
)
def test_a_table_is_to_blame_only_for_inputs_that_nobody_replaced(
    replaced_inputs: bool | None, outcome: Outcome, failures: int, conflicts: dict[Conflict, int]
) -> None:
    stage = Stage()
    stage.add()
    (submit,) = stage.submitted()
    stage.ends(submit, FailureKind.POISON, error="ObjectNotFound")
    scheduled = stage.scheduler.tables[NAME]
    assert (scheduled.failures, scheduled.quarantined) == (0, {}), "nobody knows yet"
    cause = InputsReplaced(why="gone") if replaced_inputs else None
    known = {} if replaced_inputs is None else {submit.subcompaction.compaction_id: cause}
    error = TransientStorageError("/t", "busy") if replaced_inputs is None else None
    stage.cycle_ended(only(stage.decide()), causes=known, error=error)
    assert scheduled.failures == failures
    assert len(scheduled.quarantined) == failures
    assert {each: n for (_, each), n in scheduled.counters.compactions.items()} == {outcome: 1}
    assert scheduled.counters.conflicts == conflicts


def test_a_compaction_given_up_with_the_engine_ends_once_whatever_it_met_before() -> None:
    stage = Stage(slots=2)
    stage.add(size=200 * MIB)
    first, *_ = stage.submitted(subcompactions=5)
    stage.ends(first, FailureKind.POISON, error="ObjectNotFound")
    stage.scheduler.engine_lost("gone", stage.now)
    stage.cycle_ended(only(stage.decide()))
    scheduled = stage.scheduler.tables[NAME]
    assert {each: n for (_, each), n in scheduled.counters.compactions.items()} == {
        Outcome.CANCELLED: 1
    }
    assert (scheduled.failures, scheduled.quarantined) == (0, {})


def test_a_decision_whose_inputs_go_before_it_is_cut_is_a_drop_and_in_the_end_quarantines() -> None:
    stage = Stage()
    stage.add()
    scheduled = stage.scheduler.tables[NAME]
    effect = only(stage.planned())
    for number in range(1, accounting.FRUITLESS_MAX + 1):
        assert not scheduled.quarantined, f"after {number - 1}"
        assert isinstance(effect, DispatchJob)
        stage.job_ends(InputsReplaced(why="gone"))
        if number < accounting.FRUITLESS_MAX:
            # With what the writer did the bucket is offered anew.
            stage.tables[NAME].commit({0: MIB}, stage.now)
            effect = stage.next_dispatch(1_000)
    assert [each.failures for each in scheduled.quarantined.values()] == [1]
    assert scheduled.counters.conflicts == {Conflict.FILE_REMOVED: accounting.FRUITLESS_MAX}
    assert scheduled.failures == 0


def test_the_last_commit_before_a_start_is_known_until_there_is_another_one() -> None:
    stage = Stage()
    stage.add()
    before = OwnCommit(snapshot_id=3, ended_ms=stage.now - 60_000)
    (effect,) = stage.decide()
    stage.cycle_ended(effect, last_commit=before)
    scheduled = stage.scheduler.tables[NAME]
    assert (scheduled.last_commit_snapshot_id, scheduled.last_commit_ms) == (3, before.ended_ms)
    stage.dispatched(only(stage.decide()))
    stage.ends(only(stage.decide()))  # type: ignore[arg-type]
    stage.cycle_ended(only(stage.decide()), last_commit=before)
    assert scheduled.last_commit_ms == stage.now
    assert scheduled.last_commit_snapshot_id > 3
