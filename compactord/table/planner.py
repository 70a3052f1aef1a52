"""The plan of a table, with what the process remembers of its own compactions."""

from __future__ import annotations

import contextlib
import datetime
import posixpath
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial

from compactord.clock import Clock
from compactord.commit.changes import BucketChange
from compactord.model import Compaction, CompactReason, Concat, TableKind
from compactord.paimon.data_file import BucketId, DataFile
from compactord.paimon.snapshot import earliest_snapshot_id
from compactord.state.follower import RefreshStats
from compactord.state.table_state import TableState
from compactord.storage.calls import prefetch
from compactord.table.backlog import DispatchFilter, TableBacklog
from compactord.table.explain import table_info
from compactord.table.jobs import InFlight, Planned
from compactord.table.planning import PlanContext, StatePlanner, snapshot_count
from compactord.table.session import TableSession
from compactord.table.shapes import measured_stop_trigger

# Live files that we made and that must not be picked again; beyond this the oldest are forgotten.
_FINAL_MAX = 100_000


class OwnWork:
    """The process's own compactions. Its mappings change with each `published`."""

    def __init__(self) -> None:
        self._final: OrderedDict[str, BucketId] = OrderedDict()
        self._last_full_ms: OrderedDict[BucketId, int] = OrderedDict()
        self._unreadable: OrderedDict[BucketId, dict[str, str]] = OrderedDict()

    @property
    def unreadable(self) -> Mapping[BucketId, Mapping[str, str]]:
        """Files whose columns cannot be read as the table's: names and reasons, by bucket."""
        return self._unreadable

    def cannot_read(self, bucket: BucketId, found: Iterable[tuple[str, str]]) -> None:
        """A compaction failed for these files, given by path, each with the reason."""
        for path, why in found:
            self._unreadable.setdefault(bucket, {})[posixpath.basename(path)] = why
        while sum(map(len, self._unreadable.values())) > _FINAL_MAX:
            # A later attempt fails and reports them again.
            self._unreadable.popitem(last=False)

    def read_again(self) -> Set[BucketId]:
        """Forgets the files that cannot be read, after a change of the schema; their buckets."""
        buckets = frozenset(self._unreadable)
        self._unreadable.clear()
        return buckets

    @property
    def final(self) -> Set[str]:
        """Names of live files of ours that are not rewritten again."""
        return self._final.keys()

    @property
    def last_full_ms(self) -> Mapping[BucketId, int]:
        """Full compactions, in steady time, the oldest first."""
        return self._last_full_ms

    def published(
        self,
        compaction: Compaction,
        change: BucketChange,
        *,
        now_ms: int,
        interval_ms: int | None,
    ) -> None:
        """A compaction was published at `now_ms`.

        `interval_ms` is `compaction.optimization-interval`: a full compaction longer ago than this
        has no effect.
        """
        for name in change.removed:
            self._final.pop(name, None)
            self._unreadable.get(compaction.bucket, {}).pop(name, None)
        for name in final_files(compaction, change.after):
            self._final[name] = compaction.bucket
        while len(self._final) > _FINAL_MAX:
            self._final.popitem(last=False)
        if not compaction.reason.is_full:
            return
        known = self._last_full_ms
        known[compaction.bucket] = now_ms
        known.move_to_end(compaction.bucket)
        while known and (interval_ms is None or now_ms - next(iter(known.values())) > interval_ms):
            known.popitem(last=False)

    def forget(self, emptied: Set[BucketId]) -> None:
        """Forgets buckets that have no files any more."""
        for bucket in emptied:
            self._last_full_ms.pop(bucket, None)
            self._unreadable.pop(bucket, None)
        for name in [name for name, bucket in self._final.items() if bucket in emptied]:
            del self._final[name]


def final_files(compaction: Compaction, after: Sequence[DataFile]) -> frozenset[str]:
    """Names of the new files that later plans get as `PlanRequest.final`.

    `after` are the published files of the compaction in their order. The last file of an append
    task may be small and is packed with other files later; the rest are final at any size.
    """
    before = {file.file_name for file in compaction.inputs}
    names = [file.file_name for file in after if file.file_name not in before]
    match compaction.actions:
        case (Concat(ordered=True),) if compaction.reason is not CompactReason.APPEND_SMALL_FILES:
            pass
        case (Concat(),):
            names = names[:-1]
    return frozenset(names)


# How many buckets of each table are candidates for the service's list by run count.
TOP_MAX = 20


class TablePlanner:
    """Plans one table; one thread at a time uses it.

    `last_plan` is None before the first plan. Safe to read from any thread.
    """

    def __init__(
        self,
        followed: TableSession,
        own_work: OwnWork,
        *,
        clock: Clock,
        zone: datetime.tzinfo,
    ) -> None:
        self._followed = followed
        self._clock = clock
        self._zone = zone
        self._own_work = own_work
        self._backlog = TableBacklog(stop_trigger=self._stop_trigger)
        self.last_plan: StatePlanner | None = None
        # Compactions under way, by id: their inputs are not planned again.
        self._in_flight: dict[int, InFlight] = {}
        # Buckets whose files became busy or free since they were planned.
        self._touched: set[BucketId] = set()
        # Whether all buckets must be planned again.
        self._is_stale = True
        # Work that was not offered the last time.
        self._skip = DispatchFilter()
        # Reads the id of the oldest snapshot.
        self._earliest: Callable[[], int | None] = lambda: None

    @property
    def busy(self) -> Mapping[BucketId, Set[str]]:
        """Names of files that running compactions read."""
        busy: dict[BucketId, set[str]] = {}
        for each in self._in_flight.values():
            names = busy.setdefault(each.compaction.bucket, set())
            names.update(file.file_name for file in each.compaction.inputs)
        return busy

    @contextlib.contextmanager
    def prefetching(self, *, will_plan: bool) -> Iterator[None]:
        """Prefetches the plan's inputs besides the state if a plan is certain in this cycle."""
        table = self._followed.table
        ask = partial(earliest_snapshot_id, table.storage, table.ref.root)
        will_plan = will_plan or self._is_stale
        begun = prefetch(table.storage, ask) if will_plan else contextlib.nullcontext(ask)
        with begun as self._earliest:
            yield

    def plan(self, skip: DispatchFilter, *, is_current: bool = False) -> Planned | None:
        """Reads news and plans what may have changed; None without news.

        Also None while our newest snapshot has to settle. `is_current`: the state's snapshot was
        published just now, so the next plan is early enough for later ones. Raises what
        `TableSession` raises.
        """
        start_s, followed = self._clock.monotonic_s(), self._followed
        is_new = is_current or followed.refresh()
        before, busy = followed.state, self.busy.keys()
        followed.look_back(busy=busy, may_commit=skip.may_commit, is_current=is_current)
        if followed.wait_ms():
            # Another process has just published, or a lost commit was made again.
            self._is_stale = True
            return None
        is_new = is_new or followed.state is not before or self._is_behind
        options = followed.table.options.compaction
        is_time = self._backlog.is_time(self._clock.steady_ms(), options)
        if skip == self._skip and not (is_new or self._touched or self._is_stale or is_time):
            return None
        drift = followed.drain_stats()
        emptied = self._update(drift)
        self._is_stale, self._skip = False, skip
        return self._planned(drift, emptied, start_s)

    def take(self, bucket: BucketId) -> tuple[Compaction, TableState] | None:
        """The next decision on a bucket, and its state, or None if none is left.

        Raises planning errors if the decision was not kept.
        """
        # Plan the bucket again in any case: its pending compaction has been taken.
        self._touched.add(bucket)
        assert self.last_plan is not None, "a cycle comes first"
        compaction = self._backlog.take(bucket, self.busy.get(bucket, set()))
        return None if compaction is None else (compaction, self.last_plan.state)

    def mark_busy(self, in_flight: InFlight) -> None:
        """Marks its inputs as busy until it is released."""
        self._in_flight[in_flight.compaction_id] = in_flight

    def release(self, compaction_ids: Iterable[int]) -> None:
        """Frees the inputs of these compactions."""
        for compaction_id in compaction_ids:
            ended = self._in_flight.pop(compaction_id, None)
            if ended is not None:
                self._touched.add(ended.compaction.bucket)

    def forget(self) -> None:
        """Plan everything again."""
        self._is_stale = True

    def is_idle(self, skip: DispatchFilter) -> bool:
        """Whether manifests may be merged in a commit of their own."""
        return not (skip.manifests or self._in_flight or self._backlog.has_work)

    @property
    def _is_behind(self) -> bool:
        """Whether the newest known snapshot was not planned on: partitions were dropped."""
        return (
            self.last_plan is None or self.last_plan.state.snapshot != self._followed.state.snapshot
        )

    @property
    def _stop_trigger(self) -> int:
        options, request = self._followed.table.options.compaction, self._followed.request
        return measured_stop_trigger(options, request.stop_trigger_fallback)

    def _update(self, drift: RefreshStats) -> frozenset[BucketId]:
        """Plans buckets that may have changed; returns buckets that have no files any more."""
        table, state, known = self._followed.table, self._followed.state, self.last_plan
        if known is not None and known.table.schema.id != table.schema.id:
            self._touched.update(self._own_work.read_again())
        changed = None if self._is_stale or drift.changed is None else drift.changed | self._touched
        if known is not None and known.request.options != table.options.compaction:
            changed = None
        if changed is None:
            self._backlog = TableBacklog(stop_trigger=self._stop_trigger)
        context = replace(
            PlanContext.now(self._followed.request, self._clock, self._zone),
            last_full_ms=self._own_work.last_full_ms,
            final=self._own_work.final,
            unreadable=self._own_work.unreadable,
        )
        planner = StatePlanner(table, state, context)
        self._backlog.update(planner, changed, self.busy)
        emptied = self._emptied(state, changed)
        self._own_work.forget(emptied)
        self.last_plan = planner
        self._touched.clear()
        return emptied

    def _planned(
        self,
        drift: RefreshStats,
        emptied: frozenset[BucketId],
        start_s: float,
    ) -> Planned:
        table, state, backlog = self._followed.table, self._followed.state, self._backlog
        has_runs = table.kind is TableKind.PRIMARY_KEY
        snapshots, without = snapshot_count(state, self._earliest), self._skip.buckets
        due = backlog.backlog()
        return Planned(
            snapshot_id=state.snapshot.id if state.snapshot else 0,
            info=table_info(
                table,
                stop_trigger_fallback=self._followed.request.stop_trigger_fallback,
                rewrite=state.rewrites.newest if state.rewrites else None,
            ),
            shape=backlog.shape(snapshots=snapshots),
            offered=backlog.offered(self._skip),
            backlog=due,
            workable=backlog.backlog(without=without) if without else due,
            blocked=backlog.backlog_of(without),
            damaged=backlog.damaged(),
            top=backlog.top_buckets(TOP_MAX) if has_runs else (),
            discovery_interval_ms=table.options.discovery_interval_ms,
            appended_bytes=drift.appended_bytes,
            emptied=emptied,
            manifests_read=drift.manifests,
            entries_read=drift.entries,
            entries_skipped=drift.skipped_entries,
            seconds=self._clock.monotonic_s() - start_s,
            cooling_down=backlog.cooling_down(),
        )

    def _emptied(self, state: TableState, changed: Set[BucketId] | None) -> frozenset[BucketId]:
        """Buckets that had files when last planned or taken, and have none now."""
        if changed is not None:
            return frozenset(b for b in changed if not state.files.summary(b).file_count)
        before = self.last_plan.state.files.bucket_ids() if self.last_plan is not None else ()
        return frozenset(self._touched.union(before).difference(state.files.bucket_ids()))
