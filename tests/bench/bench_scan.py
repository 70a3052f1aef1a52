"""Reading a table's state: first scan, refresh without and with new snapshots, peak memory.

    python -m tests.bench.bench_scan                      # tiny, a few seconds
    python -m tests.bench.bench_scan --files 10000 1000000

One JSON line per size. Entries carry statistics of nine columns (about 450 bytes, 10 files to a
bucket). Each size is measured in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

from compactord.paimon import paths
from compactord.paimon.avro.types import codec_of
from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import ColumnStats, DataFile, EntryKind, ManifestEntry
from compactord.paimon.manifest.manifest_files import (
    ManifestFile,
    encode_manifest_list,
    roll_entries,
)
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind, Snapshot, snapshot_json
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.state.table_state import data_manifests, load_state, refresh_state
from compactord.storage.local import LocalStorage
from compactord_demo.writer import create_table

CODEC = codec_of("zstd", 1)
INT = AtomicType(root=TypeRoot.INT)
LONG = AtomicType(root=TypeRoot.BIGINT)
TEXT = AtomicType(root=TypeRoot.VARCHAR, precision=100)
COLUMNS = (LONG, TEXT, INT, INT, LONG, TEXT, LONG, INT, TEXT)
FILES_PER_BUCKET = 10
REPEATS = 5


def entry(index: int, bucket: int) -> ManifestEntry:
    low, high = encode_row([index * 100], [LONG]), encode_row([index * 100 + 99], [LONG])
    values = [index, f"customer {index}", 1, 2, index * 5, "x", 3, 4, "hello"]
    stats = ColumnStats(
        min_values=encode_row(values, COLUMNS),
        max_values=encode_row([index + 9, *values[1:]], COLUMNS),
        null_counts=(0,) * len(COLUMNS),
    )
    return ManifestEntry(
        kind=EntryKind.ADD,
        partition=encode_row([f"day {bucket // 64}"], [TEXT]),
        bucket=bucket % 64,
        total_buckets=64,
        file=DataFile(
            file_name=f"data-{uuid.uuid4()}-{index % 7}.parquet",
            file_size=1_000_000 + index,
            row_count=5000,
            min_key=low,
            max_key=high,
            key_stats=ColumnStats(min_values=low, max_values=high, null_counts=(0,)),
            value_stats=stats,
            min_sequence_number=index * 5000,
            max_sequence_number=index * 5000 + 4999,
            schema_id=0,
            level=0 if index % 5 == 0 else 5,
            creation_time_ms=1_700_000_000_000 + index,
            delete_row_count=0,
            file_source=1,
        ),
    )


def create_table_of_days(table: TableRef, options: Mapping[str, str]) -> None:
    """An empty table with a key and, as its partitions, days."""
    key = DataField(id=0, name="k", type=AtomicType(root=TypeRoot.BIGINT, nullable=False))
    day = DataField(id=1, name="day", type=replace(TEXT, nullable=False))
    create_table(
        LocalStorage(),
        table,
        [key, day],
        primary_keys=["k", "day"],
        partition_keys=["day"],
        options=options,
    )


class Writer:
    """Writes snapshots of a table on the local disk."""

    def __init__(self, table: TableRef) -> None:
        self._storage = LocalStorage()
        self._table = table
        self._numbers = count()
        self._snapshot: Snapshot | None = None

    def commit(
        self, entries: Iterator[ManifestEntry], *, index_manifest: str | None = None
    ) -> None:
        """With the index manifest of before unless there is another one."""
        before = self._snapshot
        base = data_manifests(self._storage, self._table.location, before) if before else ()
        delta = self._write_manifests(entries)
        base_name, base_size = self._write_list(base)
        delta_name, delta_size = self._write_list(delta)
        rows = 5000 * sum(manifest.num_added_files for manifest in delta)
        self._snapshot = Snapshot(
            uuid=str(uuid.uuid4()),
            id=before.id + 1 if before else 1,
            schema_id=0,
            base_manifest_list=base_name,
            base_manifest_list_size=base_size,
            delta_manifest_list=delta_name,
            delta_manifest_list_size=delta_size,
            commit_user="bench",
            commit_identifier=next(self._numbers),
            commit_kind=CommitKind.APPEND,
            time_ms=1_700_000_000_000,
            total_record_count=rows + (before.total_record_count if before else 0),
            delta_record_count=rows,
            index_manifest=index_manifest or (before.index_manifest if before else None),
        )
        path = paths.snapshot_path(self._table.location, self._snapshot.id)
        self._storage.write_new(path, snapshot_json(self._snapshot))
        hint = paths.latest_hint(self._table.location)
        self._storage.overwrite(hint, str(self._snapshot.id).encode())

    def _write_manifests(self, entries: Iterator[ManifestEntry]) -> tuple[ManifestFile, ...]:
        described = []
        for data, manifest in roll_entries(
            entries,
            names=(self._name("manifest") for _ in count()),
            target_size=8 << 20,
            codec=CODEC,
            partition_types=[TEXT],
        ):
            path = paths.manifest_path(self._table.location, manifest.file_name)
            self._storage.write_new(path, data)
            described.append(manifest)
        return tuple(described)

    def _write_list(self, manifests: tuple[ManifestFile, ...]) -> tuple[str, int]:
        name, data = self._name("manifest-list"), encode_manifest_list(manifests, CODEC)
        self._storage.write_new(paths.manifest_path(self._table.location, name), data)
        return name, len(data)

    def _name(self, kind: str) -> str:
        return f"{kind}-{uuid.uuid4()}-{next(self._numbers)}"


def _write_table(table: TableRef, files: int) -> None:
    buckets = max(1, files // FILES_PER_BUCKET)
    writer = Writer(table)
    writer.commit(entry(index, index % buckets) for index in range(files))


def _grow_table(table: TableRef, files: int, commits: int) -> Iterator[None]:
    """Commit 10 files into 10 buckets, once per step."""
    writer = Writer(table)
    writer._snapshot = load_state(LocalStorage(), table).snapshot
    buckets = max(1, files // FILES_PER_BUCKET)
    for step in range(commits):
        first = files + step * 10
        writer.commit(entry(index, index * 37 % buckets) for index in range(first, first + 10))
        yield


def measure(folder: str, files: int) -> dict[str, object]:
    """The figures of one table that `_write_table` wrote."""
    table = TableRef(database="bench", name="t", location=folder)
    storage = LocalStorage()
    rss_before = peak_rss_mib()
    started = time.perf_counter()
    state = load_state(storage, table)
    first_scan = time.perf_counter() - started
    rss_after = peak_rss_mib()
    assert state.files.file_count == files
    unchanged = [_timed(lambda: refresh_state(storage, state)) for _ in range(REPEATS)]
    started = time.perf_counter()
    summaries = state.files.summaries()
    summaries_s = time.perf_counter() - started
    bucket = summaries.index.bucket_id(len(summaries) // 2)
    one_bucket = [_timed(lambda: state.files.bucket(bucket)) for _ in range(REPEATS)]
    grown = []
    for _ in _grow_table(table, files, REPEATS):
        started = time.perf_counter()
        refreshed = refresh_state(storage, state)
        grown.append(time.perf_counter() - started)
        assert refreshed.changed is not None
        state = refreshed.state
    assert state.files.file_count == files + REPEATS * 10
    return {
        "bench": "scan",
        "files": files,
        "first_scan_s": round(first_scan, 3),
        "entries_per_s": round(files / first_scan),
        "refresh_unchanged_ms": round(statistics.median(unchanged) * 1000, 3),
        "refresh_10_files_ms": round(statistics.median(grown) * 1000, 3),
        "summaries_ms": round(summaries_s * 1000, 3),
        "one_bucket_ms": round(statistics.median(one_bucket) * 1000, 3),
        "rss_before_mib": rss_before,
        "peak_rss_mib": rss_after,
    }


def _timed(call) -> float:  # type: ignore[no-untyped-def]
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def peak_rss_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=[2000])
    processes = multiprocessing.get_context("spawn")
    for files in parser.parse_args().files:
        with tempfile.TemporaryDirectory() as folder:
            table = TableRef(database="bench", name="t", location=str(Path(folder) / "t"))
            _write_table(table, files)
            with processes.Pool(1) as pool:
                print(json.dumps(pool.apply(measure, (table.location, files))), flush=True)


if __name__ == "__main__":
    main()
