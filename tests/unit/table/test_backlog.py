"""The numbers of a table's shape against sums over its files, and what they are for."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.catalog.access import table_in_folder
from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import EMPTY_ROW, BucketId, DataFile, EntryKind, ManifestEntry
from compactord.paimon.types import AtomicType, TypeRoot
from compactord.plan.picks import bucket_runs
from compactord.plan.table import Strategy
from compactord.state.loading import no_files
from compactord.state.table_state import TableState, load_state
from compactord.table.backlog import TableBacklog
from compactord.table.opening import open_table
from compactord.table.planning import CompactRequest, PlanContext, StatePlanner
from compactord.table.status import TableShape
from tests.builders import append_table, compact, fill_keyed, keyed_table, writer
from tests.sampling import examples
from tests.storages import MemoryStorage
from tests.unit.plan.builders import NOW_MS, data_file, key_of
from tests.unit.plan.test_table_properties import lsm_files
from tests.unit.table.compacting import ALL, compactor_of

WHERE = "/warehouse/db.db/t"
BUCKETS = 4
TOP = 5
BIGINT = AtomicType(root=TypeRoot.BIGINT)
Buckets = dict[BucketId, list[DataFile]]


def context(zone: datetime.tzinfo = datetime.timezone.utc) -> PlanContext:
    return PlanContext(request=CompactRequest(), now_ms=NOW_MS, steady_ms=NOW_MS, zone=zone)


class KnownTable:
    """A table of metadata alone, and a backlog that hears of each change of a bucket."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.ref = keyed_table(self.storage, WHERE, buckets=BUCKETS)
        self.table = open_table(table_in_folder(self.storage, self.ref), {})
        self.files = no_files(WHERE)
        self.backlog = TableBacklog(stop_trigger=8)
        self.buckets: Buckets = {}
        self.look(None)

    def replace(self, bucket: BucketId, files: Sequence[DataFile]) -> None:
        """One commit that gives the bucket other files."""
        before = self.buckets.pop(bucket, [])
        self.files = self.files.applied(
            [entry_of(EntryKind.DELETE, bucket, file) for file in before]
            + [entry_of(EntryKind.ADD, bucket, file) for file in files]
        )
        if files:
            self.buckets[bucket] = list(files)
        self.look(frozenset({bucket}))

    def look(
        self, changed: frozenset[BucketId] | None, zone: datetime.tzinfo = datetime.timezone.utc
    ) -> None:
        state = TableState(table=self.ref, snapshot=None, files=self.files)
        planner = StatePlanner(self.table, state, context(zone))
        self.backlog.update(planner, changed, {})

    def shape(self, zone: datetime.tzinfo = datetime.timezone.utc) -> TableShape:
        self.look(frozenset(), zone)
        return self.backlog.shape(snapshots=1)


def entry_of(kind: EntryKind, bucket: BucketId, file: DataFile) -> ManifestEntry:
    return ManifestEntry(
        kind=kind,
        partition=bucket.partition,
        bucket=bucket.bucket,
        total_buckets=BUCKETS,
        file=file,
    )


def of_the_table(files: Sequence[DataFile], commit: int) -> list[DataFile]:
    """With names that were not there before, and keys as the table has them."""
    return [
        replace(
            file,
            file_name=f"data-{commit}-{file.file_name}.parquet",
            min_key=encode_row(key_of(file.min_key), [BIGINT]),
            max_key=encode_row(key_of(file.max_key), [BIGINT]),
        )
        for file in files
    ]


def amplification(files: Sequence[DataFile]) -> float:
    *younger, oldest = (run.size_bytes for run in bucket_runs(files, lambda key: key))
    return sum(younger) / oldest


def last_full_ms(files: Sequence[DataFile]) -> int:
    top = max(file.level for file in files)
    created = [file.creation_time_ms or 0 for file in files if file.level == top]
    return max(created) if top >= TOP else 0


commits = st.lists(
    st.tuples(st.builds(BucketId, st.just(EMPTY_ROW), st.integers(0, BUCKETS - 1)), lsm_files()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(300), deadline=None)
@given(commits)
def test_worst_buckets_are_those_of_all(steps: list[tuple[BucketId, list[DataFile]]]) -> None:
    known = KnownTable()
    for number, (bucket, files) in enumerate(steps):
        known.replace(bucket, of_the_table(files, number))
        worst = max(map(amplification, known.buckets.values()), default=0.0)
        longest_ago = min(map(last_full_ms, known.buckets.values()), default=0)
        shape = known.shape()
        assert shape.buckets == len(known.buckets)
        assert (shape.size_amplification_max, shape.last_full_compaction_ms) == (worst, longest_ago)


def runs(*sizes: int, level: int = 0, created_ms: int | None = NOW_MS) -> list[DataFile]:
    """Oldest first."""
    return [
        data_file(f"f{level}-{n}", size=size, level=level, sequences=(n, n), created_ms=created_ms)
        for n, size in enumerate(sizes)
    ]


def test_a_bucket_that_is_not_due_may_be_the_worst() -> None:
    known = KnownTable()
    known.replace(BucketId(EMPTY_ROW, 0), of_the_table(runs(100, 300, 50, 25), 0))
    known.replace(BucketId(EMPTY_ROW, 1), of_the_table(runs(100, 10, 10, 10, 10), 1))
    assert [pending.bucket.bucket for pending in known.backlog.offered(ALL)] == [1]
    assert known.shape().size_amplification_max == 3.75


def test_a_bucket_that_is_being_compacted_counts() -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE, buckets=1)
    fill_keyed(writer(storage, table), commits=6)
    compactor = compactor_of(storage, table)
    before = compactor.cycle((), ALL).planned
    assert before is not None
    assert compactor.dispatch(before.offered[0].bucket, compaction_id=1, free_slots=1)
    meanwhile = compactor.cycle((), ALL).planned
    assert meanwhile is not None
    assert meanwhile.offered == ()
    assert meanwhile.shape.size_amplification_max == before.shape.size_amplification_max > 1


def test_an_append_table_has_no_runs_to_be_amplified() -> None:
    storage = MemoryStorage()
    table = append_table(storage, WHERE)
    fill_keyed(writer(storage, table), commits=4)
    planned = compactor_of(storage, table).cycle((), ALL).planned
    assert planned is not None
    assert planned.shape.files == 4
    assert planned.shape.size_amplification_max == 0


def test_a_full_compaction_by_somebody_else_is_known_to_a_new_service() -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE, buckets=2)
    fill_keyed(writer(storage, table), commits=4)
    compactor = compactor_of(storage, table)
    first = compactor.cycle((), ALL).planned
    assert first is not None
    assert first.shape.last_full_compaction_ms == 0
    compact(storage, table, strategy=Strategy.FULL)
    files = load_state(storage, table).files
    created = {file.creation_time_ms for b in files.bucket_ids() for file in files.files_in(b)}
    for service in (compactor, compactor_of(storage, table)):
        planned = service.cycle((), ALL).planned
        assert planned is not None
        assert planned.shape.last_full_compaction_ms == min(created)


def test_the_last_full_compaction_is_none_while_a_bucket_never_had_one() -> None:
    known = KnownTable()
    first, second = BucketId(EMPTY_ROW, 0), BucketId(EMPTY_ROW, 1)
    assert known.shape().last_full_compaction_ms == 0
    known.replace(first, of_the_table(runs(100, level=TOP), 0))
    assert known.shape().last_full_compaction_ms == NOW_MS
    known.replace(second, of_the_table(runs(100, level=TOP - 1), 1))
    assert known.shape().last_full_compaction_ms == 0
    known.replace(second, of_the_table(runs(100, level=TOP + 1, created_ms=NOW_MS - 9), 2))
    assert known.shape().last_full_compaction_ms == NOW_MS - 9
    known.replace(second, of_the_table(runs(100, level=TOP, created_ms=None), 3))
    assert known.shape().last_full_compaction_ms == 0
    known.replace(second, [])
    assert known.shape().last_full_compaction_ms == NOW_MS


def test_creation_times_are_local() -> None:
    known = KnownTable()
    known.replace(BucketId(EMPTY_ROW, 0), of_the_table(runs(100, level=TOP), 0))
    east = datetime.timezone(datetime.timedelta(hours=2))
    assert known.shape(east).last_full_compaction_ms == NOW_MS - 2 * 3_600_000


def test_equally_urgent_buckets_come_in_order() -> None:
    known = KnownTable()
    for commit, bucket in enumerate((2, 0, 1)):
        known.replace(BucketId(EMPTY_ROW, bucket), of_the_table(runs(9, 9, 9, 9, 9), commit))
    assert [pending.bucket.bucket for pending in known.backlog.offered(ALL)] == [0, 1, 2]
