"""Warehouses that daemons serve: tables, writers beside the daemon, and what must be read."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactord.catalog.access import table_in_folder
from compactord.clock import SystemClock, local_ms
from compactord.ids import Owner, owner_of
from compactord.paimon import paths
from compactord.paimon.data_file import DataFile, EntryKind
from compactord.paimon.schema import TableRef, latest_schema
from compactord.paimon.snapshot import CommitKind, read_snapshot, snapshot_ids
from compactord.plan.picks import bucket_runs
from compactord.state.table_state import delta_entries, load_state
from compactord.storage.local import LocalStorage
from compactord.table.opening import open_table
from compactord_demo.writer import WriteOnlyWriter, create_table
from tests import builders

LOCAL = LocalStorage()
# Of no process that runs.
WRITER = Owner(host=0x111111, start_ticks=1, pid=1)
TRIGGER = "num-sorted-run.compaction-trigger"
# Tables of this name are compressed so thoroughly that a merge takes some seconds.
LARGE = {
    "match": {"table": r"db\.large.*"},
    "set": {"options": {"file.compression.zstd-level": 19}},
}
_LARGE_ROWS = 100_000


class Lake:
    """A warehouse with one database."""

    def __init__(self, warehouse: Path) -> None:
        self.warehouse = warehouse
        (warehouse / "db.db").mkdir(parents=True, exist_ok=True)

    def ref(self, name: str) -> TableRef:
        return TableRef(database="db", name=name, location=f"{self.warehouse}/db.db/{name}")

    def path(self, name: str) -> Path:
        return Path(self.ref(name).location)

    def keyed(
        self, name: str, *, buckets: int = 2, options: Mapping[str, str] | None = None
    ) -> Keyed:
        """Due with the sixth file, so that six quick commits are one compaction."""
        every = {"bucket": str(buckets), "write-only": "true", TRIGGER: "6", **(options or {})}
        create_table(LOCAL, self.ref(name), builders.FIELDS, primary_keys=["k"], options=every)
        return Keyed(self.ref(name))

    def appended(self, name: str, options: Mapping[str, str] | None = None) -> Appended:
        every = {"bucket": "-1", "write-only": "true", **(options or {})}
        create_table(LOCAL, self.ref(name), builders.FIELDS, options=every)
        return Appended(self.ref(name))

    def large(self, name: str, *, buckets: int = 2) -> pa.Table:
        """A table of `LARGE` with six level-0 files a bucket, due with the last one; its rows."""
        self.keyed(name, buckets=buckets)
        writer = WriteOnlyWriter(LOCAL, self.ref(name), owner=WRITER, clock=SystemClock())
        chance = np.random.default_rng(1)
        rows = _LARGE_ROWS * buckets
        for _ in range(6):
            keys = chance.choice(2 * rows, rows, replace=False)
            writer.write(pa.table({"k": keys, "v": chance.integers(0, 2**40, rows)}))
        return self.rows(name)

    def rows(self, name: str) -> pa.Table:
        """The rows of a primary-key table without deletes, by key; by sorting, not by our merge."""
        state = load_state(LOCAL, self.ref(name))
        columns = ["k", "v", "_SEQUENCE_NUMBER"]
        found = pa.concat_tables(
            pq.ParquetFile(pa.BufferReader(LOCAL.read(path))).read(columns)
            for path in builders.live_paths(LOCAL, self.ref(name), state)
        )
        order = [("k", "ascending"), ("_SEQUENCE_NUMBER", "descending")]
        found = found.take(pc.sort_indices(found, order)).combine_chunks()
        keys = found.column("k").to_numpy()
        is_newest = np.concatenate([[True], keys[1:] != keys[:-1]])
        return found.filter(pa.array(is_newest)).select(["k", "v"]).combine_chunks()

    def drop(self, name: str) -> None:
        shutil.rmtree(self.path(name))

    def alter(self, name: str, options: Mapping[str, str]) -> None:
        """A new schema with these options, put there as Java does."""
        location = self.ref(name).location
        newest = latest_schema(LOCAL, location).id
        schema = json.loads(LOCAL.read(paths.schema_path(location, newest)))
        schema["id"] = newest + 1
        schema["options"] |= options
        LOCAL.write_new(paths.schema_path(location, newest + 1), json.dumps(schema).encode())

    def work(self, name: str) -> Work:
        """What COMPACT snapshots did, counted from their manifests."""
        work = Work()
        location = self.ref(name).location
        for snapshot_id in snapshot_ids(LOCAL, location):
            snapshot = read_snapshot(LOCAL, location, snapshot_id)
            if snapshot.commit_kind is CommitKind.APPEND:
                continue
            assert snapshot.commit_kind is CommitKind.COMPACT
            entries = delta_entries(LOCAL, location, snapshot)
            added = {e.file.file_name: e.file for e in entries if e.kind is EntryKind.ADD}
            gone = {e.file.file_name: e.file for e in entries if e.kind is EntryKind.DELETE}
            inputs = [file for file_name, file in gone.items() if file_name not in added]
            outputs = [file for file_name, file in added.items() if file_name not in gone]
            work.snapshots += 1
            work.input_files += len(inputs)
            work.output_files += len(outputs)
            work.input_bytes += sum(file.file_size for file in inputs)
            work.output_bytes += sum(file.file_size for file in outputs)
            work.input_records += sum(file.row_count for file in inputs)
            work.output_records += sum(file.row_count for file in outputs)
            work.last_id = snapshot_id
        return work

    def files(self, name: str) -> list[DataFile]:
        """The live data files."""
        files = load_state(LOCAL, self.ref(name)).files
        return [file for bucket in files.bucket_ids() for file in files.files_in(bucket)]

    def level0_files(self, name: str) -> int:
        return sum(file.level == 0 for file in self.files(name))

    def worst_buckets(self, name: str) -> tuple[float, float]:
        """Size amplification, and seconds since the epoch of the last full compaction."""
        table = open_table(table_in_folder(LOCAL, self.ref(name)), {})
        state = load_state(LOCAL, self.ref(name))
        assert table.key_of is not None
        clock = SystemClock()
        now_ms = clock.now_ms()
        ahead_ms = local_ms(now_ms, clock.time_zone) - now_ms
        amplifications, full_ms = [], []
        for bucket in state.files.bucket_ids():
            *younger, oldest = bucket_runs(state.files.files_in(bucket), table.key_of)
            amplifications.append(sum(run.size_bytes for run in younger) / oldest.size_bytes)
            assert oldest.level == table.options.compaction.num_levels - 1
            full_ms.append(max(file.creation_time_ms or 0 for file in oldest.files))
        return max(amplifications), (min(full_ms) - ahead_ms) / 1000

    def snapshot_id(self, name: str) -> int:
        snapshot = load_state(LOCAL, self.ref(name)).snapshot
        return snapshot.id if snapshot is not None else 0

    def leftovers(self, name: str) -> set[str]:
        """Files of daemons that no snapshot leads to."""
        named = builders.named_files(LOCAL, self.ref(name))
        return {
            path.name
            for path in self.path(name).rglob("*")
            if path.is_file()
            and (owner := owner_of(path.name)) is not None
            and owner != WRITER
            and path.name not in named
        }


@dataclass(kw_only=True)
class Work:
    """Sums over snapshots; a file that only changes its level is neither input nor output."""

    snapshots: int = 0
    input_files: int = 0
    output_files: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    input_records: int = 0
    output_records: int = 0
    last_id: int = 0


class Keyed:
    """A writer of a table with the primary key `k`, and what must be read of it."""

    def __init__(self, ref: TableRef) -> None:
        self.ref = ref
        self.rows: dict[int, int] = {}
        self._writer = WriteOnlyWriter(LOCAL, ref, owner=WRITER, clock=SystemClock())
        self.commits = 0

    def commit(self, count: int = 1, *, keys: int = 60) -> None:
        """Upserts and deletes that overlap."""
        for _ in range(count):
            number = self.commits = self.commits + 1
            pairs, kinds = [], []
            for key in range(number % 7, keys, 1 + number % 3):
                is_delete = (key + number) % 7 == 0
                pairs.append((key, 1000 * number + key))
                kinds.append(builders.DELETE if is_delete else builders.INSERT)
            self._writer.write(builders.rows_of(pairs), kinds=builders.kinds_of(kinds))
            for (key, value), kind in zip(pairs, kinds, strict=True):
                if kind == builders.DELETE:
                    self.rows.pop(key, None)
                else:
                    self.rows[key] = value

    def check(self) -> None:
        assert builders.read_keyed(LOCAL, self.ref) == self.rows


class Appended:
    """A writer of an append table, and what must be read of it."""

    def __init__(self, ref: TableRef) -> None:
        self.ref = ref
        self.rows: Counter[tuple[int, int]] = Counter()
        self._writer = WriteOnlyWriter(LOCAL, ref, owner=WRITER, clock=SystemClock())
        self.commits = 0

    def commit(self, count: int = 1, *, keys: int = 40) -> None:
        for _ in range(count):
            self.commits += 1
            pairs = [(key, 1000 * self.commits + key) for key in range(keys)]
            self._writer.write(builders.rows_of(pairs))
            self.rows.update(pairs)

    def check(self) -> None:
        assert builders.read_appended(LOCAL, self.ref) == self.rows


class Beside:
    """Writers that commit in a thread until `stop`."""

    def __init__(self, *writers: Keyed | Appended, pause_s: float = 0.05) -> None:
        self._writers = writers
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Raises what a writer met."""
        self._stop.set()
        self._thread.join()
        if self._errors:
            raise self._errors.pop()

    def _write(self) -> None:
        try:
            while not self._stop.wait(self._pause_s):
                for writer in self._writers:
                    writer.commit()
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            self._errors.append(error)
