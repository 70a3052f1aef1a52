from __future__ import annotations

from dataclasses import replace

import pytest

from compactord.config.model import Backoff, Retry
from compactord.errors import StorageError
from compactord.maintenance.expire import Expired
from compactord.paimon.data_file import BucketId
from compactord.scheduler import accounting
from compactord.table.backlog import Skip
from tests.simulation.tables import MIB
from tests.unit.scheduler.test_scheduler import NAME, Stage, only

BACKOFF = Backoff(min=1_000, max=10_000)


@pytest.mark.parametrize(
    ("failures", "pause_ms"), [(1, 1_000), (2, 2_000), (4, 8_000), (5, 10_000), (10_000, 10_000)]
)
def test_pauses_grow_up_to_the_longest(failures: int, pause_ms: int) -> None:
    assert accounting.pause_ms(BACKOFF, failures) == pause_ms


def test_rounds_of_expiry_are_summed_up_and_failures_counted() -> None:
    stage = Stage()
    stage.add()
    scheduled = stage.scheduler.tables[NAME]
    accounting.expired(scheduled, Expired(snapshots=2, data_files=3, manifests=4, index_files=1))
    accounting.expired(scheduled, StorageError("/t", "no"))
    counters = scheduled.counts.frozen()
    assert counters.expired_snapshots == 2
    assert counters.expired_files == 8
    assert counters.expire_failures == 1


def _failed_once(stage: Stage) -> BucketId:
    effect = only(stage.planned())
    stage.tables[NAME].restarted()
    stage.scheduler.dispatched(NAME, StorageError("/t", "no"), stage.now)
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
    scheduled.drops[bucket] = 2
    planned = stage.tables[NAME].cycle({}, Skip(), error=None)
    assert planned.planned is not None
    # More is due than was offered: the other bucket.
    cycle = replace(planned, planned=replace(planned.planned, offered=(), gone=frozenset({bucket})))
    accounting.take_in(scheduled, cycle, Retry(), stage.now, stage.observer)  # type: ignore[arg-type]
    assert (scheduled.quarantined, scheduled.drops) == ({}, {})
