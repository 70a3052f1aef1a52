"""Java cleans one copy of a table of orphan files, compactord another: the same files are left."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from compactord import ids
from compactord.maintenance.orphan_search import OrphanSearch, OwnerRule, TableFolders
from compactord.maintenance.orphans import remove_found
from compactord.storage.local import LocalStorage
from compactord.verify.holds import HOLD_FILE
from tests.builders import DAY_MS
from tests.oracle.judge import Judge
from tests.oracle.test_expire import NOW, QUIET, everything

LOCAL = LocalStorage()
_UUID = "0b4e1a2c-7f1d-4c3a-9d2e-0123456789ab"
_COLUMNS = (("p", "STRING NOT NULL"), ("k", "BIGINT NOT NULL"), ("v", "BIGINT"))
_OPTIONS = {
    "bucket": "2",
    "changelog-producer": "input",
    "changelog.num-retained.min": "1",
    "changelog.num-retained.max": "100",
    "changelog.time-retained": "1 d",
    "deletion-vectors.enabled": "true",
    "num-sorted-run.compaction-trigger": "2",
}
_LEFT = (
    f"p=a/bucket-0/data-{_UUID}-0.parquet",
    f"p=a/bucket-0/changelog-{_UUID}-0.parquet",
    f"p=a/bucket-7/data-{_UUID}-1.parquet",
    f"p=gone/bucket-0/data-{_UUID}-2.parquet",
    f"manifest/manifest-{_UUID}-0",
    f"manifest/manifest-list-{_UUID}-0",
    f"manifest/index-manifest-{_UUID}-0",
    f"index/index-{_UUID}-0",
    f"statistics/stat-{_UUID}-0",
    f"snapshot/.snapshot-9.{_UUID}.tmp",
    f"changelog/.changelog-9.{_UUID}.tmp",
    f"branch/branch-b/snapshot/.snapshot-9.{_UUID}.tmp",
    # These stay.
    "p=a/_SUCCESS",
    "p=a/notes.txt",
    f"p=a/bucket-0/pack-{_UUID}.managed.blob",
    "tag/notes.txt",
    "schema/notes.txt",
    f"bucket-0/data-{_UUID}-3.parquet",
)
_STAY = 6


def _files(path: Path) -> set[str]:
    return {str(f.relative_to(path)) for f in path.rglob("*")}


def _make(judge: Judge, path: Path) -> None:
    """With versions of all kinds, some of which alone name files."""
    judge.create_table(
        path, _COLUMNS, primary_key=("p", "k"), partition_by=("p",), options=_OPTIONS
    )
    for commit in range(6):
        judge.write(path, [(p, k, commit) for p in "ab" for k in range(4)])
        judge.compact(path, full=commit % 2 == 0)
        if commit == 1:
            newest = judge.snapshots(path)[-1]
            judge.create_tag(path, "t", newest)
            judge.create_branch(path, "b", "t")
    judge.write(path, [("c", 1, 1)], options={"branch": "b"})
    # What expires lives on as changelogs.
    judge.compact(path, full=False, options={**QUIET, **NOW, "snapshot.num-retained.max": "2"})
    assert list((path / "changelog").glob("changelog-*"))


def test_the_same_files_and_folders_are_left(judge: Judge, tmp_path: Path) -> None:
    ours, java = tmp_path / "db.db" / "ours", tmp_path / "db.db" / "java"
    _make(judge, ours)
    before = everything(judge, ours)
    used = _files(ours)
    for name in _LEFT:
        (ours / name).parent.mkdir(parents=True, exist_ok=True)
        (ours / name).write_bytes(b"left")
    (ours / "p=empty/bucket-0").mkdir(parents=True)
    shutil.copytree(ours, java)
    theirs = judge.orphan_files(java, delete=True)
    gone = {str(Path(path).relative_to(java)) for path in theirs}
    assert gone == set(_LEFT[:-_STAY])
    assert _swept(ours) == gone
    assert (
        _files(ours) == _files(java) == used | {*_LEFT[-_STAY:], "bucket-0", "index", "statistics"}
    )
    assert everything(judge, ours) == before


@pytest.mark.parametrize("folder", ["", "data/more"])
def test_java_and_our_sweeps_ignore_a_hold(judge: Judge, tmp_path: Path, folder: str) -> None:
    path = tmp_path / "db.db" / "t"
    options = {**_OPTIONS, **({"data-file.path-directory": folder} if folder else {})}
    judge.create_table(path, _COLUMNS, primary_key=("p", "k"), partition_by=("p",), options=options)
    hold = path / HOLD_FILE
    hold.write_bytes(b"hold")
    for commit in range(6):
        judge.write(path, [(p, k, commit) for p in "ab" for k in range(4)])
        judge.compact(path, full=commit % 2 == 0)
    judge.compact(path, full=False, options={**QUIET, **NOW, "snapshot.num-retained.max": "2"})
    before = everything(judge, path)
    assert judge.orphan_files(path, delete=True) == []
    assert _swept(path, folder) == set()
    assert hold.read_bytes() == b"hold"
    assert everything(judge, path) == before


def test_a_mark_in_a_partition_without_buckets_stays_unlike_javas(
    judge: Judge, tmp_path: Path
) -> None:
    path = tmp_path / "db.db" / "t"
    _make(judge, path)
    (path / "p=done").mkdir()
    (path / "p=done/_SUCCESS").write_bytes(b"{}")
    assert judge.orphan_files(path) == [str(path / "p=done/_SUCCESS")]
    assert _swept(path) == set()


def _swept(path: Path, folder: str = "") -> set[str]:
    roots = (f"{path}/{folder}",) if folder else ()
    folders = TableFolders(location=str(path), partition_depth=1, other_roots=roots, of_others=True)
    rule = OwnerRule(
        myself=ids.this_process(),
        liveness=ids.liveness,
        now_ms=int(time.time() * 1000) + 2 * DAY_MS,
        grace_ms=DAY_MS,
        others_grace_ms=DAY_MS,
    )
    search = OrphanSearch(LOCAL, folders, rule)
    removed = remove_found(LOCAL, folders, search, search.find())
    return {str(Path(orphan.path).relative_to(path)) for orphan in removed}
