"""What is due by the snapshots since a full compaction."""

from __future__ import annotations

from compactord.errors import ObjectNotFound
from compactord.paimon.data_file import BucketId
from compactord.paimon.snapshot import CommitKind, read_snapshot
from compactord.plan.table import TableKind
from compactord.state.table_state import TableState, delta_entries
from compactord.table.opening import OpenTable


def delta_commits_due(table: OpenTable, state: TableState) -> frozenset[BucketId]:
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
    final: set[BucketId] = set()
    appends = 0
    storage, snapshot = table.storage, state.snapshot
    while appends < interval:
        try:
            if snapshot.commit_kind is CommitKind.APPEND:
                appends += 1
            elif snapshot.commit_kind is CommitKind.COMPACT:
                for entry in delta_entries(storage, table.ref.location, snapshot):
                    if entry.file.level >= max_level:
                        final.add(entry.bucket_id)
            if appends == interval:
                break
            if snapshot.id == 1:
                return frozenset()
            snapshot = read_snapshot(storage, table.ref.root, snapshot.id - 1)
        except ObjectNotFound:
            break
    live = frozenset(state.files.bucket_ids())
    if interval == 1:
        # Another commit may have come while the compaction ran.
        final = {each for each in final & live if not state.files.summary(each).level0_count}
    return live - final
