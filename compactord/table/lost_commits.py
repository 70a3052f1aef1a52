"""Finds writers' commits that a late rename lost, and restores them where that is proved safe.

docs/adr/0006-late-renames.md has the rules and reasons. One thread looks back; any thread may call
`expiry_blocker`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

import structlog

from compactord.clock import Clock, iso_text
from compactord.commit.changes import Committed, LossOutcome, LostCommit, NothingCommitted
from compactord.commit.committer import Committer
from compactord.commit.recommit import (
    LostChanges,
    Restore,
    TableRules,
    bucket_changes,
    is_committed_again,
    is_repeated,
    objection,
    users_of,
)
from compactord.errors import (
    CommitUnknown,
    CompactordError,
    DataFileDamaged,
    ErrorKind,
    FormatError,
    ObjectNotFound,
    UnsupportedTable,
)
from compactord.model import Compaction, SubcompactionFailure, TableKind
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId, DataFile, EntryKind, FileKey, ManifestEntry
from compactord.paimon.deletion_vectors import read_deleted_rows
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import Snapshot, snapshot_ids, still_stands
from compactord.paimon.support import moves_keys
from compactord.state.ancestry import Ancestry, Contained, PublishedSnapshots, Step, late_candidates
from compactord.state.follower import lost_text
from compactord.state.table_state import TableState
from compactord.storage.base import Storage
from compactord.storage.calls import AT_ONCE, map_concurrently, prefetch
from compactord.storage.ranges import read_twice
from compactord.table.opening import OpenTable
from compactord.text import count_text
from compactord.verify.damage import VECTORS_FILE, Damage, DamageKind, version_without

# How many snapshots the first look back reads, and how many below a lost one for its user.
LOOKED_BACK = 50
# With more snapshots since it was lost, there is no proof.
_STEPS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A snapshot that the newest one does not descend from; `above` is the next one that it does.

    Unless `is_certain`, it may be in the table. `damage` is the reason if it cannot be read.
    """

    snapshot: Snapshot
    above: Snapshot
    is_certain: bool
    damage: str = ""


def changes_since(
    storage: Storage,
    state: TableState,
    lost: Mapping[int, Lost],
    key: int,
    known: Mapping[int, Snapshot],
) -> LostChanges | str:
    """The inputs of the proof for snapshot `key`, read again; or the reason why there is no proof.

    `lost` are all lost snapshots, `known` the ones that this process published, by id. Raises
    `TransientStorageError`.
    """
    each, newest = lost[key], state.snapshot
    assert newest is not None, "it has snapshots above the lost one"
    if each.damage:
        return each.damage
    if not each.is_certain:
        return "manifests were merged since, so that it is not known what became of its files"
    ancestry = Ancestry(storage, state.table)
    try:
        if ancestry.snapshot(key).identity != each.snapshot.identity:
            return "another snapshot has its id now"
        steps = _steps(ancestry, lost, key, newest, known)
        if isinstance(steps, str):
            return steps
        others = {}
        for number in range(max(1, key - LOOKED_BACK), newest.id + 1):
            if number in lost:
                continue
            try:
                others[number] = ancestry.snapshot(number)
            except ObjectNotFound:
                if number > key:
                    raise
        return LostChanges(
            snapshot=each.snapshot,
            entries=ancestry.delta_entries(each.snapshot),
            # An index manifest that is still the newest one was not made by a lost snapshot.
            index_before=others.get(key - 1, newest).index_manifest,
            since=steps,
            others=users_of(others, each.snapshot),
        )
    except (ObjectNotFound, FormatError, UnsupportedTable) as error:
        return str(error)


def is_there_anyway(
    storage: Storage, state: TableState, lost: Mapping[int, Lost], key: int
) -> bool:
    """Whether the files of snapshot `key` are in the table, although no other proof exists.

    A process that starts does not know what the lost snapshot replaced, but finds changes that
    were committed again later. Raises `TransientStorageError`.
    """
    each, newest = lost[key], state.snapshot
    assert newest is not None, "it has snapshots above the lost one"
    if newest.id - key > _STEPS_MAX:
        return False
    ancestry = Ancestry(storage, state.table)
    try:
        changes = LostChanges(
            snapshot=each.snapshot,
            entries=ancestry.delta_entries(each.snapshot),
            index_before=None,
            since=_last_steps(ancestry, lost, key, newest),
            others=(),
        )
    except (ObjectNotFound, FormatError, UnsupportedTable):
        return False
    return is_committed_again(changes, state)


def _last_steps(
    ancestry: Ancestry, lost: Mapping[int, Lost], key: int, newest: Snapshot
) -> tuple[Step, ...]:
    """The steps above `key` to the newest snapshot, as far down as each is in the next one."""
    steps, above = [ancestry.step(newest)], newest
    for number in range(newest.id - 1, key, -1):
        if number in lost:
            continue
        snapshot = ancestry.snapshot(number)
        if ancestry.contained(snapshot, above) is not Contained.YES:
            break
        steps.append(ancestry.step(snapshot))
        above = snapshot
    return tuple(steps)


def _steps(
    ancestry: Ancestry,
    lost: Mapping[int, Lost],
    key: int,
    newest: Snapshot,
    known: Mapping[int, Snapshot],
) -> tuple[Step, ...] | str:
    """The steps from the base of the lost snapshot to the newest one, each proved."""
    first, above = lost[key].snapshot, lost[key].above
    now = newest if above.id == newest.id else ancestry.snapshot(above.id)
    if above.id > newest.id or now.identity != above.identity:
        return f"snapshot {above.id} was rolled back"
    if newest.id - key > _STEPS_MAX:
        return f"{newest.id - key} snapshots came since"
    steps: list[Step] = []
    while True:
        replaced = ancestry.between(first, above, known)
        if replaced is None:
            return f"it is not known what snapshot {above.id} was built on"
        steps += [*replaced, ancestry.step(above)]
        while above.id < newest.id:
            number = above.id + 1
            if number in lost:
                break
            following = newest if number == newest.id else ancestry.snapshot(number)
            if ancestry.contained(above, following) is not Contained.YES:
                return f"snapshot {number} was not built on {above.id}"
            steps.append(ancestry.step(following))
            above = following
        else:
            return tuple(steps)
        first = lost[above.id + 1].snapshot
        if ancestry.contained(above, first) is not Contained.YES:
            return f"lost snapshot {first.id} was not built on {above.id}"
        above = lost[first.id].above


_log = structlog.get_logger()
# Names of files in a report.
_NAMES_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LookBack:
    """The session's state. `busy` are buckets whose files running compactions read."""

    state: TableState
    table: OpenTable
    busy: Collection[BucketId]
    may_commit: bool


class LostCommits:
    """Lost commits of one table, for one session; `committer` notes snapshots in `published`.

    `published` is None if writers cannot replace a snapshot; then there is no look back.
    """

    def __init__(
        self,
        storage: Storage,
        table: TableRef,
        clock: Clock,
        committer: Committer,
        published: PublishedSnapshots | None,
    ) -> None:
        self._storage = storage
        self._table = table
        self._clock = clock
        self._committer = committer
        self._follower = committer.follower
        self._published = published
        # Findings that the session has not taken yet.
        self.found: list[LostCommit] = []
        self._is_first = True
        self._looked_back_ms = 0
        # Lost, and not decided yet.
        self._pending: dict[int, Snapshot] = {}
        # Lost snapshots by the id of the snapshot that has their changes again.
        self._recommitted: dict[int, Snapshot] = {}

    def expiry_blocker(self) -> str | None:
        """Why no snapshot may expire now, or None. Raises what listing and reading raise."""
        if self._published is None:
            return None
        if self._is_first or self._pending or self._published.replaced(self._clock.steady_ms()):
            return "another writer replaced a snapshot, and it is not yet known what that lost"
        return None

    def forget(self) -> None:
        """Forgets everything, because the table was recreated."""
        self._pending.clear()
        self._recommitted.clear()
        if self._published is not None:
            self._published.clear()

    def look_back(self, at: LookBack, *, writer_delay_ms: int, interval_ms: int) -> TableState:
        """Looks back if `interval_ms` have passed since the last time; returns the newest state.

        Raises `CommitUnknown`; after other errors the next look back retries.
        """
        now_ms, follower = self._clock.steady_ms(), self._follower
        is_asked = self._is_first or follower.suspects or follower.delay.is_unread
        is_due = is_asked or now_ms >= self._looked_back_ms + interval_ms
        if self._published is None or not is_due:
            return at.state
        if at.state.snapshot is None:
            self._is_first = False
            return at.state
        self._looked_back_ms = now_ms
        self._published.forget_before(now_ms - writer_delay_ms)
        try:
            state = self._looked_back(at, at.state.snapshot, self._published)
        except CommitUnknown:
            raise
        except CompactordError as error:
            _log.warning("look_back_failed", error=str(error))
            return at.state
        follower.delay.read_back()
        return state

    def _looked_back(
        self, at: LookBack, newest: Snapshot, published: PublishedSnapshots
    ) -> TableState:
        ancestry, follower = Ancestry(self._storage, self._table), self._follower
        known, replaced = published.known(), published.replaced(self._clock.steady_ms())
        rolled_back = {each.id for each in follower.suspects if published.was_rolled_back(each)}
        for pair in replaced:
            original = self._recommitted.pop(pair.known.id, None)
            if original is not None:
                self._pending[original.id] = original
                why = lost_text(pair.known, pair.found)
                unsafe = not published.was_rolled_back(pair.known)
                follower.report_lost(why, is_replaced=unsafe, ours=pair.known)
        self._recommitted = {key: each for key, each in self._recommitted.items() if key in known}
        said = frozenset(self._pending)
        candidates = {**self._still_pending(), **{pair.found.id: pair.found for pair in replaced}}
        lost = self._lost(ancestry, newest, candidates)
        if self._is_first:
            kept = {each.id: each for each in self._kept(ancestry, newest)}
            old = {key: each for key, each in kept.items() if key not in candidates}
            for key, each in self._lost(ancestry, newest, {**candidates, **old}).items():
                if key in old and not each.damage and _has_ours(ancestry, each):
                    lost[key] = each
        for key, snapshot in candidates.items():
            if key not in lost and key < newest.id:
                published.decided(snapshot)
        self._pending = {key: each.snapshot for key, each in lost.items()}
        self._is_first = False
        gone = {key: each for key, each in known.items() if key in lost and key not in said}
        self._report_replaced(gone, lost, rolled_back)
        state = at.state
        for key in sorted(lost):
            state = self._decided(at, state, lost, key, known)
            if key not in self._pending:
                published.decided(lost[key].snapshot)
        return state

    def _still_pending(self) -> dict[int, Snapshot]:
        """Pending losses that are still on disk."""
        return {
            key: each
            for key, each in self._pending.items()
            if still_stands(self._storage, self._table.root, each)
        }

    def _kept(self, ancestry: Ancestry, newest: Snapshot) -> tuple[Snapshot, ...]:
        """Snapshots that an earlier process may have read and that may be lost."""
        nearest = range(max(1, newest.id - AT_ONCE), newest.id)
        # Most of them exist.
        with prefetch(self._storage, partial(ancestry.readable, nearest)):
            ids = snapshot_ids(self._storage, self._table.root)
        below = [i for i in ids if newest.id - LOOKED_BACK < i < newest.id]
        return late_candidates([*ancestry.readable(below), newest])

    def _lost(
        self, ancestry: Ancestry, newest: Snapshot, candidates: Mapping[int, Snapshot]
    ) -> dict[int, Lost]:
        """The candidates that the newest snapshot does not descend from.

        A candidate with unreadable metadata counts if it took the place of a known one.
        """
        known = self._published.known() if self._published is not None else {}
        lost: dict[int, Lost] = {}
        for key in sorted(candidates, reverse=True):
            above = self._above(ancestry, key, newest, lost)
            if above is None:
                continue
            snapshot, damage = candidates[key], ""
            try:
                contained = ancestry.contained(snapshot, above)
            except ObjectNotFound as error:
                if not (key in known and still_stands(self._storage, self._table.root, snapshot)):
                    # Expiry deletes metadata before the snapshots, and may be interrupted.
                    continue
                contained, damage = Contained.UNKNOWN, str(error)
            except FormatError as error:
                contained, damage = Contained.UNKNOWN, str(error)
            if contained is not Contained.YES:
                lost[key] = Lost(
                    snapshot=snapshot,
                    above=above,
                    is_certain=contained is Contained.NO,
                    damage=damage,
                )
        return lost

    def _above(
        self, ancestry: Ancestry, key: int, newest: Snapshot, lost: Mapping[int, Lost]
    ) -> Snapshot | None:
        for above in range(key + 1, newest.id):
            if above not in lost:
                try:
                    return ancestry.snapshot(above)
                except ObjectNotFound:
                    continue
        return newest if key < newest.id else None

    def _report_replaced(
        self,
        replaced: Mapping[int, Snapshot],
        lost: Mapping[int, Lost],
        rolled_back: Collection[int],
    ) -> None:
        """Logs our replaced snapshots. Commits that writers lost with them are logged apart."""
        follower = self._follower
        suspects, follower.suspects = follower.suspects, []
        for ours in suspects:
            if ours.id not in lost:
                why, is_replaced = lost_text(ours, None), ours.id not in rolled_back
                follower.report_lost(why, is_replaced=is_replaced, ours=ours)
        for key, ours in replaced.items():
            if ours.commit_user == follower.user:
                why = lost_text(ours, lost[key].snapshot)
                follower.report_lost(why, is_replaced=False)

    def _decided(
        self,
        at: LookBack,
        state: TableState,
        lost: Mapping[int, Lost],
        key: int,
        known: Mapping[int, Snapshot],
    ) -> TableState:
        """Commits it again, or gives the reason why not; pending if neither is possible now."""
        each = lost[key]
        changes = changes_since(self._storage, state, lost, key, known)
        if self._is_repeated(state, lost, key, changes):
            _log.warning("writer_commit_repeated", **_named(each.snapshot))
            del self._pending[key]
            return state
        entries = changes.entries if isinstance(changes, LostChanges) else self._entries(each)
        if not at.may_commit or self._follower.delay.wait_ms():
            _log.warning("writer_commit_pending", **_named(each.snapshot))
            return state

        def why_not(newest: TableState) -> str | None:
            found = changes_since(self._storage, newest, lost, key, known)
            if isinstance(found, str):
                return found
            if is_repeated(found):
                return "its user has committed it again meanwhile"
            return objection(found, newest, self._rules(at))

        again_id: int | None = None
        why = why_not(state)
        if why is None:
            outcome, state = self._committer.commit(
                state,
                bucket_changes(entries),
                at.table.commit_settings,
                again=Restore(lost=each.snapshot, objection=why_not),
            )
            match outcome:
                case Committed():
                    again_id = outcome.snapshot_id
                    self._recommitted[again_id] = each.snapshot
                case NothingCommitted(dropped=dropped):
                    why = dropped[0].why
                    changes = changes_since(self._storage, state, lost, key, known)
                case _:
                    # Ours was replaced at once, which is reported; the next look back retries.
                    return state
        if again_id is None and self._must_wait(at, state, each, changes):
            _log.warning("writer_commit_pending", **_named(each.snapshot), reason=why)
            return state
        del self._pending[key]
        # Another process, or its own, may have been first.
        if again_id is not None or not self._is_repeated(state, lost, key, changes):
            self._report(each, entries, again_id, why or "")
        return state

    def _is_repeated(
        self, state: TableState, lost: Mapping[int, Lost], key: int, changes: LostChanges | str
    ) -> bool:
        """Whether any process has committed it again."""
        if isinstance(changes, LostChanges):
            return is_committed_again(changes, state) or is_repeated(changes)
        return is_there_anyway(self._storage, state, lost, key)

    def _must_wait(
        self, at: LookBack, state: TableState, each: Lost, changes: LostChanges | str
    ) -> bool:
        """Whether a later look back may decide otherwise.

        A running merge leaves no trace for the next process until it is published; and a
        comparison with rolled-back snapshots proves nothing.
        """
        if isinstance(changes, LostChanges):
            rules = self._rules(at)
            idle = replace(rules, busy=())
            if objection(changes, state, rules) and not objection(changes, state, idle):
                return True
        assert state.snapshot is not None, "it has snapshots above the lost one"
        newest, here, above = (
            still_stands(self._storage, self._table.root, one)
            for one in (state.snapshot, each.snapshot, each.above)
        )
        return not newest or (here and not above)  # Expiry takes the oldest first.

    def _rules(self, at: LookBack) -> TableRules:
        table = at.table
        return TableRules(
            is_ordered=table.kind is not TableKind.APPEND_UNAWARE,
            has_sequence_fields=bool(table.options.sequence_fields),
            numbers_by_snapshot=table.options.snapshot_ordering,
            moves_keys=moves_keys(table.schema, table.options),
            bucket_option=table.options.bucket,
            newest_schema_id=table.schema.id,
            busy=at.busy,
        )

    def _entries(self, each: Lost) -> tuple[ManifestEntry, ...]:
        """For the report: the readable entries of a delta that proves nothing."""
        ancestry = Ancestry(self._storage, self._table)
        try:
            return ancestry.delta_entries(each.snapshot)
        except (ObjectNotFound, FormatError, UnsupportedTable):
            return ()

    def _report(
        self, lost: Lost, entries: tuple[ManifestEntry, ...], again_id: int | None, why: str
    ) -> None:
        added = [entry.file.file_name for entry in entries if entry.kind is EntryKind.ADD]
        snapshot, named = lost.snapshot, _named(lost.snapshot)
        found = LostCommit(
            snapshot_id=snapshot.id,
            above_id=lost.above.id,
            commit_user=snapshot.commit_user,
            commit_identifier=snapshot.commit_identifier,
            commit_kind=snapshot.commit_kind.value,
            time_ms=snapshot.time_ms,
            files=len(added),
            file_names=tuple(added[:_NAMES_MAX]),
            rows=snapshot.delta_record_count,
            outcome=LossOutcome.HALTED if again_id is None else LossOutcome.HEALED,
            again_id=again_id,
            why=why,
        )
        self.found.append(found)
        _log.error("writer_commit_lost", **named, outcome=found.outcome.value, reason=str(found))


def _has_ours(ancestry: Ancestry, lost: Lost) -> bool:
    """Whether compactord took part; False if unreadable."""
    try:
        return ancestry.has_ours(lost.snapshot, lost.above)
    except (ObjectNotFound, FormatError, UnsupportedTable):
        return False


def _named(snapshot: Snapshot) -> dict[str, str | int]:
    return {
        "snapshot_id": snapshot.id,
        "commit_user": snapshot.commit_user,
        "commit_identifier": snapshot.commit_identifier,
        "commit_kind": snapshot.commit_kind.value,
        "time": iso_text(snapshot.time_ms),
    }


# The cause of a compaction whose bucket a commit found to be damaged.
DROPPED = ObjectNotFound("", "dropped by the commit")


def files_read(compaction: Compaction) -> tuple[DataFile, ...]:
    """All files that a compaction reads: its inputs, then its lookup files, by name."""
    above = sorted(compaction.looked_up, key=lambda file: file.file_name)
    return (*compaction.inputs, *above)


def missing_input(table: OpenTable, compaction: Compaction, state: TableState) -> Damage | None:
    """The first missing file that the compaction needs, with possible rollback targets.

    Call it when a live file of the newest snapshot was not found: each input is checked, then the
    index files with deletion vectors of its bucket's files in `state`, which its commit reads.
    None if all exist, the store does not answer, or the bucket's entries are damaged.
    """
    folder = table.bucket_folder(compaction.bucket)
    data_files = [paths.join(folder, file.file_name) for file in files_read(compaction)]
    try:
        vectors = state.indexes.vectors(compaction.bucket)
        live = state.files.named(compaction.bucket, vectors.keys())
        index_files = dict.fromkeys(vectors[name].path for name in live)
        asked = [*data_files, *index_files]
        found = zip(
            asked, map_concurrently(table.storage, table.storage.status, asked), strict=True
        )
        gone = [path for path, status in found if status is None]
        named = [posixpath.basename(path) for path in gone]
        keys = [
            FileKey(compaction.bucket, name)
            for name, path in zip(named, gone, strict=True)
            if path not in index_files
        ]
        lost = frozenset(named[len(keys) :])
    except CompactordError as error:
        _log_check_failed(table, compaction, error)
        return None
    if not gone:
        return None
    count = len(gone) - 1
    others = f" (and {count_text(count, 'other')} of its bucket)" if count else ""
    what = "data file" if keys else VECTORS_FILE
    version, whole = version_without(table.storage, table.ref, keys, lost)
    return Damage(
        path=gone[0],
        kind=DamageKind.MISSING,
        message=f"a live {what}{others} does not exist, {whole}",
        bucket=compaction.bucket,
        version=version,
    )


def at_input(failure: SubcompactionFailure) -> ObjectNotFound | DataFileDamaged | None:
    """The error of a worker that could not read an input, or None for any other failure."""
    message = failure.message.removesuffix(f": {failure.path}")
    match failure.error:
        case ErrorKind.OBJECT_NOT_FOUND:
            return ObjectNotFound(failure.path, message)
        case ErrorKind.DATA_FILE_DAMAGED:
            return DataFileDamaged(failure.path, message)
        case _:
            return None


def lost_input(
    table: OpenTable,
    compaction: Compaction,
    state: TableState,
    error: ObjectNotFound | DataFileDamaged,
) -> Damage | None:
    """The live file that a compaction cannot read, after this error; `state` is the newest."""
    found = None
    if isinstance(error, DataFileDamaged):
        found = _damaged_input(table, compaction, error)
    found = found or missing_input(table, compaction, state)
    if found is None and error is DROPPED:
        found = _damaged_vectors(table, compaction, state)
    return found


def _damaged_vectors(table: OpenTable, compaction: Compaction, state: TableState) -> Damage | None:
    """The first index file of the bucket whose deletion vectors cannot be read."""
    bucket = compaction.bucket
    try:
        vectors = state.indexes.vectors(bucket)
        for name, file in state.files.named(bucket, vectors.keys()).items():
            read_twice(partial(read_deleted_rows, table.storage, vectors[name], file.row_count))
    except DataFileDamaged as error:
        return _damaged_input(table, compaction, error)
    except CompactordError as error:
        _log_check_failed(table, compaction, error)
    return None


def _damaged_input(
    table: OpenTable, compaction: Compaction, error: DataFileDamaged
) -> Damage | None:
    """The damage that a compaction found in the bytes of a live file, as `missing_input`.

    None if the file no longer exists, or the store does not answer.
    """
    name = posixpath.basename(error.path)
    try:
        there = table.storage.status(error.path)
    except CompactordError as why:
        _log_check_failed(table, compaction, why)
        return None
    if there is None:
        return None
    keys = [FileKey(compaction.bucket, name)]
    version, whole = version_without(table.storage, table.ref, keys, frozenset([name]))
    return Damage(
        path=error.path,
        kind=DamageKind.CONTENT,
        message=f"{error.message}, {whole}",
        bucket=compaction.bucket,
        version=version,
        size_bytes=there.size_bytes,
    )


def _log_check_failed(table: OpenTable, compaction: Compaction, error: CompactordError) -> None:
    _log.warning(
        "input_check_failed",
        partition=table.partition_text(compaction.bucket.partition),
        bucket=compaction.bucket.bucket,
        error=str(error),
    )
