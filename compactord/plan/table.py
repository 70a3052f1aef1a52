"""Plans a table: candidates of every bucket, by urgency.

Each bucket is planned by itself. A command repeats plan, execute, commit until the plan is
empty. This ends unless writers are faster, because each decision leaves less to do:

- a minor pick lowers a bucket's run count or lifts its only level-0 run; a single run on the
  highest level is never picked;
- a full pick leaves one run on the highest level, or none, and then there is no pick;
- an append pick leaves fewer candidates than it takes (compactord.plan.append).

Only `compaction.force-rewrite-all-files`, and records that continue to expire, have no such end:
the command passes the names of its own outputs (`PlanRequest.final`), which are not rewritten again
for such a reason only. A later command rewrites them.

Planning makes Python objects of a bucket's files. With a million files, most of them in buckets
without work, that is the expensive part, so a few sums per bucket first rule out most buckets. The
answer contains every bucket that `plan_bucket` would pick; it may contain others.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from compactord.model import (
    Compaction,
    CompactReason,
    Concat,
    PickRule,
    Rewrite,
    SortedRun,
    TableKind,
    Upgrade,
)
from compactord.paimon.data_file import BucketFiles, BucketId, DataFile
from compactord.paimon.deletion_vectors import VectorRef
from compactord.paimon.manifest.entry_columns import Mask
from compactord.paimon.options.table_options import CompactionOptions, LookupOptions
from compactord.plan.append import (
    FULL_MIN_FILES,
    PackedCompactions,
    pack_deleted,
    pack_unaware,
    pack_unaware_full,
    pick_bucketed,
    pick_bucketed_full,
)
from compactord.plan.picks import (
    KeyOf,
    Pick,
    bucket_runs,
    holds_parts,
    is_from_before,
    last_full_compaction_ms,
    level_count,
    never_expired,
    pick_full,
    pick_runs,
)
from compactord.plan.sections import ActionRules, cut_actions, rewrite_each
from compactord.plan.triggers import TRIGGERS, Triggers, pick_universal
from compactord.state.base_files import BucketSummaries
from compactord.state.files_by_size import FilesBySize
from compactord.state.index_files import NO_INDEXES
from compactord.state.rewrites import Cooldown

_HOUR_MS = 3_600_000
# Each file is rewritten on its own.
_OF_SINGLE_FILES = (
    CompactReason.FORCED_REWRITE,
    CompactReason.EXPIRED_RECORDS,
    CompactReason.DELETED_ROWS,
)

# The unit of planning. Partitions without buckets may have too many files for objects.
PlannedFiles = BucketFiles | FilesBySize


class Strategy(enum.Enum):
    MINOR = "minor"
    FULL = "full"


def never_late(bucket: BucketId) -> bool:
    """For tables without a limit on the wait of rows."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """All inputs of planning besides the files.

    `pick` is the rule of minor picks from runs. `now_local_ms` is local wall-clock as if it were
    UTC, the clock of creation times and off-peak hours. `append_wait_ms` is how long a few small
    files of a table without buckets may wait, None for no limit. `delta_commits_due` are buckets
    of a table with a primary key whose full compaction is due even under MINOR. `is_late`: rows
    have waited long enough that the compaction that makes them visible is due. `last_full_ms` holds
    full compactions that the caller remembers, on a clock of its own that shows `steady_ms` now.
    `final` names files made by the running command, of any size. Partitions `cooling_down` are
    skipped. `is_expired`: a file has expired records by its statistics. `vectors_of` are
    the deletion vectors of a bucket, by data file. Files with `partial_schemas` may hold a part of
    the states of their keys; rows that files with `unmarked_schemas` replace may be unmarked.
    `triggers` are the triggers of minor picks, in order.
    """

    kind: TableKind
    options: CompactionOptions
    strategy: Strategy
    pick: PickRule
    key_of: KeyOf
    now_local_ms: int
    steady_ms: int
    append_wait_ms: int | None
    delta_commits_due: Set[BucketId] = frozenset()
    is_late: Callable[[BucketId], bool] = never_late
    last_full_ms: Mapping[BucketId, int] = field(default_factory=dict)
    final: Set[str] = frozenset()
    cooling_down: Mapping[bytes, Cooldown] = field(default_factory=dict)
    is_expired: Callable[[DataFile], bool] = never_expired
    vectors_of: Callable[[BucketId], Mapping[str, VectorRef]] = NO_INDEXES.vectors
    partial_schemas: Set[int] = frozenset()
    unmarked_schemas: Set[int] = frozenset()
    triggers: Triggers = TRIGGERS


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPlan:
    """Decisions on one bucket, which share no file, and remarks for operators.

    `compactions` of a table without buckets are `PackedCompactions`: made on access.
    `cooldown`: there would be decisions if the bucket's partition were not skipped. `damage` is
    why the bucket cannot be planned, and what to do; empty for a sound bucket.
    """

    bucket: BucketId
    compactions: Sequence[Compaction]
    notes: tuple[str, ...] = ()
    cooldown: Cooldown | None = None
    damage: str = ""


def one_round(plans: Iterable[BucketPlan], request: PlanRequest) -> Iterator[BucketPlan]:
    """The plans of buckets, one at a time, including empty ones.

    On a table without buckets a round ends once `compaction.file-num-limit` files are taken; the
    next round plans the rest.
    """
    taken, limit = 0, max(1, request.options.file_num_limit)
    for plan in plans:
        plan, count = _within_limit(plan, limit - taken)
        taken += count
        yield plan
        if taken >= limit:
            return


def plan_bucket(bucket: PlannedFiles, request: PlanRequest) -> BucketPlan:
    """The plan of one bucket. The order of `bucket.files` has no influence.

    `FilesBySize` is for a partition without buckets.

    Raises `FormatError` for files that cannot be on one level together and `UsageError` for options
    that Paimon refuses.
    """
    vectors = request.vectors_of(bucket.bucket)
    if not request.final.isdisjoint(vectors):
        # Rows deleted since are another reason to rewrite it.
        request = replace(request, final=request.final - vectors.keys())
    if isinstance(bucket, FilesBySize):
        plan = _plan_unaware(bucket, request, vectors)
    elif request.kind is TableKind.PRIMARY_KEY:
        plan = _plan_merge(bucket, request, vectors)
    elif request.kind is TableKind.APPEND_BUCKETED:
        plan = _plan_bucketed(bucket, request, vectors)
    else:
        plan = _plan_unaware(FilesBySize.of(bucket), request, vectors)
    cooldown = request.cooling_down.get(bucket.bucket.partition)
    if cooldown is None or not plan.compactions:
        return plan
    return replace(plan, compactions=(), cooldown=cooldown)


def _why_full(bucket: BucketId, request: PlanRequest) -> CompactReason | None:
    """Why a bucket of a table with a primary key is compacted fully, or None."""
    if request.strategy is Strategy.FULL:
        return CompactReason.FULL
    if bucket in request.delta_commits_due:
        return CompactReason.DELTA_COMMITS
    if request.options.full_changelog and request.is_late(bucket):
        return CompactReason.FRESHNESS_LAG
    return None


def _plan_merge(
    bucket: BucketFiles, request: PlanRequest, vectors: Mapping[str, VectorRef]
) -> BucketPlan:
    options, lookup = request.options, request.options.lookup
    runs = bucket_runs(bucket.files, request.key_of)
    highest = runs[-1].level if runs else -1
    num_levels = level_count(highest, options.num_levels)
    why_full = _why_full(bucket.bucket, request)
    pick: Pick | None
    has_parts = lookup is not None and holds_parts(
        runs, request.partial_schemas, is_one_record=lookup.is_one_record
    )
    unmarked = request.unmarked_schemas
    if has_parts or (unmarked and is_from_before(bucket.files, unmarked)):
        lookup = None if has_parts else lookup
        above = [run for run in runs if run.level > 0]
        pick = pick_runs(above, num_levels - 1, CompactReason.LOOKUP_BEGINS)
    elif why_full is not None:
        pick = pick_full(
            runs,
            num_levels,
            force_rewrite=options.force_rewrite_all_files,
            final=request.final,
            is_expired=request.is_expired,
            with_deleted=vectors.keys(),
            reason=why_full,
        )
    elif len(runs) == 1 and runs[0].level == num_levels - 1:
        # When size amplification is below zero or overflows, Java picks such a run again forever.
        pick = None
    else:
        if _has_waited(runs, request) or request.is_late(bucket.bucket):
            options = replace(options, force_up_level_0=True)
        pick = pick_universal(
            runs,
            num_levels,
            options,
            rule=request.pick,
            now_ms=request.now_local_ms,
            last_full_ms=_last_full_ms(bucket, request),
            hour_of_day=request.now_local_ms // _HOUR_MS % 24,
            triggers=request.triggers,
        )
    notes = []
    if num_levels > options.num_levels:
        notes.append(f"files on level {num_levels - 1} are above num-levels={options.num_levels}")
    if pick is None:
        return BucketPlan(bucket=bucket.bucket, compactions=(), notes=tuple(notes))
    compaction = _merge_compaction(
        bucket, request, pick, runs, num_levels=num_levels, lookup=lookup
    )
    return BucketPlan(bucket=bucket.bucket, compactions=(compaction,), notes=tuple(notes))


def _has_waited(runs: Sequence[SortedRun], request: PlanRequest) -> bool:
    """Whether a file has reached its limit of time on level 0."""
    lookup = request.options.lookup
    if lookup is None or lookup.wait_ms is None:
        return False
    due_ms = request.now_local_ms - lookup.wait_ms
    created = [file.creation_time_ms for run in runs if run.level == 0 for file in run.files]
    now_ms = request.now_local_ms
    # Timestamps in the future: age unknown, treat as due.
    return any(ms is None or not due_ms < ms <= now_ms for ms in created)


def _merge_compaction(
    bucket: BucketFiles,
    request: PlanRequest,
    pick: Pick,
    runs: Sequence[SortedRun],
    *,
    num_levels: int,
    lookup: LookupOptions | None,
) -> Compaction:
    marks = lookup is not None and lookup.marks
    rules = ActionRules(
        max_level=num_levels - 1,
        small_file_size=request.options.small_file_size,
        force_rewrite=request.options.force_rewrite_all_files,
        final=request.final,
        is_expired=request.is_expired,
        # Deletions can be dropped if no older files are below the output, and if the rows
        # that they delete are marked.
        drop_deletes=pick.output_level != 0 and (marks or pick.output_level >= runs[-1].level),
        # Uses the levels in effect; Java uses the option's and writes no changelog.
        changelog=request.options.full_changelog and pick.output_level == num_levels - 1,
        lookup=lookup,
        above=[run for run in runs if run.level > pick.output_level],
        unmarked_schemas=request.unmarked_schemas,
    )
    if pick.reason in _OF_SINGLE_FILES:
        actions: tuple[Rewrite | Upgrade, ...] = rewrite_each(pick.files, request.key_of, rules)
    else:
        actions = cut_actions(pick, request.key_of, rules)
    assert actions, "a picked unit has a run that changes its level or is rewritten"
    return Compaction(
        bucket=bucket.bucket,
        total_buckets=bucket.total_buckets,
        reason=pick.reason,
        output_level=pick.output_level,
        actions=actions,
    )


def _last_full_ms(bucket: BucketFiles, request: PlanRequest) -> int | None:
    """The later of the time that the files imply and the remembered one, or None if not needed.

    Files whose creation time is more than `compaction.optimization-interval` in the future are
    ignored: a clock was or is wrong, and there would be no full compaction until that time.
    """
    now_ms, interval_ms = request.now_local_ms, request.options.optimization_interval_ms
    if interval_ms is None:
        return None
    told_ms = last_full_compaction_ms(bucket.files, request.options)
    if told_ms is not None and told_ms - now_ms > interval_ms:
        told_ms = None
    remembered_ms = request.last_full_ms.get(bucket.bucket)
    if remembered_ms is not None:
        remembered_ms += now_ms - request.steady_ms
    return max((each for each in (told_ms, remembered_ms) if each is not None), default=None)


def _plan_unaware(
    files: FilesBySize, request: PlanRequest, vectors: Mapping[str, VectorRef]
) -> BucketPlan:
    is_full, options = request.strategy is Strategy.FULL, request.options
    deleted = None
    if vectors:
        deleted = pack_deleted(files, vectors, options, is_full=is_full)
        files = files.without(vectors.keys())
    if is_full:
        packed = pack_unaware_full(files, options, final=request.final)
        packed = deleted.followed_by(packed) if deleted else packed
        return BucketPlan(bucket=files.bucket, compactions=packed)
    packed, waiting = pack_unaware(
        files,
        options,
        now_local_ms=request.now_local_ms,
        wait_ms=request.append_wait_ms,
        final=request.final,
    )
    notes = []
    if waiting > 1:
        note = f"{waiting} small files wait for compaction.min.file-num={options.min_file_num}"
        if request.append_wait_ms is not None:
            note += f" or {_duration(request.append_wait_ms)}"
        notes.append(note)
    packed = deleted.followed_by(packed) if deleted else packed
    return BucketPlan(bucket=files.bucket, compactions=packed, notes=tuple(notes))


def _plan_bucketed(
    bucket: BucketFiles, request: PlanRequest, vectors: Mapping[str, VectorRef]
) -> BucketPlan:
    options, final = request.options, request.final
    if request.strategy is Strategy.FULL:
        reason = CompactReason.APPEND_FULL
        deleted = vectors.keys()
        picks = pick_bucketed_full(bucket.files, options, final=final, with_deleted=deleted)
    else:
        reason = CompactReason.APPEND_SMALL_FILES
        picks = pick_bucketed(bucket.files, options, final=final)
    compactions = tuple(
        Compaction(
            bucket=bucket.bucket,
            total_buckets=bucket.total_buckets,
            reason=reason,
            actions=(Concat(files=files, ordered=True),),
        )
        for files in picks
    )
    return BucketPlan(bucket=bucket.bucket, compactions=compactions)


def _within_limit(plan: BucketPlan, limit: int) -> tuple[BucketPlan, int]:
    """The first compactions until `limit` files are taken, at least one; and their file count."""
    packed = plan.compactions
    if not isinstance(packed, PackedCompactions):
        return plan, 0
    taken, kept = 0, 0
    for one in packed.bins:
        if taken >= limit:
            break
        taken += one.stop - one.start
        kept += 1
    left = len(packed) - kept
    if not left:
        return plan, taken
    note = f"{left} more tasks are deferred to the next round by compaction.file-num-limit"
    return replace(plan, compactions=packed[:kept], notes=(*plan.notes, note)), taken


def _duration(milliseconds: int) -> str:
    for unit, size in (("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size} {unit}"
    return f"{milliseconds} ms"


def candidates(
    summary: BucketSummaries,
    kind: TableKind,
    strategy: Strategy,
    options: CompactionOptions,
    *,
    triggers: Triggers = TRIGGERS,
    with_deleted: Iterable[BucketId] = (),
    lookup_begins: bool = False,
) -> Mask:
    """True where a bucket may have a pick. Pass FULL for buckets whose delta commits are due.

    `with_deleted` are buckets with deletion vectors. `lookup_begins`: files may be from before
    the table looked up (`PlanRequest.partial_schemas`, `unmarked_schemas`).
    """
    is_full = strategy is Strategy.FULL
    found = _candidates(summary, kind, options, None if is_full else triggers)
    if kind is TableKind.PRIMARY_KEY and lookup_begins:
        found |= summary.run_count > 1
    if is_full or kind is TableKind.APPEND_UNAWARE:
        rows = (summary.index.find(bucket) for bucket in with_deleted)
        found[[row for row in rows if row is not None]] = True
    return found


def _candidates(
    summary: BucketSummaries,
    kind: TableKind,
    options: CompactionOptions,
    triggers: Triggers | None,
) -> Mask:
    """Buckets that may have a minor pick, or without `triggers` a full one.

    Ignores deletion vectors, and files from before the table looked keys up.
    """
    match kind:
        case TableKind.PRIMARY_KEY:
            if triggers is None:
                return _full_merges(summary, options)
            return _minor_merges(summary, options, triggers)
        case TableKind.APPEND_UNAWARE:
            # Small files have to be counted one by one: the summary has no file sizes.
            return summary.file_count > 1
        case TableKind.APPEND_BUCKETED:
            if triggers is not None:
                return summary.file_count >= max(2, options.min_file_num)
            if options.force_rewrite_all_files:
                return summary.file_count > 0
            return summary.file_count >= FULL_MIN_FILES


def _full_merges(summary: BucketSummaries, options: CompactionOptions) -> Mask:
    has_files = summary.file_count > 0
    if options.force_rewrite_all_files or options.record_expire is not None:
        return has_files
    return has_files & ~_is_one_top_run(summary, options)


def _minor_merges(summary: BucketSummaries, options: CompactionOptions, triggers: Triggers) -> Mask:
    picked: Mask = np.zeros(len(summary), np.bool_)
    for trigger in triggers:
        picked |= trigger.may_fire(summary, options)
    return picked & (summary.run_count > 0) & ~_is_one_top_run(summary, options)


def _is_one_top_run(summary: BucketSummaries, options: CompactionOptions) -> Mask:
    top = np.maximum(summary.max_level, options.num_levels - 1)
    alone: Mask = (summary.run_count == 1) & (summary.max_level == top)
    return alone
