"""Planning a partition of very many small files: all of it, after ten files more, one task of it.

    python -m tests.bench.bench_append_plan                  # tiny, a few seconds
    python -m tests.bench.bench_append_plan --files 10000 100000

One JSON line per size. A look is what a cycle of the service does behind the poll: what is due in
the table, and its numbers. A plan is what `compactord compact` makes before its first task. Tables
are metadata alone; no size is measured on files that another has read.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from compactord.catalog.access import table_in_folder
from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import EMPTY_ROW, EMPTY_STATS, BucketId, ManifestEntry
from compactord.paimon.schema import TableRef
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.state.table_state import TableState, load_state, refresh_state
from compactord.storage.local import LocalStorage
from compactord.table.backlog import TableBacklog
from compactord.table.opening import OpenTable, open_table
from compactord.table.planning import CompactRequest, PlanContext, StatePlanner, plan_state
from compactord_demo.writer import create_table
from tests.bench.bench_scan import TEXT, Writer, entry

REPEATS = 5
BUCKET = BucketId(encode_row(["day"], [TEXT]), 0)
# A minute after the newest file.
NOW_MS = 1_700_000_060_000
CONTEXT = PlanContext(
    request=CompactRequest(append_wait_ms=600_000),
    now_ms=NOW_MS,
    steady_ms=NOW_MS,
    zone=datetime.timezone.utc,
)


def _small_file(index: int) -> ManifestEntry:
    """Of 4 to 104 KB, most sizes more than once; jobs count rows of such tables from 0."""
    large = entry(index, 0)
    file = replace(
        large.file,
        file_size=4_000 + index * 7_919 % 100_000,
        min_key=EMPTY_ROW,
        max_key=EMPTY_ROW,
        key_stats=EMPTY_STATS,
        min_sequence_number=0,
        max_sequence_number=4_999,
        level=0,
        creation_time_ms=1_700_000_000_000,
    )
    return replace(
        large, partition=BUCKET.partition, bucket=BUCKET.bucket, total_buckets=-1, file=file
    )


def _created(folder: str) -> OpenTable:
    storage, ref = LocalStorage(), TableRef(database="bench", name="t", location=folder)
    number = AtomicType(root=TypeRoot.BIGINT)
    columns = [DataField(id=0, name="k", type=number), DataField(id=1, name="day", type=TEXT)]
    create_table(storage, ref, columns, partition_keys=["day"], options={"bucket": "-1"})
    return open_table(table_in_folder(storage, ref), {})


def measure(folder: str, files: int) -> dict[str, object]:
    """The figures of a new table with so many files."""
    storage, table = LocalStorage(), _created(folder)
    writer = Writer(table.ref)
    writer.commit(map(_small_file, range(files)))
    state = load_state(storage, table.ref)
    backlog = TableBacklog(stop_trigger=8)

    def look(now: TableState, changed: set[BucketId] | None) -> None:
        planner = StatePlanner(table, now, CONTEXT)
        backlog.update(planner, changed, {})

    looks = [_timed(lambda: look(state, None)) for _ in range(REPEATS)]
    plans = [
        _timed(lambda: list(plan_state(StatePlanner(table, state, CONTEXT))))
        for _ in range(REPEATS)
    ]
    (plan,) = plan_state(StatePlanner(table, state, CONTEXT))
    one_task = [_timed(lambda: plan.compactions[0]) for _ in range(REPEATS)]
    grown = [
        _timed(partial(look, now, {BUCKET})) for now in _growing(storage, writer, state, files)
    ]
    due = backlog.backlog()
    return {
        "bench": "append-plan",
        "files": files,
        "tasks": due.tasks,
        "files_due": due.files,
        "look_ms": _median_ms(looks),
        "plan_ms": _median_ms(plans),
        "one_task_ms": _median_ms(one_task),
        "look_10_files_ms": _median_ms(grown),
    }


def _growing(
    storage: LocalStorage, writer: Writer, state: TableState, files: int
) -> Iterator[TableState]:
    """After a commit of ten files more, once per step."""
    for step in range(REPEATS):
        first = files + step * 10
        writer.commit(map(_small_file, range(first, first + 10)))
        state = refresh_state(storage, state).state
        yield state


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _median_ms(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1000, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=[2000])
    for files in parser.parse_args().files:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(str(Path(folder) / "t"), files)), flush=True)


if __name__ == "__main__":
    main()
