"""Java's writers and compactord commit to one table of a catalog at the same time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compactord.catalog.base import Catalog
from compactord.paimon.snapshot import CommitKind, read_snapshot, snapshot_ids
from compactord.storage.base import Storage
from tests import builders
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import JudgeJvm

PROGRAM = Path(__file__).with_name("JdbcWriter.java")
# The first key of each of Java's users, as in JdbcWriter.java.
_FIRST_KEYS = {"java-1": 0, "java-2": 1000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What Java's users do in the catalog that `options` describe to Java: so many commits each.

    After each they wait for `pause_ms`: a lock that is given in the order of asking lets nobody in
    twice before a writer that never waits.
    """

    java: JudgeJvm
    options: Mapping[str, str]
    users: Sequence[str]
    commits: int
    keys: int = 40
    pause_ms: int = 0

    def create_table(self) -> None:
        """The table db.t, with a primary key and one bucket."""
        self.java.call("JdbcWriter", "createTable", {"catalog": dict(self.options)})

    def run(self, catalog: Catalog) -> list[int]:
        """Until Java's users are done, compact the table; the snapshots that we published."""
        table = catalog.find_table("db.t")
        failures: list[BaseException] = []

        def write(user: str) -> None:
            try:
                self._write(user)
            except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
                failures.append(error)

        threads = [threading.Thread(target=write, args=(user,)) for user in self.users]
        for thread in threads:
            thread.start()
        published: list[int] = []
        while any(thread.is_alive() for thread in threads):
            access = catalog.open(table)
            totals = builders.compact(
                access.storage,
                access.ref,
                access=access,
                # Java's users commit without a pause, so that we lose many races.
                overrides={
                    "num-sorted-run.compaction-trigger": "2",
                    "commit.max-retries": "10000",
                },
            )
            assert totals.lost_snapshots == []
            published += totals.snapshots
        for thread in threads:
            thread.join()
        assert failures == [], [str(f)[:3000] for f in failures]
        return published

    def _write(self, user: str) -> None:
        arguments = {
            "catalog": dict(self.options),
            "user": user,
            "commits": self.commits,
            "keys": self.keys,
            "pause_ms": self.pause_ms,
        }
        self.java.call("JdbcWriter", "write", arguments)

    def nothing_is_lost(self, catalog: Catalog, judge: Judge) -> list[int]:
        """Both sides commit at once, and every commit is there; the snapshots that we published."""
        published = self.run(catalog)
        table = catalog.open(catalog.find_table("db.t"))
        self.check_snapshots(table.storage, table.ref.location, published)
        assert dict(judge.read(table.ref.location)) == self.rows()
        return published

    def rows(self) -> dict[int, int]:
        """What must be read: of each key the last commit that did not leave it out."""
        last = {
            key: max(n for n in range(self.commits) if (key + n) % 3) for key in range(self.keys)
        }
        return {_FIRST_KEYS[user] + key: n for user in self.users for key, n in last.items()}

    def check_snapshots(self, storage: Storage, location: str, published: Sequence[int]) -> None:
        """Ids without gaps, every commit of every writer once, and all of ours still ours."""
        ids = sorted(snapshot_ids(storage, location))
        assert ids == list(range(1, len(ids) + 1))
        found = [read_snapshot(storage, location, one) for one in ids]
        for user in self.users:
            identifiers = [one.commit_identifier for one in found if one.commit_user == user]
            assert identifiers == list(range(self.commits))
        others = [one for one in found if one.commit_user not in self.users]
        assert [one.id for one in others] == published
        assert all(one.commit_kind is CommitKind.COMPACT for one in others)
        assert len(published) >= self.commits // 10, "both committed at the same time"
