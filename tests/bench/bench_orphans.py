"""Looking for files that nothing names, in a table of very many: files a second, peak memory.

    python -m tests.bench.bench_orphans                      # tiny
    python -m tests.bench.bench_orphans --files 1000000

One JSON line per size: a tenth of the files is named by nothing, the rest by one snapshot. All are
empty, in partitions of 64 buckets. Each size is measured in a process of its own, so that its peak
memory is its own; all are then deleted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

from compactord import ids
from compactord.clock import SystemClock
from compactord.config.choices import LogFormat, LogLevel
from compactord.maintenance.orphan_search import OrphanSearch, OwnerRule, TableFolders
from compactord.maintenance.orphans import remove_found
from compactord.paimon import paths
from compactord.paimon.data_file import ManifestEntry
from compactord.paimon.schema import TableRef
from compactord.service.logs import configure_logs
from compactord.storage.local import LocalStorage
from tests.bench.bench_scan import FILES_PER_BUCKET, Writer, entry, peak_rss_mib

DAY_MS = 86_400_000
# Of so many files one is named by nothing.
_ONE_IN = 10


def _write_table(table: TableRef, files: int) -> None:
    location, buckets = Path(table.location), max(1, files // FILES_PER_BUCKET)
    made: set[Path] = set()

    def file(index: int) -> ManifestEntry:
        found = entry(index, index % buckets)
        folder = location / f"day=day {index % buckets // 64}" / f"bucket-{index % buckets % 64}"
        if folder not in made:
            folder.mkdir(parents=True)
            made.add(folder)
        (folder / found.file.file_name).touch()
        return found

    Path(paths.schema_folder(table.location)).mkdir(parents=True)
    Path(paths.schema_path(table.location, 0)).write_text("{}")
    Writer(table).commit(file(index) for index in range(files) if index % _ONE_IN)
    for index in range(0, files, _ONE_IN):
        file(index)


def measure(folder: str, files: int) -> dict[str, object]:
    """The figures of one table that `_write_table` wrote; its orphans are gone then."""
    configure_logs(level=LogLevel.WARNING, format=LogFormat.AUTO, stream=sys.stderr)
    storage, before = LocalStorage(), peak_rss_mib()
    folders = TableFolders(location=folder, partition_depth=1, of_others=True)
    rule = OwnerRule(
        myself=ids.this_process(),
        liveness=ids.liveness,
        now_ms=SystemClock().now_ms() + 2 * DAY_MS,
        grace_ms=DAY_MS,
        others_grace_ms=DAY_MS,
    )
    started = time.perf_counter()
    search = OrphanSearch(storage, folders, rule)
    found = search.find()
    found_s = time.perf_counter() - started
    removed = remove_found(storage, folders, search, found)
    removed_s = time.perf_counter() - started - found_s
    assert len(removed) == len(found) == -(-files // _ONE_IN)
    return {
        "bench": "orphans",
        "files": files,
        "orphans": len(found),
        "find_s": round(found_s, 3),
        "files_per_s": round(files / found_s),
        "remove_s": round(removed_s, 3),
        "rss_before_mib": before,
        "peak_rss_mib": peak_rss_mib(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=[2000])
    processes = multiprocessing.get_context("spawn")
    for files in parser.parse_args().files:
        with tempfile.TemporaryDirectory() as folder:
            table = TableRef(database="bench", name="t", location=str(Path(folder) / "t"))
            with processes.Pool(1) as pool:
                pool.apply(_write_table, (table, files))
            with processes.Pool(1) as pool:
                print(json.dumps(pool.apply(measure, (table.location, files))), flush=True)


if __name__ == "__main__":
    main()
