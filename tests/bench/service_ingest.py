"""Write-only jobs beside a daemon, and what must be read of their tables in the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactord.catalog.access import table_in_folder
from compactord.clock import SystemClock
from compactord.ids import this_process
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.types import DataField, parse_type
from compactord.state.table_state import TableState, load_state, refresh_state
from compactord.storage.local import LocalStorage
from compactord.table.opening import open_table
from compactord_demo.writer import WriteOnlyWriter, create_table
from tests import builders

_PARTITIONS = 4
# Equal commits that make a merge of everything due (num-sorted-run.compaction-trigger).
_FILLS = 5
# One row in so many deletes its key.
_DELETES = 20
_GONE = -1
_STORAGE = LocalStorage()
_FIELDS = tuple(
    DataField(id=number, name=name, type=parse_type(kind))
    for number, (name, kind) in enumerate(
        (("p", "INT NOT NULL"), ("k", "BIGINT NOT NULL"), ("v", "BIGINT"))
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A table at a moment. `runs_max`: of its fullest bucket, 0 for a table without runs."""

    runs_max: int
    snapshots: int


class Ingestion:
    """One table and the job that writes it: every `interval_s`, `rows` rows or a few less.

    There are `keys` different keys, a multiple of the partitions. `interval_s` may be changed at
    any time. Use `seen` from one thread.
    """

    def __init__(
        self,
        warehouse: Path,
        name: str,
        *,
        seed: int,
        keys: int,
        rows: int,
        interval_s: float,
        is_keyed: bool,
        is_partitioned: bool,
        options: Mapping[str, str],
    ) -> None:
        self.interval_s = interval_s
        self.rows_written = 0
        self.late_s = 0.0
        self.name = name
        self.is_keyed = is_keyed
        self._keys = keys
        self._rows = rows
        self._partitions = _PARTITIONS if is_partitioned else 1
        self._ref = TableRef(database="db", name=name, location=f"{warehouse}/db.db/{name}")
        partition_keys = ["p"] if is_partitioned else []
        self._depth = len(partition_keys)
        create_table(
            _STORAGE,
            self._ref,
            _FIELDS,
            primary_keys=[*partition_keys, "k"] if is_keyed else [],
            partition_keys=partition_keys,
            options={"write-only": "true", **options},
        )
        self._writer = WriteOnlyWriter(
            _STORAGE, self._ref, owner=this_process(), clock=SystemClock()
        )
        self._random = np.random.default_rng(seed)
        # Of a table with a key: the value of each key. Of one without: sums over all rows.
        self._newest = np.full(keys if is_keyed else 0, _GONE)
        self._sums = np.zeros(3, np.uint64)
        self._state: TableState | None = None
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name)

    @property
    def ref(self) -> TableRef:
        return self._ref

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Raises what the job met."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def seen(self) -> Seen:
        """The table as it is now, by its own snapshots."""
        known = self._state
        state = refresh_state(_STORAGE, known).state if known else load_state(_STORAGE, self._ref)
        self._state = state
        summaries = state.files.summaries()
        runs = int(summaries.run_count.max()) if self.is_keyed and len(summaries) else 0
        folder = Path(paths.snapshot_folder(self._ref.location))
        return Seen(runs_max=runs, snapshots=sum(1 for _ in folder.glob("snapshot-*")))

    def has_all_rows(self) -> bool:
        """Whether the table holds what was written: by sorting, not by our merge."""
        state = load_state(_STORAGE, self._ref)
        opened = open_table(table_in_folder(_STORAGE, self._ref), {})
        found, sums = np.full(len(self._newest), _GONE), np.zeros(3, np.uint64)
        for bucket in state.files.bucket_ids():
            folder = opened.bucket_folder(bucket)
            files = state.files.files_in(bucket)
            tables = [_read(paths.join(folder, file.file_name)) for file in files]
            if self.is_keyed:
                newest = _newest_rows(pa.concat_tables(tables))
                keys = self._key_numbers(newest)
                if np.any(found[keys] != _GONE):
                    return False
                found[keys] = newest.column("v").to_numpy()
            else:
                for table in tables:
                    sums += _sums(table, self._keys)
        return np.array_equal(found, self._newest) and np.array_equal(sums, self._sums)

    def sweep(self) -> None:
        """Remove what dead processes left, as if all of it had waited long enough."""
        builders.sweep_later(_STORAGE, self._ref.location, partition_depth=self._depth)

    def stray_files(self) -> set[str]:
        """Files that no snapshot leads to."""
        named = builders.named_files(_STORAGE, self._ref)
        known = {"LATEST", "EARLIEST", "schema-0"}
        found = {path.name for path in Path(self._ref.location).rglob("*") if path.is_file()}
        return found - named - known

    def _run(self) -> None:
        due_s = time.monotonic() + self._random.random() * self.interval_s
        try:
            while not self._stop.wait(max(0.0, due_s - time.monotonic())):
                self.commit()
                due_s += self.interval_s
                late_s = time.monotonic() - due_s
                self.late_s = max(self.late_s, late_s)
                # What was missed is not made up for: that would be another rate.
                due_s += max(0.0, late_s)
        except BaseException as error:  # noqa: BLE001 - handed to whoever stops it
            self._error = error

    def commit(self) -> None:
        """One commit, in the caller's thread."""
        keys = np.unique(self._random.integers(0, self._keys, self._rows))
        self._write(keys, self._random.integers(0, _DELETES, len(keys)) == 0)

    def fill(self) -> None:
        """All keys once, in the caller's thread; afterwards all buckets are to be merged whole."""
        for first in range(_FILLS):
            keys = np.arange(first, self._keys, _FILLS)
            self._write(keys, np.zeros(len(keys), bool))

    def _write(
        self,
        keys: np.ndarray[tuple[int], np.dtype[np.int64]],
        is_delete: np.ndarray[tuple[int], np.dtype[np.bool_]],
    ) -> None:
        """One commit; a table without keys deletes nothing."""
        values = self._random.integers(0, 2**40, len(keys))
        per_partition = self._keys // self._partitions
        table = pa.table(
            {
                "p": pa.array(keys // per_partition, pa.int32()),
                "k": keys % per_partition,
                "v": values,
            }
        )
        if self.is_keyed:
            kinds = pa.array(np.where(is_delete, builders.DELETE, builders.INSERT), pa.int8())
            self._writer.write(table, kinds=kinds)
            self._newest[keys] = np.where(is_delete, _GONE, values)
        else:
            self._writer.write(table)
            self._sums += _sums(table, self._keys)
        self.rows_written += len(keys)

    def _key_numbers(self, rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        per_partition = self._keys // self._partitions
        partitions = rows.column("p").to_numpy().astype(np.int64)
        keys: np.ndarray[tuple[int], np.dtype[np.int64]] = rows.column("k").to_numpy()
        return partitions * per_partition + keys


def _read(path: str) -> pa.Table:
    return pq.ParquetFile(path).read()


def _newest_rows(rows: pa.Table) -> pa.Table:
    """Of each key the record with the largest sequence number, unless that deletes it."""
    order = [("p", "ascending"), ("k", "ascending"), ("_SEQUENCE_NUMBER", "descending")]
    ordered = rows.take(pc.sort_indices(rows, order)).combine_chunks()
    keys, partitions = (ordered.column(name).to_numpy() for name in ("k", "p"))
    is_other = (keys[1:] != keys[:-1]) | (partitions[1:] != partitions[:-1])
    is_live = ordered.column("_VALUE_KIND").to_numpy() == builders.INSERT
    return ordered.filter(pa.array(np.concatenate([[True], is_other]) & is_live))


def _sums(rows: pa.Table, keys: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """A count and two sums, modulo 2^64, that no row can be lost from or be twice in."""
    keys = rows.column("p").to_numpy().astype(np.uint64) * np.uint64(keys)
    keys += rows.column("k").to_numpy().astype(np.uint64)
    values = rows.column("v").to_numpy().astype(np.uint64)
    mixed = (keys + np.uint64(1)) * (values + np.uint64(0x9E3779B97F4A7C15))
    return np.array([rows.num_rows, values.sum(), mixed.sum()], np.uint64)
