"""Manifests and snapshots after us: merged, of several blocks, expired, tagged, statistics kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from compactord.plan.table import Strategy
from tests.oracle.differential import (
    LiveTable,
    assert_exact_sizes,
    assert_same_outcome,
    compact,
)
from tests.oracle.judge import Judge


def small_table(judge: Judge, path: Path, options: Mapping[str, str] | None = None) -> LiveTable:
    return LiveTable(
        judge=judge,
        path=path,
        columns=(("p", "INT NOT NULL"), ("k", "INT NOT NULL"), ("v", "STRING")),
        primary_key=("p", "k"),
        partition_by=("p",),
        options={"bucket": "1", **(options or {})},
    ).create()


@pytest.mark.parametrize("codec", ["zstd", "null", "deflate"])
def test_many_manifests_are_merged_and_read_by_java(
    judge: Judge, tmp_path: Path, codec: str
) -> None:
    options = {
        "manifest.merge-min-count": "8",
        "manifest.target-file-size": "20 kb",
        "manifest.full-compaction-threshold-size": "10 kb",
        "manifest.compression": codec,
    }
    table = small_table(judge, tmp_path / "db.db" / "t", options)
    for commit in range(32):
        table.write([[commit % 11, commit, f"{commit}"]])
        if commit % 10 == 9:
            table.settle(Strategy.FULL)
            table.check()
            assert_exact_sizes(table)
    lists = judge.manifests(table.path)
    assert len([manifest for manifest in lists if manifest["list"] == "base"]) < 12
    twin = table.copy("java")
    table.settle(Strategy.FULL)
    twin.java_settle(full=True)
    assert_same_outcome(table, twin)
    table.write([[3, 1, "later"]])
    table.java_settle(full=True)
    table.check()


def test_a_full_merge_of_manifests_finds_what_was_deleted_in_the_partition_of_nulls(
    judge: Judge, tmp_path: Path
) -> None:
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("p", "STRING"), ("n", "INT")),
        partition_by=("p",),
        options={"bucket": "-1"},
    ).create()
    only_nulls = [{"p": "__DEFAULT_PARTITION__"}]
    # All count as large: one without a DELETE is read only where the partition may be in it.
    fully = {
        "manifest.target-file-size": "1 b",
        "manifest.full-compaction-threshold-size": "1 b",
    }
    for overrides in ({}, {}, fully):
        for commit in range(6):
            table.write([[None, commit], ["a", commit]])
        totals = compact(table.path, Strategy.FULL, overrides=overrides, partitions=only_nulls)
        assert totals.snapshots
        table.check()


def test_manifests_of_several_blocks_are_read_whole(judge: Judge, tmp_path: Path) -> None:
    """One commit on 160 partitions with long statistics gives a manifest of many Avro blocks."""
    options = {"metadata.stats-mode": "full", "manifest.compression": "null"}
    table = small_table(judge, tmp_path / "db.db" / "t", options)
    for commit in range(2):
        table.write([[p, k, f"{p}-{commit}" * 80] for p in range(160) for k in (0, 1)])
    assert any(manifest["file_size"] > 2 * 64 * 1024 for manifest in judge.manifests(table.path))
    twin = table.copy("java")
    totals = table.settle(Strategy.FULL)
    assert totals.compactions == 160
    twin.java_settle(full=True)
    assert_same_outcome(table, twin)


def test_watermark_and_statistics_of_the_snapshot_before_are_carried_on(
    judge: Judge, tmp_path: Path
) -> None:
    """As a streaming job and ANALYZE leave them: the judge has neither, so the JSON is amended."""
    table = small_table(judge, tmp_path / "db.db" / "t")
    for commit in range(6):
        table.write([[0, k, f"{commit}"] for k in range(5)])
    statistics = {"snapshotId": 6, "schemaId": 0, "mergedRecordCount": 5, "mergedRecordSize": 50}
    (table.path / "statistics").mkdir()
    (table.path / "statistics" / "stat-1").write_text(json.dumps(statistics))
    latest = table.path / "snapshot" / "snapshot-6"
    amended = {**json.loads(latest.read_text()), "watermark": 1234, "statistics": "stat-1"}
    latest.write_text(json.dumps(amended))
    twin = table.copy("java")
    table.settle()
    twin.java_settle(full=False)
    assert_same_outcome(table, twin)
    snapshot = judge.snapshot(table.path) or {}
    assert (snapshot["watermark"], snapshot["statistics"]) == (1234, "stat-1")

    # Statistics of another schema are not carried on.
    judge.alter_options(table.path, {"snapshot.num-retained.min": "5"})
    table.write([[0, 1, "later"]])
    twin = table.copy("java-later")
    table.settle(Strategy.FULL)
    twin.java_settle(full=True)
    assert_same_outcome(table, twin)
    assert "statistics" not in (judge.snapshot(table.path) or {})


def test_the_largest_sequence_number_is_carried_on(judge: Judge, tmp_path: Path) -> None:
    options = {"write.sequence-number-init-mode": "snapshot"}
    table = small_table(judge, tmp_path / "db.db" / "t", options)
    for commit in range(6):
        table.write([[0, k, f"{commit}"] for k in range(5)])
    before = judge.snapshot(table.path) or {}
    table.settle()
    after = judge.snapshot(table.path) or {}
    assert after["properties"] == before["properties"]
    assert after["properties"] == {"sequence.generation.max-sequence-number": "29"}
    table.write([[0, 0, "later"]])
    [newest] = [file for file in table.files() if file["level"] == 0]
    assert newest["min_sequence_number"] == 30


def test_java_expires_our_inputs_and_nothing_that_lives(judge: Judge, tmp_path: Path) -> None:
    table = small_table(judge, tmp_path / "db.db" / "t")
    for commit in range(6):
        table.write([[commit % 2, k, f"{commit}"] for k in range(5)])
    judge.create_tag(table.path, "before")
    at_tag = table.expected()
    table.settle(Strategy.FULL)
    table.write([[0, 0, "later"]])
    table.settle(Strategy.FULL)
    assert judge.expire_snapshots(table.path, 1) > 0
    table.check()
    tagged = judge.read(table.path, options={"scan.tag-name": "before"})
    assert len(tagged) == len(at_tag)
    judge.delete_tag(table.path, "before")
    assert judge.orphan_files(table.path) == []
    on_disk = {path.name for path in table.path.rglob("*.parquet")}
    assert on_disk == {file["file_name"] for file in table.files()}


def test_java_rolls_back_past_our_snapshot_and_we_go_on(judge: Judge, tmp_path: Path) -> None:
    table = small_table(judge, tmp_path / "db.db" / "t")
    for commit in range(6):
        table.write([[0, k, f"{commit}"] for k in range(5)])
    snapshot = judge.snapshots(table.path)[-1]
    expected = table.expected()
    table.settle()
    table.write([[0, 99, "undone"]])
    judge.rollback(table.path, snapshot)
    table.model.pop(table.key([0, 99, "undone"]))
    assert table.expected() == expected
    table.check()
    table.settle()
    table.check()
    assert {file["level"] for file in table.files()} == {5}


def test_overwritten_and_truncated_partitions_stay_so(judge: Judge, tmp_path: Path) -> None:
    table = small_table(judge, tmp_path / "db.db" / "t")
    for commit in range(6):
        table.write([[p, k, f"{commit}"] for p in range(3) for k in range(4)])
    judge.overwrite(table.path, [[1, 7, "new"]], {"p": "1"})
    judge.truncate(table.path, [{"p": "2"}])
    table.model = {key: row for key, row in table.model.items() if row[0] == 0}
    table.apply([[1, 7, "new"]])
    table.check()
    twin = table.copy("java")
    table.settle(Strategy.FULL)
    twin.java_settle(full=True)
    assert_same_outcome(table, twin)
