"""Pending compactions of a table and its numbers, updated bucket by bucket.

Only changed buckets are planned again, and buckets that are due by time: small files
or rows have waited long enough, or a partition is no longer skipped after a rewrite.
Sums over all buckets are computed on columns.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from compactord.errors import ErrorKind, FormatError
from compactord.model import Compaction, CompactReason, TableKind, WorkKind
from compactord.paimon.avro.columns import NULL, Ints
from compactord.paimon.data_file import BucketFiles, BucketId
from compactord.paimon.options.table_options import CompactionOptions
from compactord.plan.append import PackedCompactions
from compactord.plan.table import BucketPlan, PlannedFiles, PlanRequest
from compactord.state.base_files import BucketSummaries
from compactord.state.columns import FileTimes
from compactord.state.files_by_size import FilesBySize
from compactord.state.rewrites import Cooldown
from compactord.table.planning import StatePlanner, damage_text
from compactord.table.shapes import table_shape, top_buckets
from compactord.table.status import Backlog, BucketView, CoolingPartition, TableShape, is_near_stop


def _inputs_of(compactions: Sequence[Compaction]) -> tuple[int, int, Ints | list[int]]:
    """The number and bytes of the input files, and their creation times, NULL if unknown.

    The times are from files on level 0 or, without any there, from all inputs.
    """
    if isinstance(compactions, PackedCompactions):
        columns, taken = compactions.files.columns, compactions.taken
        newcomers = taken & (columns.level == 0)
        return (
            int(np.count_nonzero(taken)),
            int(columns.file_size[taken].sum()),
            columns.creation_time_ms[newcomers if newcomers.any() else taken],
        )
    files = [file for each in compactions for file in each.inputs]
    newest = [file for file in files if file.level == 0] or files
    return len(files), sum(file.file_size for file in files), [file.created_ms for file in newest]


def _first_of(compactions: Sequence[Compaction]) -> tuple[WorkKind, CompactReason, int]:
    """Kind, reason and output level of the first one; packed files become no objects."""
    if isinstance(compactions, PackedCompactions):
        return WorkKind.APPEND, compactions.bins[0].reason, 0
    return compactions[0].kind, compactions[0].reason, compactions[0].output_level


# How many of a table's most urgent buckets are offered at once; the rest are only counted.
OFFERED_MAX = 64
# How many of a table's damaged buckets are reported at once.
_DAMAGED_MAX = 1_000
# Decisions are kept from the poll until they begin while they have at most this many files over
# all buckets of a table; other decisions are made again when they begin.
_KEPT_FILES_MAX = 2_000
# A small file of a partition without buckets, which is no object, counts as this share of one.
_PACKED = 16
# No file is as large.
_NEVER_LARGE = 1 << 62
# How often triggers that depend on the hour are evaluated.
_REPLAN_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCompaction:
    """A bucket that has something to do.

    `since_ms` is the creation of the input that made it due, in steady time, at the age that the
    wall clock showed when it was planned. `files_saved` is by how much the number of files falls.
    `is_near_stop`: its run count is about to reach the stop-trigger. `waiting_since_ms` is the
    write time of the oldest row that it makes visible, 0 if none. `reads_files` is false if files
    only change their level.
    """

    bucket: BucketId
    partition: str
    kind: WorkKind
    reason: CompactReason
    tasks: int
    files: int
    size_bytes: int
    files_saved: int
    sorted_runs: int
    is_near_stop: bool
    since_ms: int
    waiting_since_ms: int = 0
    reads_files: bool = True

    @property
    def is_forced(self) -> bool:
        """Whether it takes precedence over other work and ignores closed windows."""
        return self.is_near_stop or self.waiting_since_ms > 0

    @property
    def benefit(self) -> float:
        """Files saved per MiB rewritten: read amplification gained for what it costs."""
        return self.files_saved / (self.size_bytes / (1 << 20) + 1)


def total_due(pending: Collection[PendingCompaction]) -> Backlog:
    """The work of these buckets as a backlog."""
    return Backlog(
        tasks=sum(each.tasks for each in pending),
        files=sum(each.files for each in pending),
        size_bytes=sum(each.size_bytes for each in pending),
        oldest_ms=min((each.since_ms for each in pending), default=0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedBucket:
    """A bucket that cannot be planned until its files change; `message` has the reason and advice.

    In a table without buckets only some files may be unplannable. `error` is the error's class.
    """

    bucket: BucketId
    partition: str
    message: str
    error: ErrorKind = ErrorKind.FORMAT_ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchFilter:
    """Work that must not begin now: some buckets, some kinds (except forced ones, if allowed).

    `manifests`: an idle table's manifests must not be merged either. `may_commit` is False if the
    table must not be changed at all.
    """

    buckets: frozenset[BucketId] = frozenset()
    kinds: frozenset[WorkKind] = frozenset()
    allow_forced: bool = True
    manifests: bool = False
    may_commit: bool = True

    def covers(self, pending: PendingCompaction) -> bool:
        if pending.bucket in self.buckets:
            return True
        return pending.kind in self.kinds and not (pending.is_forced and self.allow_forced)


class TableBacklog:
    """The pending compactions of one table. Call `update` first, and after every change."""

    def __init__(self, *, stop_trigger: int) -> None:
        self._stop_trigger = stop_trigger
        self._pending: dict[BucketId, PendingCompaction] = {}
        # When buckets with files or rows that wait, or in skipped partitions, become due.
        self._recheck_ms: dict[BucketId, int] = {}
        # Buckets that would be due if their partition were not skipped.
        self._cooldowns: dict[BucketId, Cooldown] = {}
        self._damaged: dict[BucketId, DamagedBucket] = {}
        self._found: tuple[dict[BucketId, Any], ...]
        self._found = (self._pending, self._recheck_ms, self._cooldowns, self._damaged)
        # The kept decisions of due buckets, each with its number of files.
        self._kept: dict[BucketId, tuple[Iterator[Compaction], int]] = {}
        self._kept_files = 0
        # Inputs and figures of the last update.
        self._planner: StatePlanner | None = None
        self._summaries: BucketSummaries | None = None
        self._small_files = 0
        self._times: FileTimes | None = None
        self._complete_ms = 0

    def update(
        self,
        planner: StatePlanner,
        changed: Set[BucketId] | None,
        busy: Mapping[BucketId, Set[str]],
    ) -> None:
        """Plans changed buckets, or everything if `changed` is None, and keeps `planner` for later.

        `busy` are names of files that compactions under way read.
        """
        state, context, options = planner.state, planner.context, planner.request.options
        is_keyed = planner.request.kind is TableKind.PRIMARY_KEY
        small = options.small_file_size
        # Files with keys stay candidates until they are compacted.
        compacted_below = _NEVER_LARGE if is_keyed else small
        before, due = self._planner, planner.request.delta_commits_due
        if (
            changed is None
            or before is None
            or self._is_stale(options, context.steady_ms)
            or before.request.delta_commits_due != due
        ):
            buckets: Iterable[BucketId] = planner.candidates()
            for found in self._found:
                found.clear()
            self._kept.clear()
            self._kept_files = 0
            self._complete_ms = context.steady_ms
            self._small_files = state.files.count_smaller(small)
            self._summaries = state.files.summaries()
            self._times = FileTimes.of(state.files, small=compacted_below)
        else:
            self._small_files += state.files.count_smaller(small, changed)
            self._small_files -= before.state.files.count_smaller(small, changed)
            assert self._summaries is not None, "made with the state"
            assert self._times is not None, "made with the state"
            now = {bucket: state.files.summary(bucket) for bucket in changed}
            self._summaries = self._summaries.updated(now)
            self._times = self._times.updated(state.files, changed, small=compacted_below)
            waited = {b for b, at in self._recheck_ms.items() if at <= context.steady_ms}
            # After a rewrite of any bucket the whole partition is skipped.
            cooling_down = {b for b in self._pending if b.partition in planner.request.cooling_down}
            buckets = filter(planner.wants, changed | waited | cooling_down)
        for bucket in buckets:
            self._plan_anew(planner, bucket, busy.get(bucket, frozenset()))
        self._planner = planner

    def is_time(self, steady_ms: int, options: CompactionOptions) -> bool:
        """Whether a plan may differ although no file has changed."""
        if self._is_stale(options, steady_ms):
            return True
        return any(at <= steady_ms for at in self._recheck_ms.values())

    def offered(self, skip: DispatchFilter) -> tuple[PendingCompaction, ...]:
        """The most urgent buckets that may begin, in order of urgency."""

        def urgency(pending: PendingCompaction) -> tuple[bool, int, float, int, BucketId]:
            since_ms, waiting_ms = pending.since_ms, pending.waiting_since_ms
            return not pending.is_forced, waiting_ms, -pending.benefit, since_ms, pending.bucket

        able = [pending for pending in self._pending.values() if not skip.covers(pending)]
        by_need = heapq.nsmallest(OFFERED_MAX, able, key=urgency)
        # Always offer the oldest bucket, so that it cannot starve.
        oldest = min(able, key=lambda pending: (pending.since_ms, pending.bucket), default=None)
        if oldest is not None and oldest not in by_need:
            by_need[-1] = oldest
        return tuple(by_need)

    def take(self, bucket: BucketId, busy: Set[str]) -> Compaction | None:
        """The next decision on a due bucket as it was planned, or None if none is left.

        `busy` are names of files that running compactions read. Raises planning errors if the
        decision was not kept.
        """
        if bucket not in self._kept:
            assert self._planner is not None, "updated before"
            self._kept[bucket] = iter(self._planner.decided(bucket, busy)[1].compactions), 0
        return next(self._kept[bucket][0], None)

    def cooling_down(self) -> tuple[CoolingPartition, ...]:
        """The partitions that would be due if they were not skipped, the next ones first."""
        assert self._planner is not None, "updated before"
        partition_text = self._planner.partition_text
        by_end = sorted(self._cooldowns.items(), key=lambda item: item[1].until_ms)
        found = {bucket.partition: cooldown for bucket, cooldown in by_end}
        return tuple(
            CoolingPartition(
                partition=partition_text(partition),
                rewrite=cooldown.rewrite,
                until_ms=cooldown.until_ms,
            )
            for partition, cooldown in found.items()
        )

    def damaged(self) -> tuple[DamagedBucket, ...]:
        """Buckets that cannot be planned, at most 1000."""
        return tuple(itertools.islice(self._damaged.values(), _DAMAGED_MAX))

    @property
    def has_work(self) -> bool:
        """Whether anything is due."""
        return bool(self._pending)

    def backlog(self, *, without: Set[BucketId] = frozenset()) -> Backlog:
        """Totals of due work that is not running, without some buckets."""
        pending = self._pending.values()
        return total_due([each for each in pending if each.bucket not in without])

    def backlog_of(self, buckets: Set[BucketId]) -> Backlog:
        """Totals of due work of these buckets that is not running."""
        return total_due([self._pending[bucket] for bucket in buckets if bucket in self._pending])

    def shape(self, *, snapshots: int) -> TableShape:
        """The table in numbers."""
        assert self._planner is not None, "updated before"
        assert self._summaries is not None, "made of the state"
        assert self._times is not None, "made of the state"
        return table_shape(
            self._planner,
            self._summaries,
            self._times,
            snapshots=snapshots,
            small_files=self._small_files,
            stop_trigger=self._stop_trigger,
        )

    def top_buckets(self, count: int) -> tuple[BucketView, ...]:
        """The buckets with the most runs, at most `count`."""
        assert self._planner is not None, "updated before"
        assert self._summaries is not None, "made of the state"
        return top_buckets(self._summaries, count, self._planner, self._stop_trigger)

    def _plan_anew(self, planner: StatePlanner, bucket: BucketId, busy: Set[str]) -> None:
        for found in self._found:
            found.pop(bucket, None)
        self._kept_files -= self._kept.pop(bucket, ((), 0))[1]
        kind = ErrorKind.UNREADABLE_COLUMN
        try:
            why = planner.unreadable_text(bucket)
            if why is None or planner.request.kind is TableKind.APPEND_UNAWARE:
                self._plan(planner, bucket, busy)
        except FormatError as error:
            why, kind = damage_text(error), ErrorKind.FORMAT_ERROR
        if why is not None:
            self._damaged[bucket] = DamagedBucket(
                bucket=bucket,
                partition=planner.partition_text(bucket.partition),
                message=why,
                error=kind,
            )

    def _plan(self, planner: StatePlanner, bucket: BucketId, busy: Set[str]) -> None:
        """Raises `FormatError` for damage of the bucket."""
        context = planner.context
        found, plan = planner.decided(bucket, busy)
        late_ms = planner.late_from_ms(bucket)
        if plan.cooldown is not None:
            self._cooldowns[bucket] = plan.cooldown
            left_ms = plan.cooldown.until_ms - context.now_ms
            self._recheck_ms[bucket] = context.steady_ms + left_ms
        elif plan.compactions:
            pending = self._pending[bucket] = self._due(planner, found, plan)
            if late_ms is not None and late_ms > context.steady_ms and not pending.waiting_since_ms:
                # The compactions planned now do not make its rows visible; check again then.
                self._recheck_ms[bucket] = late_ms
            objects = 1 if isinstance(found, BucketFiles) else _PACKED
            files = -(-pending.files // objects)
            if self._kept_files + files <= _KEPT_FILES_MAX:
                self._kept[bucket] = iter(plan.compactions), files
                self._kept_files += files
        elif (
            isinstance(found, FilesBySize)
            and (wait_ms := context.request.append_wait_ms) is not None
            and len(found) > 1
        ):
            # Two files that have waited long enough are merged: the second oldest decides.
            created = found.columns.creation_time_ms
            due_ms = _created_ms(created, 1, planner.request) + wait_ms
            later_ms = context.steady_ms + _REPLAN_MS
            self._recheck_ms[bucket] = due_ms if due_ms > context.steady_ms else later_ms
        elif isinstance(found, BucketFiles) and len(found):
            times = [file.created_ms for file in found.files if file.level == 0]
            lookup = planner.request.options.lookup
            from_ms = [] if late_ms is None else [late_ms]
            if times and lookup is not None and lookup.wait_ms is not None:
                from_ms.append(_created_ms(times, 0, planner.request) + lookup.wait_ms)
            if from_ms:
                self._recheck_ms[bucket] = min(from_ms)

    def _due(
        self, planner: StatePlanner, found: PlannedFiles, plan: BucketPlan
    ) -> PendingCompaction:
        options, compactions = planner.request.options, plan.compactions
        kind, reason, output_level = _first_of(compactions)
        count, size_bytes, created_ms = _inputs_of(compactions)
        runs, wanted = 0, options.min_file_num
        if isinstance(found, BucketFiles) and planner.request.kind is TableKind.PRIMARY_KEY:
            levels = [file.level for file in found.files]
            upper = len({level for level in levels if level > 0})
            runs = upper + levels.count(0)
            wanted = options.compaction_trigger - upper
        outputs = max(1, size_bytes // max(1, options.target_file_size))
        return PendingCompaction(
            bucket=found.bucket,
            partition=planner.partition_text(found.bucket.partition),
            kind=kind,
            reason=reason,
            tasks=len(compactions),
            files=count,
            size_bytes=size_bytes,
            files_saved=max(0, count - outputs),
            sorted_runs=runs,
            is_near_stop=is_near_stop(runs, self._stop_trigger),
            since_ms=_created_ms(created_ms, max(0, wanted - 1), planner.request),
            waiting_since_ms=planner.waiting_since_ms(found.bucket, output_level),
            reads_files=kind is WorkKind.APPEND or any(each.reads_files for each in compactions),
        )

    def _is_stale(self, options: CompactionOptions, steady_ms: int) -> bool:
        """Whether time-based triggers must be evaluated again."""
        has_off_peak = options.offpeak_start_hour != options.offpeak_end_hour
        depends_on_time = options.optimization_interval_ms is not None or has_off_peak
        return depends_on_time and steady_ms - self._complete_ms > _REPLAN_MS


def _created_ms(creation_time_ms: Ints | list[int], place: int, request: PlanRequest) -> int:
    """Steady creation time of the file at this place from the oldest, or of the youngest file.

    `creation_time_ms` as in `FileColumns`. Capped at now, in case the writer's clock was ahead.
    """
    now_ms, place = request.now_local_ms, min(place, len(creation_time_ms) - 1)
    if isinstance(creation_time_ms, list):
        # Most buckets have a few files, for which vectors take longer.
        ordered = sorted(now_ms if ms == NULL else min(ms, now_ms) for ms in creation_time_ms)
        return request.steady_ms - now_ms + ordered[place]
    capped = np.minimum(creation_time_ms, now_ms)
    capped[creation_time_ms == NULL] = now_ms
    return request.steady_ms - now_ms + int(np.partition(capped, place)[place])
