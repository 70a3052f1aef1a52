"""How soon a command has done its work: from the start of its process to its end.

    python -m tests.bench.bench_start --repeat 7 --base FOLDER

`compact` merges a bucket of eight small files on an embedded Spark, `inspect` looks at it, `help`
prints the usage. FOLDER is another checkout of compactord, such as an earlier revision: its
commands run in turns with ours, on copies of the same table, which keeps the ratios free of what
else the machine does. One line of JSON for each command: medians of wall time and of the CPU of all
its processes, in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from compactord import ids
from compactord.clock import SystemClock
from compactord.paimon.schema import TableRef
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.storage.local import LocalStorage
from compactord_demo.writer import WriteOnlyWriter, create_table

_ROOT = Path(__file__).parent.parent.parent
_TABLE = ["--table", "d.t", "--warehouse"]
_CASES = {"compact": ["compact", *_TABLE], "inspect": ["inspect", *_TABLE], "help": ["--help"]}
# Starts that are not measured, unless there is but one: the archive of classes is made after it.
_WARM_UPS = 2
_ARCHIVE_SECONDS_MAX = 120.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument(
        "--base", type=Path, help="another checkout, measured in turns with this one"
    )
    parser.add_argument("--rows", type=int, default=100, help="rows of each of the eight files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="compactord-bench-start-") as folder:
        made = Path(folder, "made")
        _make(made, arguments.rows)
        for case in _CASES:
            print(json.dumps(_measured(case, made, Path(folder), arguments)), flush=True)


def _measured(case: str, made: Path, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    checkouts = {"": _ROOT} | ({"base_": arguments.base} if arguments.base else {})
    wall: dict[str, list[float]] = {side: [] for side in checkouts}
    cpu: dict[str, list[float]] = {side: [] for side in checkouts}
    for repetition in range(-min(_WARM_UPS, arguments.repeat - 1), arguments.repeat):
        for side, checkout in checkouts.items():
            wall_s, cpu_s = _run(case, made, folder, checkout)
            if repetition >= 0:
                wall[side].append(wall_s)
                cpu[side].append(cpu_s)
    found: dict[str, Any] = {"case": case}
    for side in checkouts:
        found[f"{side}wall_s"] = round(statistics.median(wall[side]), 3)
        found[f"{side}cpu_s"] = round(statistics.median(cpu[side]), 3)
    if arguments.base:
        for figure in ("wall", "cpu"):
            found[f"{figure}_ratio"] = round(found[f"{figure}_s"] / found[f"base_{figure}_s"], 3)
    return found


def _run(case: str, made: Path, folder: Path, checkout: Path) -> tuple[float, float]:
    """Wall time and CPU of one command on a fresh copy of the table."""
    warehouse = folder / "warehouse"
    shutil.rmtree(warehouse, ignore_errors=True)
    shutil.copytree(made, warehouse)
    arguments = _CASES[case]
    if arguments[-1] == "--warehouse":
        arguments = [*arguments, str(warehouse)]
    # Each bench has archives of its own: an earlier run's would hide what a first start costs.
    environment = os.environ | {
        "PYTHONPATH": str(checkout),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "compactord", *arguments],
        cwd=checkout,
        env=environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    wall_s, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    _wait_for_archive(folder / "cache")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s, cpu_s


def _wait_for_archive(cache: Path) -> None:
    """The process that makes it would take a core from the next command."""
    until = time.monotonic() + _ARCHIVE_SECONDS_MAX
    while any(cache.rglob("*.making")) and time.monotonic() < until:
        time.sleep(0.1)


def _make(warehouse: Path, rows: int) -> None:
    """`d.t` with eight level-0 files in one bucket."""
    table = TableRef(database="d", name="t", location=f"{warehouse}/d.db/t")
    fields = [
        DataField(id=0, name="k", type=AtomicType(root=TypeRoot.BIGINT, nullable=False)),
        DataField(id=1, name="v", type=AtomicType(root=TypeRoot.VARCHAR, precision=2**31 - 1)),
    ]
    storage = LocalStorage()
    options = {"bucket": "1", "write-only": "true"}
    create_table(storage, table, fields, primary_keys=["k"], options=options)
    writer = WriteOnlyWriter(storage, table, owner=ids.this_process(), clock=SystemClock())
    for commit in range(8):
        keys = np.arange(commit, commit + rows)
        writer.write(pa.table({"k": keys, "v": keys.astype(str)}))


if __name__ == "__main__":
    main()
