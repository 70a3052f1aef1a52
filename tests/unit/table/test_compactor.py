from __future__ import annotations

from collections.abc import Callable

import pytest

from compactord.commit.changes import Committed
from compactord.errors import (
    AccessDenied,
    CommitUnknown,
    CompactordError,
    DataFileMissing,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
    UnsupportedTable,
)
from compactord.model import SubcompactionFailure
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import snapshot_ids
from compactord.state.table_state import data_manifests, load_state
from compactord.storage.base import Storage
from compactord.table.backlog import DispatchFilter
from compactord.table.compactor import TableCompactor
from compactord.table.jobs import InFlight, InputsReplaced
from compactord.table.planning import CompactRequest
from compactord.table.status import Backlog
from tests.builders import (
    FIRST,
    SECOND,
    VirtualClock,
    append_table,
    check_chain,
    compact,
    fill_keyed,
    keyed_table,
    leftovers,
    live_files,
    read_appended,
    read_keyed,
    rows_of,
    writer,
)
from tests.deletions import Deletions
from tests.lineage import APPENDED, TABLE
from tests.rounds import Expired
from tests.storages import Call, Fault, FaultyStorage, HookedStorage, MemoryStorage
from tests.unit.table.compacting import ALL, Driver, compactor_of, expire, outcome_of

WHERE = "/warehouse/db.db/t"


def _keyed(commits: int = 6, **options: str) -> tuple[MemoryStorage, TableRef, dict[int, int]]:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE, options=options)
    return storage, table, fill_keyed(writer(storage, table), commits=commits)


def _due(compactor: TableCompactor) -> list[int]:
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    return [pending.bucket.bucket for pending in planned.offered]


def _dispatched(compactor: TableCompactor) -> InFlight:
    """The first decision of the table, as compaction 1."""
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    dispatched = compactor.dispatch(planned.offered[0].bucket, compaction_id=1, free_slots=1)
    assert isinstance(dispatched, InFlight)
    return dispatched


def test_a_first_cycle_plans_and_a_second_one_has_nothing_new() -> None:
    storage, table, _ = _keyed()
    compactor = compactor_of(storage, table)
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    assert {pending.bucket.bucket for pending in planned.offered} == {0, 1}
    assert planned.snapshot_id == 6
    assert planned.backlog.tasks == 2
    assert compactor.cycle((), ALL).planned is None


def test_compacts_to_the_end_and_keeps_every_row() -> None:
    storage, table, expected = _keyed()
    driver = Driver(compactor_of(storage, table))
    planned = driver.run(cycles=3)
    assert planned is not None
    assert planned.backlog.tasks == 0
    assert planned.shape.sorted_runs_max == 1
    assert read_keyed(storage, table) == expected
    assert driver.errors == []


def _scattered(commits: int) -> tuple[MemoryStorage, TableRef]:
    """Files that have nothing to do, each in a manifest of its own."""
    storage = MemoryStorage()
    table = append_table(storage, WHERE, options={"compaction.min.file-num": "1000"})
    target = writer(storage, table)
    for number in range(commits):
        target.write(rows_of([(number, number)]))
    return storage, table


def test_a_cycle_with_nothing_due_merges_manifests() -> None:
    storage, table = _scattered(40)
    compactor = compactor_of(storage, table)
    cycle = compactor.cycle((), ALL)
    assert (cycle.planned is not None, cycle.error) == (True, None)
    assert isinstance(cycle.commit, Committed)
    assert cycle.commit.snapshot_id == 41
    snapshot = load_state(storage, table).snapshot
    assert snapshot is not None
    assert len(data_manifests(storage, table.location, snapshot)) == 1
    assert sum(read_appended(storage, table).values()) == 40
    # Its own snapshot is taken in, and brings nothing to do.
    again = compactor.cycle((), ALL)
    assert (again.planned is not None, again.commit) == (True, None)
    assert compactor.cycle((), ALL).planned is None
    assert snapshot_ids(storage, table.location)[-1] == 41


def test_manifests_that_cannot_be_merged_leave_the_plan_as_it_is_until_the_next_one() -> None:
    storage, table = _scattered(40)
    is_full = [True]
    faulty = FaultyStorage(
        storage,
        Fault(
            at=1,
            error=AccessDenied,
            lasts=True,
            concerns=lambda call: is_full[0] and call.is_mutation,
        ),
    )
    compactor = compactor_of(faulty, table)
    cycle = compactor.cycle((), ALL)
    assert (cycle.planned is not None, cycle.commit, cycle.error) == (True, None, None)
    assert faulty.failed
    assert compactor.cycle((), ALL).planned is None
    is_full[0] = False
    writer(storage, table).write(rows_of([(100, 1)]))
    settled = compactor.cycle((), ALL).commit
    assert isinstance(settled, Committed)


@pytest.mark.parametrize(("commits", "skip"), [(29, ALL), (40, DispatchFilter(manifests=True))])
def test_manifests_stay_below_the_threshold_and_where_nothing_may_begin(
    commits: int, skip: DispatchFilter
) -> None:
    storage, table = _scattered(commits)
    assert compactor_of(storage, table).cycle((), skip).commit is None
    assert snapshot_ids(storage, table.location)[-1] == commits


def test_a_bucket_under_way_is_not_due() -> None:
    storage, table, _ = _keyed()
    compactor = compactor_of(storage, table)
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    bucket = planned.offered[0].bucket
    assert compactor.dispatch(bucket, compaction_id=1, free_slots=1) is not None
    assert compactor.dispatch(bucket, compaction_id=2, free_slots=1) is None
    assert bucket.bucket not in _due(compactor)


def test_names_of_files_show_the_codec_of_the_table_whatever_parquet_is_told() -> None:
    storage, table, _ = _keyed()
    options = {"file.suffix.include.compression": "true", "parquet.compression": "gzip"}
    compactor = compactor_of(storage, table, overrides=options)
    dispatched = _dispatched(compactor)
    assert {part.write.file_suffix for part in dispatched.subcompactions} == {".zst.parquet"}


def test_a_failed_bucket_is_due_again_and_leaves_no_file() -> None:
    storage, table, _ = _keyed()
    compactor = compactor_of(storage, table)
    dispatched = _dispatched(compactor)
    _due(compactor)
    again = compactor.cycle([outcome_of(dispatched, failed=True)], ALL)
    assert again.planned is not None
    assert dispatched.compaction.bucket in {pending.bucket for pending in again.planned.offered}
    assert leftovers(storage, table, [FIRST]) == set()


def test_a_discarded_compaction_leaves_no_file_and_its_bucket_is_due_again() -> None:
    storage, table, expected = _keyed()
    compactor = compactor_of(storage, table)
    dispatched = _dispatched(compactor)
    finished = outcome_of(dispatched)
    assert leftovers(storage, table, [FIRST]) != set()
    compactor.discard([finished])
    assert leftovers(storage, table, [FIRST]) == set()
    assert dispatched.compaction.bucket.bucket in _due(compactor)
    assert read_keyed(storage, table) == expected


def test_a_dispatch_that_fails_makes_its_bucket_due_again_without_a_new_snapshot() -> None:
    storage, table, _ = _keyed()
    clock = BreakableClock()
    compactor = compactor_of(storage, table, clock=clock)
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    first = planned.offered[0].bucket
    # Cutting into subcompactions asks the clock for the zone of creation times: that can fail.
    clock.is_broken = True
    with pytest.raises(StorageError):
        compactor.dispatch(first, compaction_id=1, free_slots=1)
    again = compactor.cycle((), ALL).planned
    assert again is not None, "there is something to do, and nothing else will say so"
    assert again.offered == planned.offered


class BreakableClock(VirtualClock):
    """One whose next call fails once it `is_broken`."""

    is_broken = False
    error: type[StorageError] = StorageError

    def now_ms(self) -> int:
        if self.is_broken:
            self.is_broken = False
            raise self.error("/clock", "stands still")
        return super().now_ms()


@pytest.mark.parametrize("is_replaced", [True, False])
def test_inputs_that_are_gone_are_blamed_on_writers_only_if_they_were_replaced(
    *, is_replaced: bool
) -> None:
    storage, table, _ = _keyed()
    compactor = compactor_of(storage, table)
    dispatched = _dispatched(compactor)
    if is_replaced:
        compact(storage, table, owner=SECOND)
    folder = paths.bucket_folder(table.location, "", dispatched.compaction.bucket.bucket)
    for file in dispatched.compaction.inputs:
        storage.delete(paths.join(folder, file.file_name))
    ended = outcome_of(dispatched)
    assert isinstance(ended.result, SubcompactionFailure)
    assert ended.result.error == "ObjectNotFound"
    cycle = compactor.cycle([ended], ALL)
    assert isinstance(cycle.causes[1], InputsReplaced) == is_replaced


@pytest.mark.parametrize("is_rewritten", [True, False])
def test_so_are_deletion_vectors_whose_index_file_is_gone(*, is_rewritten: bool) -> None:
    """No data file of this table exists: something is not found in any case."""
    table = Deletions(APPENDED)
    table.delete_rows({file.file_name: [1] for file in table.append(3)})
    compactor = compactor_of(table.storage, TABLE)
    dispatched = _dispatched(compactor)
    if is_rewritten:
        table.rewrite_vectors()
    cycle = compactor.cycle([outcome_of(dispatched)], ALL)
    assert isinstance(cycle.causes[1], InputsReplaced) == is_rewritten


@pytest.mark.parametrize("is_cut", [False, True], ids=["while it is cut", "while it is merged"])
def test_a_live_file_that_is_gone_is_named_with_the_newest_snapshot_without_it(
    *, is_cut: bool
) -> None:
    storage, table, _ = _keyed(commits=5)
    clock = BreakableClock()
    compactor = compactor_of(storage, table, clock=clock)
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    bucket = planned.offered[0].bucket
    folder = paths.bucket_folder(table.location, "", bucket.bucket)
    live = [(b, file) for b, file in live_files(storage, table, 5) if b == bucket]
    before = {file.file_name for b, file in live_files(storage, table, 3) if b == bucket}
    lost = [paths.join(folder, f.file_name) for _, f in live if f.file_name not in before]
    dispatched = None
    if is_cut:
        dispatched = compactor.dispatch(bucket, compaction_id=1, free_slots=1)
        assert isinstance(dispatched, InFlight)
    for path in lost:
        storage.delete(path)
    if dispatched is not None:
        cycle = compactor.cycle([outcome_of(dispatched)], ALL)
        error = cycle.causes[1]
        assert isinstance(error, DataFileMissing)
    else:
        # As reading a footer of large inputs would end.
        clock.error, clock.is_broken = ObjectNotFound, True
        with pytest.raises(DataFileMissing) as raised:
            compactor.dispatch(bucket, compaction_id=1, free_slots=1)
        error = raised.value
    assert error.path in lost
    assert str(error) == (
        "a live data file (and 1 other of its bucket) does not exist, readers fail as well; "
        "the newest version without it is snapshot 3 (CALL sys.rollback_to("
        f"`table` => 'db.t', snapshot_id => 3)): {error.path}"
    )


@pytest.mark.parametrize(
    ("is_index", "is_merged"),
    [(True, False), (False, False), (True, True)],
    ids=["index file", "file above", "index file at the commit"],
)
def test_so_is_any_other_file_that_a_compaction_reads(*, is_index: bool, is_merged: bool) -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE, buckets=1, options={"deletion-vectors.enabled": "true"})
    target = writer(storage, table)
    for keys in (200, 5):
        target.write(rows_of([(key, keys) for key in range(keys)]))
        compact(storage, table)
    target.write(rows_of([(7, 7)]))
    compactor = compactor_of(storage, table)
    dispatched = _dispatched(compactor)
    compaction = dispatched.compaction
    assert [file.level for file in compaction.inputs] == [0]
    (above,) = (f for f in compaction.looked_up if f.row_count == 200)
    lost = paths.join(paths.bucket_folder(WHERE, "", 0), above.file_name)
    if is_index:
        lost = dispatched.vectors[above.file_name].path
    if is_merged:
        outcome_of(dispatched)
    storage.delete(lost)
    error = compactor.cycle([outcome_of(dispatched)], ALL).causes[1]
    assert isinstance(error, DataFileMissing)
    assert leftovers(storage, table, [FIRST]) == set()
    # The first snapshot has it on level 0.
    what, version = "data file", "no version is without it"
    if is_index:
        what = "index file with deletion vectors"
        call = "CALL sys.rollback_to(`table` => 'db.t', snapshot_id => 3)"
        version = f"the newest version without it is snapshot 3 ({call})"
    assert str(error) == f"a live {what} does not exist, readers fail as well; {version}: {lost}"


def test_what_is_skipped_is_counted_and_not_offered_until_it_no_longer_is() -> None:
    storage, table, _ = _keyed()
    compactor = compactor_of(storage, table)
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    first = planned.offered[0].bucket
    skipping = DispatchFilter(buckets=frozenset({first}))
    without = compactor.cycle((), skipping).planned
    assert without is not None
    assert first not in {pending.bucket for pending in without.offered}
    assert without.backlog == planned.backlog
    assert Backlog.total((without.workable, without.blocked)) == planned.backlog
    assert (planned.blocked.tasks, without.blocked.tasks) == (0, planned.offered[0].tasks)
    assert compactor.cycle((), skipping).planned is None
    after = compactor.cycle((), ALL).planned
    assert after is not None
    assert after.offered == planned.offered


def test_other_options_count_from_the_next_cycle_on() -> None:
    storage, table, _ = _keyed(commits=3)
    compactor = compactor_of(storage, table)
    assert _due(compactor) == []
    overrides = {"num-sorted-run.compaction-trigger": "2"}
    compactor.reconfigure(CompactRequest(overrides=overrides))
    assert sorted(_due(compactor)) == [0, 1]


def test_a_table_that_becomes_unsupported_is_an_answer_and_one_that_heals_is_served() -> None:
    storage, table, _ = _keyed()
    compactor = compactor_of(storage, table)
    assert sorted(_due(compactor)) == [0, 1]
    schema = paths.schema_path(table.location, 0)
    good = storage.objects[schema]
    bad = good.replace(b'"write-only": "true"', b'"write-only": "true", "merge-engine": "nope"')
    assert bad != good
    storage.objects[paths.schema_path(table.location, 1)] = bad.replace(b'"id": 0,', b'"id": 1,', 1)
    cycle = compactor.cycle((), ALL)
    assert cycle.error is not None
    assert cycle.planned is None
    assert not cycle.in_commit
    del storage.objects[paths.schema_path(table.location, 1)]
    assert sorted(_due(compactor)) == [0, 1]


def test_an_exception_that_nobody_expects_leaves_no_bucket_busy() -> None:
    storage, table, expected = _keyed()
    is_broken = [False]

    def fail(call: Call) -> None:
        if is_broken[0] and call.is_mutation:
            raise MemoryError

    watched = HookedStorage(storage, before=fail)
    compactor = compactor_of(watched, table)
    dispatched = _dispatched(compactor)
    finished = outcome_of(dispatched)
    is_broken[0] = True
    with pytest.raises(MemoryError):
        compactor.cycle([finished], ALL)
    is_broken[0] = False
    assert sorted(_due(compactor)) == [0, 1]
    Driver(compactor).run(cycles=3)
    assert read_keyed(storage, table) == expected


def test_expiry_leaves_what_is_read_alone() -> None:
    storage, table, _ = _keyed(
        **{"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"}
    )
    compactor = compactor_of(storage, table)
    compactor.cycle((), ALL)
    result = expire(compactor, keep_from=4)
    assert isinstance(result, Expired)
    assert snapshot_ids(storage, table.location) == (4, 5, 6)


def test_a_table_of_another_kind_is_refused_when_it_is_opened() -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE, options={"row-tracking.enabled": "true"})
    with pytest.raises(UnsupportedTable):
        compactor_of(storage, table)


@pytest.mark.parametrize(
    ("make", "triggers"), [(keyed_table, (5, 8)), (append_table, (0, 0))], ids=["keyed", "append"]
)
def test_only_a_table_with_sorted_runs_has_triggers_for_them(
    make: Callable[[Storage, str], TableRef], triggers: tuple[int, int]
) -> None:
    storage = MemoryStorage()
    table = make(storage, WHERE)
    writer(storage, table).write(rows_of([(1, 1)]))
    planned = compactor_of(storage, table).cycle((), ALL).planned
    assert planned is not None
    assert (planned.info.compaction_trigger, planned.info.stop_trigger) == triggers


@pytest.mark.parametrize(
    ("stop", "expected"), [("9", (9, 9)), (str(2**31 - 1), (8, 35))], ids=["set", "none"]
)
def test_a_table_without_a_stop_trigger_is_measured_against_the_configured_one(
    stop: str, expected: tuple[int, int]
) -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE, options={"num-sorted-run.stop-trigger": stop})
    compactor = compactor_of(storage, table)
    first = compactor.cycle((), ALL).planned
    compactor.reconfigure(CompactRequest(stop_trigger_fallback=30))
    second = compactor.cycle((), ALL).planned
    assert first is not None
    assert second is not None
    assert (first.info.stop_trigger, second.info.stop_trigger) == expected


def test_append_files_are_packed_in_as_many_compactions_as_are_due() -> None:
    storage = MemoryStorage()
    table = append_table(storage, WHERE, options={"compaction.min.file-num": "5"})
    target = writer(storage, table)
    for n in range(12):
        target.write(rows_of([(n, n)]))
    before = read_appended(storage, table)
    compactor = compactor_of(storage, table)
    driver = Driver(compactor)
    driver.run(cycles=4)
    assert read_appended(storage, table) == before
    assert load_state(storage, table).files.file_count < 12
    assert driver.errors == []


def _drive_through(storage: Storage, table: TableRef) -> tuple[Driver, list[CompactordError]]:
    compactor = None
    errors: list[CompactordError] = []
    while compactor is None:
        try:
            compactor = compactor_of(storage, table)
        except CompactordError as error:
            errors.append(error)
    driver = Driver(compactor)
    driver.run(cycles=4)
    return driver, [*errors, *driver.errors]


@pytest.mark.parametrize(
    ("error", "after_effect"),
    [(StorageError, False), (TransientStorageError, True)],
    ids=["before", "after"],
)
def test_whatever_call_fails_the_next_cycles_finish_the_work(
    error: type[StorageError], after_effect: bool
) -> None:
    untouched, table, expected = _keyed()
    at, hits = 0, 0
    while True:
        at += 1
        storage = untouched.copy()
        faulty = FaultyStorage(storage, Fault(at=at, error=error, after_effect=after_effect))
        driver, _ = _drive_through(faulty, table)
        if not faulty.failed:
            break
        hits += 1
        # A merge that failed as well: one more time without faults.
        planned = Driver(driver.compactor, after=1000)
        planned.run(cycles=4)
        assert planned.errors == [], f"call {at}: {faulty.failed}"
        assert read_keyed(storage, table) == expected, f"call {at}: {faulty.failed}"
        check_chain(storage, table)
        state = load_state(storage, table)
        runs = state.files.summaries().run_count
        assert int(runs.max()) < 5, f"call {at}: {faulty.failed}, something stays undone"
    assert hits > 40, "many calls were made to fail"


@pytest.mark.parametrize("step", range(1, 16))
def test_what_was_handed_in_is_settled_whatever_call_of_the_commit_fails_for_ever(
    step: int,
) -> None:
    untouched, table, expected = _keyed()
    storage = untouched.copy()
    is_armed = [False]
    faulty = FaultyStorage(
        storage,
        Fault(at=step, error=StorageError, lasts=True, concerns=lambda call: is_armed[0]),
    )
    compactor = compactor_of(faulty, table)
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    ended: list[InFlight] = []
    for number, pending in enumerate(planned.offered):
        dispatched = compactor.dispatch(pending.bucket, compaction_id=number, free_slots=1)
        assert dispatched is not None
        ended.append(outcome_of(dispatched))
    is_armed[0] = True
    cycle = compactor.cycle(ended, ALL)
    assert cycle.error is not None
    assert cycle.in_commit == (cycle.commit is None)
    is_armed[0] = False
    driver = Driver(compactor, after=100)
    driver.run(cycles=4)
    assert read_keyed(storage, table) == expected
    check_chain(storage, table)
    assert int(load_state(storage, table).files.summaries().run_count.max()) < 5


def test_after_a_commit_of_unknown_outcome_others_in_flight_are_still_published() -> None:
    storage, table, expected = _keyed()
    down: list[Call] = []
    is_over = False

    def outage(call: Call) -> None:
        if down and not is_over and call.path.startswith(paths.snapshot_folder(WHERE)):
            raise TransientStorageError(call.path, "no answer")

    def published(call: Call) -> None:
        if call.method == "create_if_absent" and not down:
            down.append(call)
            raise TransientStorageError(call.path, "no answer")

    compactor = compactor_of(HookedStorage(storage, before=outage, after=published), table)
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    ended: list[InFlight] = []
    for number, pending in enumerate(planned.offered, start=1):
        dispatched = compactor.dispatch(pending.bucket, compaction_id=number, free_slots=1)
        assert isinstance(dispatched, InFlight)
        ended.append(outcome_of(dispatched))
    first, second = ended
    assert isinstance(compactor.cycle([first], ALL).error, CommitUnknown)
    is_over = True
    cycle = compactor.cycle([second], ALL)
    assert (cycle.error, cycle.in_commit) == (None, False)
    assert isinstance(cycle.commit, Committed)
    assert cycle.commit.compaction_ids == (second.compaction_id,)
    assert read_keyed(storage, table) == expected
    assert leftovers(storage, table, [FIRST]) == set()
