"""Publishes finished compactions as one COMPACT snapshot, with optimistic retry.

One attempt, in this order (operation/FileStoreCommitImpl.java, for kind COMPACT):

1. refresh the state; the snapshot that it builds on must be unchanged,
2. compare every change with it and drop changes whose bucket has changed; check that the files
   added by the rest exist and will be live (`AddedFilesCheck`). A removal of partitions, in a
   snapshot of kind OVERWRITE, is computed from that state instead (`Removal`),
3. write index files with the deletion vectors of the buckets, on top of the newest ones; merge
   manifests (first attempt only; the result is reused while it still fits),
4. write base list, delta manifests, delta list,
5. publish snapshot N+1 unless another was first (`publish`), then the hint, then read it back.

Just before step 5 the base snapshot is checked again, because preparing takes time and a rollback
or another writer's rename may have removed it. After a lost race, and while the catalog is down
(`Retries`), the files of steps 3 and 4 are deleted, except merged manifests, and step 1 follows. If
the outcome of step 5 is unknown, the snapshot's name is read next; until then no file is deleted.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from compactord.clock import Clock
from compactord.commit.attempt import CommitIdentity, CommitSettings, listed_entries, prepare
from compactord.commit.changes import (
    BucketChange,
    CommitOutcome,
    Committed,
    DroppedChange,
    NothingCommitted,
    Removal,
    Replaced,
)
from compactord.commit.conflicts import AddedFilesCheck, still_valid
from compactord.commit.index_files import NextIndex, index_without, next_index
from compactord.commit.manifest_merge import ManifestMerge, is_merge_due
from compactord.commit.metadata import MetadataFiles
from compactord.commit.publish import Delta, Publication, SnapshotPublisher
from compactord.commit.recommit import Restore
from compactord.errors import (
    CatalogDown,
    CommitGaveUp,
    CommitUnknown,
    CompactordError,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
)
from compactord.ids import Owner, random_uuid
from compactord.model import Conflict
from compactord.paimon import paths
from compactord.paimon.avro.types import codec_of
from compactord.paimon.manifest.manifest_files import ManifestFile
from compactord.paimon.options.table_options import CommitOptions
from compactord.paimon.snapshot import (
    CommitKind,
    Snapshot,
    snapshot_ids,
    snapshot_unless_absent,
    still_stands,
)
from compactord.state.ancestry import SettleDelay
from compactord.state.follower import Follower, lost_text
from compactord.state.live_files import UnknownFile
from compactord.state.table_state import TableState, applied, data_manifests
from compactord.storage.base import Storage
from compactord.storage.calls import prefetch

# How long a commit waits for a catalog that is down if the table has no `commit.timeout`: the
# restart of a database, and less than the time after which a job counts as hung.
_OUTAGE_MS_MAX = 5 * 60_000


class Retries:
    """Yields the numbers of attempts: 1, 2, …; pauses double and have jitter.

    `commit.max-retries` limits lost races and failures of the store. Attempts while the catalog is
    down do not count: each fails within milliseconds, so ten of them would not outlast the restart
    of a database. They end after `commit.timeout`, or five minutes without it.
    """

    def __init__(self, options: CommitOptions, clock: Clock, jitter: random.Random) -> None:
        self._options = options
        self._clock = clock
        self._jitter = jitter
        # Whether the current attempt failed because the catalog is down.
        self.is_down = False

    def __iter__(self) -> Iterator[int]:
        options = self._options
        start_ms = down_since_ms = self._monotonic_ms()
        lost, outages = 0, 0
        for attempt in itertools.count(1):
            self.is_down = False
            yield attempt
            now_ms = self._monotonic_ms()
            if options.timeout_ms is not None and now_ms - start_ms > options.timeout_ms:
                return
            if self.is_down:
                down_since_ms = down_since_ms if outages else now_ms
                if options.timeout_ms is None and now_ms - down_since_ms > _OUTAGE_MS_MAX:
                    return
                self._pause(outages)
                outages += 1
            # A negative number means no retry, as in Java: the first attempt is always made.
            elif lost >= options.max_retries:
                return
            else:
                self._pause(lost)
                lost, outages = lost + 1, 0

    def _pause(self, number: int) -> None:
        options = self._options
        wait_ms = min(options.min_retry_wait_ms << min(number, 40), options.max_retry_wait_ms)
        wait_ms += self._jitter.randrange(max(1, wait_ms // 5))
        self._clock.sleep(wait_ms / 1000)

    def _monotonic_ms(self) -> float:
        return self._clock.monotonic_s() * 1000


@dataclass(slots=True)
class CommitWork:
    """The changes of one commit, and the dropped ones; `merge` is kept if it fits.

    With `again` the changes are another writer's lost snapshot: all are published, or none. With
    `removal` they are computed from each state.
    """

    changes: list[BucketChange]
    settings: CommitSettings
    again: Restore | None = None
    removal: Removal | None = None
    merges_only: bool = False
    dropped: list[DroppedChange] = field(default_factory=list)
    merge: ManifestMerge | None = None

    @classmethod
    def of(
        cls,
        changes: Sequence[BucketChange] | Removal,
        settings: CommitSettings,
        again: Restore | None,
    ) -> CommitWork:
        """See `Committer.commit`."""
        if isinstance(changes, Removal):
            return cls([], settings, removal=changes)
        return cls(list(changes), settings, again, merges_only=not changes)

    @property
    def kind(self) -> CommitKind:
        return CommitKind.COMPACT if self.removal is None else CommitKind.OVERWRITE

    def index_on(
        self,
        storage: Storage,
        state: TableState,
        manifests: Sequence[ManifestFile],
        files: MetadataFiles,
        added_files: AddedFilesCheck,
    ) -> NextIndex:
        """Write the index files that follow `state`'s; from then on `changes` fit both.

        `manifests` are the manifests of its snapshot. Raises the errors of reading and writing.
        """
        if self.removal is not None:
            index = index_without(storage, state, self.removal.changes(state), files)
        else:
            valid = self._publishable(storage, state, manifests, added_files)
            index = next_index(storage, state, valid, self.settings.options.vectors, files)
        self.changes = index.changes
        self.dropped += index.dropped
        return index

    def _publishable(
        self,
        storage: Storage,
        state: TableState,
        manifests: Sequence[ManifestFile],
        added_files: AddedFilesCheck,
    ) -> list[BucketChange]:
        """Changes that fit the state, with complete files; the rest is dropped."""
        again, settings = self.again, self.settings
        if again is None:
            valid, dropped = still_valid(storage, state, self.changes, settings)
        else:
            valid, dropped = self.changes, []
            why = again.objection(state)
            if why is not None:
                self._drop_all(Conflict.OTHER, why)
                return []
        valid, lost = added_files.passed(state, valid, manifests)
        if again is not None and lost:
            self._drop_all(lost[0].conflict, lost[0].why)
            return []
        self.dropped += [*dropped, *lost]
        return valid

    def _drop_all(self, conflict: Conflict, why: str) -> None:
        self.dropped += [
            DroppedChange(change=change, conflict=conflict, why=why) for change in self.changes
        ]


_LOST_RACE = "another commit came first"
# One for all tables: each has 2.5 KB of state.
_JITTER = random.Random()
_log = structlog.get_logger()


def commit_user(owner: Owner, prefix: str | None) -> str:
    """A unique commit user; `prefix` is the table option `commit.user-prefix`."""
    user = owner.unique_name()
    return f"{prefix}_{user}" if prefix else user


class Committer:
    """Commits to one table as the user of its follower; identifiers increase and are unique.

    It sets the follower's delay: the time between the last commit and the next one.
    """

    def __init__(
        self,
        *,
        storage: Storage,
        publisher: SnapshotPublisher,
        follower: Follower,
        clock: Clock,
        owner: Owner,
        jitter: random.Random = _JITTER,
    ) -> None:
        self.follower = follower
        self.follower.delay = SettleDelay(clock, publisher.settle_ms)
        self.follower.may_be_replaced = not publisher.excludes_writers
        self._storage = storage
        self._clock = clock
        self._jitter = jitter
        self._last_identifier = 0
        self._metadata_name = owner.unique_name()
        self._metadata_numbers = itertools.count()
        self._added_files = AddedFilesCheck(storage)
        self._publication = Publication(
            storage=storage, publisher=publisher, clock=clock, owner=owner
        )

    def commit(
        self,
        state: TableState,
        changes: Sequence[BucketChange] | Removal,
        settings: CommitSettings,
        *,
        again: Restore | None = None,
    ) -> tuple[CommitOutcome, TableState]:
        """Publish the changes that can be published and return the newest state.

        A `Removal` is computed again at each attempt. Without `changes`, manifests are merged in a
        snapshot that changes no file, if the table's options enable it
        (FileStoreCommitImpl.compactManifestOnce ignores them). With `again` the changes are another
        writer's lost snapshot: all are published, or none.

        Raises `CommitGaveUp` if retries or time are used up and `StorageError` if metadata cannot
        be written: the table is unchanged, and the caller has to delete the output files of
        `changes`. Raises `CommitUnknown`: then no file may be deleted.

        Blocks until the delay is over: a caller with other work checks the delay first.
        """
        wait_ms = self.follower.delay.wait_ms()
        if wait_ms:
            self._clock.sleep(wait_ms / 1000)
        options = settings.options
        identifier = 0 if again else self._next_identifier(options.full_compaction_delta_commits)
        files = self._metadata_files(state, settings)
        pending = CommitWork.of(changes, settings, again)
        attempt, reason = 0, ""
        for attempt in (retries := Retries(options, self._clock, self._jitter)):
            try:
                state, manifests = self._refreshed(state, pending)
                stamp = self._stamp(identifier)
                snapshot = self._prepared(state, manifests(), pending, files, stamp)
                if snapshot is None:
                    files.delete_written()
                    return NothingCommitted(dropped=tuple(pending.dropped)), state
                assert state.snapshot is not None, "published changes are in one"
                stands = still_stands(self._storage, state.table.root, state.snapshot)
            except (CatalogDown, TransientStorageError, ObjectNotFound) as error:
                retries.is_down = isinstance(error, CatalogDown)
                # This attempt published nothing. A file that is not found was part of a snapshot
                # that expired or was rolled back meanwhile.
                files.delete_written()
                pending.merge, reason = None, str(error)
                _log_retry(attempt, reason)
                continue
            except BaseException:
                files.delete_written()
                raise
            delta = Delta(base=state.snapshot, changes=pending.changes)
            reason = self._refusal(state, snapshot, delta, files, retries) if stands else _LOST_RACE
            if not reason:
                return self._outcome(state, snapshot, pending, attempt)
            assert pending.merge is not None, "prepared with the snapshot"
            files.delete_written(keep=[manifest.file_name for manifest in pending.merge.written])
            pending.merge = None if retries.is_down else pending.merge
            _log_retry(attempt, reason)
        files.delete_written()
        raise _gave_up(state, attempt, reason)

    def _refreshed(
        self, known: TableState, pending: CommitWork
    ) -> tuple[TableState, Callable[[], tuple[ManifestFile, ...]]]:
        """The newest state, and a function that reads the manifests of its snapshot.

        Usually it is the known state. Its manifests are read ahead while the new files of `pending`
        are checked. An error in either is not raised here: the state is known anyway, and its
        changes were reported.
        """
        looking = self._added_files.looking(pending.changes, pending.settings.bucket_folder)
        with looking, prefetch(self._storage, partial(self._manifests, known)) as manifests:
            newest = self.follower.refreshed(known, checks_hint=True)
        if newest.snapshot == known.snapshot:
            return newest, manifests
        return newest, partial(self._manifests, newest)

    def _prepared(
        self,
        state: TableState,
        manifests: Sequence[ManifestFile],
        pending: CommitWork,
        files: MetadataFiles,
        stamp: CommitIdentity,
    ) -> Snapshot | None:
        """The next snapshot, with its metadata written; None if there is nothing to publish."""
        again, settings = pending.again, pending.settings
        index = pending.index_on(self._storage, state, manifests, files, self._added_files)
        is_due = pending.merges_only and is_merge_due(manifests, settings.options.manifests)
        if not (pending.changes or is_due):
            return None
        snapshot, pending.merge = prepare(
            self._storage,
            state,
            pending.changes,
            settings,
            manifests=manifests,
            files=files,
            merge=pending.merge,
            index=index,
            newest_schema_id=self.follower.source.newest_schema_id,
            stamp=stamp,
            kind=pending.kind,
        )
        if pending.merges_only and not pending.merge.written:
            # The winner of the last attempt has merged them.
            return None
        return again.applied(snapshot) if again else snapshot

    def _outcome(
        self,
        state: TableState,
        snapshot: Snapshot,
        pending: CommitWork,
        attempts: int,
    ) -> tuple[CommitOutcome, TableState]:
        """The outcome of a snapshot published on top of `state`, and the newest state."""
        newest, why_lost = self._confirm(state, snapshot, pending.changes)
        published, dropped = tuple(pending.changes), tuple(pending.dropped)
        if why_lost is not None:
            return Replaced(changes=published, dropped=dropped, why=why_lost), newest
        assert state.snapshot is not None, "it was published on top of one"
        done = Committed(
            snapshot_id=snapshot.id,
            base=state.snapshot.identity,
            published=published,
            dropped=dropped,
            attempts=attempts,
        )
        return done, newest

    def _refusal(
        self,
        state: TableState,
        snapshot: Snapshot,
        delta: Delta,
        files: MetadataFiles,
        retries: Retries,
    ) -> str:
        """Why the snapshot was not published, or an empty text.

        If it was published, or that is unknown, it is rechecked later. While the catalog is down,
        all files of the attempt are deleted.
        """
        try:
            is_published = self._publication.published(state.table, snapshot, delta, files)
        except CommitUnknown:
            self._note_published(state, snapshot)
            raise
        except CatalogDown as error:
            retries.is_down = True
            return str(error)
        if not is_published:
            return _LOST_RACE
        self._note_published(state, snapshot)
        return ""

    def _note_published(self, state: TableState, snapshot: Snapshot) -> None:
        self.follower.published(snapshot, state.snapshot, self._clock.steady_ms())
        self.follower.delay.published(snapshot)

    def _manifests(self, state: TableState) -> tuple[ManifestFile, ...]:
        if state.snapshot is None:
            return ()
        return data_manifests(self._storage, state.table.location, state.snapshot)

    def _metadata_files(self, state: TableState, settings: CommitSettings) -> MetadataFiles:
        options = settings.options
        return MetadataFiles(
            self._storage,
            state.table.location,
            unique_name=self._metadata_name,
            codec=codec_of(options.manifest_compression, options.manifest_compression_level),
            manifest_target_size=options.manifests.target_size,
            partition_types=settings.partition_types,
            numbers=self._metadata_numbers,
        )

    def _next_identifier(self, full_compaction_interval: int | None) -> int:
        """The next identifier. Skips multiples of the interval: readers assume full compactions."""
        self._last_identifier += 1
        if full_compaction_interval and self._last_identifier % full_compaction_interval == 0:
            if full_compaction_interval == 1:
                return self._last_identifier
            self._last_identifier += 1
        return self._last_identifier

    def _stamp(self, identifier: int) -> CommitIdentity:
        return CommitIdentity(
            uuid=random_uuid(),
            user=self.follower.user,
            identifier=identifier,
            time_ms=self._clock.now_ms(),
        )

    def _confirm(
        self, state: TableState, snapshot: Snapshot, changes: Sequence[BucketChange]
    ) -> tuple[TableState, str | None]:
        """Write the hint and verify. Returns the newest state, and why the snapshot is lost.

        The commit is valid even if a step fails here. It is lost if another writer has replaced it,
        as a Java process on a plain file system can: its rename is exclusive only within one
        process.
        """
        if self._publication.is_final:
            self._write_hint(state, snapshot)
            return self.follower.newest_after(state), None
        find = partial(self._publication.found_at, state.table, snapshot.id)
        try:
            with (
                prefetch(self._storage, partial(self._trouble_below, state, snapshot)) as below,
                prefetch(self._storage, find) as ours,
            ):
                self._write_hint(state, snapshot)
                trouble = below()
                # A rollback removes the newest snapshot first: after a problem below, look for ours
                # again.
                found = ours() if trouble is None else find()
            if found is None:
                # Rolled back already, or expired below newer ones: the next refresh decides.
                return self.follower.newest_after(state), None
            if found.uuid != snapshot.uuid:
                why_lost = lost_text(snapshot, found)
                self.follower.report_lost(why_lost, is_replaced=True, ours=snapshot)
                return self.follower.newest_after(state), why_lost
            if trouble is not None:
                self.follower.report_lost(trouble, is_replaced=False)
            delta = listed_entries(changes, drop_stats=False).delta
            return self.follower.grown(applied(self._storage, state, found, delta)), None
        except (CompactordError, UnknownFile) as error:
            _log.warning("confirmation_failed", snapshot_id=snapshot.id, error=str(error))
        return self.follower.newest_after(state), None

    def _write_hint(self, state: TableState, snapshot: Snapshot) -> None:
        # A missing or old hint is legal: readers probe the next id.
        with contextlib.suppress(StorageError):
            self._storage.overwrite(paths.latest_hint(state.table.root), str(snapshot.id).encode())

    def _trouble_below(self, state: TableState, ours: Snapshot) -> str | None:
        """The loss of our base snapshot between its last check and our publication, or None."""
        root, base = state.table.root, state.snapshot
        assert base is not None
        found = snapshot_unless_absent(self._storage, root, base.id)
        if found is None:
            # Expiry removes the oldest first; only a rollback keeps older ones.
            if all(other > base.id for other in snapshot_ids(self._storage, root)):
                return None
            what = "was rolled back"
            effect = "the rollback has no effect"
        else:
            if found.identity == base.identity:
                return None
            what = f"was replaced by {found.commit_user}"
            effect = "what the replacement changed is not in the table"
        return f"snapshot {base.id} {what} while we published {ours.id} on top of it: {effect}"


def _log_retry(attempt: int, why: str) -> None:
    if why == _LOST_RACE:
        _log.info("commit_retry", attempt=attempt, reason=_LOST_RACE)
    else:
        _log.warning("commit_retry", attempt=attempt, error=why)


def _gave_up(state: TableState, attempts: int, reason: str) -> CommitGaveUp:
    return CommitGaveUp(
        f"table {state.table.full_name}: no snapshot could be published in {attempts} attempts, "
        f"the last one failed because: {reason}; raise commit.max-retries or commit.timeout, "
        "or try again later"
    )
