"""Warehouses for a daemon that is measured: many tables, or tables of metadata alone."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from compactord.clock import SystemClock
from compactord.ids import this_process
from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import BucketId, ColumnStats, DataFile
from compactord.paimon.schema import TableRef
from compactord.storage.local import LocalStorage
from compactord_demo.writer import WriteOnlyWriter, create_table
from tests import builders
from tests.unit.paimon.table_builder import UNPARTITIONED, History, entry

# Rows that a commit brings to each bucket.
_ROWS_PER_BUCKET = 4
_TYPES = [field.type for field in builders.FIELDS]
_STORAGE = LocalStorage()


def table_ref(warehouse: Path, name: str) -> TableRef:
    return TableRef(database="db", name=name, location=f"{warehouse}/db.db/{name}")


def create(ref: TableRef, buckets: int, options: Mapping[str, str] | None = None) -> None:
    """An empty table with a primary key, for write-only jobs."""
    every = {"bucket": str(buckets), "write-only": "true", **(options or {})}
    create_table(_STORAGE, ref, builders.FIELDS, primary_keys=["k"], options=every)


class Job:
    """A write-only job; each commit brings a small file to every bucket, of the same keys."""

    def __init__(self, ref: TableRef, buckets: int) -> None:
        self.ref = ref
        self._rows = _ROWS_PER_BUCKET * buckets
        self._commits = 0
        self._writer = WriteOnlyWriter(_STORAGE, ref, owner=this_process(), clock=SystemClock())

    def commit(self) -> int:
        """The new snapshot's id."""
        self._commits += 1
        return self._writer.write(builders.rows_of((k, self._commits) for k in range(self._rows)))


def many_tables(warehouse: Path, *, buckets: int, runs: Sequence[int]) -> list[TableRef]:
    """A table for each of `runs`, with so many sorted runs in its buckets, all of level 0.

    Tables of as many runs are copies of each other.
    """
    models = {}
    for count in sorted(set(runs)):
        models[count] = table_ref(warehouse / "models", f"runs{count}")
        create(models[count], buckets)
        job = Job(models[count], buckets)
        for _ in range(count):
            job.commit()
    refs = [table_ref(warehouse, f"t{number:03}") for number in range(len(runs))]
    for ref, count in zip(refs, runs, strict=True):
        shutil.copytree(models[count].location, ref.location)
    shutil.rmtree(warehouse / "models")
    return refs


class Metadata:
    """A table without data files: what a daemon that only watches knows of a table, it has."""

    def __init__(self, ref: TableRef, buckets: int) -> None:
        create(ref, buckets)
        self._buckets = buckets
        self._files = 0
        self._history = History(_STORAGE, ref)  # type: ignore[arg-type]  # made for another store

    def commit(self, buckets: int | None = None) -> None:
        """One more level-0 file in each bucket, or in the first `buckets`."""
        self._history.commit(
            [
                entry(self._file(number), bucket=number, total_buckets=self._buckets)
                for number in range(buckets or self._buckets)
            ]
        )

    def bucket(self, number: int) -> BucketId:
        return BucketId(UNPARTITIONED, number)

    def _file(self, bucket: int) -> DataFile:
        self._files += 1
        low, high = encode_row([bucket], _TYPES[:1]), encode_row([bucket + 1000], _TYPES[:1])
        return DataFile(
            file_name=f"data-00000000-0000-4000-8000-{self._files:012}-0.parquet",
            file_size=1_000_000,
            row_count=10_000,
            min_key=low,
            max_key=high,
            key_stats=ColumnStats(min_values=low, max_values=high, null_counts=(0,)),
            value_stats=ColumnStats(
                min_values=encode_row([bucket, 0], _TYPES),
                max_values=encode_row([bucket + 1000, 1 << 40], _TYPES),
                null_counts=(0, 0),
            ),
            min_sequence_number=self._files * 10_000,
            max_sequence_number=self._files * 10_000 + 9_999,
            schema_id=0,
            level=0,
            creation_time_ms=1_700_000_000_000,
            delete_row_count=0,
        )
