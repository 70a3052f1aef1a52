"""Rows of megabytes are merged within the memory of a subcompaction: measured in a process."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.paimon.options.merge import NO_RULES, ColumnRule, MergeRules
from compactord.paimon.types import file_schema
from compactord.rewrite.budget import Load, budget
from tests.unit.formats.parquet.stored_pages import bodies
from tests.unit.rewrite.builders import (
    Row,
    concat_subcompaction,
    fields,
    input_file,
    merge_subcompaction,
    write_append,
    write_parquet,
)

MIB = 1 << 20
# As `spark.task_memory` is by default.
MEMORY = 512 * MIB
COLUMNS = fields(k="BIGINT NOT NULL", v="BYTES")
LAST = MergeRules(
    columns=(
        ColumnRule(column="k", aggregator="primary-key"),
        ColumnRule(column="v", aggregator="last_value"),
    )
)
CHILD = """
import json, pickle, sys
from pathlib import Path
from compactord.rewrite.subcompaction import rewrite
subcompaction = pickle.loads(Path(sys.argv[1]).read_bytes())
idle = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
result = rewrite(subcompaction)
print(json.dumps([result.stats.peak_rss_bytes - idle, [file.file_name for file in result.after]]))
"""


def value(key: int, run: int, width: int) -> bytes:
    return np.random.default_rng([key, run]).bytes(width)


def write_wide(path: Path, run: int, keys: list[int], width: int) -> None:
    """One value a page, as few writers make them; with more, whoever reads holds more."""
    count = len(keys)
    arrays = [
        pa.array(keys, pa.int64()),
        pa.array(np.arange(count) + 1000 * run),
        pa.array(np.zeros(count, np.int8)),
        pa.array(keys, pa.int64()),
        pa.array([value(key, run, width) for key in keys], pa.binary()),
    ]
    table = pa.Table.from_arrays(arrays, schema=file_schema(COLUMNS, ["k"], thin=False))
    write_parquet(path, table, write_batch_size=1)


def measured(folder: Path, subcompaction: object) -> tuple[int, list[str]]:
    """The peak over the idle process, in bytes, and the names of the outputs."""
    (folder / "subcompaction").write_bytes(pickle.dumps(subcompaction))
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder / "subcompaction")],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    peak, names = json.loads(child.stdout)
    return peak, names


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("engine", "width", "runs", "rows"),
    [
        ("deduplicate", MIB, 4, 40),
        ("deduplicate", 4 * MIB, 3, 15),
        # These keep all records of a key.
        ("partial-update", MIB, 4, 40),
        ("aggregation", 4 * MIB, 3, 15),
        ("first-row", MIB, 3, 40),
    ],
)
def test_rows_of_megabytes_are_merged_within_the_memory(tmp_path, engine, width, runs, rows):
    files = []
    for run in range(runs):
        keys = [(run + 1) * n for n in range(rows)]
        path = tmp_path / f"{run}.parquet"
        write_wide(path, run, keys, width)
        files.append([input_file(path, rows, 1000 * run, 1000 * run + rows - 1)])
    rules = LAST if engine == "aggregation" else NO_RULES
    subcompaction = merge_subcompaction(
        tmp_path, COLUMNS, ["k"], files, merge_engine=engine, rules=rules, memory_bytes=MEMORY
    )
    peak, names = measured(tmp_path, subcompaction)
    assert peak < MEMORY
    found: dict[int, bytes] = {}
    for name in names:
        for batch in pq.ParquetFile(Path(subcompaction.write.folder) / name).iter_batches(8):
            found |= {row["k"]: row["v"][:64] for row in batch.to_pylist()}
    assert found.keys() == {(run + 1) * n for run in range(runs) for n in range(rows)}
    first = engine == "first-row"
    for key in found:
        having = [r for r in range(runs) if key % (r + 1) == 0 and key // (r + 1) < rows]
        assert found[key] == value(key, having[0] if first else having[-1], 64)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_rows_of_megabytes_are_concatenated_within_the_memory(tmp_path):
    files = []
    for number in range(3):
        rows: list[Row] = [{"k": n, "v": value(n, number, 4 * MIB)} for n in range(12)]
        files.append(write_append(tmp_path / f"{number}.parquet", COLUMNS, rows))
    subcompaction = concat_subcompaction(tmp_path, COLUMNS, files, memory_bytes=MEMORY)
    peak, names = measured(tmp_path, subcompaction)
    assert peak < MEMORY
    folder = Path(subcompaction.write.folder)
    assert sum(pq.ParquetFile(folder / name).metadata.num_rows for name in names) == 36
    # Whoever merges what was written holds a page of it.
    for name in names:
        assert max(map(len, bodies(folder / name, "v"))) <= 8 * MIB


@pytest.mark.parametrize("width", [33 << 10, MIB, 4 * MIB, 16 * MIB])
@pytest.mark.parametrize("needs_all", [False, True])
def test_no_width_up_to_16_mib_is_refused_by_default(width, needs_all):
    wide = Load(
        runs=5,
        row_bytes=width,
        open_bytes=2 * width,
        largest_file=1 << 40,
        decodes_ahead=True,
        needs_all=needs_all,
    )
    sizes = budget(MEMORY, wide)
    assert sizes.fan_in >= 2
    assert 1 <= sizes.batch_rows <= sizes.window_rows
    assert sizes.window_rows * width < MEMORY // 3
