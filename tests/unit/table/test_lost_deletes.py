"""A DELETE that changed nothing but deletion vectors, and was renamed into its place late."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compactord.commit.changes import Committed, LossOutcome
from compactord.paimon import paths
from compactord.paimon.snapshot import read_snapshot
from compactord.state.ancestry import Ancestry, Contained
from tests.builders import FIRST, SECOND
from tests.deletions import LOCATION, Deletions
from tests.late import Process
from tests.lineage import APPENDED, KEYED, TABLE, Kind

KINDS = pytest.mark.parametrize("kind", [KEYED, APPENDED], ids=["keyed", "appended"])


def _table(kind: Kind) -> Deletions:
    """Snapshot 1 has four files, 2 deletes a row of each."""
    table = Deletions(kind)
    files = table.append(4)
    table.delete_rows({file.file_name: [1] for file in files})
    return table


def _merge(table: Deletions, first: int, last: int) -> None:
    """Our next snapshot: these files of the bucket, merged."""
    files = [file for file in table.files() if not file.file_name.startswith("data-c0ac7d")]
    change = table.compaction(files[first:last], owner=FIRST)
    outcome, _ = table.committer(FIRST).commit(table.state(), [change], table.settings)
    assert isinstance(outcome, Committed)


def _contained(table: Deletions, earlier: int, later: int) -> Contained:
    first, second = (read_snapshot(table.storage, LOCATION, each) for each in (earlier, later))
    return Ancestry(table.storage, TABLE).contained(first, second)


@KINDS
@pytest.mark.parametrize("is_below_there", [True, False])
@pytest.mark.parametrize(
    "act",
    [
        lambda table: _merge(table, 0, 2),
        lambda table: _merge(table, 2, 4),
        lambda table: _merge(table, 0, 4),
        lambda table: table.append(1),
        lambda table: table.rewrite_vectors(),
        lambda table: table.delete_rows({table.files()[0].file_name: [6]}),
    ],
    ids=["merges it", "merges others", "merges all", "appends", "rewrites", "deletes"],
)
def test_a_delete_is_in_what_was_built_on_it(
    kind: Kind, act: Callable[[Deletions], object], *, is_below_there: bool
) -> None:
    """Snapshot 3 is the DELETE, 4 what follows; its index file may be gone from that."""
    table = _table(kind)
    first, second = table.files()[:2]
    table.delete_rows({first.file_name: [5], second.file_name: [5, 6]})
    act(table)
    if not is_below_there:
        table.storage.delete(paths.snapshot_path(LOCATION, 2))
    assert _contained(table, 3, 4) is Contained.YES
    table.check() if is_below_there else None


@KINDS
@pytest.mark.parametrize("merges", [0, 1])
def test_a_delete_is_not_in_what_was_built_on_another_snapshot(kind: Kind, merges: int) -> None:
    """Snapshot 4 was built on a compaction, or on another DELETE, that had its place."""
    table = _table(kind)
    first = table.files()[0]
    rename = table.prepare_delete({first.file_name: [5]})
    if merges:
        _merge(table, 2, 4)
    else:
        table.delete_rows({table.files()[3].file_name: [9]})
    table.append(1)
    rename()
    assert _contained(table, 3, 4) is Contained.NO
    table.append(1)
    assert _contained(table, 3, 5) is Contained.UNKNOWN


def _ours(process: Process, *, bucket: int, count: int = 2) -> None:
    table = process.table
    assert isinstance(table, Deletions)
    files = table.files(bucket)[:count]
    outcome = process.commit(table.compaction(files, owner=FIRST, bucket=bucket))
    assert isinstance(outcome, Committed)


@KINDS
def test_a_lost_delete_is_reported_and_never_taken_for_committed_again(kind: Kind) -> None:
    table = _table(kind)
    table.append(2, bucket=1)
    ours = Process(table)
    rename = table.prepare_delete({table.files()[0].file_name: [5]})
    _ours(ours, bucket=1)
    _ours(ours, bucket=0)
    late = rename()
    (lost,) = ours.look()
    assert (lost.snapshot_id, lost.outcome) == (late.id, LossOutcome.HALTED)
    assert "kind OVERWRITE" in lost.why
    assert ours.look() == []
    (again,) = Process(table, owner=SECOND).look()
    assert again.outcome is LossOutcome.HALTED


@KINDS
def test_no_delete_is_lost_when_compactions_follow(kind: Kind) -> None:
    table = _table(kind)
    ours = Process(table)
    for count in (2, 3):
        table.delete_rows({table.files()[0].file_name: [5]})
        _ours(ours, bucket=0, count=count)
    assert ours.look() == []
    assert Process(table, owner=SECOND).look() == []
    table.check()


@KINDS
def test_a_lost_append_is_committed_again_over_vectors_that_have_changed(kind: Kind) -> None:
    table = _table(kind)
    others = table.append(2, bucket=1)
    table.delete_rows({others[0].file_name: [3]}, bucket=1)
    ours = Process(table)
    rename = table.prepare_replacement(bucket=0, commit_user="writer", commit_identifier=7)
    _ours(ours, bucket=0)
    _ours(ours, bucket=1)
    rename()
    (lost,) = ours.look()
    assert (lost.outcome, lost.why) == (LossOutcome.HEALED, "")
    table.expected.update(table.rows[table.replacement_file.file_name])
    assert +table.rows_now() == +table.expected
