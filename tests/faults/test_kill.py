"""A process is killed at any step of a compaction; the next one finds a whole table."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from compactord import ids
from compactord.ids import owner_of
from compactord.paimon.snapshot import snapshot_ids
from compactord.paimon.table import TableRef
from compactord.state.table_state import load_state
from compactord.storage.local import LocalStorage
from tests import builders
from tests.builders import WRITER

LOCAL = LocalStorage()
REPOSITORY = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("producer", ["full-compaction", "vectors"])
def test_whatever_a_killed_process_leaves_the_next_one_heals(tmp_path: Path, producer: str) -> None:
    """It is killed at every second step, from the first or the second on, by chance."""
    template, folder = tmp_path / "template", tmp_path / "killed"
    table, expected = builders.told_table(LOCAL, str(template), producer)
    next_id = max(snapshot_ids(LOCAL, table.location)) + 1
    folder.mkdir()
    steps = (str(random.choice([1, 2])), "2")
    subprocess.run(
        [sys.executable, "-m", "tests.faults.victim", template, folder, *steps],
        cwd=REPOSITORY,
        check=True,
        timeout=300,
    )
    seen: Counter[str] = Counter()
    for killed in sorted(folder.iterdir()):
        seen.update(_heal(killed, expected, next_id, is_marked=producer == "vectors"))
    # The kills have hit every state that a process can leave behind.
    assert min(seen[what] for what in _STATES) > 0, seen
    assert seen["killed"] >= 50


_STATES = ("nothing", "data", "manifest", "temporary", "published", "killed")


def _heal(killed: Path, expected: dict[int, int], next_id: int, *, is_marked: bool) -> set[str]:
    """Check the table as it was found, heal it, check again; what the dead had left."""
    table = TableRef(database="db", name="t", location=str(killed))
    assert builders.read_keyed(LOCAL, table) == expected, killed.name
    builders.check_chain(LOCAL, table)
    left = _left(table)
    is_published = next_id in snapshot_ids(LOCAL, table.location)
    removed = builders.sweep_later(LOCAL, table.location)
    assert {orphan.name for orphan in removed} == left, killed.name
    totals = builders.compact(LOCAL, table, owner=ids.this_process())
    assert totals.snapshots == ([] if is_published else [next_id]), killed.name
    assert builders.read_keyed(LOCAL, table) == expected, killed.name
    assert builders.replayed(builders.read_changes(LOCAL, table)) == expected, killed.name
    builders.check_chain(LOCAL, table)
    assert _left(table) == set(), killed.name
    state = load_state(LOCAL, table)
    [bucket] = state.files.bucket_ids()
    files = state.files.files_in(bucket)
    assert all(file.level > 0 for file in files)
    if is_marked:
        # Readers who merge no levels see each key once.
        deleted = sum(ref.cardinality or 0 for ref in state.indexes.vectors(bucket).values())
        assert deleted > 0
        assert sum(file.row_count for file in files) - deleted == len(expected)
    kinds = {"killed", "published" if is_published else "nothing" if not left else "killed"}
    kinds |= {_kind(name) for name in left}
    return kinds


def _left(table: TableRef) -> set[str]:
    """Files of compactions (not of the writer) that no snapshot names."""
    owners = {
        owner
        for path in Path(table.location).rglob("*")
        if (owner := owner_of(path.name)) is not None and owner != WRITER
    }
    return builders.leftovers(LOCAL, table, list(owners))


def _kind(name: str) -> str:
    if name.startswith("."):
        return "temporary"
    return "manifest" if name.startswith("manifest") else "data"
