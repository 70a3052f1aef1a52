"""Publishing finished compactions as a COMPACT snapshot, with optimistic retry.

One attempt, in this order (operation/FileStoreCommitImpl.java, for kind COMPACT):

1. refresh the state; the snapshot that we stand on must still be what it was,
2. compare every change with it and drop those whose bucket has moved on; prove that what the
   others add is there and will be live (`added_files`),
3. merge manifests (first attempt only; the result is reused while it still fits),
4. write base list, delta manifests, delta list,
5. publish snapshot N+1 unless another was first (`publish`), then the hint, then read it back.

Right before step 5 the snapshot that we stand on is looked at once more, because preparing takes
time and a rollback or another writer's rename may have removed it. A lost race deletes what step 4
wrote and starts at 1. An unknown outcome of step 5 is settled by reading the snapshot's name before
anything else happens; until then nothing is deleted.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator, Sequence

import structlog

from compactord.clock import Clock
from compactord.commit.added_files import AddedFilesCheck
from compactord.commit.attempt import CommitSettings, Stamp, is_merge_due, prepare
from compactord.commit.conflicts import already_live, conflict
from compactord.commit.manifest_merge import ManifestMerge
from compactord.commit.metadata import MetadataFiles
from compactord.commit.outcome import Publication
from compactord.commit.publish import SnapshotPublisher
from compactord.errors import (
    CommitGaveUp,
    CommitUnknown,
    CompactordError,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
)
from compactord.ids import Owner, random_uuid
from compactord.model import (
    BucketChange,
    CommitOutcome,
    Committed,
    DroppedChange,
    NothingCommitted,
    Replaced,
)
from compactord.paimon import paths
from compactord.paimon.avro import codec_of
from compactord.paimon.data_file import BucketId, DataFile, file_identity
from compactord.paimon.index_manifest import read_index_entries
from compactord.paimon.manifest import ManifestFile
from compactord.paimon.options import CommitOptions
from compactord.paimon.snapshot import (
    Snapshot,
    read_snapshot,
    snapshot_ids,
    still_stands,
)
from compactord.state.follower import Follower, lost_text
from compactord.state.table_state import TableState, data_manifests
from compactord.storage.base import Storage

_log = structlog.get_logger()


def commit_user(owner: Owner, prefix: str | None) -> str:
    """A commit user that never comes again; `prefix` is the table option `commit.user-prefix`."""
    user = owner.unique_name()
    return f"{prefix}_{user}" if prefix else user


class Committer:
    """Commits to one table as the user of its follower; identifiers grow and never come twice."""

    def __init__(
        self,
        *,
        storage: Storage,
        publisher: SnapshotPublisher,
        follower: Follower,
        clock: Clock,
        owner: Owner,
        jitter: random.Random | None = None,
    ) -> None:
        self.follower = follower
        self._storage = storage
        self._clock = clock
        self._jitter = jitter or random.Random()
        self._last_identifier = 0
        self._metadata_name = owner.unique_name()
        self._metadata_numbers = itertools.count()
        self._added_files = AddedFilesCheck(storage)
        self._publication = Publication(
            storage=storage, publisher=publisher, clock=clock, owner=owner
        )

    def commit(
        self, state: TableState, changes: Sequence[BucketChange], settings: CommitSettings
    ) -> tuple[CommitOutcome, TableState]:
        """Publish what can be published; the state that comes back is the newest.

        Without `changes`, manifests are merged in a snapshot that changes no file, if the table's
        options ask for it (FileStoreCommitImpl.compactManifestOnce does it whatever they say).

        Raises `CommitGaveUp` when retries or time are used up and `StorageError` when metadata
        cannot be written: the table is as it was, and the output files of `changes` are the
        caller's to remove. Raises `CommitUnknown`: then no file may be removed.
        """
        options = settings.options
        identifier = self._next_identifier(options.full_compaction_delta_commits)
        files = self._metadata_files(state, settings)
        merge: ManifestMerge | None = None
        dropped: list[DroppedChange] = []
        pending = list(changes)
        attempt, reason = 0, ""
        for attempt in self._attempts(options):
            try:
                state = self.follower.refreshed(state)
                manifests = self._manifests(state)
                pending, refused = self._publishable(state, pending, manifests, settings)
                dropped += refused
                is_due = bool(pending) if changes else is_merge_due(manifests, options)
                if not is_due:
                    files.take_back()
                    return NothingCommitted(dropped=tuple(dropped)), state
                snapshot, merge = prepare(
                    self._storage,
                    state,
                    pending,
                    settings,
                    manifests=manifests,
                    files=files,
                    merge=merge,
                    stamp=self._stamp(identifier),
                )
                if not changes and not merge.written:
                    # Who came first in the last attempt has merged them.
                    files.take_back()
                    return NothingCommitted(dropped=()), state
                assert state.snapshot is not None, "what stands of the changes is in one"
                stands = still_stands(self._storage, state.table.location, state.snapshot)
            except (TransientStorageError, ObjectNotFound) as error:
                # Nothing of this attempt was published, whatever it was that failed. What is not
                # found went with a snapshot that expired or was rolled back meanwhile.
                files.take_back()
                merge, reason = None, str(error)
                _log.warning("commit_retry", attempt=attempt, reason=reason)
                continue
            except BaseException:
                files.take_back()
                raise
            if stands and self._publication.published(state.table, snapshot, files):
                newest, why_lost = self._confirm(state, snapshot)
                if why_lost is not None:
                    lost = Replaced(changes=tuple(pending), dropped=tuple(dropped), why=why_lost)
                    return lost, newest
                done = Committed(
                    snapshot_id=snapshot.id,
                    published=tuple(pending),
                    dropped=tuple(dropped),
                    attempts=attempt,
                )
                return done, newest
            files.take_back(keep=[manifest.file_name for manifest in merge.written])
            reason = "another commit came first"
            _log.info("commit_retry", attempt=attempt, reason=reason)
        files.take_back()
        raise _gave_up(state, attempt, reason)

    def _manifests(self, state: TableState) -> tuple[ManifestFile, ...]:
        """Those of the snapshot that the state stands on."""
        if state.snapshot is None:
            return ()
        return data_manifests(self._storage, state.table.location, state.snapshot)

    def _publishable(
        self,
        state: TableState,
        changes: Sequence[BucketChange],
        manifests: Sequence[ManifestFile],
        settings: CommitSettings,
    ) -> tuple[list[BucketChange], list[DroppedChange]]:
        """Changes that fit the newest state and whose files are whole; the others with why."""
        valid, dropped = _still_valid(self._storage, state, changes, settings)
        valid, lost = self._added_files.passed(
            state.table.location, valid, manifests, settings.bucket_folder
        )
        return valid, [*dropped, *lost]

    def _metadata_files(self, state: TableState, settings: CommitSettings) -> MetadataFiles:
        options = settings.options
        return MetadataFiles(
            self._storage,
            state.table.location,
            unique_name=self._metadata_name,
            codec=codec_of(options.manifest_compression, options.manifest_compression_level),
            manifest_target_size=options.manifest_target_size,
            partition_types=settings.partition_types,
            numbers=self._metadata_numbers,
        )

    def _next_identifier(self, full_compaction_interval: int | None) -> int:
        """Identifiers that are multiples of the interval would claim a full compaction."""
        self._last_identifier += 1
        if full_compaction_interval and self._last_identifier % full_compaction_interval == 0:
            if full_compaction_interval == 1:
                return self._last_identifier
            self._last_identifier += 1
        return self._last_identifier

    def _attempts(self, options: CommitOptions) -> Iterator[int]:
        """1, 2, …, with pauses that double and jitter between them, as `commit.*` options say."""
        start = self._clock.monotonic_s()
        # Negative means none, as in Java: the first attempt is always made.
        max_retries = max(0, options.max_retries)
        for retry in range(max_retries + 1):
            yield retry + 1
            elapsed_ms = (self._clock.monotonic_s() - start) * 1000
            if options.timeout_ms is not None and elapsed_ms > options.timeout_ms:
                return
            if retry < max_retries:
                wait_ms = min(options.min_retry_wait_ms * 2**retry, options.max_retry_wait_ms)
                wait_ms += self._jitter.randrange(max(1, wait_ms // 5))
                self._clock.sleep(wait_ms / 1000)

    def _stamp(self, identifier: int) -> Stamp:
        return Stamp(
            uuid=random_uuid(),
            user=self.follower.user,
            identifier=identifier,
            time_ms=self._clock.now_ms(),
        )

    def _confirm(self, state: TableState, snapshot: Snapshot) -> tuple[TableState, str | None]:
        """Write the hint and look back; the newest state, and why the snapshot is lost, if it is.

        The commit stands, whatever fails here. It is lost when another writer has replaced it: a
        Java process on a plain file system can, its rename is exclusive within one process only.
        """
        location = state.table.location
        # A missing or old hint is legal: readers probe the next id.
        with contextlib.suppress(StorageError):
            self._storage.overwrite(paths.latest_hint(location), str(snapshot.id).encode())
        newest = self.follower.newest_after(state)
        # Ours is looked at last. After the refresh: a state that holds a replacement must not pass
        # for ours. After its base: a rollback removes the newest snapshot first.
        try:
            trouble = self._trouble_below(state, snapshot)
            found = self._publication.found_at(location, snapshot.id)
            if found is None:
                # Rolled back already, or expired below newer ones: the next refresh tells.
                return newest, None
            if found.uuid != snapshot.uuid:
                why_lost = lost_text(snapshot, found)
                self.follower.report_lost(state.table, why_lost, is_replaced=True)
                return self.follower.newest_after(newest), why_lost
            if trouble is not None:
                self.follower.report_lost(state.table, trouble, is_replaced=False)
        except CompactordError as error:
            _log.warning("confirmation_failed", snapshot_id=snapshot.id, reason=str(error))
        return newest, None

    def _trouble_below(self, state: TableState, ours: Snapshot) -> str | None:
        """What happened to the snapshot under ours between the last look and the publication."""
        location, base = state.table.location, state.snapshot
        assert base is not None
        try:
            found = read_snapshot(self._storage, location, base.id)
        except ObjectNotFound:
            # Expiry removes the oldest first; only a rollback leaves older ones.
            if all(other > base.id for other in snapshot_ids(self._storage, location)):
                return None
            what = "was rolled back"
            effect = "the rollback has no effect"
        else:
            if found.identity == base.identity:
                return None
            what = f"was replaced by {found.commit_user}"
            effect = "what the replacement changed is not in the table"
        return f"snapshot {base.id} {what} while we published {ours.id} on top of it: {effect}"


def _gave_up(state: TableState, attempts: int, reason: str) -> CommitGaveUp:
    return CommitGaveUp(
        f"table {state.table.full_name}: no snapshot could be published in {attempts} attempts, "
        f"the last one failed because: {reason}; raise commit.max-retries or commit.timeout, "
        "or try again later"
    )


def _still_valid(
    storage: Storage,
    state: TableState,
    changes: Sequence[BucketChange],
    settings: CommitSettings,
) -> tuple[list[BucketChange], list[DroppedChange]]:
    """Changes that still fit the newest state, and the others with the reason.

    Raises `CommitUnknown` when outputs turn out to be live: who drops them would delete them.
    """
    valid, dropped = [], []
    indexes = index_entries(storage, state)
    for change in changes:
        live = _relevant_files(state, change, settings)
        live_output = already_live(change, live)
        if live_output is not None:
            raise CommitUnknown(
                f"table {state.table.full_name}: {live_output} is live although no snapshot of "
                "ours was confirmed; nothing was deleted, the next run plans again"
            )
        summary = state.files.summary(change.bucket)
        found = conflict(
            change,
            live=live,
            total_buckets=summary.total_buckets if summary.file_count else None,
            index_entries=indexes.get(change.bucket, ()),
            key_of=settings.key_of,
        )
        if found is None:
            valid.append(change)
        else:
            kind, why = found
            dropped.append(DroppedChange(change=change, conflict=kind, why=why))
    return valid, dropped


def _relevant_files(
    state: TableState, change: BucketChange, settings: CommitSettings
) -> Sequence[DataFile]:
    """The live files that the check looks at: key ranges concern the whole bucket, names do not.

    A partition without buckets is one bucket and may hold very many files.
    """
    if settings.key_of is not None:
        return state.files.files_in(change.bucket)
    return [
        file
        for file in (*change.before, *change.after)
        if state.files.contains(file_identity(change.bucket, file))
    ]


def index_entries(storage: Storage, state: TableState) -> dict[BucketId, tuple[bytes, ...]]:
    """The serialised index entries of every bucket that has some, in the newest snapshot."""
    if state.snapshot is None or state.snapshot.index_manifest is None:
        return {}
    found: dict[BucketId, tuple[bytes, ...]] = {}
    for entry in read_index_entries(storage, state.table.location, state.snapshot.index_manifest):
        found[entry.bucket] = (*found.get(entry.bucket, ()), entry.canonical)
    return found
