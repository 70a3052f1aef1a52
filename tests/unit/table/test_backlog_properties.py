"""What is kept up to date bucket by bucket is what a look at everything would find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.catalog.access import table_in_folder
from compactord.clock import local_ms
from compactord.model import Compaction
from compactord.paimon.data_file import BucketId
from compactord.paimon.schema import TableRef
from compactord.plan.picks import bucket_runs, last_full_compaction_ms
from compactord.plan.table import plan_bucket
from compactord.state.table_state import TableState, load_state
from compactord.table.backlog import PendingCompaction, TableBacklog
from compactord.table.compactor import TableCompactor
from compactord.table.jobs import InFlight, Planned
from compactord.table.opening import OpenTable, open_table
from compactord.table.planner import TOP_MAX
from compactord.table.planning import CompactRequest, PlanContext, StatePlanner, without_busy
from compactord.table.shapes import measured_stop_trigger
from compactord_demo.writer import WriteOnlyWriter
from tests.builders import SECOND, VirtualClock, append_table, compact, keyed_table, rows_of
from tests.builders import WRITER as OWNER
from tests.sampling import examples
from tests.storages import MemoryStorage
from tests.unit.table.compacting import ALL, compactor_of, outcome_of

WHERE = "/warehouse/db.db/t"
WAIT_MS = 600_000
# Workers have the machine's clock: before that, what they made would come from the future.
LATE_MS = 4_000_000_000_000


class History:
    """One table, its writers, and a compactor that only ever hears of changes."""

    def __init__(self, make: Callable[[MemoryStorage], TableRef]) -> None:
        self.storage, self.clock = MemoryStorage(), VirtualClock(LATE_MS)
        self.table = make(self.storage)
        self.writer = WriteOnlyWriter(self.storage, self.table, owner=OWNER, clock=self.clock)
        self.compactor: TableCompactor = compactor_of(
            self.storage, self.table, clock=self.clock, append_wait_ms=WAIT_MS
        )
        self.planned: Planned | None = None
        self.in_flight: dict[int, InFlight] = {}
        self.planned_ms = 0
        self.numbers = 0
        self.key = 0

    def write(self, keys: int) -> None:
        first = self.key % 50
        self.key += 7
        self.writer.write(rows_of([(first + k, self.key) for k in range(keys)]))

    def dispatch(self, which: int) -> None:
        if self.planned is None or not self.planned.offered:
            return
        pending = self.planned.offered[which % len(self.planned.offered)]
        self.numbers += 1
        expected = self._next_decision(pending.bucket)
        dispatched = self.compactor.dispatch(
            pending.bucket, compaction_id=self.numbers, free_slots=1
        )
        if self.clock.steady_ms() == self.planned_ms:
            assert expected == (dispatched.compaction if dispatched is not None else None)
        if dispatched is not None:
            self.in_flight[self.numbers] = dispatched

    def _next_decision(self, bucket: BucketId) -> Compaction | None:
        """As it would be made now, of the state that was planned on."""
        assert self.compactor.last_plan is not None
        seen = self.compactor.last_plan
        table, state, request = seen.table, seen.state, seen.request
        asked = CompactRequest(append_wait_ms=WAIT_MS)
        context = PlanContext.now(asked, self.clock, self.clock.time_zone)
        busy = _busy(self.in_flight).get(bucket, set())
        found = without_busy(StatePlanner(table, state, context).files(bucket), busy)
        return next(iter(plan_bucket(found, request).compactions), None) if len(found) else None

    def compact_elsewhere(self) -> None:
        compact(self.storage, self.table, owner=SECOND)

    def sleep(self, seconds: int) -> None:
        self.clock.sleep(seconds)

    def cycle(self, landing: int, *, failed: bool) -> None:
        numbers = list(self.in_flight)[:landing]
        ended = [outcome_of(self.in_flight.pop(number), failed=failed) for number in numbers]
        cycle = self.compactor.cycle(ended, ALL)
        assert cycle.error is None
        self.planned = cycle.planned or self.planned
        self.planned_ms = self.clock.steady_ms()
        self._check()

    def _check(self) -> None:
        """Everything looked at anew, with the same files busy."""
        planned, seen = self.planned, self.compactor.last_plan
        assert planned is not None
        assert seen is not None
        table = open_table(table_in_folder(self.storage, self.table), {})
        state = load_state(self.storage, self.table)
        asked = CompactRequest(append_wait_ms=WAIT_MS)
        context = replace(
            PlanContext.now(asked, self.clock, self.clock.time_zone),
            last_full_ms=seen.request.last_full_ms,
            final=seen.request.final,
        )
        planner = StatePlanner(table, state, context)
        stop_trigger = measured_stop_trigger(table.options.compaction, 3)
        fresh = TableBacklog(stop_trigger=stop_trigger)
        fresh.update(planner, None, _busy(self.in_flight))
        assert planned.offered == fresh.offered(ALL)
        assert planned.backlog == fresh.backlog()
        if table.key_of is None:
            for pending in planned.offered:
                _require_counted(pending, planner, _busy(self.in_flight), context)
        shape = planned.shape
        assert shape == fresh.shape(snapshots=shape.snapshots)
        if table.key_of is not None:
            worst = worst_buckets(table, state, context)
            assert (shape.size_amplification_max, shape.last_full_compaction_ms) == worst
        if shape.buckets_by_run_state:
            assert sum(shape.buckets_by_run_state.values()) == shape.buckets
            # Buckets with as many runs come in any order.
            assert set(planned.top) == set(fresh.top_buckets(TOP_MAX))


def _require_counted(
    pending: PendingCompaction,
    planner: StatePlanner,
    busy: dict[BucketId, set[str]],
    context: PlanContext,
) -> None:
    """The numbers of a partition without buckets are those of the files that would be taken."""
    found = without_busy(planner.files(pending.bucket), busy.get(pending.bucket, set()))
    compactions = plan_bucket(found, planner.request).compactions
    inputs = [file for compaction in compactions for file in compaction.inputs]
    size = sum(file.file_size for file in inputs)
    now_ms = local_ms(context.now_ms, context.zone)
    created_ms = sorted(min(file.creation_time_ms or 0, now_ms) for file in inputs)
    which = min(planner.request.options.min_file_num, len(inputs)) - 1
    assert (pending.tasks, pending.reason) == (len(compactions), compactions[0].reason)
    assert (pending.files, pending.size_bytes) == (len(inputs), size)
    assert context.steady_ms - pending.since_ms == now_ms - created_ms[which]


def worst_buckets(table: OpenTable, state: TableState, context: PlanContext) -> tuple[float, int]:
    """Size amplification and last full compaction of the worst buckets, each planned as a whole."""
    assert table.key_of is not None
    amplifications, full_ms = [0.0], []
    for bucket in state.files.bucket_ids():
        files = state.files.files_in(bucket)
        *younger, oldest = (run.size_bytes for run in bucket_runs(files, table.key_of))
        amplifications.append(sum(younger) / oldest)
        full_ms.append(last_full_compaction_ms(files, table.options.compaction))
    if not full_ms or None in full_ms:
        return max(amplifications), 0
    offset_ms = local_ms(context.now_ms, context.zone) - context.now_ms
    return max(amplifications), min(ms for ms in full_ms if ms is not None) - offset_ms


def _busy(in_flight: dict[int, InFlight]) -> dict[BucketId, set[str]]:
    busy: dict[BucketId, set[str]] = {}
    for dispatched in in_flight.values():
        compaction: Compaction = dispatched.compaction
        names = busy.setdefault(compaction.bucket, set())
        names.update(file.file_name for file in compaction.inputs)
    return busy


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 40)),
        st.tuples(st.just("write"), st.integers(1, 3)),
        st.tuples(st.just("dispatch"), st.integers(0, 3)),
        st.tuples(st.just("land"), st.integers(0, 2)),
        st.tuples(st.just("fail"), st.integers(1, 2)),
        st.tuples(st.just("compact_elsewhere"), st.just(0)),
        st.tuples(st.just("sleep"), st.sampled_from([1, 90, 700])),
    ),
    min_size=4,
    max_size=25,
)


def _played(history: History, steps: list[tuple[str, int]]) -> None:
    for what, value in steps:
        match what:
            case "land" | "fail":
                history.cycle(value, failed=what == "fail")
            case "compact_elsewhere":
                history.compact_elsewhere()
            case _:
                getattr(history, what)(value)
    history.cycle(0, failed=False)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
def test_a_keyed_table_is_known_as_if_it_were_looked_at_anew(steps: list[tuple[str, int]]) -> None:
    options = {"num-sorted-run.compaction-trigger": "3"}
    _played(History(lambda storage: keyed_table(storage, WHERE, buckets=3, options=options)), steps)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
def test_an_append_table_is_known_as_if_it_were_looked_at_anew(
    steps: list[tuple[str, int]],
) -> None:
    options = {"compaction.min.file-num": "3"}
    _played(History(lambda storage: append_table(storage, WHERE, options=options)), steps)


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_full_compactions_by_snapshots_and_by_the_clock_are_seen_in_time(
    steps: list[tuple[str, int]],
) -> None:
    options = {
        "full-compaction.delta-commits": "3",
        "compaction.offpeak.start.hour": "22",
        "compaction.offpeak.end.hour": "23",
    }
    _played(History(lambda storage: keyed_table(storage, WHERE, buckets=3, options=options)), steps)
