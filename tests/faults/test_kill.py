"""A process is killed at any step of a compaction; the next one finds a whole table."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compactord import ids
from compactord.ids import owner_of
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import snapshot_ids
from compactord.storage.local import LocalStorage
from tests import builders
from tests.builders import WRITER
from tests.faults import tables, upkeep
from tests.faults.tables import Given
from tests.sampling import CutPoints

LOCAL = LocalStorage()
REPOSITORY = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("name", "step"),
    [("full-compaction", 4), ("vectors", 4), ("unaware", 5), ("lookup", 5)],
)
def test_whatever_a_killed_process_leaves_the_next_one_heals(
    tmp_path: Path, cut_points: CutPoints, name: str, step: int
) -> None:
    """It is killed at every `step`-th step."""
    template, folder = tmp_path / "template", tmp_path / "killed"
    given = tables.given(str(template), name)
    next_id = max(snapshot_ids(LOCAL, str(template))) + 1
    folder.mkdir()
    _die("compact", template, folder, *_first_two(cut_points(step)), "before", "after", "system")
    seen: Counter[str] = Counter()
    for killed in sorted(folder.iterdir()):
        seen.update(_heal(killed, given, next_id))
    # The kills have hit every state that a process can leave behind.
    assert min(seen[what] for what in _STATES) > 0, seen
    assert seen["killed"] >= 100 // step


def _first_two(points: Iterator[int]) -> tuple[str, str]:
    """The first point and the distance to the next."""
    first, second = next(points), next(points)
    return str(first), str(second - first)


def _die(work: str, *arguments: Path | str) -> None:
    command = [sys.executable, "-m", "tests.faults.victim", work, *arguments]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=300)


@pytest.fixture(scope="module")
def maintained(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, upkeep.Left, upkeep.Left]:
    """A table that is to be maintained; what that and the next hour leave if nobody is killed."""
    template = upkeep.table_with_all(tmp_path_factory.mktemp("kill") / "tables" / "template")
    clean = template.with_name("clean")
    shutil.copytree(template, clean)
    table = TableRef(database="db", name="t", location=str(clean))
    upkeep.maintain(LOCAL, table)
    expected = upkeep.left(table)
    upkeep.maintain_next(table)
    return template, expected, upkeep.left(table)


def test_maintenance_that_is_killed_loses_nothing_and_the_next_round_ends_it(
    maintained: tuple[Path, upkeep.Left, upkeep.Left], tmp_path: Path, cut_points: CutPoints
) -> None:
    """After every second call that changes something.

    Partitions expire, others are marked, tags come and go, a consumer expires, snapshots become
    changelogs, these expire, and what nothing names goes.
    """
    template, expected, next_hour = maintained
    assert expected.tags, "it was made"
    assert expected.changelogs, "some outlive their snapshots"
    folder = tmp_path / "tables"
    folder.mkdir()
    _die("maintain", template, folder, *_first_two(cut_points(2)), "after")
    seen: Counter[str] = Counter()
    for killed in sorted(folder.iterdir()):
        table = TableRef(database="db", name="t", location=str(killed))
        found = upkeep.left(table)
        seen.update(upkeep.states(found, expected))
        # What stays after all is whole wherever it is there already.
        assert not upkeep.lacking(table, expected.versions), killed.name
        assert expected.rows.items() <= found.rows.items(), killed.name
        assert found.marks.items() <= expected.marks.items(), killed.name
        assert found.strays | found.copies >= {*upkeep.FOREIGN}, killed.name
        upkeep.maintain(LOCAL, table)
        if not upkeep.left(table).is_like(expected):
            # What waits for the next tag or commit: surplus tags, and snapshots behind a hint.
            seen["not at once"] += 1
            upkeep.maintain_next(table)
            # A changelog of an overwrite keeps from tags what it removed.
            left = replace(upkeep.left(table), data_files=next_hour.data_files)
            assert left.is_like(next_hour), killed.name
        assert not upkeep.lacking(table, None), killed.name
    assert min(seen[what] for what in upkeep.STATES) > 0, seen
    assert seen["killed"] >= 20
    assert seen["not at once"] < 10


_STATES = ("nothing", "data", "manifest", "temporary", "published", "killed")


def _heal(killed: Path, given: Given, next_id: int) -> set[str]:
    """Check the table as it was found, heal it, check again; what the dead had left."""
    table = TableRef(database="db", name="t", location=str(killed))
    given.check(table, killed.name)
    left = _left(table)
    is_published = next_id in snapshot_ids(LOCAL, table.location)
    removed = builders.sweep_later(LOCAL, table.location)
    assert {orphan.name for orphan in removed} == left, killed.name
    totals = builders.compact(LOCAL, table, owner=ids.this_process())
    assert totals.snapshots == ([] if is_published else [next_id]), killed.name
    given.check_compacted(table, killed.name)
    assert _left(table) == set(), killed.name
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
