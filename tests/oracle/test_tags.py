"""Tags that Java made expire as Java's expire: the same files are left, and Java reads them all."""

from __future__ import annotations

import random
import shutil
import time
from datetime import timezone
from pathlib import Path

import pytest

from compactord.catalog.access import table_in_folder
from compactord.maintenance.tag_expiry import due_tags, expire_tags
from compactord.paimon.table import TableRef
from compactord.storage.local import LocalStorage
from compactord.table.opening import open_table
from tests.oracle.judge import Judge
from tests.oracle.test_expire import everything

LOCAL = LocalStorage()
_OPTIONS = {
    "write-only": "true",
    "tag.create-success-file": "true",
    # Else Java expires them with each compaction.
    "tag.time-expire-enabled": "false",
    "num-sorted-run.compaction-trigger": "2",
    "compaction.min.file-num": "2",
    "manifest.merge-min-count": "3",
}


def _files(path: Path) -> set[str]:
    """All but the hint that Java's commands write anew."""
    return {str(f.relative_to(path)) for f in path.rglob("*") if f.is_file()}


@pytest.mark.parametrize("buckets", ["2", "-1"])
@pytest.mark.parametrize("seed", range(6))
def test_the_same_tags_and_files_go(judge: Judge, tmp_path: Path, buckets: str, seed: int) -> None:
    dice = random.Random(seed)
    ours = tmp_path / "db.db" / "ours"
    keys = ("k",) if buckets == "2" else ()
    columns = (("k", "BIGINT NOT NULL"), ("v", "BIGINT"))
    judge.create_table(ours, columns, primary_key=keys, options={"bucket": buckets, **_OPTIONS})
    names: set[str] = set()
    kept: set[str] = set()
    for commit in range(9):
        judge.write(ours, [(dice.randrange(12), commit) for _ in range(4)])
        if dice.random() < 0.7:
            judge.compact(ours, full=True)
        newest = judge.snapshots(ours)[-1]
        for number in range(dice.choice((0, 1, 1, 2))):
            name, is_short = f"t{commit}-{number}", dice.random() < 0.6
            (names if is_short else kept).add(name)
            arguments = {"path": str(ours), "name": name, "id": newest}
            arguments["retained_ms"] = 1 if is_short else 10**9
            judge.jvm.call("Upkeep", "createTag", arguments)
    judge.expire_snapshots(ours, dice.choice((1, 3)))
    java = tmp_path / "db.db" / "java"
    shutil.copytree(ours, java)
    time.sleep(0.01)
    ref = TableRef(database="db", name="t", location=str(ours))
    table = open_table(table_in_folder(LOCAL, ref), {"tag.time-expire-enabled": "true"})
    now_ms = int(time.time() * 1000)
    assert {tag.name for tag in due_tags(table, now_ms, timezone.utc)} == names
    done = expire_tags(table, now_ms, timezone.utc)
    assert done.why_not is None
    assert done.data_files
    assert done.metadata
    theirs = judge.jvm.ask("Upkeep", "expireTags", {"path": str(java)})
    assert set(done.tags) == set(theirs) == names
    left = everything(judge, ours)
    assert left == everything(judge, java)
    assert len(left) >= len(kept)
    assert _files(ours) == _files(java)
