"""Partitions that expire, very many of them in bounded batches: time, peak memory.

    python -m tests.bench.bench_partitions                       # tiny
    python -m tests.bench.bench_partitions --partitions 10000 --at-once 100 1000

One JSON line per size of a batch, each a snapshot: a table of as many days that expire and of a
tenth as many that stay, ten files each, metadata alone on a local disk. As `maintain --only
partitions` does it, from opening the table on. Each is measured in a process of its own, so that
its peak memory is its own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from compactord.catalog.access import table_in_folder
from compactord.clock import SystemClock
from compactord.config.choices import LogFormat, LogLevel
from compactord.ids import this_process
from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import ManifestEntry
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import snapshot_ids
from compactord.service.logs import configure_logs
from compactord.storage.local import LocalStorage
from compactord.table.planning import CompactRequest
from compactord.table.session import TableSession
from tests.bench.bench_scan import (
    FILES_PER_BUCKET,
    TEXT,
    Writer,
    create_table_of_days,
    entry,
    peak_rss_mib,
)
from tests.rounds import expire_partitions

STORAGE = LocalStorage()
FIRST_DAY, FIRST_THAT_STAYS = datetime.date(1980, 1, 1), datetime.date(3000, 1, 1)


def _write_table(table: TableRef, partitions: int, at_once: int) -> None:
    options = {
        "bucket": "1",
        "partition.expiration-time": "1 d",
        "partition.expiration-max-num": str(partitions),
        "partition.expiration-batch-size": str(at_once),
    }
    create_table_of_days(table, options)
    Writer(table).commit(_files(partitions))


def _files(partitions: int) -> Iterator[ManifestEntry]:
    for first, days in ((FIRST_DAY, partitions), (FIRST_THAT_STAYS, partitions // 10)):
        for number in range(days):
            day = encode_row([str(first + datetime.timedelta(days=number))], [TEXT])
            for index in range(FILES_PER_BUCKET):
                yield replace(entry(index, 0), partition=day, total_buckets=1)


def measure(folder: str, partitions: int) -> dict[str, object]:
    """The figures of a table that `_write_table` wrote."""
    configure_logs(level=LogLevel.WARNING, format=LogFormat.AUTO, stream=sys.stderr)
    clock, before = SystemClock(), peak_rss_mib()
    access = table_in_folder(STORAGE, TableRef(database="bench", name="t", location=folder))
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    followed = TableSession(access, CompactRequest(), clock=clock, owner=this_process())
    followed.refresh()
    done = expire_partitions(followed, clock.now_ms())
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    followed.refresh()
    assert len(done.items) == partitions, done.why_not
    return {
        "bench": "partitions",
        "partitions": partitions,
        "snapshots": len(snapshot_ids(STORAGE, folder)) - 1,
        "files": done.figures["files"],
        "partitions_left": len({each.partition for each in followed.state.files.bucket_ids()}),
        "wall_s": round(wall_s, 3),
        "cpu_s": round(cpu_s, 3),
        "rss_before_mib": before,
        "peak_rss_mib": peak_rss_mib(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--at-once", type=int, nargs="+", default=[20])
    asked = parser.parse_args()
    processes = multiprocessing.get_context("spawn")
    for at_once in asked.at_once:
        with tempfile.TemporaryDirectory() as folder:
            table = TableRef(database="bench", name="t", location=str(Path(folder) / "t"))
            with processes.Pool(1) as pool:
                pool.apply(_write_table, (table, asked.partitions, at_once))
            with processes.Pool(1) as pool:
                found = pool.apply(measure, (table.location, asked.partitions))
                print(json.dumps(found | {"at_once": at_once}), flush=True)


if __name__ == "__main__":
    main()
