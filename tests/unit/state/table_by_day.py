"""An append table of metadata alone, partitioned by day, whose files somebody rewrites."""

from __future__ import annotations

from typing import Any

from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import ManifestEntry
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind, Snapshot
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord_demo.writer import create_table
from tests.unit.paimon.table_builder import (
    TABLE,
    History,
    MemoryStorage,
    data_file,
    deleted,
    entry,
)

INT = AtomicType(root=TypeRoot.INT)
MINUTE = 60_000
NOW_MS = 1_700_000_000_000
DAYS = 3


def day(number: int) -> bytes:
    return encode_row([number], [INT])


class TableByDay(History):
    """Each of three days begins with two files in each bucket, which are due together.

    Times are minutes before `now_ms`.
    """

    def __init__(
        self,
        *,
        storage: Any = None,
        table: TableRef = TABLE,
        now_ms: int = NOW_MS,
        buckets: int | None = None,
    ) -> None:
        super().__init__(storage=storage or MemoryStorage(), table=table, partition_types=[INT])
        options = (
            {"bucket": "-1"} if buckets is None else {"bucket": f"{buckets}", "bucket-key": "k"}
        )
        create_table(
            self.storage,
            table,
            [DataField(id=0, name="k", type=INT), DataField(id=1, name="day", type=INT)],
            partition_keys=["day"],
            options={"compaction.min.file-num": "2", "write-only": "true", **options},
        )
        self.now_ms = now_ms
        self.buckets = buckets
        first = list(self._one_in_each().values())
        self.live = self._one_in_each()
        self._commit([*first, *self.live.values()], CommitKind.APPEND, 1000, None)

    def append(self, *, ago: int, kind: CommitKind = CommitKind.APPEND) -> Snapshot:
        """One new file in each bucket of each day."""
        self.live = self._one_in_each()
        return self._commit(list(self.live.values()), kind, ago, None)

    def rewrite(
        self,
        *days: int,
        ago: int,
        kind: CommitKind = CommitKind.OVERWRITE,
        operation: str | None = "UPDATE",
        user: str = "u",
    ) -> Snapshot:
        """Somebody replaces the newest file of bucket 0 of some days."""
        entries: list[ManifestEntry] = []
        for number in days:
            new = self._new(number, 0)
            entries += [deleted(self.live[number, 0]), new]
            self.live[number, 0] = new
        return self._commit(entries, kind, ago, operation, user)

    def _one_in_each(self) -> dict[tuple[int, int], ManifestEntry]:
        return {
            (number, bucket): self._new(number, bucket)
            for number in range(DAYS)
            for bucket in range(self.buckets or 1)
        }

    def _new(self, number: int, bucket: int) -> ManifestEntry:
        self.written += 1
        file = data_file(f"data-{self.written}.parquet")
        return entry(file, partition=day(number), bucket=bucket, total_buckets=self.buckets or -1)

    def _commit(
        self,
        entries: list[ManifestEntry],
        kind: CommitKind,
        ago: int,
        operation: str | None,
        user: str = "writer",
    ) -> Snapshot:
        time_ms = self.now_ms - ago * MINUTE
        return self.commit(entries, kind, time_ms=time_ms, operation=operation, commit_user=user)
