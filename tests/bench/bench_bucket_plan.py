"""Planning a table of very many dynamic buckets: from nothing, and after a commit of ten files.

    python -m tests.bench.bench_bucket_plan                    # tiny, a few seconds
    python -m tests.bench.bench_bucket_plan --buckets 1000 10000

One JSON line per size. Each is a whole cycle of the service without its commit: the poll, what is
due, and the table's numbers. A bucket has three files and a HASH index. The commits put ten files
into ten buckets, once with known keys, once with new ones: then all indexes are listed anew.
Tables are metadata alone, on a local disk.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from compactord.catalog.access import table_in_folder
from compactord.clock import SystemClock
from compactord.ids import this_process
from compactord.paimon import paths
from compactord.paimon.avro.container import ContainerWriter, encode_record
from compactord.paimon.data_file import ManifestEntry
from compactord.paimon.manifest.schemas import INDEX_MANIFEST
from compactord.paimon.schema import TableRef
from compactord.storage.local import LocalStorage
from compactord.table.backlog import DispatchFilter
from compactord.table.planner import OwnWork, TablePlanner
from compactord.table.planning import CompactRequest
from compactord.table.session import TableSession
from tests.bench.bench_scan import CODEC, Writer, create_table_of_days, entry

STORAGE = LocalStorage()
REPEATS = 5
FILES = 3


def _file(index: int, buckets: int) -> ManifestEntry:
    """The oldest of a bucket is on the highest level, the others on the lowest."""
    found = entry(index, index % buckets)
    level = 5 if index < buckets else 0
    return replace(found, total_buckets=-1, file=replace(found.file, level=level))


def _index_manifest(table: TableRef, buckets: int) -> str:
    """A HASH index for each bucket."""
    writer, name = ContainerWriter(INDEX_MANIFEST, CODEC), f"index-manifest-{uuid.uuid4()}-0"
    for bucket in range(buckets):
        of = entry(bucket, bucket)
        record = {
            "_VERSION": 1,
            "_KIND": 0,
            "_PARTITION": of.partition,
            "_BUCKET": of.bucket,
            "_INDEX_TYPE": "HASH",
            "_FILE_NAME": f"index-{uuid.uuid4()}-0",
            "_FILE_SIZE": 60_000,
            "_ROW_COUNT": 15_000,
        }
        writer.append(encode_record(INDEX_MANIFEST, record))
    STORAGE.write_new(paths.manifest_path(table.location, name), writer.finish())
    return name


def _planner(table: TableRef) -> TablePlanner:
    clock = SystemClock()
    access = table_in_folder(STORAGE, table)
    followed = TableSession(access, CompactRequest(), clock=clock, owner=this_process())
    return TablePlanner(followed, OwnWork(), clock=clock, zone=clock.time_zone)


def measure(folder: str, buckets: int) -> dict[str, object]:
    """The figures of a new table with so many buckets."""
    table = TableRef(database="bench", name="t", location=folder)
    create_table_of_days(table, {"num-sorted-run.compaction-trigger": str(FILES)})
    writer = Writer(table)
    files = (_file(index, buckets) for index in range(FILES * buckets))
    writer.commit(files, index_manifest=_index_manifest(table, buckets))
    first = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        planner = _planner(table)
        planned = planner.plan(DispatchFilter())
        first.append(time.perf_counter() - started)
    assert planned is not None
    assert planned.backlog.tasks == buckets
    known_keys, new_keys = [], []
    for step in range(2 * REPEATS):
        adds_keys = step % 2 == 1
        index = _index_manifest(table, buckets) if adds_keys else None
        writer.commit(_ten_files(step, buckets), index_manifest=index)
        started = time.perf_counter()
        assert planner.plan(DispatchFilter()) is not None
        (new_keys if adds_keys else known_keys).append(time.perf_counter() - started)
    return {
        "bench": "bucket-plan",
        "buckets": buckets,
        "first_plan_s": round(statistics.median(first), 3),
        "plan_10_files_ms": _median_ms(known_keys),
        "plan_10_files_new_keys_ms": _median_ms(new_keys),
    }


def _ten_files(step: int, buckets: int) -> Iterator[ManifestEntry]:
    first = FILES * buckets + 10 * step
    return (_file(index, buckets) for index in range(first, first + 10))


def _median_ms(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1000, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--buckets", type=int, nargs="+", default=[200])
    for buckets in parser.parse_args().buckets:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(str(Path(folder) / "t"), buckets)), flush=True)


if __name__ == "__main__":
    main()
