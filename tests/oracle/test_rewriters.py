"""Java's commits that name files, beside our compactions of these files."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord.catalog.filesystem import FilesystemCatalog
from compactord.plan.table import Strategy
from compactord.state.table_state import load_state, with_rewrites
from compactord.storage.local import LocalStorage
from tests.oracle.differential import LiveTable, compact
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import JudgeError

HOUR_MS = 3_600_000


@pytest.fixture(params=["-1", "1"], ids=["no buckets", "one bucket"])
def table(judge: Judge, tmp_path: Path, request: pytest.FixtureRequest) -> LiveTable:
    """Two days of four files with a row each; the last file of day a is deleted, by name."""
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("dt", "STRING"), ("k", "INT")),
        partition_by=("dt",),
        options={
            "bucket": request.param,
            **({"bucket-key": "k"} if request.param != "-1" else {}),
        },
    ).create()
    for n in range(4):
        table.write([["a", n], ["b", n]])
    judge.delete_files(table.path, [_files(table, "a")[-1]], read=_newest(table), commit_user="u")
    table.appended.remove(["a", 3])
    table.check()
    return table


def _newest(table: LiveTable) -> int:
    return table.judge.snapshots(table.path)[-1]


def _files(table: LiveTable, day: str) -> list[str]:
    """In order of arrival."""
    found = [file for file in table.files() if file["partition"] == [day]]
    found.sort(key=lambda file: file["creation_time"])
    return [file["file_name"] for file in found]


def test_java_fails_when_we_have_compacted_what_it_names(judge: Judge, table: LiveTable) -> None:
    read, files = _newest(table), _files(table, "a")
    table.settle(Strategy.FULL)
    with pytest.raises(JudgeError, match="File deletion conflicts detected"):
        judge.delete_files(table.path, files, read=read)
    table.check()


def test_what_java_rewrote_lately_is_left_alone(judge: Judge, table: LiveTable) -> None:
    read, files = _newest(table), _files(table, "a")
    totals = compact(table.path, Strategy.FULL, quiet_for_ms=HOUR_MS)
    assert totals.compactions == 1
    assert list(totals.resting) == ["dt=a"]
    assert totals.resting["dt=a"].endswith(" ago by u")
    assert len(_files(table, "b")) == 1
    judge.delete_files(table.path, files, read=read)
    table.appended = [row for row in table.appended if row[0] != "a"]
    table.check()


def test_what_drops_partitions_is_no_rewrite(judge: Judge, table: LiveTable) -> None:
    rewritten = _newest(table)
    judge.truncate(table.path, [{"dt": "b"}])
    storage = LocalStorage()
    ref = FilesystemCatalog(storage, str(table.path.parent.parent)).find_table("db.t")
    state = with_rewrites(storage, load_state(storage, ref), since_ms=0, now_ms=1 << 60)
    assert state.snapshot is not None
    assert (state.snapshot.id, state.snapshot.operation) == (rewritten + 1, "TRUNCATE")
    assert state.rewrites is not None
    (rewrite,) = state.rewrites.by_partition.values()
    assert (rewrite.snapshot_id, rewrite.operation) == (rewritten, "DELETE")
    assert state.rewrites.newest == rewrite
