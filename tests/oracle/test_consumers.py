"""Consumers that Java's readers left expire as Java's expire; Java reads those that are left."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from compactord.catalog.filesystem import FilesystemCatalog
from compactord.storage.local import LocalStorage
from compactord.table.opening import open_table
from tests.oracle.judge import Judge
from tests.rounds import expire_consumers

LOCAL = LocalStorage()
_TIME_MS = 1_000


def _asked(judge: Judge, method: str, path: Path, branch: str, **more: object) -> Any:
    arguments = {"path": str(path), "branch": branch, **more}
    if method == "consumers":
        return judge.jvm.ask("Upkeep", method, arguments)
    return judge.jvm.call("Upkeep", method, arguments)


def test_the_same_consumers_expire_on_main_and_on_a_branch(judge: Judge, tmp_path: Path) -> None:
    path = tmp_path / "db.db" / "t"
    options = {"bucket": "1", "write-only": "true", "consumer.expiration-time": f"{_TIME_MS} ms"}
    judge.create_table(path, (("k", "BIGINT NOT NULL"),), primary_key=("k",), options=options)
    judge.write(path, [(1,)])
    judge.create_branch(path, "b")
    moves = (("main", "idle", 1), ("b", "idle-b", 1), ("main", "busy", 1))
    for branch, name, snapshot in moves:
        _asked(judge, "moveConsumer", path, branch, name=name, next=snapshot)
    time.sleep(0.05)
    before_ms = int(time.time() * 1000)
    time.sleep(0.05)
    for branch, name, snapshot in (("main", "busy", 2), ("main", "new", 1), ("b", "new-b", 1)):
        _asked(judge, "moveConsumer", path, branch, name=name, next=snapshot)
    copy = tmp_path / "db.db" / "java"
    shutil.copytree(path, copy)
    catalog = FilesystemCatalog(LOCAL, str(tmp_path))
    for branch, kept in (("main", {"busy": 2, "new": 1}), ("b", {"new-b": 1})):
        table = open_table(catalog.open(catalog.find_table(f"db.t$branch_{branch}")), {})
        gone = expire_consumers(table, before_ms + _TIME_MS)
        assert [(each.name, each.next_snapshot) for each in gone] == [
            (name, snapshot) for b, name, snapshot in moves if b == branch and name not in kept
        ]
        _asked(judge, "expireConsumers", copy, branch, before_ms=before_ms)
        left = _asked(judge, "consumers", path, branch)
        assert left == _asked(judge, "consumers", copy, branch) == kept
