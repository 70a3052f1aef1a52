"""The benches run at a tiny size, so that they cannot rot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.peers import CorePeer
from tests.bench.tables import MORE_SHAPES, SHAPES, make_table
from tests.bench.targets import TARGETS

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.bench


def bench(json_path: Path, *arguments: str) -> dict[str, Any]:
    """In a process of its own: a process can have only one Spark, and tests have theirs."""
    command = [sys.executable, "-m", "tests.bench", "--quick", "--json", str(json_path)]
    run = subprocess.run(
        [*command, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(json_path.read_text())["cases"]


@pytest.mark.parametrize("case", ["append", "altered"])
def test_both_sides_compact_the_same_table_to_the_same_rows(case: str, tmp_path: Path) -> None:
    found = bench(tmp_path / "figures.json", case)[case]
    assert found["same_rows_as_java"]
    assert found["rows_read_back"] == found["rows_out"]
    assert found["rows_in"] >= found["rows_out"] > 1000
    assert found["floor_share"] > 0
    assert found["java_wall_ratio"] == pytest.approx(found["java_wall_s"] / found["wall_s"])
    assert found["wall_s"] == pytest.approx(
        found["plan_s"] + found["work_s"] + found["commit_s"], rel=0.01
    )


def test_both_sides_look_up_the_same_rows_and_tell_the_same_changes(tmp_path: Path) -> None:
    cases = bench(tmp_path / "figures.json", "lookup", "lookup-small", "lookup-s3")
    for found in (cases["lookup"], cases["lookup-small"]):
        assert found["same_rows_as_java"]
        assert (found["rows_in"], found["rows_read_back"]) == (500, 3000)
        assert found["java_wall_ratio"] > 0
        assert 0 < found["read_share"] <= 1
    in_store = cases["lookup-s3"]
    assert in_store["same_rows_as_local"]
    assert in_store["delayed_local_ratio"] > 1


def test_both_sides_mark_the_same_rows_and_leave_the_same_ones_out(tmp_path: Path) -> None:
    cases = bench(tmp_path / "figures.json", "vectors", "vectors-small", "vectors-append")
    for found in cases.values():
        assert found["same_rows_as_java"]
        assert found["java_wall_ratio"] > 0
    for name in ("vectors", "vectors-small"):
        found = cases[name]
        assert (found["rows_in"], found["rows_read_back"]) == (500, 3000)
        assert 0 < found["read_share"] <= 1
    found = cases["vectors-append"]
    assert (found["rows_in"], found["rows_read_back"]) == (3000, 2100)


def test_all_shapes_are_compared_and_have_targets(tmp_path: Path) -> None:
    cases = bench(tmp_path / "figures.json", "shapes")
    assert cases.keys() == MORE_SHAPES.keys() <= TARGETS.keys()
    for name, found in cases.items():
        assert found["same_rows_as_java"]
        figures = {target.figure for target in TARGETS[name]}
        assert figures <= found.keys()
        assert 0 < found["rows_read_back"] == found["rows_out"] <= found["rows_in"]
    assert cases["disjoint"]["rows_in"] == cases["disjoint"]["rows_out"] == 3000


def test_tables_of_all_shapes_are_made_half_of_them_with_an_older_schema_if_altered(
    tmp_path: Path,
) -> None:
    with CorePeer() as core:
        for name, shape in SHAPES.items():
            table = tmp_path / "bench.db" / name
            make_table(core, table, shape.tiny())
            assert {file["schema_id"] for file in core.files(table)} == (
                {0, 1} if shape.is_altered else {0}
            )
        table = tmp_path / "bench.db" / "altered"
        assert [file["schema_id"] for file in core.files(table)] == [0, 0, 0, 1, 1, 1]
    older, newest = (
        json.loads((table / "schema" / f"schema-{number}").read_text())["fields"]
        for number in (0, 1)
    )
    assert [field for field in newest if field not in older] == [
        {"id": 2, "name": "l", "type": "BIGINT"},
        {"id": 6, "name": "ts", "type": "TIMESTAMP(3)"},
    ]
    assert [field for field in older if field not in newest] == [
        {"id": 2, "name": "l", "type": "INT"}
    ]


def test_a_table_in_a_store_is_compared_with_local_files_and_with_a_delay(tmp_path: Path) -> None:
    found = bench(tmp_path / "figures.json", "small-s3")["small-s3"]
    assert found["same_rows_as_local"]
    assert 15 <= found["requests"] <= 25
    assert found["delayed_wall_s"] > found["plain_copy_s"] > 0
    assert found["peak_rss_mib"] > 0


def test_scan_compares_a_table_with_one_a_hundred_times_smaller(tmp_path: Path) -> None:
    found = bench(tmp_path / "figures.json", "scan")["scan"]
    assert [line["files"] for line in found["lines"]] == [20, 2000]
    assert found["entries_per_s"] > 0
    assert found["refresh_growth"] > 0


def test_small_files_are_planned_all_at_once_and_ten_more(tmp_path: Path) -> None:
    found = bench(tmp_path / "figures.json", "append-plan")["append-plan"]
    assert [line["files"] for line in found["lines"]] == [100, 1000]
    # The files of the last commits are due, too.
    assert [line["files_due"] for line in found["lines"]] == [150, 1050]
    assert found["look_ms"] == found["lines"][-1]["look_ms"] > 0


def test_many_buckets_are_planned_from_nothing_and_after_ten_files(tmp_path: Path) -> None:
    found = bench(tmp_path / "figures.json", "bucket-plan")["bucket-plan"]
    assert [line["buckets"] for line in found["lines"]] == [10, 100]
    assert found["plan_10_files_ms"] > 0


def test_files_that_nothing_names_are_found_among_many(tmp_path: Path) -> None:
    found = bench(tmp_path / "figures.json", "orphans")["orphans"]
    assert (found["files"], found["orphans"]) == (2000, 200)
    assert found["files_per_s"] > 0


def test_both_sides_expire_the_same_snapshots_and_leave_the_same_files(tmp_path: Path) -> None:
    found = bench(tmp_path / "figures.json", "expire")["expire"]
    assert found["same_files_as_java"]
    assert [line["java_reads_whole"] for line in found["lines"]] == [False, False, True]
    for line in found["lines"]:
        assert line["snapshots"] >= 20
        assert line["files"] > 2 * line["snapshots"]
        assert line["java_wall_s"] > 0 < line["wall_s"]


def test_many_partitions_expire_in_batches_and_the_others_are_left(tmp_path: Path) -> None:
    found = bench(tmp_path / "figures.json", "partitions")["partitions"]
    figures = ("partitions", "snapshots", "files", "partitions_left")
    assert [found[name] for name in figures] == [200, 10, 2000, 20]


def test_level_1_is_merged_with_older_runs_by_the_picks_of_2_1(tmp_path: Path) -> None:
    found = bench(tmp_path / "figures.json", "level-1")["level-1"]
    lines = {(line["trigger"], line["pick"]): line for line in found["lines"]}
    old, new = lines[8, "2.0"], lines[8, "2.1"]
    assert old["ingested_mb"] == new["ingested_mb"] > 1000
    assert old["level_1_max_mb"] > 2 * new["level_1_max_mb"]
    assert found["picks_ratio"] > 2


def test_quiet_tables_are_polled_and_contested_commits_made(tmp_path: Path) -> None:
    found = bench(tmp_path / "figures.json", "polls", "catalogs", "contested")
    for polled in found["polls"]["lines"]:
        assert (polled["tables"], polled["requests_per_poll"]) == (5, 3)
    of_catalogs = found["catalogs"]
    assert [line["listed"] for line in of_catalogs["lines"]] == [8, 8]
    polled = [of_catalogs[f"{kind}_requests_per_poll"] for kind in ("rest", "hive")]
    assert polled == [2, 3]
    assert {target.figure for target in TARGETS["catalogs"]} <= of_catalogs.keys()
    (line,) = found["contested"]["lines"]
    assert (line["store"], line["commits"]) == ("local", 12)


def test_a_bucket_of_many_runs_is_made_and_compacted(tmp_path: Path) -> None:
    found = bench(tmp_path / "figures.json", "--large")["large"]
    assert found["rows_in"] > found["rows_out"] > 50_000
    assert found["peak_rss_mib"] > 0


def test_commands_are_measured_in_turns_with_those_of_another_checkout(tmp_path: Path) -> None:
    found = bench(tmp_path / "figures.json", "start", "--base", str(REPOSITORY))["start"]
    assert [line["case"] for line in found["lines"]] == ["compact", "inspect", "help"]
    for line in found["lines"]:
        assert line["wall_ratio"] == pytest.approx(line["wall_s"] / line["base_wall_s"], rel=0.05)
        # The same code on both sides.
        assert 0.2 < line["cpu_ratio"] < 5
