"""Expiry of a table's snapshots beside Java's: the same snapshots of two copies, in turns.

    python -m tests.bench.bench_expire                       # tiny, some seconds
    python -m tests.bench.bench_expire --snapshots 1000 --repeat 5 --warm-ups 2

One JSON line for Java with all snapshots in one round, one with rounds of 50, the default of
`snapshot.expire.limit`, and one in which it reads manifests in one go: on local disks Avro's reader
looks for the first block of each byte by byte, which is half of Java's time. Our rounds are those
of `maintain --only snapshots`. Java writes the table: a primary key, two buckets, commits of 200
rows, compacted as it does by itself; ten snapshots stay. Both sides open the table first, and have
done the same to other copies before. Times are medians, in seconds; `same_files_as_java`: both
leave the same files.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compactord.catalog.access import table_in_folder
from compactord.cli.maintenance import of_a_command
from compactord.config.choices import LogFormat, LogLevel
from compactord.service.logs import configure_logs
from compactord.storage.local import LocalStorage
from compactord.table.opening import open_table
from tests.bench.bench_scan import peak_rss_mib
from tests.bench.ours import Measured, table_ref
from tests.bench.peers import CorePeer
from tests.bench.tables import fresh_copy
from tests.rounds import Expired, expire_snapshots

COLUMNS = (("id", "BIGINT NOT NULL"), ("i", "INT"), ("s", "STRING"))
KEPT = 10
# Snapshots of each of Java's rounds at most, and whether it reads manifests whole.
CASES = ((1_000_000, False), (50, False), (1_000_000, True))
# Commits between two looks at how many snapshots there are.
_COMMITS = 20


def make_table(core: CorePeer, path: Path, snapshots: int) -> int:
    """How many snapshots it has: so many, or some more."""
    core.create_table(path, COLUMNS, primary_key=["id"], options={"bucket": "2"})
    made, seed = 0, 0
    while made < snapshots:
        core.fill(path, commits=min(_COMMITS, snapshots - made), rows=200, keys=100_000, seed=seed)
        made, seed = len(core.snapshots(path)), seed + 1
    return made


def expire(path: Path, options: Mapping[str, str]) -> tuple[Measured, int, int]:
    """What `maintain --only snapshots` takes; how many rounds it makes, and snapshots expire."""
    storage = LocalStorage()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    table = open_table(table_in_folder(storage, table_ref(path)), options)
    of_rounds = of_a_command(table.options.expire)
    rounds, expired, done = 0, 0, Expired(more=True)
    while done.more:
        done = expire_snapshots(table, of_rounds, now_ms=int(time.time() * 1000), keep_from=None)
        assert done.why_not is None, done.why_not
        rounds, expired = rounds + 1, expired + done.snapshots
    measured = Measured(wall_s=time.perf_counter() - wall_s, cpu_s=time.process_time() - cpu_s)
    return measured, rounds, expired


def files_of(path: Path) -> frozenset[str]:
    return frozenset(str(each.relative_to(path)) for each in path.rglob("*") if each.is_file())


def contest(
    core: CorePeer, table: Path, limit: int, asked: argparse.Namespace, *, whole: bool
) -> dict[str, Any]:
    """Both sides in turns, each on fresh copies; Java has rounds of `limit` snapshots."""
    kept = str(KEPT)
    options = {"snapshot.num-retained.min": kept, "snapshot.num-retained.max": kept}
    options["snapshot.expire.limit"] = str(limit)
    java, ours, is_same = list[Measured](), list[Measured](), True
    for _ in range(asked.warm_ups + asked.repeat):
        with (
            fresh_copy(table, "java", links=False) as theirs,
            fresh_copy(table, "ours", links=False) as mine,
        ):
            java.append(core.expire_measured(theirs, options, whole=whole))
            measured, rounds, expired = expire(mine, options)
            ours.append(measured)
            left = files_of(mine)
            is_same &= left == files_of(theirs)
    files = len(files_of(table)) - len(left)
    found: dict[str, Any] = {"bench": "expire", "limit": limit, "java_reads_whole": whole}
    found["rounds"] = rounds
    found |= {"snapshots": expired, "files": files, "same_files_as_java": is_same}
    for side, runs in (("java_", java), ("", ours)):
        for name in ("wall_s", "cpu_s"):
            seconds = [getattr(run, name) for run in runs[asked.warm_ups :]]
            found[side + name] = round(statistics.median(seconds), 3)
            found[f"{side}{name}_min"] = round(min(seconds), 3)
    for name in ("wall", "cpu"):
        found[f"java_{name}_ratio"] = round(found[f"java_{name}_s"] / found[f"{name}_s"], 2)
    return found | {"peak_rss_mib": peak_rss_mib()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--snapshots", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--warm-ups", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the table is made, or is from before")
    asked = parser.parse_args()
    configure_logs(level=LogLevel.WARNING, format=LogFormat.AUTO, stream=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="compactord-bench-") as folder:
        table = (asked.folder or Path(folder)) / "bench.db" / "table"
        if not table.exists():
            # In a machine of its own: code compiled for writing would not be the best for expiry.
            with CorePeer() as maker:
                make_table(maker, table, asked.snapshots)
        with CorePeer() as core:
            for limit, whole in CASES:
                found = contest(core, table, limit, asked, whole=whole)
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
