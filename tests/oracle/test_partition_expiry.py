"""Partitions expire as Java's: the same go from a copy, and Java reads and writes on after us."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from compactord import ids
from compactord.catalog.filesystem import FilesystemCatalog
from compactord.clock import SystemClock
from compactord.maintenance.rounds import RoundResult
from compactord.plan.table import Strategy
from compactord.storage.local import LocalStorage
from compactord.table.planning import CompactRequest
from compactord.table.session import TableSession
from tests.oracle.differential import (
    SNAPSHOT_DIFFERENCES,
    LiveTable,
    assert_exact_sizes,
    assert_same_files,
    canonical,
)
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import Row
from tests.rounds import expire_partitions

LOCAL = LocalStorage()
# Java's writers would have partitions expire, too, if the table had these options.
_BY_VALUES = {
    "partition.expiration-time": "1 d",
    "partition.expiration-check-interval": "0 s",
    "partition.timestamp-pattern": "$dt $h:00:00",
}
_BY_UPDATE = {
    "partition.expiration-time": "1 ms",
    "partition.expiration-check-interval": "0 s",
    "partition.expiration-strategy": "update-time",
}
_VECTORS = {"bucket": "1", "deletion-vectors.enabled": "true"}


def _rows(commit: int) -> list[Row]:
    """Of partitions of the past, of the future and of none; later ones of fewer keys."""
    days = ("2024-01-05", "2024-13-01", "2024-1-7", "2998-01-01", "never", "2024-02-30")
    return [
        (day, hour, key, commit)
        for day in days
        for hour in (0, 7, 26)
        for key in range(0, 6, 1 + 2 * commit)
    ]


@pytest.mark.parametrize(
    ("options", "is_keyed", "expiry", "gone"),
    [
        (_VECTORS, True, _BY_VALUES, 12),
        (_VECTORS, True, {**_BY_UPDATE, "partition.expiration-max-num": "5"}, 5),
        ({"bucket": "-1", "dynamic-bucket.target-row-num": "2"}, True, _BY_VALUES, 12),
        (
            {"bucket": "-1", "deletion-vectors.enabled": "true"},
            False,
            {**_BY_VALUES, "partition.expiration-max-num": "7"},
            7,
        ),
        ({"bucket": "2", "bucket-key": "k"}, False, _BY_UPDATE, 18),
    ],
    ids=["vectors", "vectors by update", "dynamic", "append", "append by update"],
)
def test_the_same_partitions_expire_and_java_goes_on(
    judge: Judge,
    tmp_path: Path,
    options: Mapping[str, str],
    *,
    is_keyed: bool,
    expiry: Mapping[str, str],
    gone: int,
) -> None:
    columns = (
        ("dt", "STRING NOT NULL"),
        ("h", "INT NOT NULL"),
        ("k", "INT NOT NULL"),
        ("v", "INT"),
    )
    key = ("dt", "h", "k") if is_keyed else ()
    ours = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "ours",
        columns=columns,
        primary_key=key,
        partition_by=("dt", "h"),
        options=options,
    ).create()
    for commit in range(3):
        ours.write(_rows(commit))
        if is_keyed and commit:
            ours.java_settle(full=commit == 1)
    if not is_keyed and options["bucket"] == "-1":
        names = [file["file_name"] for file in ours.files()][::2]
        judge.delete_positions(ours.path, {name: [0] for name in names})
    java = ours.copy("java")
    assert bool(_index_files(ours)) is (options.get("bucket-key") is None)
    before = judge.snapshots(ours.path)[-1]
    time.sleep(0.01)
    theirs = judge.jvm.ask(
        "Upkeep", "expirePartitions", {"path": str(java.path), "options": expiry}
    )
    done = _expire(ours.path, expiry)
    assert len(done.items) == gone
    assert sorted(done.items) == sorted(f"dt={each['dt']}/h={each['h']}" for each in theirs)
    assert done.why_not is None
    mine, others = (judge.snapshot(each.path) or {} for each in (ours, java))
    differ = {key for key in mine.keys() | others.keys() if mine.get(key) != others.get(key)}
    assert differ <= SNAPSHOT_DIFFERENCES.keys() - {"id", "deltaRecordCount"} | {"indexManifest"}
    assert_exact_sizes(ours)
    assert_same_files(ours, java)
    assert _index_files(ours) == _index_files(java)
    assert (mine["id"], mine["commitKind"]) == (before + 1, "OVERWRITE")
    assert mine["deltaRecordCount"] == -done.figures["rows"]
    _same_rows(ours, java)
    # Java goes on, in partitions that have expired, too; and so do we after Java.
    for table in (ours, java):
        table.write(_rows(9))
        if is_keyed:
            table.java_settle(full=True)
    _same_rows(ours, java)
    for table in (ours, java):
        table.settle(Strategy.FULL)
    _same_rows(ours, java)
    # A streaming reader is told nothing of it.
    assert canonical(judge.changes(ours.path)) == canonical(judge.changes(java.path))
    told = judge.changes(ours.path, before + 1)
    assert {kind for kind, _ in told} <= {"+I", "+U", "-U"}


def _expire(path: Path, options: Mapping[str, str]) -> RoundResult[str]:
    """As a job of ours with these options."""
    catalog, clock = FilesystemCatalog(LOCAL, str(path.parent.parent)), SystemClock()
    followed = TableSession(
        catalog.open(catalog.find_table(f"db.{path.name}")),
        CompactRequest(overrides=options),
        clock=clock,
        owner=ids.this_process(),
    )
    followed.refresh()
    return expire_partitions(followed, clock.now_ms())


def _same_rows(ours: LiveTable, java: LiveTable) -> None:
    assert canonical(ours.judge.read(ours.path)) == canonical(java.judge.read(java.path))


def _index_files(table: LiveTable) -> list[str]:
    return sorted(file["file_name"] for file in table.judge.index_files(table.path))
