"""What copying takes: measured in a process of its own."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from compactord.paimon.types import value_schema
from tests.unit.formats.parquet.small_files import write_small
from tests.unit.formats.parquet.stored_pages import bodies
from tests.unit.rewrite.builders import concat_subcompaction, fields, input_file

MEMORY = 256 << 20
FILES = 14
LIST = {"type": "ARRAY", "element": "BIGINT"}
# Floats are decoded for their bounds, lists are decoded and encoded: the most that copying holds.
COLUMNS = fields(**{f"d{n}": "DOUBLE" for n in range(5)}, **{f"l{n}": LIST for n in range(3)})
CHILD = """
import json, pickle, sys
from pathlib import Path
from compactord.rewrite.subcompaction import rewrite
subcompaction = pickle.loads(Path(sys.argv[1]).read_bytes())
idle = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
result = rewrite(subcompaction)
print(json.dumps([result.stats.peak_rss_bytes - idle, [file.file_name for file in result.after]]))
"""


def write_large(path: Path, rows: int) -> None:
    chance = np.random.default_rng(5)
    arrays = []
    for field in value_schema(COLUMNS):
        if pa.types.is_list(field.type):
            numbers = pa.array(chance.integers(0, 1 << 62, rows))
            column = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1), pa.int32()), numbers)
            arrays.append(column.cast(field.type))
        else:
            arrays.append(pa.array(chance.random(rows)))
    table = pa.Table.from_arrays(arrays, schema=value_schema(COLUMNS))
    write_small(path, table, max_rows_per_page=20_000)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_within_the_budget_of_the_subcompaction(tmp_path):
    rows = 220_000
    write_large(tmp_path / "0.parquet", rows)
    for number in range(1, FILES):
        os.link(tmp_path / "0.parquet", tmp_path / f"{number}.parquet")
    files = [input_file(tmp_path / f"{number}.parquet", rows) for number in range(FILES)]
    # Two of them are a row group; all of them are more than may be held.
    assert 2 * files[0].size_bytes < MEMORY // 8 < 3 * files[0].size_bytes
    subcompaction = concat_subcompaction(
        tmp_path, COLUMNS, files, keeps_encoding=True, memory_bytes=MEMORY, target_file_size=1 << 30
    )
    (tmp_path / "subcompaction").write_bytes(pickle.dumps(subcompaction))
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "subcompaction")],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    peak, names = json.loads(child.stdout)
    (path,) = (Path(subcompaction.write.folder) / name for name in names)
    assert len(bodies(path, "d0")) == FILES * len(bodies(files[0].path, "d0"))
    assert files[0].size_bytes < peak < MEMORY
