"""A table of metadata with a session's look back at it: for tests of renames that come late."""

from __future__ import annotations

import random
from collections.abc import Collection

from compactord.catalog.access import table_in_folder
from compactord.clock import Clock
from compactord.commit.changes import BucketChange, CommitOutcome, LostCommit, Removal
from compactord.commit.committer import Committer, commit_user
from compactord.commit.publish import StorePublisher
from compactord.ids import Owner
from compactord.paimon.data_file import BucketId
from compactord.state.ancestry import PublishedSnapshots
from compactord.state.follower import Follower
from compactord.state.table_state import TableState
from compactord.storage.base import Storage
from compactord.table.lost_commits import LookBack, LostCommits
from compactord.table.opening import open_table
from tests.builders import FIRST, VirtualClock
from tests.lineage import TABLE, Lineage

DELAY_MS = 600_000


class Process:
    """What one process of ours knows of the table, as a session has it."""

    def __init__(
        self,
        table: Lineage,
        *,
        owner: Owner = FIRST,
        storage: Storage | None = None,
        clock: Clock | None = None,
        settle_ms: int = 0,
    ) -> None:
        self.table = table
        self.storage = storage or table.storage
        clock = clock or VirtualClock()
        publisher = StorePublisher(self.storage, settle_ms=settle_ms)
        published = PublishedSnapshots(self.storage, TABLE.root)
        self.follower = Follower(
            table_in_folder(self.storage, TABLE),
            user=commit_user(owner, None),
            looked_back=published,
        )
        self.committer = Committer(
            storage=self.storage,
            publisher=publisher,
            follower=self.follower,
            clock=clock,
            owner=owner,
            jitter=random.Random(0),
        )
        self.lost_commits = LostCommits(self.storage, TABLE, clock, self.committer, published)

    def commit(self, change: BucketChange | Removal) -> CommitOutcome:
        changes = change if isinstance(change, Removal) else [change]
        outcome, _ = self.committer.commit(self.follower.loaded(), changes, self.table.settings)
        return outcome

    def merge(self, bucket: int) -> CommitOutcome:
        """Publish all files of a bucket merged into one."""
        return self.commit(self.table.change(self.table.files(bucket), owner=FIRST, bucket=bucket))

    def look(
        self, *, busy: Collection[BucketId] = (), may_commit: bool = True, interval_ms: int = 0
    ) -> list[LostCommit]:
        """What a look finds that was not found before."""
        self.lost_commits.found.clear()
        state = self.follower.loaded()
        self.look_at(state, busy=busy, may_commit=may_commit, interval_ms=interval_ms)
        return list(self.lost_commits.found)

    def look_at(
        self,
        state: TableState,
        *,
        busy: Collection[BucketId] = (),
        may_commit: bool = True,
        interval_ms: int = 0,
    ) -> None:
        opened = open_table(table_in_folder(self.table.storage, TABLE), {})
        self.lost_commits.look_back(
            LookBack(state=state, table=opened, busy=busy, may_commit=may_commit),
            writer_delay_ms=DELAY_MS,
            interval_ms=interval_ms,
        )
