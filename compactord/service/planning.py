"""Planning over a table's state: which buckets are looked at, and what is due by snapshots."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from compactord.clock import local_ms
from compactord.errors import ObjectNotFound, UsageError
from compactord.paimon.binary_row import decode_row
from compactord.paimon.data_file import BucketFiles, BucketId
from compactord.paimon.java_text import cast_text, to_string
from compactord.paimon.snapshot import CommitKind, read_snapshot
from compactord.paimon.table import TableState, delta_entries
from compactord.plan.candidates import candidates
from compactord.plan.table import BucketPlan, PlanRequest, Strategy, TableKind, plan_buckets
from compactord.service.table import OpenTable, refuse_formats
from compactord.storage.base import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanContext:
    """What a round of planning depends on besides table and state.

    `partitions` empty: all of them; each of the others names some partition columns and the value
    as text. `last_full_ms` and `settled` are what this run remembers of its own work.
    """

    strategy: Strategy
    partitions: tuple[Mapping[str, str], ...]
    append_wait_ms: int | None
    now_ms: int
    zone: datetime.tzinfo
    last_full_ms: Mapping[BucketId, int]
    settled: Set[str]


class StatePlanner:
    """Plans buckets of one state; a value but for what it has decoded of partitions.

    Raises as `PartitionTest` does.
    """

    def __init__(
        self, storage: Storage, table: OpenTable, state: TableState, context: PlanContext
    ) -> None:
        self._table = table
        self._state = state
        self._wanted = PartitionTest(table, context.partitions)
        self.delta_commits_due = delta_commits_due(storage, table, state)
        self.request = PlanRequest(
            kind=table.kind,
            options=table.options.compaction,
            strategy=context.strategy,
            key_of=table.key_of or bytes,
            now_local_ms=local_ms(context.now_ms, context.zone),
            append_wait_ms=context.append_wait_ms,
            delta_commits_due=self.delta_commits_due,
            last_full_ms=context.last_full_ms,
            settled=context.settled,
        )

    def candidates(self) -> list[BucketId]:
        """Buckets that may have something to do, in order."""
        summaries, request = self._state.files.summaries(), self.request
        worth = candidates(summaries, request.kind, request.strategy, request.options)
        if self.delta_commits_due:
            worth |= candidates(summaries, request.kind, Strategy.FULL, request.options)
        found = summaries.index.take(worth).bucket_ids()
        return sorted(bucket for bucket in found if self._wanted(bucket.partition))

    def partition_text(self, partition: bytes) -> str:
        return self._table.partition_text(partition)

    def files(self, bucket: BucketId) -> BucketFiles:
        """What planning looks at. Raises `UnsupportedTable` for files in other formats."""
        # Large files of a table without buckets are never touched: no need to make objects of them.
        smaller_than = None
        if self.request.kind is TableKind.APPEND_UNAWARE:
            options = self.request.options
            is_full = self.request.strategy is Strategy.FULL
            smaller_than = options.target_file_size if is_full else options.small_file_size
        found = self._state.files.bucket(bucket, smaller_than=smaller_than)
        refuse_formats(self._table, found.files)
        return found


def plan_state(
    storage: Storage, table: OpenTable, state: TableState, context: PlanContext
) -> Iterator[BucketPlan]:
    """Plans of the buckets that may have something to do; one bucket's files are objects at a time.

    Raises what `StatePlanner` raises.
    """
    planner = StatePlanner(storage, table, state, context)
    return plan_buckets(map(planner.files, planner.candidates()), planner.request)


class PartitionTest:
    """Whether a partition was asked for; decoded once each.

    Raises `UsageError` for columns that are no partition keys.
    """

    def __init__(self, table: OpenTable, partitions: tuple[Mapping[str, str], ...]) -> None:
        self._fields = table.schema.partition_fields
        self._partitions = partitions
        self._known: dict[bytes, bool] = {}
        names = [field.name for field in self._fields]
        for partition in partitions:
            for name in partition:
                if name not in names:
                    raise UsageError(
                        f"{name} is not a partition key of {table.ref.full_name}; "
                        f"its partition keys are: {', '.join(names) or 'none'}"
                    )

    def __call__(self, partition: bytes) -> bool:
        if not self._partitions:
            return True
        if partition not in self._known:
            self._known[partition] = self._matches(partition)
        return self._known[partition]

    def _matches(self, partition: bytes) -> bool:
        values = decode_row(partition, [field.type for field in self._fields])
        # A day may be given as people write it or as its folder is called.
        texts = {
            field.name: {to_string(value, field.type), cast_text(value, field.type)}
            for field, value in zip(self._fields, values, strict=True)
        }
        return any(
            all(text in texts[name] for name, text in asked.items()) for asked in self._partitions
        )


def delta_commits_due(storage: Storage, table: OpenTable, state: TableState) -> frozenset[BucketId]:
    """Buckets whose full compaction is due by `full-compaction.delta-commits` = N.

    Walks back from the newest snapshot until N APPEND snapshots lie behind. Buckets that a COMPACT
    snapshot on this way took to the highest level (or emptied it) are not due, all others are;
    planning then finds out which of them have anything to do. Where snapshots have expired before
    N were counted, all N count as seen: rather too early than never. Reads the delta manifests of
    the COMPACT snapshots on the way.
    """
    interval = table.options.compaction.full_compaction_delta_commits
    if interval is None or state.snapshot is None or table.kind is not TableKind.PRIMARY_KEY:
        return frozenset()
    max_level = table.options.compaction.num_levels - 1
    settled: set[BucketId] = set()
    appends = 0
    location, snapshot = table.ref.location, state.snapshot
    while appends < interval:
        try:
            if snapshot.commit_kind is CommitKind.APPEND:
                appends += 1
            elif snapshot.commit_kind is CommitKind.COMPACT:
                for entry in delta_entries(storage, location, snapshot):
                    if entry.file.level >= max_level:
                        settled.add(entry.bucket_id)
            if appends == interval:
                break
            if snapshot.id == 1:
                return frozenset()
            snapshot = read_snapshot(storage, location, snapshot.id - 1)
        except ObjectNotFound:
            break
    return frozenset(state.files.bucket_ids()) - settled
