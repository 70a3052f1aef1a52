"""Deletion vectors of a table: what they hide, and whether two tables agree on that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.model import PickRule
from compactord.paimon.schema import TableRef
from compactord.plan.table import Strategy
from compactord.storage.local import LocalStorage
from compactord.table.jobs import CompactTotals, InFlight
from tests import builders
from tests.oracle.differential import LiveTable
from tests.oracle.judge_jvm import Row

VECTORS = {"deletion-vectors.enabled": "true"}
# By the magic number that follows the size of a vector.
_BITS = {"5e43f2d0": 32, "d1d33964": 64}


def data_path(table: LiveTable, name: str) -> Path:
    [path] = table.path.rglob(f"bucket-*/{name}")
    return path


def marks(table: LiveTable) -> dict[str, list[int]]:
    """Positions of deleted rows by live data file; of files without any there is no entry."""
    found = table.judge.deletion_vectors(table.path)
    live = {file["file_name"] for file in table.files()}
    return {name: positions for name, positions in found.items() if positions and name in live}


def shown_files(table: LiveTable) -> list[list[Any]]:
    """What `$files` shows of each file but names, sizes, sequence numbers and times."""
    own = {2, 7, 13, 14, 15}
    rows = table.judge.files_table(table.path)
    return sorted([value for n, value in enumerate(row) if n not in own] for row in rows)


def marks_by_level(table: LiveTable) -> dict[int, list[int]]:
    """Of a table that has one marked file on a level at most."""
    found = marks(table)
    by_level = {f["level"]: found[f["file_name"]] for f in table.files() if f["file_name"] in found}
    assert len(by_level) == len(found)
    return by_level


def kinds(table: LiveTable) -> dict[str, int]:
    """How many bits the positions of each vector have, by data file."""
    found = {}
    for index in _indexes(table):
        data = (table.path / "index" / index["file_name"]).read_bytes()
        for name, offset, *_ in index["dv_ranges"]:
            found[name] = _BITS[data[offset + 4 : offset + 8].hex()]
    return found


def assert_sound(table: LiveTable) -> None:
    """Vectors are of live files only, one index file a bucket, with the counts that are in them."""
    live = {file["file_name"]: file for file in table.files()}
    found = table.judge.deletion_vectors(table.path)
    indexes = _indexes(table)
    for index in indexes:
        path = table.path / "index" / index["file_name"]
        assert index["file_size"] == path.stat().st_size
        assert index["row_count"] == len(index["dv_ranges"])
        for name, _, _, cardinality in index["dv_ranges"]:
            assert name in live, f"{name} is gone, its vector is not"
            assert cardinality == len(found[name])
            assert found[name][-1] < live[name]["row_count"]
    vectors = Counter(name for index in indexes for name, *_ in index["dv_ranges"])
    assert not [name for name, count in vectors.items() if count > 1]
    if table.primary_key or table.options.get("bucket", "-1") != "-1":
        buckets = Counter((str(index["partition"]), index["bucket"]) for index in indexes)
        assert not [bucket for bucket, count in buckets.items() if count > 1]


def _indexes(table: LiveTable) -> list[dict[str, Any]]:
    found = table.judge.index_files(table.path)
    return [index for index in found if index["index_type"] == "DELETION_VECTORS"]


def assert_same_vectors(ours: LiveTable, java: LiveTable, *, may_mark_more: bool = False) -> None:
    """In each file that both have the same rows count; ours are sound.

    `may_mark_more`: what is marked by Java is marked by us, besides others.
    """
    assert_sound(ours)
    mine, theirs = marks(ours), marks(java)
    theirs_live = {file["file_name"] for file in java.files()}
    for name in theirs_live.intersection(file["file_name"] for file in ours.files()):
        marked, others = set(mine.get(name, ())), set(theirs.get(name, ()))
        are_right = marked >= others if may_mark_more else marked == others
        assert are_right, f"{name}: ours {mine.get(name)}, Java's {theirs.get(name)}"


class _Rival(builders.Silent):
    """Does something once, after a compaction's work and before its commit."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] | None = act

    def finished(self, in_flight: InFlight) -> None:
        if self._act is not None:
            act, self._act = self._act, None
            act()


def compact_beside(
    table: LiveTable, act: Callable[[], None], strategy: Strategy = Strategy.MINOR
) -> CompactTotals:
    """We compact, and `act` runs between the work and the first commit."""
    totals = builders.compact(
        LocalStorage(),
        TableRef(database="db", name=table.path.name, location=str(table.path)),
        strategy=strategy,
        progress=_Rival(act),
        pick=PickRule.RELEASE_2_0,
    )
    assert not totals.failures
    return totals


def delete(table: LiveTable, is_wanted: Callable[[Row], bool]) -> bool:
    """Java's DELETE from an append table; whether there was such a row."""
    positions, rows = _places(table, is_wanted)
    return _marked(table, positions, rows, [])


def update(table: LiveTable, is_wanted: Callable[[Row], bool]) -> bool:
    """Java's UPDATE of an append table, which makes a text longer; whether there was such a row."""
    positions, rows = _places(table, is_wanted)
    return _marked(table, positions, rows, [[*row[:-1], f"{row[-1]} anew"] for row in rows])


def _marked(
    table: LiveTable, positions: dict[str, list[int]], rows: list[Row], new: list[Row]
) -> bool:
    if not rows:
        return False
    assert table.judge.delete_positions(table.path, positions, rows=new)
    for row in rows:
        table.appended.remove(row)
    table.appended += new
    return True


def _places(
    table: LiveTable, is_wanted: Callable[[Row], bool]
) -> tuple[dict[str, list[int]], list[Row]]:
    """Where the rows of an append table are that a DELETE looks for, by file, and these rows."""
    hidden = marks(table)
    found: dict[str, list[int]] = {}
    rows: list[Row] = []
    for file in table.files():
        name = file["file_name"]
        every: list[Row] = _rows(pq.ParquetFile(data_path(table, name)).read(), table)
        gone = set(hidden.get(name, ()))
        wanted = [n for n, row in enumerate(every) if n not in gone and is_wanted(row)]
        if wanted:
            found[name] = wanted
            rows += [every[n] for n in wanted]
    return found, rows


def _rows(stored: pa.Table, table: LiveTable) -> list[Row]:
    names = [name for name, _ in table.columns]
    return [[row[name] for name in names] for row in stored.to_pylist()]
