"""Publishing finished compactions as a COMPACT snapshot, with optimistic retry.

One attempt, in this order (operation/FileStoreCommitImpl.java, for kind COMPACT):

1. refresh the state; the snapshot that we stand on must still be what it was,
2. compare every change with it and drop those whose bucket has moved on,
3. merge manifests (first attempt only; the result is reused while it still fits),
4. write base list, delta manifests, delta list,
5. create snapshot-(N+1) if absent, then the hint, then read it back.

A lost race deletes what step 4 wrote and starts at 1. An unknown outcome of step 5 is settled by
reading the snapshot's name before anything else happens; until then nothing is deleted.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence

import structlog

from compactord.clock import Clock
from compactord.commit.attempt import CommitSettings, Stamp, prepare
from compactord.commit.conflicts import conflict
from compactord.commit.manifest_merge import ManifestMerge
from compactord.commit.metadata import MetadataFiles
from compactord.errors import (
    CommitGaveUp,
    CommitUnknown,
    CompactordError,
    FormatError,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
)
from compactord.ids import Owner
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
from compactord.paimon.data_file import BucketId
from compactord.paimon.index_manifest import read_index_entries
from compactord.paimon.options import CommitOptions
from compactord.paimon.snapshot import Snapshot, read_snapshot, snapshot_json
from compactord.paimon.table import TableState, refresh_state
from compactord.storage.base import Creation, Storage

# How often an unknown outcome is looked into before we say that we do not know.
_OUTCOME_ATTEMPTS = 5
_log = structlog.get_logger()


class Committer:
    """Commits to one table under one commit user; identifiers grow and are never used twice."""

    def __init__(
        self,
        *,
        storage: Storage,
        clock: Clock,
        owner: Owner,
        user_prefix: str | None,
        jitter: random.Random | None = None,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._owner = owner
        self._jitter = jitter or random.Random()
        user = owner.new_uuid()
        self.user = f"{user_prefix}_{user}" if user_prefix else user
        self._last_identifier = 0
        # Snapshots of ours that other writers replaced, as texts.
        self.lost_snapshots: list[str] = []

    def commit(
        self, state: TableState, changes: Sequence[BucketChange], settings: CommitSettings
    ) -> tuple[CommitOutcome, TableState]:
        """Publish what can be published; the state that comes back is the newest.

        Raises `CommitGaveUp` when retries or time are used up and `StorageError` when metadata
        cannot be written: the table is as it was, and the output files of `changes` are the
        caller's to remove. Raises `CommitUnknown`: then no file may be removed.
        """
        options = settings.options
        identifier = self._next_identifier(options.full_compaction_delta_commits)
        files = MetadataFiles(
            self._storage,
            state.table.location,
            uuid=self._owner.new_uuid(),
            codec=codec_of(options.manifest_compression, options.manifest_compression_level),
            manifest_target_size=options.manifest_target_size,
            partition_types=settings.partition_types,
        )
        merge: ManifestMerge | None = None
        dropped: list[DroppedChange] = []
        pending = list(changes)
        for attempt in self._attempts(options):
            try:
                state = self._refreshed(state)
                pending, refused = _still_valid(self._storage, state, pending, settings)
                dropped += refused
                if not pending:
                    files.take_back()
                    return NothingCommitted(dropped=tuple(dropped)), state
                snapshot, merge = prepare(
                    self._storage,
                    state,
                    pending,
                    settings,
                    files=files,
                    merge=merge,
                    stamp=self._stamp(identifier),
                )
            except TransientStorageError as error:
                # Nothing of this attempt was published, whatever it was that failed.
                files.take_back()
                merge = None
                _log.warning("commit_retry", attempt=attempt, reason=str(error))
                continue
            except BaseException:
                files.take_back()
                raise
            if self._publish(state.table.location, snapshot, files) is Creation.CREATED:
                newest, why_lost = self._confirm(state, snapshot)
                if why_lost is not None:
                    return Replaced(changes=tuple(pending), why=why_lost), newest
                outcome = Committed(
                    snapshot_id=snapshot.id,
                    published=tuple(pending),
                    dropped=tuple(dropped),
                    attempts=attempt,
                )
                return outcome, newest
            files.take_back(keep=[manifest.file_name for manifest in merge.written])
            _log.info("commit_retry", attempt=attempt, reason="another commit came first")
        files.take_back()
        raise CommitGaveUp(
            f"table {state.table.full_name}: no snapshot could be published in "
            f"{options.max_retries + 1} attempts: other commits always came first; "
            "raise commit.max-retries or try again later"
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
        for retry in range(options.max_retries + 1):
            yield retry + 1
            elapsed_ms = (self._clock.monotonic_s() - start) * 1000
            if options.timeout_ms is not None and elapsed_ms > options.timeout_ms:
                return
            if retry < options.max_retries:
                wait_ms = min(options.min_retry_wait_ms * 2**retry, options.max_retry_wait_ms)
                wait_ms += self._jitter.randrange(max(1, wait_ms // 5))
                self._clock.sleep(wait_ms / 1000)

    def _stamp(self, identifier: int) -> Stamp:
        return Stamp(
            uuid=self._owner.new_uuid(),
            user=self.user,
            identifier=identifier,
            time_ms=self._clock.now_ms(),
        )

    def _publish(self, location: str, snapshot: Snapshot, files: MetadataFiles) -> Creation:
        """Create the snapshot. Raises `CommitUnknown` when it cannot be told what happened."""
        path = paths.snapshot_path(location, snapshot.id)
        data = snapshot_json(snapshot)
        for attempt in range(1, _OUTCOME_ATTEMPTS + 1):
            folder = paths.snapshot_folder(location)
            temporary = f"{folder}/.snapshot-{snapshot.id}.{self._owner.new_uuid()}.tmp"
            failure: StorageError | None = None
            try:
                created = self._storage.create_if_absent(path, data, temporary=temporary)
                if created is Creation.CREATED:
                    return created
            except StorageError as error:
                _log.warning("commit_outcome_unknown", attempt=attempt, reason=str(error))
                failure = error
            found = self._found_at(location, snapshot.id)
            if found is not None:
                return Creation.CREATED if found.uuid == snapshot.uuid else Creation.EXISTS
            if failure is not None and not isinstance(failure, TransientStorageError):
                files.take_back()
                raise failure
            # The same bytes again: should the first call take effect late, it is still our commit.
            self._clock.sleep(0.01 * 2**attempt)
        raise CommitUnknown(
            f"{path}: the store neither confirms nor denies that it was created; "
            "nothing was removed, the next run finds out"
        )

    def _found_at(self, location: str, snapshot_id: int) -> Snapshot | None:
        """The snapshot under this id; None when there certainly is none."""
        reason = ""
        for attempt in range(1, _OUTCOME_ATTEMPTS + 1):
            try:
                return read_snapshot(self._storage, location, snapshot_id)
            except ObjectNotFound:
                return None
            except (StorageError, FormatError) as error:
                reason = str(error)
                _log.warning("commit_outcome_unknown", attempt=attempt, reason=reason)
                self._clock.sleep(0.01 * 2**attempt)
        raise CommitUnknown(
            f"{paths.snapshot_path(location, snapshot_id)} cannot be read ({reason}), so it cannot "
            "be told whether our snapshot was published; nothing was removed"
        )

    def _confirm(self, state: TableState, snapshot: Snapshot) -> tuple[TableState, str | None]:
        """Write the hint and read the snapshot back; why it is lost, if it is.

        The commit stands, whatever fails here. It is lost when another writer has replaced it: a
        Java process on a plain file system can, its rename is exclusive within one process only.
        """
        location = state.table.location
        # A missing or old hint is legal: readers probe the next id.
        with contextlib.suppress(StorageError):
            self._storage.overwrite(paths.latest_hint(location), str(snapshot.id).encode())
        why_lost = None
        with contextlib.suppress(CommitUnknown):
            found = self._found_at(location, snapshot.id)
            if found is not None and found.uuid != snapshot.uuid:
                why_lost = _lost(snapshot, found)
                self._report_lost(state, why_lost)
        try:
            return refresh_state(self._storage, state).state, why_lost
        except CompactordError as error:
            _log.warning("refresh_failed", reason=str(error))
            return state, why_lost

    def _refreshed(self, state: TableState) -> TableState:
        """The newest state; a snapshot of ours that it no longer builds upon is reported."""
        refreshed = refresh_state(self._storage, state)
        if refreshed.lost is not None and refreshed.lost.commit_user == self.user:
            self._report_lost(state, _lost(refreshed.lost, None))
        return refreshed.state

    def _report_lost(self, state: TableState, why: str) -> None:
        self.lost_snapshots.append(why)
        _log.error("snapshot_lost", table=state.table.full_name, reason=why)


def _lost(ours: Snapshot, found: Snapshot | None) -> str:
    now = f"is now {found.uuid} by {found.commit_user}" if found else "is not there any more"
    return f"snapshot {ours.id}, which we published with uuid {ours.uuid}, {now}"


def _still_valid(
    storage: Storage,
    state: TableState,
    changes: Sequence[BucketChange],
    settings: CommitSettings,
) -> tuple[list[BucketChange], list[DroppedChange]]:
    """Changes that still fit the newest state, and the others with the reason."""
    valid, dropped = [], []
    indexes = index_entries(storage, state)
    for change in changes:
        bucket = state.files.bucket(change.bucket)
        why = conflict(
            change,
            live=bucket.files,
            total_buckets=bucket.total_buckets if bucket.files else None,
            index_entries=indexes.get(change.bucket, ()),
            key_of=settings.key_of,
        )
        if why is None:
            valid.append(change)
        else:
            dropped.append(DroppedChange(change=change, why=why))
    return valid, dropped


def index_entries(storage: Storage, state: TableState) -> dict[BucketId, tuple[bytes, ...]]:
    """The serialised index entries of every bucket that has some, in the newest snapshot."""
    if state.snapshot is None or state.snapshot.index_manifest is None:
        return {}
    found: dict[BucketId, tuple[bytes, ...]] = {}
    for entry in read_index_entries(storage, state.table.location, state.snapshot.index_manifest):
        found[entry.bucket] = (*found.get(entry.bucket, ()), entry.canonical)
    return found
