"""Planning over a table's state: which buckets are planned, and what is due by time."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial

from compactord.clock import Clock, local_ms
from compactord.config.model import ServiceConfig, TableSettings
from compactord.errors import FormatError, UsageError
from compactord.model import PickRule, TableKind
from compactord.paimon.binary_row import Value, decode_row, encode_row
from compactord.paimon.data_file import BucketId
from compactord.paimon.paths import format_of
from compactord.paimon.types import DataField, type_text
from compactord.plan.table import (
    BucketPlan,
    PlannedFiles,
    PlanRequest,
    Strategy,
    candidates,
    one_round,
    plan_bucket,
)
from compactord.state.columns import WaitingRows
from compactord.state.files_by_size import FilesBySize
from compactord.state.rewrites import Rewrite, Rewrites
from compactord.state.table_state import TableState, with_rewrites
from compactord.table.opening import OpenTable, refuse_formats
from compactord.table.partition_texts import is_blank, partition_value
from compactord.table.plan_inputs import delta_commits_due, expired_files
from compactord.text import age_text, count_text

# Rows that have waited for this share of `max_freshness_lag` precede all other work, and the
# compaction that makes them visible is due unconditionally.
LAG_SERVED_FIRST = 0.5
# How long a writer may wait between its check of an id and its rename (`recovery.writer_delay`).
WRITER_DELAY_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactRequest:
    """Settings of a compaction. Empty `partitions` are all; `append_wait_ms` may be None for never.

    Each of `partitions` names some partition columns, and their values as texts; a text that is the
    table's `partition.default-name` means null or blank text, as in folders.
    `max_freshness_lag_ms`: how long rows may wait for visibility, or None for no limit.
    `overrides` are table options over the table's own. Partitions of append tables that were
    rewritten less than `quiet_for_ms` ago are skipped. Snapshots of ours are looked back at for
    `writer_delay_ms`, every `look_interval_ms`. If the table sets no stop trigger, its runs are
    measured against `stop_trigger_fallback` above its compaction trigger.
    """

    strategy: Strategy = Strategy.MINOR
    pick: PickRule = PickRule.RELEASE_2_1
    overrides: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[Mapping[str, str], ...] = ()
    append_wait_ms: int | None = None
    max_freshness_lag_ms: int | None = None
    quiet_for_ms: int = 0
    writer_delay_ms: int = WRITER_DELAY_MS
    look_interval_ms: int = 60_000
    stop_trigger_fallback: int = 3

    @classmethod
    def of(
        cls,
        policy: TableSettings,
        config: ServiceConfig,
        overrides: Mapping[str, str] | None = None,
    ) -> CompactRequest:
        """The request of a table with this policy; `overrides` replace the policy's options."""
        return cls(
            pick=policy.pick,
            overrides=policy.options if overrides is None else overrides,
            append_wait_ms=policy.append_wait_ms,
            max_freshness_lag_ms=policy.max_freshness_lag_ms,
            quiet_for_ms=policy.quiet_for_ms,
            writer_delay_ms=config.recovery.writer_delay_ms,
            stop_trigger_fallback=config.alerts.stop_trigger_fallback,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanContext:
    """Inputs of a round of planning besides table and state.

    `last_full_ms` (steady times), `final` and `unreadable` are this run's memory of its own work;
    `unreadable` has names of files that cannot be read as the table's, and reasons, by bucket.
    `now_ms` and `steady_ms` are the same moment by the two clocks. `zone` is the workers'.
    """

    request: CompactRequest
    now_ms: int
    steady_ms: int
    zone: datetime.tzinfo
    last_full_ms: Mapping[BucketId, int] = field(default_factory=dict)
    final: Set[str] = frozenset()
    unreadable: Mapping[BucketId, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def now(cls, request: CompactRequest, clock: Clock, zone: datetime.tzinfo) -> PlanContext:
        """For a fresh plan without history."""
        now_ms, steady_ms = clock.now_ms(), clock.steady_ms()
        return cls(request=request, now_ms=now_ms, steady_ms=steady_ms, zone=zone)


class StatePlanner:
    """Plans buckets of one state; immutable except for its caches of partitions.

    Raises as `PartitionTest` does.
    """

    def __init__(self, table: OpenTable, state: TableState, context: PlanContext) -> None:
        self.table, self.state, self.context = table, state, context
        request = context.request
        self._lead_ms = context.now_ms - context.steady_ms
        self._wanted = PartitionTest(table, request.partitions)
        # A partition may have very many buckets.
        self._texts: dict[bytes, str] = {}
        self._with_folder: set[bytes] = set()
        rewrites = state.rewrites or Rewrites()
        self.request = PlanRequest(
            kind=table.kind,
            options=table.options.compaction,
            strategy=request.strategy,
            pick=request.pick,
            key_of=table.key_of or bytes,
            now_local_ms=local_ms(context.now_ms, context.zone),
            steady_ms=context.steady_ms,
            append_wait_ms=request.append_wait_ms,
            delta_commits_due=delta_commits_due(table, state),
            is_late=self._is_late,
            last_full_ms=context.last_full_ms,
            final=context.final,
            cooling_down=rewrites.cooling_down(
                quiet_for_ms=request.quiet_for_ms, now_ms=context.now_ms
            ),
            vectors_of=state.indexes.vectors,
            partial_schemas=table.partial_schemas,
            unmarked_schemas=table.unmarked_schemas,
            triggers=table.triggers,
            is_expired=expired_files(table, now_s=context.now_ms // 1000, zone=context.zone),
        )

    def candidates(self) -> list[BucketId]:
        """Buckets that may have something to do, in order."""
        summaries, request = self.state.files.summaries(), self.request
        older = request.partial_schemas | request.unmarked_schemas
        worth_a_look = partial(
            candidates,
            summaries,
            request.kind,
            options=request.options,
            triggers=request.triggers,
            with_deleted=self.state.indexes.buckets,
            lookup_begins=not older.isdisjoint(self.state.files.schema_ids),
        )
        worth = worth_a_look(request.strategy)
        may_be_late = self.context.request.max_freshness_lag_ms and request.options.full_changelog
        if request.delta_commits_due or may_be_late:
            worth |= worth_a_look(Strategy.FULL)
        found = summaries.index.take(worth).bucket_ids()
        return sorted(filter(self.wants, found))

    def wants(self, bucket: BucketId) -> bool:
        """Whether the bucket's partition was requested."""
        return self._wanted(bucket.partition)

    def partition_text(self, partition: bytes) -> str:
        if partition not in self._texts:
            self._texts[partition] = self.table.partition_text(partition)
        return self._texts[partition]

    def files(self, bucket: BucketId) -> PlannedFiles:
        """The input of planning.

        Raises `UnsupportedTable` for files in other formats, and `FormatError` for entries that
        cannot be read or disagree.
        """
        live = self.state.files
        if self.request.kind is not TableKind.APPEND_UNAWARE:
            found = live.bucket(bucket)
            refuse_formats(self.table, {format_of(file.file_name) for file in found.files})
            return found
        # In a table without buckets large files are rewritten only for their deleted rows.
        options = self.request.options
        is_full = self.request.strategy is Strategy.FULL
        smaller_than = options.target_file_size if is_full else options.small_file_size
        deleted = self.state.indexes.vectors(bucket).keys()
        found_by_size = live.by_size(bucket, smaller_than=smaller_than, besides=deleted)
        refuse_formats(self.table, found_by_size.formats())
        return found_by_size

    def decided(
        self, bucket: BucketId, busy: Set[str] = frozenset()
    ) -> tuple[PlannedFiles, BucketPlan]:
        """The plannable files of the bucket, and its plan; `busy` files are being read.

        Raises what `files` and `plan_bucket` raise, and `FormatError` if something is due in a
        partition that has no folder.
        """
        found = without_busy(self.files(bucket), busy)
        if isinstance(found, FilesBySize):
            found = found.without(self.context.unreadable.get(bucket, {}).keys())
        if not len(found):
            return found, BucketPlan(bucket=bucket, compactions=())
        plan = plan_bucket(found, self.request)
        if plan.compactions and bucket.partition not in self._with_folder:
            self.table.partition_path(bucket.partition)
            self._with_folder.add(bucket.partition)
        return found, plan

    def unreadable_text(self, bucket: BucketId) -> str | None:
        """Why files of the bucket cannot be read as the table's, and what to do; or None.

        In a table without buckets the other files are compacted. Raises what `files` raises.
        """
        known = self.context.unreadable.get(bucket)
        if not known:
            return None
        found = self.files(bucket)
        if isinstance(found, FilesBySize):
            found = found.only(known.keys())
            names = [file.file_name for file in found.read(0, len(found))]
            rest = "the other files are compacted"
        else:
            names = [file.file_name for file in found.files if file.file_name in known]
            rest = "the bucket is left as it is"
        if not names:
            return None
        others = f" (and {count_text(len(names) - 1, 'more file')})" if len(names) > 1 else ""
        return (
            f"{known[names[0]]}{others}; {rest}. Rewrite its rows with the table's column types, or"
            " overwrite the partition"
        )

    def waiting_since_ms(self, bucket: BucketId, output_level: int) -> int:
        """Steady write time of the oldest row that output on this level makes visible, or 0."""
        waiting = self.state.waiting
        if waiting is None or output_level < waiting.level:
            return 0
        since_ms = waiting.since_ms(bucket)
        if not since_ms:
            return 0
        return min(since_ms - self._lead_ms, self.request.steady_ms)

    def late_from_ms(self, bucket: BucketId) -> int | None:
        """Steady time from which its rows have waited too long, or None."""
        lag_ms, waiting = self.context.request.max_freshness_lag_ms, self.state.waiting
        if lag_ms is None or waiting is None:
            return None
        since_ms = self.waiting_since_ms(bucket, waiting.level)
        return since_ms + int(lag_ms * LAG_SERVED_FIRST) if since_ms else None

    def _is_late(self, bucket: BucketId) -> bool:
        from_ms = self.late_from_ms(bucket)
        return from_ms is not None and from_ms <= self.context.steady_ms

    def plan(self, bucket: BucketId) -> BucketPlan:
        """The bucket's plan, which explains the damage of a damaged one. Raises as `files`."""
        try:
            return self.decided(bucket)[1]
        except FormatError as error:
            return BucketPlan(bucket=bucket, compactions=(), damage=damage_text(error))


def plan_state(planner: StatePlanner) -> Iterator[BucketPlan]:
    """Plans of the buckets that may have something to do; one bucket's files are read at a time.

    The plan of a damaged bucket explains the damage.
    """
    return one_round(map(planner.plan, planner.candidates()), planner.request)


def without_busy(found: PlannedFiles, busy: Set[str]) -> PlannedFiles:
    """The plannable files while compactions run: other files of a table without buckets.

    Other buckets are planned as a whole: not at all while a compaction of theirs runs.
    """
    if isinstance(found, FilesBySize):
        return found.without(busy)
    return replace(found, files=()) if busy else found


def snapshot_count(state: TableState, earliest: Callable[[], int | None]) -> int:
    """How many snapshots the table has; `earliest` reads the first one's id.

    Raises the errors of `earliest`.
    """
    if state.snapshot is None:
        return 0
    earliest_id = earliest()
    return 0 if earliest_id is None else max(0, state.snapshot.id - earliest_id + 1)


# Advice for a bucket with damaged entries.
LEFT_AS_IT_IS = (
    "the bucket is left as it is until its files change: overwrite its partition, or roll the "
    "table back to a snapshot from before the damage"
)


def damage_text(error: FormatError) -> str:
    """Why a bucket cannot be planned, and what to do: entries of its files are damaged."""
    return f"{error}; {LEFT_AS_IT_IS}"


class PartitionTest:
    """Tests whether a partition was requested; each partition is decoded once.

    Raises `UsageError` for columns that are no partition keys and values that their types cannot
    hold.
    """

    def __init__(self, table: OpenTable, partitions: tuple[Mapping[str, str], ...]) -> None:
        self._fields = {field.name: field for field in table.schema.partition_fields}
        self._default_name = table.options.partition_default_name
        self._partitions = partitions
        self._requested = [
            {name: self._meant(table, name, text) for name, text in partition.items()}
            for partition in partitions
        ]
        self._known: dict[bytes, bool] = {}
        self._found: set[int] = set()

    def __call__(self, partition: bytes) -> bool:
        if not self._partitions:
            return True
        if partition not in self._known:
            self._known[partition] = self._matches(partition)
        return self._known[partition]

    def absent(self, live: Iterable[bytes]) -> list[str]:
        """The requested partitions that have no live files, as they were given."""
        if not self._partitions:
            return []
        for partition in live:
            self(partition)
        return [
            ",".join(f"{name}={text}" for name, text in partition.items())
            for index, partition in enumerate(self._partitions)
            if index not in self._found
        ]

    def _meant(self, table: OpenTable, name: str, text: str) -> frozenset[bytes]:
        """The encoded values that a text means: equal values have one encoding.

        A default name means values without a name of their own, and itself.
        """
        if name not in self._fields:
            raise UsageError(
                f"{name} is not a partition key of {table.ref.full_name}; "
                f"its partition keys are: {', '.join(self._fields) or 'none'}"
            )
        field = self._fields[name]
        unnamed = encode_row([None], [field.type])
        try:
            value = encode_row([partition_value(text, field.type)], [field.type])
        except ValueError as error:
            if text == self._default_name:
                return frozenset({unnamed})
            raise UsageError(
                f"partition {name}={text}: {table.ref.full_name} has {name} of type "
                f"{type_text(field.type)}, expected {error}; "
                f"{self._default_name} means null"
            ) from error
        return frozenset({unnamed, value} if text == self._default_name else {value})

    def _matches(self, partition: bytes) -> bool:
        fields = self._fields.values()
        try:
            values = decode_row(partition, [field.type for field in fields])
        except FormatError:
            # Cannot match any requested partition.
            return False
        found = {
            field.name: self._encoded(field, value)
            for field, value in zip(fields, values, strict=True)
        }
        matching = {
            index
            for index, asked in enumerate(self._requested)
            if all(not found[name].isdisjoint(meant) for name, meant in asked.items())
        }
        self._found |= matching
        return bool(matching)

    def _encoded(self, field: DataField, value: Value) -> frozenset[bytes]:
        """The value, and null for blank text: it lies in the same folder."""
        row, unnamed = encode_row([value], [field.type]), encode_row([None], [field.type])
        if value is None or not isinstance(value, str | bytes):
            return frozenset({row})
        return frozenset({row, unnamed} if is_blank(row, field) else {row})


def remember_rewrites(
    table: OpenTable, state: TableState, *, quiet_for_ms: int, now_ms: int
) -> TableState:
    """The state with an append table's relevant rewrites of partitions.

    A table with a primary key has none: commands on it add rows and name no files.
    """
    if table.kind is TableKind.PRIMARY_KEY:
        return state
    since_ms = now_ms - quiet_for_ms if quiet_for_ms else None
    return with_rewrites(table.storage, state, since_ms=since_ms, now_ms=now_ms)


def with_waiting_rows(table: OpenTable, state: TableState, clock: Clock) -> TableState:
    """The state with the rows that wait for a compaction, if the table's readers wait for it."""
    level, known = table.options.compaction.waiting_level, state.waiting
    if level == (known and known.level):
        return state
    waiting = None
    if level is not None:
        now_ms = clock.now_ms()
        ahead_ms = local_ms(now_ms, clock.time_zone) - now_ms
        waiting = WaitingRows.of(state.files, level, ahead_ms=ahead_ms)
    return replace(state, waiting=waiting)


def cooldown_text(rewrite: Rewrite, age_ms: int) -> str:
    """Why a partition is skipped, for operators: it was rewritten recently."""
    return f"skipped: rewritten {age_text(age_ms)} ago by {rewrite.commit_user}"
