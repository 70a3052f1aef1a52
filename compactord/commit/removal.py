"""Partitions that go as a whole, with all their files, in a snapshot of kind OVERWRITE.

As operation/FileStoreCommitImpl.java (dropPartitions) and operation/commit/
OverwriteChangesProvider.java: what goes is found anew in the newest state at each attempt, so that
nothing can be in conflict with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from compactord.commit.changes import BucketChange
from compactord.state.table_state import TableState


@dataclass(frozen=True, slots=True)
class Removal:
    """Partitions that go; `chosen` says of the state of each attempt which these are."""

    chosen: Callable[[TableState], Collection[bytes]]

    def changes(self, state: TableState) -> list[BucketChange]:
        """All files of the partitions, but for postponed ones, which no reader has seen yet.

        Raises what `chosen` raises, and `FormatError` for entries that cannot be read.
        """
        partitions = frozenset(self.chosen(state))
        if not partitions:
            return []
        return [
            BucketChange(
                bucket=bucket,
                total_buckets=state.files.summary(bucket).total_buckets,
                output_level=0,
                before=state.files.files_in(bucket),
                upgraded=(),
                outputs=(),
                files_above=frozenset(),
            )
            for bucket in state.files.bucket_ids()
            if bucket.partition in partitions and bucket.bucket >= 0
        ]
