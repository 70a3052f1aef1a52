"""One bucket whose entries are damaged stops itself: not its table, its commits or its expiry."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactord.commit.changes import Committed
from compactord.maintenance.orphans import SweepOrphans
from compactord.model import Conflict
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import snapshot_ids
from compactord.table.compactor import TableCompactor
from compactord.table.jobs import InFlight, Planned
from tests import builders
from tests.damage import DAMAGE, JUNK, Spoil, of_file, spoil
from tests.storages import Call, HookedStorage, MemoryStorage
from tests.unit.table.compacting import ALL, Driver, compactor_of, expire, outcome_of

WHERE = "/warehouse/db.db/t"
BUCKETS = 8
KEPT = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "2"}


def filled(**options: str) -> tuple[MemoryStorage, TableRef, dict[int, int]]:
    storage = MemoryStorage()
    table = builders.keyed_table(storage, WHERE, buckets=BUCKETS, options=options)
    return storage, table, builders.fill_keyed(builders.writer(storage, table), commits=6, keys=200)


def planned_by(compactor: TableCompactor) -> Planned:
    cycle = compactor.cycle((), ALL)
    assert cycle.error is None
    assert cycle.planned is not None
    return cycle.planned


def _rescaled(storage: MemoryStorage, table: TableRef) -> None:
    spoil(storage, table, 3, lambda entry: replace(entry, total_buckets=BUCKETS + 1))


@pytest.mark.parametrize(("how", "said"), DAMAGE.values(), ids=DAMAGE)
def test_the_other_buckets_are_compacted_and_the_damaged_one_is_named(
    how: Spoil, said: str
) -> None:
    storage, table, expected = filled()
    files = spoil(storage, table, 3, how)
    compactor = compactor_of(storage, table)
    driver = Driver(compactor)
    planned = driver.run(cycles=3)
    assert planned is not None
    assert driver.errors == []
    (damaged,) = planned.damaged
    assert damaged.bucket.bucket == 3
    assert said in damaged.message
    assert any(file.file_name in damaged.message for file in files)
    assert "until its files change" in damaged.message
    runs = {top.bucket: top.sorted_runs for top in planned.top}
    assert runs.pop(3) >= 5
    assert set(runs.values()) == {1}
    assert builders.read_keyed(storage, table) == expected


def test_entries_that_disagree_about_the_number_of_buckets_are_one_buckets_damage() -> None:
    storage, table, _ = filled()
    _rescaled(storage, table)
    planned = planned_by(compactor_of(storage, table))
    assert [(each.bucket.bucket, each.partition) for each in planned.damaged] == [(3, "")]
    assert "disagree about the number of buckets: 8, 9" in planned.damaged[0].message
    assert len(planned.offered) == BUCKETS - 1


def test_a_damaged_bucket_is_due_again_once_its_files_have_changed() -> None:
    storage, table, expected = filled()
    spoil(storage, table, 3, DAMAGE["overlap"][0])
    compactor = compactor_of(storage, table)
    assert len(planned_by(compactor).damaged) == 1
    assert compactor.cycle((), ALL).planned is None, "nothing is new"
    builders.writer(storage, table).write(builders.rows_of([(1000, 1)]))
    expected[1000] = 1
    (damaged,) = planned_by(compactor).damaged
    spoil(storage, table, 3, of_file(level=0), count=100)
    planned = planned_by(compactor)
    assert planned.damaged == ()
    assert damaged.bucket in {pending.bucket for pending in planned.offered}
    Driver(compactor).run(cycles=3)
    assert builders.read_keyed(storage, table) == expected


def test_a_table_whose_first_plan_meets_a_damaged_bucket_expires_and_is_swept() -> None:
    storage, table, _ = filled(**KEPT)
    spoil(storage, table, 3, DAMAGE["overlap"][0])
    clock = builders.VirtualClock()
    compactor = compactor_of(storage, table, clock=clock)
    assert len(planned_by(compactor).damaged) == 1
    clock.sleep(7 * 24 * 3600)
    assert expire(compactor).snapshots == 6
    assert snapshot_ids(storage, table.location) == (7,)
    assert SweepOrphans(interval_ms=0, grace_ms=0).run(compactor, None).orphans == ()


@pytest.mark.parametrize(("how", "said"), DAMAGE.values(), ids=DAMAGE)
def test_a_run_compacts_the_others_and_its_failure_names_the_bucket(how: Spoil, said: str) -> None:
    storage, table, expected = filled()
    spoil(storage, table, 3, how)
    totals = builders.compact(storage, table)
    assert totals.compactions == BUCKETS - 1
    (failure,) = totals.failures
    assert failure.startswith("bucket 3: ")
    assert said in failure
    assert builders.read_keyed(storage, table) == expected
    builders.check_chain(storage, table)


def test_a_bucket_that_is_damaged_while_it_is_merged_fails_no_commit_of_the_others() -> None:
    storage, table, _ = filled()
    compactor = compactor_of(storage, table)
    finished = []
    for number, pending in enumerate(planned_by(compactor).offered, 1):
        dispatched = compactor.dispatch(pending.bucket, compaction_id=number, free_slots=1)
        assert isinstance(dispatched, InFlight)
        finished.append(outcome_of(dispatched))
    spoil(storage, table, 3, of_file(level=3, max_key=JUNK), adds=True)
    cycle = compactor.cycle(finished, ALL)
    assert cycle.error is None
    assert isinstance(cycle.commit, Committed)
    assert len(cycle.commit.published) == BUCKETS - 1
    (drop,) = cycle.commit.dropped
    assert finished[drop.change.compaction_id - 1].compaction.bucket.bucket == 3
    assert drop.conflict is Conflict.BUCKET_DAMAGED
    assert builders.leftovers(storage, table, [builders.FIRST]) == set()
    assert cycle.planned is not None
    assert [each.bucket.bucket for each in cycle.planned.damaged] == [3]


def test_a_run_in_which_a_bucket_is_damaged_publishes_the_others_and_names_it_once() -> None:
    storage, table, _ = filled()
    acts = iter([True])

    def damage(call: Call) -> None:
        if call.method == "close_output" and "/bucket-3/" in call.path and next(acts, False):
            spoil(storage, table, 3, of_file(level=3, max_key=JUNK), adds=True)

    totals = builders.compact(HookedStorage(storage, after=damage), table)
    assert (totals.compactions, totals.dropped) == (BUCKETS - 1, 1)
    (failure,) = totals.failures
    assert failure.startswith("bucket 3: the keys of the file cannot be read")
    assert builders.leftovers(storage, table, [builders.FIRST]) == set()
