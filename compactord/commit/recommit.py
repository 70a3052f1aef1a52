"""Rules for committing a writer's lost APPEND again: a pure comparison of then and now.

docs/adr/0006-late-renames.md proves that these rules suffice. Any unproved condition is an
objection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from compactord.commit.changes import BucketChange
from compactord.model import DATA, Output
from compactord.paimon.data_file import BucketId, EntryKind, ManifestEntry
from compactord.paimon.snapshot import CommitKind, Snapshot
from compactord.state.ancestry import Step
from compactord.state.rewrites import is_our_removal
from compactord.state.table_state import TableState

# The identifier of every batch job (BatchWriteBuilder.COMMIT_IDENTIFIER).
_BATCH_IDENTIFIER = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """A lost snapshot to commit again; `objection` is evaluated at each attempt."""

    lost: Snapshot
    objection: Callable[[TableState], str | None]

    def applied(self, prepared: Snapshot) -> Snapshot:
        """The prepared snapshot as its writer would have made it (FileStoreCommitImpl, APPEND)."""
        lost = self.lost
        marks = [mark for mark in (lost.watermark, prepared.watermark) if mark is not None]
        properties = {**(lost.properties or {}), **(prepared.properties or {})}
        return replace(
            prepared,
            commit_user=lost.commit_user,
            commit_identifier=lost.commit_identifier,
            commit_kind=CommitKind.APPEND,
            watermark=max(marks, default=None),
            properties=properties or None,
            operation=lost.operation,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LostChanges:
    """The known facts about a lost snapshot.

    `entries` are its delta's, `index_before` is the index manifest of its base. `since` are the
    steps from its base to the newest snapshot, `others` user and identifier of the remaining
    snapshots, some older ones included.
    """

    snapshot: Snapshot
    entries: tuple[ManifestEntry, ...]
    index_before: str | None
    since: tuple[Step, ...]
    others: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRules:
    """Properties of the table. `is_ordered`: records of a bucket have an order, or a key.

    `numbers_by_snapshot`: the files' sequence numbers are the snapshot's id
    (`sequence.snapshot-ordering`). `moves_keys`: writers look up the partition of a key. `busy` are
    buckets whose files running compactions read. `bucket_option` is the number for partitions
    without files.
    """

    is_ordered: bool
    has_sequence_fields: bool
    numbers_by_snapshot: bool
    moves_keys: bool
    bucket_option: int
    newest_schema_id: int
    busy: Collection[BucketId]


def bucket_changes(entries: Sequence[ManifestEntry]) -> list[BucketChange]:
    """The files that these entries add, as changes of their buckets."""
    of_bucket: dict[BucketId, list[ManifestEntry]] = {}
    for entry in entries:
        of_bucket.setdefault(entry.bucket_id, []).append(entry)
    return [
        BucketChange(
            bucket=bucket,
            total_buckets=added[0].total_buckets,
            output_level=0,
            before=(),
            upgraded=(),
            outputs=tuple(Output(DATA, entry.file) for entry in added),
            files_above=frozenset(),
        )
        for bucket, added in of_bucket.items()
    ]


def is_committed_again(lost: LostChanges, state: TableState) -> bool:
    """Whether the files are in the table after all: later snapshots added them, or they are live.

    Never for a snapshot that deleted files, or only changed which rows are valid.
    """
    if not lost.entries or not all(entry.kind is EntryKind.ADD for entry in lost.entries):
        return False
    again = {
        entry.identity
        for step in lost.since
        for entry in step.entries
        if entry.kind is EntryKind.ADD
    }
    return all(
        entry.identity in again or state.files.contains(entry.identity) for entry in lost.entries
    )


def is_repeated(lost: LostChanges) -> bool:
    """Whether its user has committed this identifier again, as a restarted job does.

    Batch jobs all use one identifier, which proves nothing.
    """
    identity = (lost.snapshot.commit_user, lost.snapshot.commit_identifier)
    return identity[1] != _BATCH_IDENTIFIER and identity in _commits(lost)


def objection(lost: LostChanges, state: TableState, rules: TableRules) -> str | None:
    """Why the changes must not be committed on top of `state`, or None.

    The commit checks that its files exist and that no manifest deletes their names.
    """
    if rules.numbers_by_snapshot:
        return "its sequence numbers are the id that it had"
    if rules.moves_keys:
        return "a writer that has not seen it may have put its keys into other partitions"
    return (
        _unfit(lost, state)
        or _others(lost)
        or _misplaced(lost.entries, state, rules)
        or (_overtaken(lost, state, rules) if rules.is_ordered else None)
    )


def _unfit(lost: LostChanges, state: TableState) -> str | None:
    """Objections from the snapshot itself."""
    snapshot = lost.snapshot
    if snapshot.commit_kind is not CommitKind.APPEND:
        return f"it is of kind {snapshot.commit_kind.value}, not APPEND"
    if snapshot.changelog_manifest_list is not None:
        return "it has a changelog"
    if snapshot.index_manifest != lost.index_before:
        return "it changed index files"
    if snapshot.next_row_id:
        return "it has row ids"
    for entry in lost.entries:
        file = entry.file
        if entry.kind is not EntryKind.ADD:
            return f"it deletes {file.file_name}"
        if file.level != 0:
            return f"it adds {file.file_name} on level {file.level}"
        if file.extra_files or file.external_path or file.embedded_file_index:
            return f"{file.file_name} has companion files or an index"
        if file.first_row_id is not None:
            return f"{file.file_name} has row ids"
        if state.files.contains(entry.identity):
            return f"{file.file_name} is live, others of its files are not"
    return None


def _others(lost: LostChanges) -> str | None:
    """Objections from later commits and their users."""
    user, identifier = lost.snapshot.commit_user, lost.snapshot.commit_identifier
    for other, number in _commits(lost):
        if other == user and number is not None and number >= identifier:
            return f"its user has committed identifier {number}, perhaps with the same rows"
    for step in lost.since:
        if is_our_removal(step.kind, step.commit_user):
            # It found its files in the snapshot below: rows that arrive later must stay.
            continue
        if step.kind is CommitKind.OVERWRITE:
            return f"snapshot {step.snapshot_id} overwrote data"
        deletes = any(entry.kind is EntryKind.DELETE for entry in step.entries)
        if deletes and step.kind is not CommitKind.COMPACT:
            return f"snapshot {step.snapshot_id} of kind {step.kind.value} deleted files"
    return None


def _misplaced(
    entries: Sequence[ManifestEntry], state: TableState, rules: TableRules
) -> str | None:
    """Objections from another number of buckets, or a missing schema."""
    totals: dict[bytes, int] = {}
    for bucket in state.files.bucket_ids():
        totals.setdefault(bucket.partition, state.files.summary(bucket).total_buckets)
    for entry in entries:
        total = totals.get(entry.partition, rules.bucket_option)
        if entry.total_buckets != total:
            return f"it was written for a bucket count of {entry.total_buckets}, now it is {total}"
        if entry.file.schema_id > rules.newest_schema_id:
            return f"{entry.file.file_name} has schema {entry.file.schema_id}, which is gone"
    return None


def _overtaken(lost: LostChanges, state: TableState, rules: TableRules) -> str | None:
    """Objections from events in its buckets, if the order of records matters."""
    first_number: dict[BucketId, int] = {}
    for entry in lost.entries:
        number, bucket = entry.file.min_sequence_number, entry.bucket_id
        first_number[bucket] = min(number, first_number.get(bucket, number))
    for bucket in first_number.keys() & set(rules.busy):
        # It would drop delete markers without having met the lost records.
        number = first_number[bucket]
        files = state.files.files_in(bucket)
        if rules.has_sequence_fields or any(f.max_sequence_number >= number for f in files):
            return f"files of bucket {bucket.bucket} are being merged, whose records may be newer"
    for step in lost.since:
        for entry in step.entries:
            if entry.bucket_id in first_number:
                why = _met(step, entry, first_number[entry.bucket_id], state, rules)
                if why is not None:
                    return why
    return None


def _met(
    step: Step, entry: ManifestEntry, first_number: int, state: TableState, rules: TableRules
) -> str | None:
    """Why this entry of a later step might have needed the lost files in its bucket."""
    name = f"{entry.file.file_name} of bucket {entry.bucket}"
    if entry.kind is EntryKind.DELETE:
        if rules.has_sequence_fields:
            return f"snapshot {step.snapshot_id} merged {name}, and sequence fields order records"
        if entry.file.max_sequence_number >= first_number:
            return f"snapshot {step.snapshot_id} merged {name}, whose records may be newer"
        return None
    if step.kind is CommitKind.COMPACT:
        return None
    if not state.files.contains(entry.identity):
        return f"snapshot {step.snapshot_id} added {name}, which has been merged since"
    return None


def _commits(lost: LostChanges) -> list[tuple[str | None, int | None]]:
    """User and identifier of all other known commits."""
    steps = (
        (step.commit_user, step.commit_identifier)
        for step in lost.since
        if step.kind is not CommitKind.COMPACT
    )
    return [*lost.others, *steps]


def users_of(snapshots: Mapping[int, Snapshot], lost: Snapshot) -> tuple[tuple[str, int], ...]:
    """User and identifier of each except the lost one. A compaction may repeat an append's."""
    return tuple(
        (each.commit_user, each.commit_identifier)
        for each in snapshots.values()
        if each.identity != lost.identity
        and not (
            each.commit_kind is CommitKind.COMPACT
            and each.commit_identifier == lost.commit_identifier
        )
    )
