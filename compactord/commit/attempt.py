"""Metadata of one commit attempt, and the mapping of file kinds to lists of the snapshot.

Agrees with FileStoreCommitImpl.tryCommitOnce for kinds COMPACT and OVERWRITE (which values are
inherited from the previous snapshot, which are computed).

A new kind of output is a line of `LISTS`. Code that discards, checks or expires files walks all
kinds of outputs, or all lists of snapshots.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from compactord.commit.changes import BucketChange
from compactord.commit.index_files import NextIndex
from compactord.commit.manifest_merge import ManifestMerge, merge_manifests
from compactord.commit.metadata import MetadataFiles
from compactord.errors import CommitError, FormatError, ObjectNotFound, TableNotFound
from compactord.model import CHANGELOG, DATA
from compactord.paimon import paths
from compactord.paimon.binary_row import comparable_key
from compactord.paimon.data_file import EMPTY_STATS, BucketId, DataFile, EntryKind, ManifestEntry
from compactord.paimon.manifest.manifest_files import ManifestFile, read_entries
from compactord.paimon.options.table_options import CommitOptions, SequenceInit
from compactord.paimon.schema import parse_json
from compactord.paimon.snapshot import CommitKind, Snapshot
from compactord.paimon.types import DataType
from compactord.state.table_state import TableState
from compactord.storage.base import Storage


class SnapshotList(enum.Enum):
    """The lists of manifests of a snapshot that a commit writes."""

    DELTA = "delta"
    CHANGELOG = "changelog"


LISTS: Mapping[str, SnapshotList] = {
    DATA: SnapshotList.DELTA,
    CHANGELOG: SnapshotList.CHANGELOG,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEntries:
    """The entries of a commit by list, in the order in which they are written."""

    delta: tuple[ManifestEntry, ...]
    changelog: tuple[ManifestEntry, ...]

    @property
    def delta_rows(self) -> int:
        """The added rows minus the deleted rows."""
        return _row_count(self.delta)

    @property
    def changelog_rows(self) -> int | None:
        """The rows of the changelog, or None without one."""
        return _row_count(self.changelog) if self.changelog else None


def listed_entries(
    changes: Sequence[BucketChange],
    *,
    drop_stats: bool,
    lists: Mapping[str, SnapshotList] = LISTS,
) -> ListedEntries:
    """The entries of the changes. In the delta, each bucket has its deletions, then its additions.

    `drop_stats`: entries that delete files have no statistics. Raises `CommitError` for outputs of
    a kind that is in none of the `lists`.
    """
    found: dict[SnapshotList, list[ManifestEntry]] = {each: [] for each in SnapshotList}
    delta = found[SnapshotList.DELTA]
    for change in changes:
        delta += [
            _entry(change, EntryKind.DELETE, _without_stats(file) if drop_stats else file)
            for file in change.before
        ]
        delta += [_entry(change, EntryKind.ADD, file) for file in change.upgraded]
        for kind, file in change.outputs:
            if kind not in lists:
                raise CommitError(
                    f"output {file.file_name} is of kind {kind}, which no manifest lists"
                )
            found[lists[kind]].append(_entry(change, EntryKind.ADD, file))
    return ListedEntries(delta=tuple(delta), changelog=tuple(found[SnapshotList.CHANGELOG]))


def _row_count(entries: Iterable[ManifestEntry]) -> int:
    return sum(
        entry.file.row_count if entry.kind is EntryKind.ADD else -entry.file.row_count
        for entry in entries
    )


def _entry(change: BucketChange, kind: EntryKind, file: DataFile) -> ManifestEntry:
    return ManifestEntry(
        kind=kind,
        partition=change.bucket.partition,
        bucket=change.bucket.bucket,
        total_buckets=change.total_buckets,
        file=file,
    )


def _without_stats(file: DataFile) -> DataFile:
    return replace(file, value_stats=EMPTY_STATS, value_stats_columns=())


_log = structlog.get_logger()
_NOT_MERGED = ManifestMerge(before=(), after=(), written=())
_SEQUENCE_PROPERTY = "sequence.generation.max-sequence-number"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSettings:
    """The facts about a table that a commit needs in addition to its state."""

    options: CommitOptions
    partition_types: tuple[DataType, ...]
    # Makes serialised keys comparable; None for tables without a primary key.
    key_of: Callable[[bytes], Any] | None
    bucket_folder: Callable[[BucketId], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitIdentity:
    """The identity of one commit."""

    uuid: str
    user: str
    identifier: int
    time_ms: int


def prepare(
    storage: Storage,
    state: TableState,
    changes: Sequence[BucketChange],
    settings: CommitSettings,
    *,
    manifests: Sequence[ManifestFile],
    files: MetadataFiles,
    merge: ManifestMerge | None,
    index: NextIndex,
    newest_schema_id: Callable[[], int | None],
    stamp: CommitIdentity,
    kind: CommitKind = CommitKind.COMPACT,
) -> tuple[Snapshot, ManifestMerge]:
    """Write manifests and lists on top of `state`. Returns the snapshot to publish.

    `manifests` are the manifests of the snapshot of `state`. `merge` is the result of an earlier
    attempt, reused if it still fits; `index` is already written. Raises `CommitError`, before it
    writes, for outputs of a kind that no list of a snapshot would name.
    """
    listed = listed_entries(changes, drop_stats=settings.options.delete_file_drop_stats)
    location, latest = state.table.location, state.snapshot
    assert latest is not None, "a table with files to compact has a snapshot"
    base, merge = _base_manifests(
        storage, location, manifests, settings, files, merge=merge, keep=index.written
    )
    base_list, base_size = files.write_list(base)
    delta_list, delta_size = files.write_list(files.write_manifests(listed.delta))
    changelog_list = changelog_size = None
    if listed.changelog:
        changelog_list, changelog_size = files.write_list(files.write_manifests(listed.changelog))
    schema_id = _checked_schema(newest_schema_id(), state, changes)
    statistics = _statistics(storage, location, latest, schema_id)
    # The reads so far did not depend on the files.
    files.wait()
    snapshot = Snapshot(
        uuid=stamp.uuid,
        id=latest.id + 1,
        schema_id=schema_id,
        base_manifest_list=base_list,
        base_manifest_list_size=base_size,
        delta_manifest_list=delta_list,
        delta_manifest_list_size=delta_size,
        changelog_manifest_list=changelog_list,
        changelog_manifest_list_size=changelog_size,
        index_manifest=index.manifest,
        commit_user=stamp.user,
        commit_identifier=stamp.identifier,
        commit_kind=kind,
        time_ms=stamp.time_ms,
        total_record_count=latest.total_record_count + listed.delta_rows,
        delta_record_count=listed.delta_rows,
        changelog_record_count=listed.changelog_rows,
        watermark=latest.watermark,
        statistics=statistics,
        properties=_properties(state, changes, settings.options),
        next_row_id=latest.next_row_id or 0,
    )
    return snapshot, merge


def _checked_schema(
    schema_id: int | None, state: TableState, changes: Sequence[BucketChange]
) -> int:
    """The id of the table's newest schema. Raises `TableNotFound` if there is none.

    Raises `CommitError` for outputs that no reader could read: their schema was rolled back.
    """
    if schema_id is None:
        where = f"{state.table.root} has no schema"
        raise TableNotFound(f"table {state.table.full_name} was dropped: {where}")
    for change in changes:
        for output in change.outputs:
            file = output.file
            if file.schema_id > schema_id:
                raise CommitError(
                    f"table {state.table.full_name}: {file.file_name} was written with schema "
                    f"{file.schema_id}, which was rolled back meanwhile to {schema_id}; no "
                    "snapshot was published, the next plan uses that schema"
                )
    return schema_id


def _base_manifests(
    storage: Storage,
    location: str,
    manifests: Sequence[ManifestFile],
    settings: CommitSettings,
    files: MetadataFiles,
    *,
    merge: ManifestMerge | None,
    keep: Collection[str],
) -> tuple[Sequence[ManifestFile], ManifestMerge]:
    """The manifests of the previous snapshot, merged on the first attempt.

    If they cannot be merged, the written files are deleted, except the files to `keep`.
    """
    if merge is None:
        try:
            merge = merge_manifests(
                manifests,
                settings.options.manifests,
                read=partial(read_entries, storage, location),
                write=files.write_manifests,
                may_contain=partial(_may_contain, types=settings.partition_types),
            )
        except FormatError as error:
            # An entry with an unreadable partition affects one bucket. The commit does not need the
            # merge.
            files.delete_written(keep=keep)
            _log.warning("manifests_not_merged", error=str(error))
            return manifests, _NOT_MERGED
        return merge.after, merge
    base = merge.applied_to(manifests)
    if base is not None:
        return base, merge
    # The winner of the last race has merged manifests, so our merge does not fit any more.
    files.delete_written(only=[manifest.file_name for manifest in merge.written])
    return manifests, _NOT_MERGED


def _may_contain(
    manifest: ManifestFile, partitions: frozenset[bytes], types: Sequence[DataType]
) -> bool:
    """Whether the manifest may have entries of one of these partitions, judged by its ranges.

    A wrong False would make a file live that another manifest deletes. Unreadable statistics match
    every partition.
    """
    stats = manifest.partition_stats
    if not types or len(stats.null_counts) != len(types):
        return True
    try:
        low, high = comparable_key(stats.min_values, types), comparable_key(stats.max_values, types)
        rows = [comparable_key(partition, types) for partition in partitions]
    except FormatError:
        return True
    return any(
        all(
            # Null is an empty tuple; bounds do not cover nulls.
            lo <= value <= hi if value else nulls != 0
            for value, lo, hi, nulls in zip(values, low, high, stats.null_counts, strict=True)
        )
        for values in rows
    )


def _statistics(storage: Storage, location: str, latest: Snapshot, schema_id: int) -> str | None:
    """The table statistics to inherit, if they belong to the same schema."""
    if latest.statistics is None:
        return None
    path = paths.statistics_path(location, latest.statistics)
    try:
        found: Any = parse_json(storage.read(path))
        return latest.statistics if found["schemaId"] == schema_id else None
    except ObjectNotFound:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(path, f"not a statistics file ({error})") from error


def _properties(
    state: TableState, changes: Sequence[BucketChange], options: CommitOptions
) -> Mapping[str, str] | None:
    """The properties to inherit: only the largest sequence number, if writers start from it.

    A commit that only merges manifests keeps all (FileStoreCommitImpl.compactManifestOnce). Raises
    `FormatError` for an invalid number.
    """
    assert state.snapshot is not None
    if not changes:
        return state.snapshot.properties
    if options.sequence_init is not SequenceInit.SNAPSHOT:
        return None
    before = (state.snapshot.properties or {}).get(_SEQUENCE_PROPERTY)
    try:
        largest = int(before) if before is not None else _max_sequence_number(state)
    except ValueError as error:
        path = paths.snapshot_path(state.table.root, state.snapshot.id)
        why = f"{_SEQUENCE_PROPERTY} is {before!r}, expected a whole number"
        raise FormatError(path, why) from error
    added = [file.max_sequence_number for change in changes for file in change.after]
    return {_SEQUENCE_PROPERTY: str(max([largest, *added]))}


def _max_sequence_number(state: TableState) -> int:
    """The maximum over all live files; needed only until a snapshot has the property."""
    return max(
        file.max_sequence_number
        for bucket in state.files.bucket_ids()
        for file in state.files.files_in(bucket)
    )
