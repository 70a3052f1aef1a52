"""A run over small real tables in memory: conflicts, losses, failures, stops."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from compactord.errors import (
    AccessDenied,
    CommitUnknown,
    ErrorKind,
    StorageError,
    StoreFull,
    TransientStorageError,
)
from compactord.maintenance.orphans import SweepOrphans
from compactord.model import FailureKind, Subcompaction, SubcompactionFailure, SubcompactionOutcome
from compactord.paimon import paths
from compactord.paimon.avro.types import codec_of
from compactord.paimon.manifest.manifest_files import encode_manifest_list
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import snapshot_ids, snapshot_json
from compactord.plan.table import Strategy
from compactord.state.table_state import data_manifests, load_state
from compactord.table import report
from tests import builders
from tests.builders import FIRST, SECOND
from tests.inline_engine import InlineEngine
from tests.storages import Call, Fault, FaultyStorage, HookedStorage, MemoryStorage

LOCATION = "/w/db.db/t"


def _keyed(buckets: int = 2) -> tuple[MemoryStorage, TableRef, dict[int, int]]:
    storage = MemoryStorage()
    table = builders.keyed_table(storage, LOCATION, buckets=buckets)
    return storage, table, builders.fill_keyed(builders.writer(storage, table), commits=5)


def _creates(call: Call) -> bool:
    return call.method == "create_if_absent"


def _check(storage: MemoryStorage, table: TableRef, expected: dict[int, int]) -> None:
    assert builders.read_keyed(storage, table) == expected
    builders.check_chain(storage, table)


def test_a_run_compacts_everything_and_a_second_one_finds_nothing() -> None:
    storage, table, expected = _keyed()
    totals = builders.compact(storage, table)
    assert (totals.snapshots, totals.compactions, totals.failures) == ([6], 2, [])
    assert totals.rows_out == len(expected)
    _check(storage, table, expected)
    assert builders.compact(storage, table, owner=SECOND).snapshots == []


def test_many_small_buckets_are_published_in_few_snapshots() -> None:
    storage = MemoryStorage()
    table = builders.keyed_table(storage, LOCATION, buckets=32)
    expected = builders.fill_keyed(builders.writer(storage, table), commits=5, keys=4000)
    totals = builders.compact(storage, table)
    assert (totals.compactions, len(totals.snapshots)) == (32, 1)
    _check(storage, table, expected)


def test_a_run_without_work_starts_no_engine() -> None:
    storage = MemoryStorage()
    table = builders.keyed_table(storage, LOCATION)

    def no_engine() -> InlineEngine:
        raise AssertionError("there is nothing to do")

    assert builders.compact(storage, table, start_engine=no_engine).snapshots == []


def test_a_run_that_only_moves_files_to_another_level_starts_no_engine() -> None:
    storage = MemoryStorage()
    table = builders.keyed_table(
        storage, LOCATION, buckets=1, options={"target-file-size": "100 b"}
    )
    builders.writer(storage, table).write(builders.rows_of([(1, 10), (2, 20)]))

    def no_engine() -> InlineEngine:
        raise AssertionError("no row is rewritten")

    totals = builders.compact(storage, table, strategy=Strategy.FULL, start_engine=no_engine)
    assert (totals.upgraded_files, totals.files_in, len(totals.snapshots)) == (1, 0, 1)
    _check(storage, table, {1: 10, 2: 20})


@pytest.mark.parametrize("n", [1, 3])
def test_a_failure_that_passes_while_a_round_is_planned_is_tried_again(n: int) -> None:
    storage, table, expected = _keyed()
    faulty = FaultyStorage(
        storage,
        Fault(
            at=n,
            error=TransientStorageError,
            concerns=lambda call: call.method == "read" and "/manifest/" in call.path,
        ),
    )
    totals = builders.compact(faulty, table)
    assert len(faulty.failed) == 1
    assert (totals.snapshots, totals.failures) == ([6], [])
    _check(storage, table, expected)


def test_a_bucket_that_moved_on_is_dropped_counted_and_planned_anew() -> None:
    storage, table, expected = _keyed()
    rivals = iter([True])

    def rival(call: Call) -> None:
        if call.method == "close_output" and "/bucket-0/" in call.path and next(rivals, False):
            builders.compact(storage, table, owner=SECOND)

    totals = builders.compact(HookedStorage(storage, after=rival), table)
    assert totals.dropped >= 1
    assert totals.wasted_bytes > 0
    assert totals.failures == []
    _check(storage, table, expected)
    assert builders.leftovers(storage, table, [FIRST, SECOND]) == set()


def test_the_rest_of_a_commit_is_published_when_one_bucket_is_dropped() -> None:
    storage, table, expected = _keyed()
    acts = iter([True])

    def rival(call: Call) -> None:
        if call.method == "close_output" and next(acts, False):
            builders.compact(storage, table, owner=SECOND, start_engine=_OnlyBucket0)

    totals = builders.compact(HookedStorage(storage, after=rival), table)
    assert totals.dropped == 1
    assert totals.compactions == 1
    assert totals.failures == []
    _check(storage, table, expected)
    assert builders.leftovers(storage, table, [FIRST, SECOND]) == set()


class _OnlyBucket0(InlineEngine):
    """Its workers cannot do the subcompactions of any other bucket."""

    def submit(self, subcompaction: Subcompaction) -> None:
        if subcompaction.write.folder.endswith("/bucket-0"):
            super().submit(subcompaction)
        else:
            self._finished.append(_failed(subcompaction, FailureKind.POISON))


def _failed(subcompaction: Subcompaction, kind: FailureKind) -> SubcompactionFailure:
    return SubcompactionFailure(
        compaction_id=subcompaction.compaction_id,
        index=subcompaction.index,
        kind=kind,
        error=ErrorKind("Broken"),
        message="this worker is broken",
        traceback="",
    )


def test_a_bucket_that_fails_for_good_is_named_and_the_others_are_published() -> None:
    storage, table, expected = _keyed()
    totals = builders.compact(storage, table, start_engine=_OnlyBucket0)
    assert totals.failures == ["bucket 1: this worker is broken"]
    assert totals.compactions == 1
    _check(storage, table, expected)


class _Flaky(InlineEngine):
    """Each subcompaction fails once before it is done."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[int] = set()

    def next_outcome(self, timeout_s: float | None) -> SubcompactionOutcome | None:
        if self._waiting and self._waiting[0].compaction_id not in self._seen:
            subcompaction = self._waiting.popleft()
            self._seen.add(subcompaction.compaction_id)
            return _failed(subcompaction, FailureKind.LOST)
        return super().next_outcome(timeout_s)


def test_subcompactions_that_were_lost_are_done_again() -> None:
    storage, table, expected = _keyed()
    totals = builders.compact(storage, table, start_engine=_Flaky)
    assert (totals.compactions, totals.failures) == (2, [])
    _check(storage, table, expected)


def test_writers_that_always_come_first_end_with_the_bucket_set_aside() -> None:
    storage = MemoryStorage()
    table = builders.append_table(storage, LOCATION, options={"compaction.min.file-num": "2"})
    target = builders.writer(storage, table)
    for commit in range(3):
        target.write(builders.rows_of([(commit, commit)]))
    acting: list[bool] = []

    def replaced_inputs(call: Call) -> None:
        if call.method == "close_output" and not acting:
            acting.append(True)
            builders.compact(storage, table, owner=SECOND)
            for commit in range(3):
                target.write(builders.rows_of([(commit, commit)]))
            acting.clear()

    totals = builders.compact(HookedStorage(storage, after=replaced_inputs), table)
    assert totals.dropped == 5
    assert len(totals.failures) == 1
    assert "writers came first 5 times" in totals.failures[0]
    assert builders.leftovers(storage, table, [FIRST, SECOND]) == set()


@pytest.mark.parametrize("is_replaced", [True, False])
def test_inputs_that_are_gone_fail_unless_a_rival_replaced_them(*, is_replaced: bool) -> None:
    storage = MemoryStorage()
    table = builders.append_table(storage, LOCATION, options={"compaction.min.file-num": "2"})
    target = builders.writer(storage, table)
    for commit in range(3):
        target.write(builders.rows_of([(commit, commit)]))
    rivals = iter([True])
    inputs = set(builders.live_paths(storage, table, load_state(storage, table)))

    def replaced_inputs(call: Call) -> None:
        if call.method == "read" and call.path in inputs and next(rivals, False):
            if is_replaced:
                builders.compact(storage, table, owner=SECOND)
            for path in inputs:
                storage.delete(path)

    totals = builders.compact(HookedStorage(storage, before=replaced_inputs), table)
    assert (totals.snapshots, totals.dropped) == ([], int(is_replaced))
    assert len(totals.failures) == int(not is_replaced)


@pytest.mark.parametrize("error", [AccessDenied, StoreFull])
def test_a_commit_that_fails_is_told_and_what_it_cancels_is_not(error: type[StorageError]) -> None:
    storage, table, expected = _keyed(buckets=3)
    refused = Fault(at=1, error=error, concerns=_creates)
    run = builders.one_shot(FaultyStorage(storage, refused), table, start_engine=_OneByOne)
    with capture_logs() as events, pytest.raises(error, match="no snapshot was published"):
        run.run()
    assert run.totals.failures == []
    assert [event for event in events if event["log_level"] == "error"] == []
    _check(storage, table, expected)
    assert builders.leftovers(storage, table, [FIRST]) == set()


class _OneByOne(InlineEngine):
    """Takes all subcompactions of a round; each outcome is committed before the next one comes."""

    capacity = 4

    def next_outcome(self, timeout_s: float | None) -> SubcompactionOutcome | None:
        return super().next_outcome(timeout_s) if timeout_s else None


@pytest.mark.parametrize(("delay_ms", "snapshots"), [(5_000, [6]), (0, [6, 7])])
def test_a_compaction_waits_for_others_as_long_as_it_may(
    delay_ms: int, snapshots: list[int]
) -> None:
    storage, table, expected = _keyed()
    totals = builders.compact(storage, table, start_engine=_OneByOne, max_commit_delay_ms=delay_ms)
    assert totals.snapshots == snapshots
    _check(storage, table, expected)


def test_results_that_nobody_needs_any_more_are_told_as_such() -> None:
    storage, table, _ = _keyed(buckets=1)
    rivals = iter([True])

    def rival(call: Call) -> None:
        if call.method == "close_output" and next(rivals, False):
            builders.compact(storage, table, owner=SECOND)

    totals = builders.compact(HookedStorage(storage, after=rival), table)
    assert (totals.snapshots, totals.dropped) == ([], 1)
    first, second = report.totals_text("db.t", totals)
    assert first == "db.t: nothing published and nothing left to do: other writers did the work"
    assert second.startswith("  1 result dropped because other commits came first")


class _Java:
    """A Java writer that has looked before us; its rename puts its snapshot in place of ours."""

    uuid = "0bf4ab4e-7d8e-4d1c-9f4b-3d6f3a1b2c4d"

    def __init__(self, storage: MemoryStorage, table: TableRef) -> None:
        self._storage = storage
        base = load_state(storage, table).snapshot
        assert base is not None
        manifests = data_manifests(storage, table.location, base)
        lists = {}
        for name, held in (("base", manifests), ("delta", ())):
            data = encode_manifest_list(held, codec_of("zstd", 1))
            storage.write_new(f"{LOCATION}/manifest/manifest-list-java-{name}", data)
            lists[f"{name}_manifest_list"] = f"manifest-list-java-{name}"
            lists[f"{name}_manifest_list_size"] = len(data)
        own = {"uuid": self.uuid, "commit_user": "java", "delta_record_count": 0}
        self._snapshot = replace(base, id=base.id + 1, **own, **lists)  # type: ignore[arg-type]

    def rename(self) -> None:
        path = paths.snapshot_path(LOCATION, self._snapshot.id)
        self._storage.overwrite(path, snapshot_json(self._snapshot))


def test_a_snapshot_that_java_replaced_is_reported_and_its_work_is_done_again() -> None:
    storage, table, expected = _keyed()
    java = _Java(storage, table)
    chances = iter([True])

    def replace_once(call: Call) -> None:
        if _creates(call) and next(chances, False):
            java.rename()

    totals = builders.compact(HookedStorage(storage, after=replace_once), table)
    assert len(totals.lost_snapshots) == 1
    assert f"is now {java.uuid} by java" in totals.lost_snapshots[0]
    assert totals.snapshots == [7]
    _check(storage, table, expected)
    # The outputs of the lost snapshot stay while this process lives: someone may read them.
    lost = builders.leftovers(storage, table, [FIRST])
    assert sum(name.startswith("data-") for name in lost) == 2
    builders.remove_leftovers(storage, table, myself=SECOND)
    assert builders.leftovers(storage, table, [FIRST]) == set()
    _check(storage, table, expected)


def test_a_snapshot_that_java_replaces_between_two_rounds_is_reported() -> None:
    storage, table, expected = _keyed()
    java = _Java(storage, table)
    looks: list[Call] = []

    def replace_after_the_commit(call: Call) -> None:
        # The commit reads its snapshot once; what it plans on that asks for nothing.
        is_there = f"{LOCATION}/snapshot/snapshot-6" in storage.objects
        if len(looks) == 1:
            looks.append(call)
            java.rename()
        elif is_there and call.method == "read" and call.path.endswith("/snapshot-6"):
            looks.append(call)

    totals = builders.compact(HookedStorage(storage, before=replace_after_the_commit), table)
    assert totals.snapshots == [6, 7]
    _check(storage, table, expected)
    assert len(totals.lost_snapshots) == 1


def test_an_unknown_outcome_removes_nothing_and_ends_the_run() -> None:
    storage, table, expected = _keyed()
    down: list[Call] = []

    def outage(call: Call) -> None:
        # Deleting would work, but nobody may.
        if down and call.method != "delete":
            raise TransientStorageError(call.path, "no answer")

    def published(call: Call) -> None:
        if _creates(call):
            down.append(call)
            raise TransientStorageError(call.path, "no answer")

    with pytest.raises(CommitUnknown):
        builders.compact(HookedStorage(storage, before=outage, after=published), table)
    _check(storage, table, expected)
    assert snapshot_ids(storage, LOCATION)[-1] == 6
    assert builders.leftovers(storage, table, [FIRST]) == set()


def test_a_commit_that_fails_for_good_removes_the_outputs() -> None:
    storage, table, expected = _keyed()
    fault = Fault(at=1, error=StoreFull, lasts=True, concerns=_creates)
    with pytest.raises(StoreFull):
        builders.compact(FaultyStorage(storage, fault), table)
    _check(storage, table, expected)
    assert builders.leftovers(storage, table, [FIRST]) == set()


def test_a_stop_ends_the_run_and_leaves_nothing_unpublished() -> None:
    storage, table, expected = _keyed()
    stop = threading.Event()

    def stop_early(call: Call) -> None:
        if call.method == "close_output":
            stop.set()

    totals = builders.compact(HookedStorage(storage, after=stop_early), table, stop=stop)
    assert totals.stopped
    _check(storage, table, expected)
    assert builders.leftovers(storage, table, [FIRST]) == set()


def test_leftovers_that_cannot_be_listed_do_not_keep_the_run_from_working() -> None:
    storage, table, expected = _keyed()
    fault = Fault(
        at=1, error=TransientStorageError, concerns=lambda call: call.path.endswith("/manifest")
    )
    faulty = FaultyStorage(storage, fault)
    run = builders.one_shot(faulty, table)
    run.maintain(SweepOrphans(interval_ms=0, grace_ms=1))
    assert faulty.failed
    assert run.run().compactions == 2
    _check(storage, table, expected)


def test_manifests_that_cannot_be_merged_end_a_run_with_the_error() -> None:
    storage = MemoryStorage()
    options = {"compaction.min.file-num": "1000"}
    table = builders.append_table(storage, LOCATION, options=options)
    target = builders.writer(storage, table)
    for number in range(40):
        target.write(builders.rows_of([(number, number)]))
    refused = Fault(at=1, error=AccessDenied, lasts=True, concerns=lambda call: call.is_mutation)
    with pytest.raises(AccessDenied):
        builders.compact(FaultyStorage(storage, refused), table)
    assert snapshot_ids(storage, LOCATION)[-1] == 40
