"""One table over time: schema, options, live files, lost commits.

One thread at a time uses it; `table` and `state` are values that other threads may read meanwhile.
Everything is stored in the table: a process can end at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import structlog

from compactord.catalog.access import TableAccess
from compactord.clock import Clock
from compactord.commit.changes import BucketChange, CommitOutcome, Committed, LostCommit, Removal
from compactord.commit.committer import Committer, commit_user
from compactord.errors import CompactordError
from compactord.ids import Owner
from compactord.model import Compaction
from compactord.paimon.data_file import BucketId
from compactord.paimon.deletion_vectors import NO_VECTORS, VectorRef
from compactord.paimon.schema import TableSchema
from compactord.paimon.snapshot import SnapshotIdentity
from compactord.state.ancestry import PublishedSnapshots
from compactord.state.columns import AppendedFiles
from compactord.state.follower import Follower, RefreshStats
from compactord.state.table_state import TableState
from compactord.storage.calls import prefetch
from compactord.table.lost_commits import LookBack, LostCommits, files_read
from compactord.table.opening import OWN, OpenTable, TableRegistries, open_table, refuse_live_state
from compactord.table.planning import CompactRequest, remember_rewrites, with_waiting_rows

_log = structlog.get_logger()
# How often an idle table reads the known schema instead of looking for the next one.
_KNOWN_SCHEMA_MS = 60_000
# At most this many partitions are remembered, live or not.
_APPENDED_MAX = 1_000
# A plan on a just confirmed snapshot needs no look back if the last one was this recent.
_CONFIRMED_MS = 1_000

# Chooses the partitions of the newest state to remove.
ChosenPartitions: TypeAlias = Callable[[OpenTable, TableState], Collection[bytes]]
_Checked: TypeAlias = tuple[CompactRequest, int, SnapshotIdentity | None]


class TableSession:
    """The table's session. Opens it: raises what `open_table` raises, before data is read."""

    def __init__(
        self,
        access: TableAccess,
        request: CompactRequest,
        *,
        clock: Clock,
        owner: Owner,
        registries: TableRegistries = OWN,
    ) -> None:
        self._registries = registries
        storage, publisher = access.storage, access.publisher
        self.request = request
        self._access = access
        self._clock = clock
        self.table = self._opened()
        # If no writer can replace a snapshot, there is no look back.
        published = (
            None if publisher.excludes_writers else PublishedSnapshots(storage, access.ref.root)
        )
        user = commit_user(owner, self.table.options.commit.user_prefix)
        self._follower = Follower(access, user=user, looked_back=published)
        self._committer = Committer(
            storage=storage,
            publisher=publisher,
            follower=self._follower,
            clock=clock,
            owner=owner,
        )
        self._lost_commits = LostCommits(storage, access.ref, clock, self._committer, published)
        self._made_ms = access.made_ms()
        self._state: TableState | None = None
        self._is_first = True
        self._appended = AppendedFiles()
        # With more partitions, dropped ones are removed.
        self._appended_max = _APPENDED_MAX
        # Snapshots that seemed to be replaced because the table had been recreated.
        self._ignored_losses = 0
        self._replaced_before = 0
        # The last (request, schema, snapshot) that passed validation.
        self._checked: _Checked | None = None
        # The same for a snapshot of ours on a validated state that no refresh has read.
        self._published: _Checked | None = None
        # When the known schema was last read, in steady time, and whether just now.
        self._schema_read_ms = clock.steady_ms()
        self._has_read_schema = False
        # The snapshot whose manifests were last found to need no merging, or were merged.
        self._merged_on: SnapshotIdentity | None = None

    @property
    def state(self) -> TableState:
        """The newest known state; call `refresh` first."""
        assert self._state is not None, "refreshed before"
        return self._state

    def take_lost(self) -> tuple[str, ...]:
        """Snapshots of ours that another writer replaced, as texts, since the last call."""
        lost, self._follower.lost_snapshots = tuple(self._follower.lost_snapshots), []
        return lost

    @property
    def replaced_snapshots(self) -> int:
        """How many snapshots of ours were replaced."""
        return self._follower.replaced_snapshots - self._ignored_losses

    def take_lost_commits(self) -> tuple[LostCommit, ...]:
        """Commits that writers lost to late renames since the last call, restored or not."""
        found, self._lost_commits.found = tuple(self._lost_commits.found), []
        return found

    def drain_stats(self) -> RefreshStats:
        """Statistics of refreshes since the last call."""
        return self._follower.drain_stats()

    def expiry_blocker(self) -> str | None:
        """Why no snapshot may expire now, or None. Thread-safe."""
        if self.wait_ms():
            return (
                "our newest snapshot may still be replaced by a writer, which would need the "
                "files that it removed"
            )
        return self._lost_commits.expiry_blocker()

    def wait_ms(self) -> int:
        """Milliseconds until our last snapshot is safe to build on. Thread-safe."""
        return self._follower.delay.wait_ms()

    @property
    def newest_is_ours(self) -> bool:
        """Whether the newest snapshot is ours and was built on a validated state."""
        return self._published == (self.request, self.table.schema.id, _identity(self._state))

    def forget_state(self) -> None:
        """Makes the next refresh read everything again."""
        self._state = None

    def refresh(self) -> bool:
        """Reads the newest snapshot and schema; returns whether anything changed.

        Raises `UnsupportedTable` for a table that we must not touch, `TableNotFound` for a missing
        one, and read errors. Without news it costs a read of the known snapshot and two
        requests for the next snapshot and schema. The first refresh of an append table also reads
        its last snapshots.
        """
        is_new = self._take_in()
        self._state = remember_rewrites(
            self.table,
            with_waiting_rows(self.table, self._noting_appended(), self._clock),
            quiet_for_ms=self.request.quiet_for_ms,
            now_ms=self._clock.now_ms(),
        )
        return is_new

    def look_back(
        self, *, busy: Collection[BucketId], may_commit: bool, is_current: bool = False
    ) -> None:
        """Finds commits of writers that a late rename lost, if a look back is due.

        They are committed again if that is proved to be safe, and the table may be changed. `busy`
        are buckets of running compactions. `is_current`: our snapshot and the one below it were
        looked at just now. Raises `CommitUnknown`.
        """
        known, interval_ms = self.state, self.request.look_interval_ms
        self._state = self._lost_commits.look_back(
            LookBack(state=known, table=self.table, busy=busy, may_commit=may_commit),
            writer_delay_ms=self.request.writer_delay_ms,
            interval_ms=max(interval_ms, _CONFIRMED_MS) if is_current else interval_ms,
        )
        if self._state is not known:
            self.refresh()

    def commit(
        self, changes: Sequence[BucketChange] | Removal, *, busy: Collection[BucketId]
    ) -> CommitOutcome:
        """Publishes all changes that can be published in one snapshot.

        If a writer may have replaced our last snapshot, that is checked first; `busy` as
        for `look_back`. Raises what `refresh` and `Committer.commit` raise.
        """
        try:
            if self._state is None:
                # Forgotten, because the outcome of the last commit is unknown.
                self.refresh()
            if self._follower.delay.is_unread and not self.wait_ms():
                self.refresh()
                self.look_back(busy=busy, may_commit=True)
            outcome, state = self._committer.commit(self.state, changes, self.table.commit_settings)
        except CompactordError:
            # The schema may be the cause: a look-up of the next one misses a rollback of the last.
            self._checked = self._published = None
            raise
        # It may have been read again on a known snapshot: after a rollback to it.
        self._state = with_waiting_rows(self.table, state, self._clock)
        if isinstance(outcome, Committed):
            self._note_published(outcome)
        return outcome

    def _note_published(self, outcome: Committed) -> None:
        request, schema_id, newest = self.request, self.table.schema.id, self.state.snapshot
        assert newest is not None, "one was published"
        is_ours = newest.id == outcome.snapshot_id and newest.commit_user == self._follower.user
        is_on_known = (request, schema_id, outcome.base) in (self._checked, self._published)
        if is_ours and is_on_known and newest.schema_id == schema_id:
            self._published = (request, schema_id, newest.identity)

    def drop_partitions(
        self,
        chosen: ChosenPartitions,
        *,
        busy: Collection[BucketId],
    ) -> CommitOutcome:
        """Removes the partitions of the newest state that `chosen` returns, in one snapshot.

        Uses the newest schema. Blocks while our last snapshot is unsafe to build on; `busy`
        and errors as `commit`.
        """
        wait_ms = self.wait_ms()
        if wait_ms:
            self._clock.sleep(wait_ms / 1000)
        # The options of the newest schema decide which partitions are dropped.
        self._checked = self._published = None
        self.refresh()
        return self.commit(Removal(lambda state: chosen(self.table, state)), busy=busy)

    def merge_manifests(self) -> Committed | None:
        """Merges manifests in a snapshot of their own if the table's options request it.

        Only for a table that needs no compaction: every commit merges them. None if no manifest
        was merged. Raises what `Committer.commit` raises.
        """
        if self._merged_on == _identity(self._state):
            return None
        outcome, self._state = self._committer.commit(self.state, (), self.table.commit_settings)
        self._merged_on = _identity(self._state)
        return outcome if isinstance(outcome, Committed) else None

    def has_replaced(
        self, compaction: Compaction, vectors: Mapping[str, VectorRef] = NO_VECTORS
    ) -> bool:
        """Whether another writer replaced files that it reads, or their deletion vectors.

        New deletion vectors are in other index files; `vectors` are from the bucket's plan. Reads
        the newest snapshot; raises read errors.
        """
        state, bucket = self._newest(), compaction.bucket
        names = {file.file_name for file in files_read(compaction)}
        live = {file.file_name for file in state.files.files_in(bucket)}
        now = state.indexes.vectors(bucket)
        return not live.issuperset(names) or any(
            now.get(name) != vectors[name] for name in names & vectors.keys()
        )

    def _newest(self) -> TableState:
        known = self._state
        self._state = self._follower.loaded() if known is None else self._follower.refreshed(known)
        return self._state

    def _take_in(self) -> bool:
        schema, is_first = self.table.schema, self._is_first
        later = partial(self._access.has_later_schema, schema)
        with prefetch(self._access.storage, later) if is_first else nullcontext(later) as has_later:
            state, self._is_first = self._newest(), False
        if is_first:
            self._follower.delay.opened(state.snapshot)
        now = (self.request, schema.id, _identity(state))
        is_checked = now in (self._checked, self._published)
        if is_checked and not self._has_other_schema(schema):
            return False
        # A schema read a moment ago need not be read again. A writer may have added one, with
        # files or vectors that use it, during the request.
        seen = {*state.files.schema_ids, state.snapshot.schema_id if state.snapshot else 0}
        if not is_first or has_later() or max(seen) > schema.id:
            self._open(schema)
        refuse_live_state(self.table, self.state)
        self._checked = (self.request, self.table.schema.id, _identity(self._state))
        self._replaced_before = self._follower.replaced_snapshots
        return True

    def _noting_appended(self) -> TableState:
        """The state; if partitions are marked done, it notes writers' additions to each."""
        state = self.state
        if self.table.options.maintenance.mark_done is None:
            return state
        # None after a complete read, perhaps after an error.
        self._appended = state.appended or self._appended.besides(state.files)
        if len(self._appended.created_ms) > self._appended_max:
            self._appended = self._appended.without_emptied(state.files)
            self._appended_max = max(_APPENDED_MAX, 2 * len(self._appended.created_ms))
        return replace(state, appended=self._appended)

    def _opened(self, known: OpenTable | None = None) -> OpenTable:
        overrides = self.request.overrides
        return open_table(self._access, overrides, self._registries, known=known)

    def _open(self, schema: TableSchema) -> None:
        """Opens the table again in its newest schema; `schema` was the newest before."""
        self.table = self._opened(self.table)
        if self._was_recreated(schema):
            # The table was recreated; its old snapshots are not losses.
            self._follower.forgive_suspects()
            self._lost_commits.forget()
            self._ignored_losses += self._follower.replaced_snapshots - self._replaced_before
            self._state, self._appended = self._follower.loaded(), AppendedFiles()

    def _has_other_schema(self, known: TableSchema) -> bool:
        """Whether there is a later schema; sometimes also whether the known one has changed.

        A rollback deletes the latest schemas, and the next one has the id of the first of them
        (SchemaManager.rollbackTo): it may have other columns, and no snapshot shows that.
        """
        now_ms = self._clock.steady_ms()
        is_due = now_ms - self._schema_read_ms >= _KNOWN_SCHEMA_MS
        # At least every second call looks for later schemas, even if calls are rare.
        self._has_read_schema = is_due and not self._has_read_schema
        if not self._has_read_schema:
            return self._access.has_later_schema(known)
        self._schema_read_ms = now_ms
        return not self._access.keeps_schema(known)

    def _was_recreated(self, known: TableSchema) -> bool:
        """Whether the known schema does not, or no longer, belong to this table.

        For a branch also whether it was recreated since.
        """
        made_ms, self._made_ms = self._made_ms, self._access.made_ms()
        if self._made_ms != made_ms:
            return True
        if self.table.schema.id == known.id:
            return self.table.schema != known
        return not self._access.keeps_schema(known)


def _identity(state: TableState | None) -> SnapshotIdentity | None:
    return state.snapshot.identity if state and state.snapshot else None
