"""One table as a compactor works on it, whether for one command or for months.

A session owns what is known of the table: its newest state, its schema and options, the files that
running compactions read. One thread at a time uses it; `table` and `state` are values that other
threads may read meanwhile. Everything is stored in the table: a session can end at any moment.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import structlog

from compactord import ids
from compactord.clock import Clock
from compactord.commit.committer import Committer, commit_user, index_entries
from compactord.commit.discard import remove_outputs
from compactord.commit.publish import SnapshotPublisher
from compactord.errors import CommitUnknown, CompactordError, DataFileMissing, ObjectNotFound
from compactord.maintenance.expire_reader import FileKey
from compactord.maintenance.orphan_files import OwnerRule, remove_orphans
from compactord.maintenance.rollback import newest_without
from compactord.model import (
    Committed,
    Compaction,
    CompactReason,
    DroppedChange,
    LostCommit,
    MergeCompaction,
    NothingCommitted,
    Replaced,
    Subcompaction,
)
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId, DataFile
from compactord.paimon.schema import TableSchema, has_later_schema, read_schema
from compactord.paimon.snapshot import SnapshotIdentity
from compactord.paimon.table import TableRef
from compactord.plan.table import BucketPlan, Strategy, settled_by
from compactord.state.follower import Drift, Follower
from compactord.state.table_state import TableState
from compactord.storage.base import Storage
from compactord.storage.parallel import results_of
from compactord.table.in_flight import Failed, Finished
from compactord.table.lost_commits import LookedAt, LostCommits
from compactord.table.opening import open_table, refuse_live_state
from compactord.table.planning import (
    PartitionTest,
    PlanContext,
    plan_state,
    remember_rewrites,
    resting_partitions,
)
from compactord.table.report import count_text
from compactord.table.subcompactions import WorkerSpec, subcompactions

_log = structlog.get_logger()
# Live files that we made and that are not to be picked again; the oldest are forgotten beyond this.
_SETTLED_MAX = 100_000
# How long a writer may wait between its look and its rename (`recovery.writer_delay`).
WRITER_DELAY_MS = 600_000
# How often a quiet table is asked for the schema that is known, in place of the next one.
_KNOWN_SCHEMA_MS = 60_000
# The reasons that make a compaction full: the clock of compaction.optimization-interval.
FULL_REASONS = frozenset(
    {
        CompactReason.FULL,
        CompactReason.DELTA_COMMITS,
        CompactReason.EARLY_FULL_INTERVAL,
        CompactReason.EARLY_FULL_TOTAL_SIZE,
        CompactReason.EARLY_FULL_INCREMENTAL_SIZE,
        CompactReason.SIZE_AMPLIFICATION,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """What to compact; `partitions` empty: all. `append_wait_ms` None: few small files just wait.

    `overrides` are table options over the table's own. Partitions of append tables that were
    rewritten less than `quiet_for_ms` ago are skipped. Snapshots of ours are looked back at for
    `writer_delay_ms`, every `look_interval_ms`.
    """

    strategy: Strategy = Strategy.MINOR
    overrides: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[Mapping[str, str], ...] = ()
    append_wait_ms: int | None = None
    quiet_for_ms: int = 0
    writer_delay_ms: int = WRITER_DELAY_MS
    look_interval_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """The oldest of what may still write files of a table.

    Files tell their age by the wall clock, which may be set meanwhile. `since_ms` is the least that
    it has shown since that began, as far as was seen, and `for_ms` how long ago that is in steady
    time. Neither alone is enough: a file made after the clock was set back is from before
    `since_ms` if nobody saw that; once it is set ahead again, it looks older than `for_ms`.
    """

    since_ms: int
    for_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What became of finished compactions. `committed` None: no snapshot was made."""

    committed: Committed | None = None
    published: tuple[Finished, ...] = ()
    dropped: tuple[tuple[Finished, DroppedChange], ...] = ()
    # Published, and then replaced by another writer: nothing of them is known to be live.
    replaced: tuple[Finished, ...] = ()


class TableSession:
    """See the module. Opens the table: raises what `open_table` raises, before data is read."""

    def __init__(
        self,
        ref: TableRef,
        request: SessionRequest,
        *,
        storage: Storage,
        publisher: SnapshotPublisher,
        clock: Clock,
        worker: WorkerSpec,
    ) -> None:
        self.ref = ref
        self._request = request
        self._storage = storage
        self._clock = clock
        self._worker = worker
        self.table = open_table(storage, ref, request.overrides)
        # What cannot be meant is said before anything is touched.
        PartitionTest(self.table, request.partitions)
        prefix = self.table.options.commit.user_prefix
        self._lost_commits = LostCommits(storage, publisher, ref.location, clock)
        self._follower = Follower(
            storage,
            user=commit_user(worker.owner, prefix),
            looked_back=self._lost_commits.published,
        )
        self._committer = Committer(
            storage=storage,
            publisher=publisher,
            follower=self._follower,
            clock=clock,
            owner=worker.owner,
        )
        self.state: TableState | None = None
        self._is_first = True
        # Snapshots that seemed to be replaced because the table had been made anew.
        self._excused = 0
        self._replaced_before = 0
        # What was found to be a table that we may touch: request, schema and snapshot.
        self._checked: tuple[SessionRequest, int, SnapshotIdentity | None] | None = None
        # When the known schema was last looked at, in steady time, and whether just now.
        self._schema_read_ms = clock.steady_ms()
        self._has_read_schema = False
        # The snapshot whose manifests were last found to need no merging, or were merged.
        self._merged_on: SnapshotIdentity | None = None
        self._settled: OrderedDict[str, BucketId] = OrderedDict()
        # Full compactions made by this session, in steady time, the oldest first.
        self._last_full_ms: OrderedDict[BucketId, int] = OrderedDict()

    @property
    def lost_snapshots(self) -> Sequence[str]:
        """Snapshots of ours that another writer replaced, as texts, since the last `take_lost`."""
        return self._follower.lost_snapshots

    def take_lost(self) -> tuple[str, ...]:
        """These, for the last time."""
        lost, self._follower.lost_snapshots = tuple(self._follower.lost_snapshots), []
        return lost

    @property
    def replaced_snapshots(self) -> int:
        """How many of these had another snapshot put in their place."""
        return self._follower.replaced_snapshots - self._excused

    def take_lost_commits(self) -> tuple[LostCommit, ...]:
        """What writers lost to late renames, committed again or not, since the last call."""
        found, self._lost_commits.found = tuple(self._lost_commits.found), []
        return found

    def why_keep(self) -> str | None:
        """Why no snapshot may expire now, or None; any thread may ask."""
        if self.wait_ms():
            return (
                "our newest snapshot may still be replaced by a writer, which would need the "
                "files that it removed"
            )
        return self._lost_commits.why_keep()

    def wait_ms(self) -> int:
        """How long nothing may be built on what we published last; any thread may ask."""
        return self._follower.guard.wait_ms()

    def look_back(self, *, busy: Collection[BucketId], may_commit: bool) -> None:
        """Find commits of writers that a late rename lost, if it is time to look.

        They are committed again if that is proved to be safe, and the table may be changed. `busy`
        are buckets of compactions under way. Raises `CommitUnknown`.
        """
        assert self.state is not None, "refreshed before"
        known = self.state
        self.state = self._lost_commits.look(
            LookedAt(state=known, table=self.table, busy=busy, may_commit=may_commit),
            follower=self._follower,
            committer=self._committer,
            writer_delay_ms=self._request.writer_delay_ms,
            interval_ms=self._request.look_interval_ms,
        )
        if self.state is not known:
            self.refresh()

    def refresh(self) -> bool:
        """Take in the newest snapshot and schema; whether anything is different.

        Raises `UnsupportedTable` for what we must not touch, `TableNotFound` for a table that is
        gone, and what reading raises. Nothing new costs the known snapshot, and two requests for
        what would be the next one and the next schema. On an append table the first look takes in
        its last snapshots.
        """
        is_new = self._take_in()
        assert self.state is not None, "just taken in"
        self.state = remember_rewrites(
            self._storage,
            self.table,
            self.state,
            quiet_for_ms=self._request.quiet_for_ms,
            now_ms=self._clock.now_ms(),
        )
        return is_new

    def _take_in(self) -> bool:
        known, schema = self.state, self.table.schema
        if known is None:
            self.state = self._follower.loaded(self.ref)
        else:
            self.state = self._follower.refreshed(known)
        if self._is_first:
            self._follower.guard.opened(self.state.snapshot)
            self._is_first = False
        is_checked = self._checked == (self._request, schema.id, _identity(self.state))
        if is_checked and not self._has_other_schema(schema):
            return False
        overrides = self._request.overrides
        self.table = open_table(self._storage, self.ref, overrides, known=self.table)
        if self._was_made_anew(schema):
            # Its snapshots were not replaced: they belonged to the table of that name before.
            self._follower.forgive_suspects()
            self._lost_commits.forget()
            self._excused += self._follower.replaced_snapshots - self._replaced_before
            self.state = self._follower.loaded(self.ref)
        refuse_live_state(self.table, self.state)
        self._checked = (self._request, self.table.schema.id, _identity(self.state))
        self._replaced_before = self._follower.replaced_snapshots
        return True

    def _has_other_schema(self, known: TableSchema) -> bool:
        """Whether there is a later schema; now and then, whether the known one is still the same.

        A rollback deletes the latest schemas, and the next one has the id of the first of them
        (SchemaManager.rollbackTo): it may have other columns, and no snapshot tells of it.
        """
        now_ms = self._clock.steady_ms()
        is_due = now_ms - self._schema_read_ms >= _KNOWN_SCHEMA_MS
        # Later ones are asked for every other time at least, however rarely that is.
        self._has_read_schema = is_due and not self._has_read_schema
        if not self._has_read_schema:
            return has_later_schema(self._storage, self.ref.location, known.id)
        self._schema_read_ms = now_ms
        return self._is_other(known)

    def _is_other(self, known: TableSchema) -> bool:
        try:
            return read_schema(self._storage, self.ref.location, known.id) != known
        except ObjectNotFound:
            return True

    def _was_made_anew(self, known: TableSchema) -> bool:
        """Whether the schema that we knew is not, or no longer, one of this table's."""
        if self.table.schema.id == known.id:
            return self.table.schema != known
        return self._is_other(known)

    def reconfigure(self, request: SessionRequest) -> None:
        """Compact by another request from the next refresh on."""
        self._request = request

    def forget_state(self) -> None:
        """The next refresh reads everything anew."""
        self.state = None

    def forget_buckets(self, gone: Set[BucketId]) -> None:
        """What is remembered of buckets that have no files any more."""
        for bucket in gone:
            self._last_full_ms.pop(bucket, None)
        for name in [name for name, bucket in self._settled.items() if bucket in gone]:
            del self._settled[name]

    def take_drift(self) -> Drift:
        """What refreshing has met since the last call."""
        return self._follower.take_drift()

    def plans(self) -> Iterator[BucketPlan]:
        """Plans of the buckets of the newest state that may have something to do."""
        assert self.state is not None, "refreshed before"
        return plan_state(self._storage, self.table, self.state, self.plan_context())

    def plan_context(self) -> PlanContext:
        assert self.state is not None, "refreshed before"
        now_ms = self._clock.now_ms()
        return PlanContext(
            strategy=self._request.strategy,
            partitions=self._request.partitions,
            append_wait_ms=self._request.append_wait_ms,
            now_ms=now_ms,
            steady_ms=self._clock.steady_ms(),
            zone=self._worker.zone,
            last_full_ms=self._last_full_ms,
            settled=self._settled.keys(),
            resting=resting_partitions(self.state, self._request.quiet_for_ms, now_ms),
        )

    def subcompactions(
        self, compaction: Compaction, *, number: int, free_slots: int
    ) -> tuple[Subcompaction, ...]:
        """What workers do of a decision; nothing when it only upgrades files."""
        return subcompactions(
            self.table,
            compaction,
            number=number,
            free_slots=max(1, free_slots),
            worker=self._worker,
            clock=self._clock,
        )

    def index_entries(self) -> dict[BucketId, tuple[bytes, ...]]:
        assert self.state is not None, "refreshed before"
        return index_entries(self._storage, self.state)

    def settle(self, finished: Sequence[Finished], *, busy: Collection[BucketId]) -> Settled:
        """Publish finished compactions in one snapshot; files of those that cannot be are removed.

        Where a writer may have replaced what we published last, that is looked at before; `busy` as
        for `look_back`. Raises what `refresh` and `Committer.commit` raise; but for
        `CommitUnknown`, no file of theirs is left.
        """
        by_change = {id(each.change): each for each in finished}
        try:
            if self.state is None:
                # Forgotten, because the outcome of the last commit is unknown.
                self.refresh()
            if self._follower.guard.is_unread and not self.wait_ms():
                self.refresh()
                self.look_back(busy=busy, may_commit=True)
            assert self.state is not None, "just refreshed"
            outcome, self.state = self._committer.commit(
                self.state, [each.change for each in finished], self.table.commit_settings
            )
        except CommitUnknown:
            raise
        except CompactordError:
            # Certainly not published, and nothing needs these files any more. The schema may be
            # why: a rollback that took it is not seen by asking for the next one.
            self._checked = None
            for each in finished:
                self._discard(each)
            raise
        dropped = tuple((by_change[id(drop.change)], drop) for drop in outcome.dropped)
        for each, drop in dropped:
            named = self.named(each.compaction.bucket)
            _log.warning("commit_conflict", compaction_id=each.number, **named, reason=drop.why)
            self._discard(each)
        match outcome:
            case Committed(published=changes):
                published = tuple(by_change[id(change)] for change in changes)
                for each in published:
                    self._remember(each)
                return Settled(committed=outcome, published=published, dropped=dropped)
            case NothingCommitted():
                return Settled(dropped=dropped)
            case Replaced(changes=changes):
                replaced = tuple(by_change[id(change)] for change in changes)
                return Settled(dropped=dropped, replaced=replaced)

    def merge_manifests(self) -> Committed | None:
        """Merge manifests in a snapshot of their own where the table's options ask for it.

        For a table that needs no compaction: any commit of one merges them on its way. None when
        nothing was merged. Raises what `Committer.commit` raises.
        """
        assert self.state is not None, "refreshed before"
        if self._merged_on == _identity(self.state):
            return None
        outcome, self.state = self._committer.commit(self.state, (), self.table.commit_settings)
        self._merged_on = _identity(self.state)
        return outcome if isinstance(outcome, Committed) else None

    def is_outrun(self, number: int, compaction: Compaction, error: str, why: str) -> bool | None:
        """Whether it failed, by an error of this class, because others came first.

        They replaced some of its inputs, and expiry removed these before they were read: they are
        not live any more in the newest snapshot. None when that cannot be read.
        """
        if error != ObjectNotFound.__name__:
            return False
        named = self.named(compaction.bucket)
        try:
            known = self.state
            self.state = (
                self._follower.loaded(self.ref)
                if known is None
                else self._follower.refreshed(known)
            )
            live = {file.file_name for file in self.state.files.files_in(compaction.bucket)}
        except CompactordError as found:
            _log.warning("refresh_failed", compaction_id=number, **named, error=str(found))
            return None
        if live.issuperset(file.file_name for file in compaction.inputs):
            return False
        _log.warning("inputs_gone", compaction_id=number, **named, error=why)
        return True

    def missing_input(self, compaction: Compaction) -> DataFileMissing | None:
        """The first of its inputs that does not exist, with what could be rolled back to.

        For inputs that are live in the newest snapshot, where one was not found: each is asked for.
        None when all exist, or the store does not answer.
        """
        folder = self.table.bucket_folder(compaction.bucket)
        inputs = [paths.data_file_path(folder, file) for file in compaction.inputs]
        try:
            found = zip(
                compaction.inputs,
                results_of(self._storage, self._storage.status, inputs),
                strict=True,
            )
            gone = [file.file_name for file, status in found if status is None]
            keys = [FileKey(compaction.bucket, name) for name in gone]
            version = newest_without(self._storage, self.ref.location, keys) if gone else None
        except CompactordError as error:
            named = self.named(compaction.bucket)
            _log.warning("inputs_not_asked_for", **named, error=str(error))
            return None
        if not gone:
            return None
        count = len(gone) - 1
        others = f" (and {count_text(count, 'other')} of its bucket)" if count else ""
        whole = (
            f"the newest version without it is {version}" if version else "no version is without it"
        )
        message = f"a live data file{others} does not exist, readers fail, too; {whole}"
        return DataFileMissing(paths.join(folder, gone[0]), message)

    def discard(self, *, finished: Iterable[Finished] = (), failed: Iterable[Failed] = ()) -> None:
        """Remove the files of compactions that will not be published."""
        for each in finished:
            self._discard(each)
        for one in failed:
            folder = self.table.bucket_folder(one.compaction.bucket)
            remove_outputs(self._storage, folder, one.outputs)

    def remove_orphans(self, *, grace_ms: int, under_way: UnderWay | None = None) -> int:
        """Delete what dead processes of ours left; how many files. A failure is only logged.

        With `under_way` also what killed workers of this process left: files from so long before
        all of that by both its measures. Without, nothing of this process.
        """
        now_ms = self._clock.now_ms()
        own_before_ms = 0
        if under_way is not None:
            began_ms = min(under_way.since_ms, now_ms - under_way.for_ms)
            own_before_ms = began_ms - grace_ms
        rule = OwnerRule(
            myself=self._worker.owner,
            liveness=ids.liveness,
            now_ms=now_ms,
            grace_ms=grace_ms,
            own_before_ms=own_before_ms,
        )
        location, keys = self.ref.location, self.table.schema.partition_keys
        try:
            removed = remove_orphans(self._storage, location, partition_depth=len(keys), rule=rule)
        except CompactordError as error:
            _log.warning("orphans_kept", error=str(error))
            return 0
        return len(removed)

    def named(self, bucket: BucketId) -> dict[str, str | int]:
        """The fields that name a bucket in a log event."""
        return {
            "partition": self.table.partition_text(bucket.partition),
            "bucket": bucket.bucket,
        }

    def _remember(self, finished: Finished) -> None:
        compaction = finished.compaction
        kept = {file.file_name for file in finished.change.after}
        for file in finished.change.before:
            if file.file_name not in kept:
                self._settled.pop(file.file_name, None)
        for name in settled_by(compaction, finished.change.after):
            self._settled[name] = compaction.bucket
        while len(self._settled) > _SETTLED_MAX:
            self._settled.popitem(last=False)
        if compaction.reason in FULL_REASONS:
            self._remember_full(compaction.bucket)

    def _remember_full(self, bucket: BucketId) -> None:
        """For `compaction.optimization-interval`: what is longer ago says no more than nothing."""
        now_ms, known = self._clock.steady_ms(), self._last_full_ms
        known[bucket] = now_ms
        known.move_to_end(bucket)
        interval_ms = self.table.options.compaction.optimization_interval_ms
        while known and (interval_ms is None or now_ms - next(iter(known.values())) > interval_ms):
            known.popitem(last=False)

    def _discard(self, finished: Finished) -> None:
        folder = self.table.bucket_folder(finished.change.bucket)
        remove_outputs(self._storage, folder, finished.change.outputs)


def neighbours(compaction: Compaction, planned_on: TableState) -> tuple[DataFile, ...]:
    """What lay beside a merge when it was planned matters to its commit; nothing else does."""
    if isinstance(compaction, MergeCompaction):
        return planned_on.files.files_in(compaction.bucket)
    return ()


def _identity(state: TableState | None) -> SnapshotIdentity | None:
    return state.snapshot.identity if state and state.snapshot else None
