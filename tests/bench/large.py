"""One bucket of 5 GB in 100 runs: how much memory a worker needs, and how long it takes.

Our own writer makes the table: as Java's, each run is a level-0 file of one row group.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from compactord.clock import SystemClock
from compactord.engine.base import Engine
from compactord.ids import this_process
from compactord.paimon.types import DataField, parse_type
from compactord.storage.local import LocalStorage
from compactord_demo import writer
from tests.bench.ours import OurSide, table_ref
from tests.bench.tables import SHAPES, VALUES

_RUNS = 100
# About 48 bytes each on disk, and few enough for our writer to make one row group of them.
_ROWS_PER_RUN = 1_060_000
# So many times the rows of a run are the keys that runs draw from.
_KEY_SPACE = 30
_TEXT_BYTES = 27


def large(folder: Path, engine: Engine, quick: bool) -> dict[str, Any]:
    """Make the table below `folder` and compact it once."""
    path = folder / "bench.db" / "table"
    _make(path, rows=2_000 if quick else _ROWS_PER_RUN)
    run = OurSide(engine).compact(path, full=True)
    figures = {
        "rows_in": run.rows_in,
        "rows_out": run.rows_out,
        "gb_in": round(run.bytes_in / 1e9, 3),
        "gb_out": round(run.bytes_out / 1e9, 3),
        "wall_s": round(run.wall_s, 2),
        "subcompaction_cpu_s": round(run.subcompaction_cpu_s, 2),
        "worker_cpu_s": round(run.worker_cpu_s, 2),
        "peak_rss_mib": round(run.peak_rss_bytes / (1 << 20)),
    }
    return {**figures, "lines": [figures]}


def _make(path: Path, *, rows: int) -> None:
    storage, clock, owner = LocalStorage(), SystemClock(), this_process()
    columns = (*SHAPES["pk"].key, *VALUES)
    fields = [
        DataField(id=number, name=name, type=parse_type(kind))
        for number, (name, kind) in enumerate(columns)
    ]
    writer.create_table(
        storage,
        table_ref(path),
        fields,
        primary_keys=["id"],
        options={"bucket": "1", "write-only": "true"},
    )
    target = writer.WriteOnlyWriter(storage, table_ref(path), owner=owner, clock=clock)
    random = np.random.default_rng(7)
    for _ in range(_RUNS):
        target.write(_run(random, rows))


def _run(random: np.random.Generator, rows: int) -> pa.Table:
    """Rows of one run: sorted keys, each once, uniform over all keys."""
    letters = random.integers(97, 123, rows * _TEXT_BYTES, dtype=np.uint8)
    offsets = np.arange(0, (rows + 1) * _TEXT_BYTES, _TEXT_BYTES, dtype=np.int32)
    categories = pa.array([f"category-{number}" for number in range(50)])
    keys = np.unique(random.integers(0, _KEY_SPACE * rows, rows))
    count = len(keys)
    columns = {
        "id": pa.array(keys),
        "i": pa.array(random.integers(0, 1 << 31, count), pa.int32()),
        "l": pa.array(random.integers(0, 1 << 62, count)),
        "d": pa.array(random.random(count)),
        "s": pa.StringArray.from_buffers(
            count, pa.py_buffer(offsets[: count + 1]), pa.py_buffer(letters)
        ),
        "c": categories.take(pa.array(random.integers(0, 50, count))),
        "ts": pa.array(random.integers(0, 1 << 40, count), pa.timestamp("ms")),
    }
    return pa.table(columns)
