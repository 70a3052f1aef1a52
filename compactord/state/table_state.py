"""A table's state: its newest snapshot and that snapshot's live files, updated by later snapshots.

A state is used only while the snapshot it was read from is still the same one (`identity`, not id:
ids are reused after rollbacks and races). Then newer snapshots are applied by their delta manifests
only. After an OVERWRITE, with a missing snapshot or a delta that does not fit, everything is read
again. Level-0 files of any kind of snapshot count.
Rewrites (see `rewrites`) are kept with the files if the caller wants them.
Sources: operation/FileStoreCommitImpl.java (tryCommitOnce), utils/SnapshotManager.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np

from compactord.errors import FormatError, ObjectNotFound, UnsupportedTable
from compactord.paimon.data_file import BucketId, EntryKind, ManifestEntry
from compactord.paimon.manifest.entry_columns import read_entry_columns
from compactord.paimon.manifest.manifest_files import ManifestFile, entries_in, manifests_in
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import (
    CommitKind,
    Snapshot,
    has_no_snapshot,
    hinted_snapshot_id,
    latest_snapshot_id,
    read_snapshot,
    still_stands,
)
from compactord.state.columns import AppendedFiles, WaitingRows
from compactord.state.index_files import NO_INDEXES, IndexFiles, read_indexes
from compactord.state.live_files import LiveFiles, UnknownFile
from compactord.state.loading import (
    MAX_FOLLOWED,
    later_snapshots,
    load_live_files,
    newest_by_hint,
    no_files,
    read_newest,
    snapshot_if_there,
)
from compactord.state.rewrites import Rewrites, is_our_removal, may_rewrite
from compactord.storage.base import Storage
from compactord.storage.calls import prefetch

# How many snapshots are read for a table's last rewrite, and for rewrites of its partitions.
_LOOKED_BACK, _LOOKED_BACK_MAX = 50, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table at one snapshot, which is None before its first. Immutable.

    `rewrites` is None if not read (`with_rewrites`), `appended` if not requested. `waiting` is
    None if readers wait for no rows, or it is not requested (`with_waiting_rows`).
    """

    table: TableRef
    snapshot: Snapshot | None
    files: LiveFiles
    indexes: IndexFiles = NO_INDEXES
    rewrites: Rewrites | None = None
    waiting: WaitingRows | None = None
    appended: AppendedFiles | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """The newest state. `changed` are the buckets whose files may differ; None means all.

    `appended_bytes` were added by APPEND snapshots in between whose deltas were read.
    `manifests` and `entries` were read for it; entries of files that are not live count as skipped.
    `lost` is the known snapshot if it was replaced or rolled back: its id now belongs to another
    one, or to none although newer or older ones show that it did not expire.
    """

    state: TableState
    changed: frozenset[BucketId] | None
    appended_bytes: int = 0
    manifests: int = 0
    entries: int = 0
    skipped_entries: int = 0
    lost: Snapshot | None = None


def load_state(storage: Storage, table: TableRef) -> TableState:
    """Reads the whole state of the newest snapshot. O(table)."""
    return load_newest(storage, table).state


def load_newest(storage: Storage, table: TableRef) -> Refreshed:
    """`load_state`, with counts of reads."""

    def newest() -> Snapshot | None:
        snapshot = newest_by_hint(storage, table.root)
        last_id = None if snapshot else latest_snapshot_id(storage, table.root)
        return snapshot if last_id is None else read_snapshot(storage, table.root, last_id)

    return read_newest(newest, partial(load_at, storage, table))


def load_at(storage: Storage, table: TableRef, snapshot: Snapshot | None) -> Refreshed:
    """The whole state at a snapshot, None for a table without any. Raises read errors."""
    if snapshot is None:
        empty = TableState(
            table=table,
            snapshot=None,
            files=no_files(table.location),
            indexes=IndexFiles(table.location),
        )
        return Refreshed(state=empty, changed=None)
    manifests = data_manifests(storage, table.location, snapshot)
    files = load_live_files(storage, table.location, manifests)
    entries = sum(each.num_added_files + each.num_deleted_files for each in manifests)
    return Refreshed(
        state=TableState(
            table=table,
            snapshot=snapshot,
            files=files,
            indexes=read_indexes(storage, table.location, snapshot.index_manifest),
        ),
        changed=None,
        manifests=len(manifests),
        entries=entries,
        skipped_entries=entries - files.file_count,
    )


def data_manifests(storage: Storage, location: str, snapshot: Snapshot) -> tuple[ManifestFile, ...]:
    """The manifests whose entries are the snapshot's files: its base list, then its delta list."""
    with prefetch(storage, partial(delta_manifests, storage, location, snapshot)) as delta:
        return manifests_in(storage, location, snapshot.base_list) + delta()


def delta_manifests(
    storage: Storage, location: str, snapshot: Snapshot
) -> tuple[ManifestFile, ...]:
    """The manifests that the snapshot itself added."""
    return manifests_in(storage, location, snapshot.delta_list)


def delta_entries(storage: Storage, location: str, snapshot: Snapshot) -> tuple[ManifestEntry, ...]:
    """The files that the snapshot added and deleted; an OVERWRITE's may be incomplete."""
    return entries_in(storage, location, delta_manifests(storage, location, snapshot))


def refresh_state(storage: Storage, state: TableState, *, checks_hint: bool = False) -> Refreshed:
    """The newest state, updated from a known one if that is possible.

    Without a new snapshot, reads the known one and looks for the next. With new snapshots, reads
    also their delta manifests, and each snapshot below them again. Reads the hint and lists the
    folder only if the known one is missing, or far behind. For a table without snapshots reads the
    hint and looks for the first. Raises what `load_state` raises.

    With `checks_hint` the hint must not name a later snapshot than the newest that was found. This
    is for commits: an id that is missing in between (a damaged table) is not free.
    """
    known = state.snapshot
    root = state.table.root
    if known is None:
        if has_no_snapshot(storage, root):
            return Refreshed(state=state, changed=frozenset())
        return _reloaded(storage, state)
    read_following = partial(snapshot_if_there, storage, root, known.id + 1)
    read_hint = partial(hinted_snapshot_id, storage, root)
    if not checks_hint:
        return _refreshed(storage, state, known, read_following, lambda: None)
    # A commit needs speed, a poll few requests.
    with prefetch(storage, read_following) as following, prefetch(storage, read_hint) as hint:
        return _refreshed(storage, state, known, following, hint)


def _refreshed(
    storage: Storage,
    state: TableState,
    known: Snapshot,
    following: Callable[[], Snapshot | None],
    hint: Callable[[], int | None],
) -> Refreshed:
    root = state.table.root
    found = snapshot_if_there(storage, root, known.id)
    if found is None:
        # Rolled back, unless there are later ones. Then it may have expired, or it was rolled back
        # and followed by others: unknown, so it cannot be built on.
        latest = latest_snapshot_id(storage, root)
        is_lost = latest is None or latest < known.id
        return _reloaded(storage, state, lost=known if is_lost else None)
    if found.identity != known.identity:
        return _reloaded(storage, state, lost=known)
    later = later_snapshots(storage, root, known, following, hint)
    return _followed(storage, state, known, later) or _reloaded(storage, state)


def refresh_to(storage: Storage, state: TableState, newest: Snapshot | None) -> Refreshed:
    """`refresh_state` to the snapshot that a catalog names as the newest, which may be None.

    Does not read its file, and reads nothing if there is no new snapshot.
    """
    known = state.snapshot
    if (newest and newest.identity) == (known and known.identity):
        return Refreshed(state=state, changed=frozenset())
    loaded = partial(load_at, storage, state.table, newest)
    if known is None:
        return _reloaded(storage, state, load=loaded)
    if newest is None or newest.id <= known.id:
        return _reloaded(storage, state, lost=known, load=loaded)
    found = snapshot_if_there(storage, state.table.root, known.id)
    if found is not None and found.identity != known.identity:
        return _reloaded(storage, state, lost=known, load=loaded)
    followed = None
    if found is not None and newest.id - known.id <= MAX_FOLLOWED:
        ids = range(known.id + 1, newest.id)
        between = (snapshot_if_there(storage, state.table.root, each) for each in ids)
        followed = _followed(storage, state, known, chain(between, [newest]))
    return followed or _reloaded(storage, state, load=loaded)


def _followed(
    storage: Storage, state: TableState, known: Snapshot, later: Iterable[Snapshot | None]
) -> Refreshed | None:
    """Applies the deltas of later snapshots; None if they do not form an unbroken chain."""
    try:
        return _follow(storage, state, known, later)
    except (ObjectNotFound, UnknownFile):
        return None


def _follow(
    storage: Storage, state: TableState, known: Snapshot, later: Iterable[Snapshot | None]
) -> Refreshed | None:
    location, root = state.table.location, state.table.root
    grown, newest = state, known
    changed: set[BucketId] = set()
    appended_bytes = manifest_count = entry_count = skipped = 0
    for snapshot in later:
        # Checked after reading: a rollback meanwhile may have replaced the snapshot below.
        if snapshot is None or not still_stands(storage, root, newest):
            return None
        expected = newest.total_record_count + snapshot.delta_record_count
        is_whole = snapshot.commit_kind is not CommitKind.OVERWRITE or is_our_removal(
            snapshot.commit_kind, snapshot.commit_user
        )
        if not is_whole or snapshot.total_record_count != expected:
            return None
        manifests = delta_manifests(storage, location, snapshot)
        delta = entries_in(storage, location, manifests)
        manifest_count += len(manifests)
        entry_count += len(delta)
        skipped += sum(entry.kind is EntryKind.DELETE for entry in delta)
        grown = _applied(grown, snapshot, delta)
        changed.update(entry.bucket_id for entry in delta)
        appended_bytes += _appended_bytes(snapshot, delta)
        newest = snapshot
    return Refreshed(
        state=_with_indexes(storage, grown, known),
        changed=frozenset(changed),
        appended_bytes=appended_bytes,
        manifests=manifest_count,
        entries=entry_count,
        skipped_entries=skipped,
    )


def applied(
    storage: Storage, state: TableState, snapshot: Snapshot, delta: Sequence[ManifestEntry]
) -> Refreshed:
    """The state after `snapshot`, which was built on the state's; `delta` has all its changes.

    Reads only its index manifest, if that is another one. Raises what reading it raises,
    and as `LiveFiles.applied`.
    """
    assert state.snapshot is not None, "it was built on it"
    return Refreshed(
        state=_with_indexes(storage, _applied(state, snapshot, delta), state.snapshot),
        changed=frozenset(entry.bucket_id for entry in delta),
        appended_bytes=_appended_bytes(snapshot, delta),
    )


def _applied(state: TableState, snapshot: Snapshot, delta: Sequence[ManifestEntry]) -> TableState:
    """The state after a snapshot with this delta, except for its index files."""
    files, rewrites = state.files.applied(delta), state.rewrites
    waiting = state.waiting and state.waiting.applied(snapshot, delta, files)
    if rewrites is not None and may_rewrite(snapshot):
        deleted = {entry.partition for entry in delta if entry.kind is EntryKind.DELETE}
        rewrites = rewrites.with_later(snapshot, deleted) if deleted else rewrites
    grown = replace(state, snapshot=snapshot, files=files, rewrites=rewrites, waiting=waiting)
    return replace(grown, appended=state.appended and state.appended.after(delta))


def _with_indexes(storage: Storage, state: TableState, before: Snapshot) -> TableState:
    """The state with the index files of its snapshot; it has those from `before`."""
    assert state.snapshot is not None, "something was applied"
    manifest = state.snapshot.index_manifest
    # A name is never reused for other content.
    if manifest == before.index_manifest:
        return state
    return replace(state, indexes=read_indexes(storage, state.table.location, manifest))


def _appended_bytes(snapshot: Snapshot, delta: Sequence[ManifestEntry]) -> int:
    if snapshot.commit_kind is not CommitKind.APPEND:
        return 0
    return sum(entry.file.file_size for entry in delta if entry.kind is EntryKind.ADD)


def _reloaded(
    storage: Storage,
    state: TableState,
    *,
    lost: Snapshot | None = None,
    load: Callable[[], Refreshed] | None = None,
) -> Refreshed:
    loaded = load() if load else load_newest(storage, state.table)
    appended = state.appended and state.appended.besides(loaded.state.files)
    newest = replace(loaded, state=replace(loaded.state, appended=appended), lost=lost)
    if state.rewrites is None:
        return newest
    known, after_id = state.rewrites, state.snapshot.id if state.snapshot else 0
    if lost is not None:
        # Its rewrites may have been rolled back with it.
        known, after_id = Rewrites(since_ms=known.since_ms), 0
    rewrites = _with_later_rewrites(storage, newest.state, known, after_id=after_id)
    return replace(newest, state=replace(newest.state, rewrites=rewrites))


def with_rewrites(
    storage: Storage, state: TableState, *, since_ms: int | None, now_ms: int
) -> TableState:
    """The state with its table's rewrites; for partitions since `since_ms`, or none if None.

    Unless they are known, the existing snapshots are read from the newest on: 50, or as many as
    `since_ms` reaches, but 500 at most. Only the deltas of OVERWRITE snapshots are read: APPEND
    commits of release 2.0.0 delete nothing.
    """
    known = state.rewrites
    if known is None or not known.reaches(since_ms):
        unknown = Rewrites(newest=known.newest if known else None, since_ms=since_ms)
        known = _with_later_rewrites(storage, state, unknown, after_id=0)
    return replace(state, rewrites=known.remembered(since_ms=since_ms, now_ms=now_ms))


def _with_later_rewrites(
    storage: Storage, state: TableState, known: Rewrites, *, after_id: int
) -> Rewrites:
    """`known` with rewrites of the snapshots after `after_id`, up to the state's snapshot."""
    location, since_ms = state.table.location, known.since_ms
    found: list[tuple[Snapshot, frozenset[bytes]]] = []
    snapshot = state.snapshot
    # An expired or unreadable snapshot ends the search: no other feature depends on old snapshots.
    try:
        for count in range(_LOOKED_BACK_MAX):
            if snapshot is None or snapshot.id <= after_id:
                break
            is_wanted = since_ms is not None and snapshot.time_ms >= since_ms
            if not is_wanted and (found or count >= _LOOKED_BACK):
                break
            if snapshot.commit_kind is CommitKind.OVERWRITE and may_rewrite(snapshot):
                delta = delta_manifests(storage, location, snapshot)
                deleting = [manifest for manifest in delta if manifest.num_deleted_files]
                if deleting:
                    wanted = deleting if is_wanted else ()
                    found.append((snapshot, _deleting_in(storage, location, wanted)))
            before_id = snapshot.id - 1
            snapshot = read_snapshot(storage, state.table.root, before_id) if before_id else None
    except (ObjectNotFound, FormatError, UnsupportedTable):
        pass
    for rewrite, partitions in reversed(found):
        known = known.with_later(rewrite, partitions)
    return known


def _deleting_in(
    storage: Storage, location: str, manifests: Sequence[ManifestFile]
) -> frozenset[bytes]:
    """The partitions in which the manifests delete files; an overwrite may delete very many."""
    partitions: set[bytes] = set()
    for entries in read_entry_columns(storage, location, manifests):
        rows = entries.kind == EntryKind.DELETE
        partitions.update(entries.partitions[i] for i in np.unique(entries.files.partition[rows]))
    return frozenset(partitions)
