"""Tables for commands that run in processes of their own, and what must hold of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactord.clock import SystemClock
from compactord.ids import owner_of
from compactord.paimon.schema import TableRef
from compactord.state.table_state import load_state
from compactord.storage.local import LocalStorage
from tests import builders

LOCAL = LocalStorage()
NAME = "db.t"
# A merge of this many rows takes about a second when it compresses thoroughly.
LARGE_ROWS = 120_000
SLOWLY = ("--option", "file.compression.zstd-level=19")


def location(warehouse: Path) -> str:
    return f"{warehouse}/db.db/t"


def ref(warehouse: Path) -> TableRef:
    return TableRef(database="db", name="t", location=location(warehouse))


def of_table(warehouse: Path) -> tuple[str, ...]:
    """The arguments that name the table."""
    return ("--warehouse", str(warehouse), "--table", NAME)


def small_keyed(warehouse: Path, *, commits: int = 6, buckets: int = 2) -> dict[int, int]:
    """`db.t` with `commits` level-0 files a bucket; the rows that must be read."""
    table = builders.keyed_table(LOCAL, location(warehouse), buckets=buckets)
    return builders.fill_keyed(builders.writer(LOCAL, table, clock=SystemClock()), commits=commits)


def large_keyed(warehouse: Path, *, buckets: int = 2) -> None:
    """`db.t` with six level-0 files a bucket, `LARGE_ROWS` rows in each."""
    table = builders.keyed_table(LOCAL, location(warehouse), buckets=buckets)
    writer = builders.writer(LOCAL, table)
    chance = np.random.default_rng(1)
    rows = LARGE_ROWS * buckets
    for _ in range(6):
        keys = chance.choice(2 * rows, rows, replace=False)
        writer.write(pa.table({"k": keys, "v": chance.integers(0, 2**40, rows)}))


def rows_of(warehouse: Path) -> pa.Table:
    """The rows of a primary-key table without deletes, by key; by sorting, not by our merge."""
    state = load_state(LOCAL, ref(warehouse))
    columns = ["k", "v", "_SEQUENCE_NUMBER"]
    parts = [
        pq.ParquetFile(pa.BufferReader(LOCAL.read(path))).read(columns)
        for path in builders.live_paths(LOCAL, ref(warehouse), state)
    ]
    rows = pa.concat_tables(parts).combine_chunks()
    order = pc.sort_indices(rows, [("k", "ascending"), ("_SEQUENCE_NUMBER", "descending")])
    rows = rows.take(order)
    keys = rows.column("k").to_numpy()
    is_newest = np.concatenate([[True], keys[1:] != keys[:-1]])
    return rows.filter(pa.array(is_newest)).select(["k", "v"]).combine_chunks()


def digest(folder: Path | str) -> dict[str, str]:
    """Every file below a folder with a hash of its bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def leftovers(warehouse: Path) -> set[str]:
    """Files of compactord, not of the writer, that no snapshot leads to."""
    named = builders.named_files(LOCAL, ref(warehouse))
    return {
        path.name
        for path in Path(location(warehouse)).rglob("*")
        if path.is_file()
        and (owner := owner_of(path.name)) is not None
        and owner != builders.WRITER
        and path.name not in named
    }
