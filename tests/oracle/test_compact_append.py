"""Append tables: nothing is lost or doubled, rows of a bucket keep their order."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from compactord.plan.table import Strategy
from tests.oracle.differential import (
    LiveTable,
    assert_exact_sizes,
    assert_same_outcome,
    canonical,
)
from tests.oracle.judge import Judge


def append_table(judge: Judge, path: Path, **options: str) -> LiveTable:
    return LiveTable(
        judge=judge,
        path=path,
        columns=(("p", "INT"), ("n", "BIGINT"), ("v", "STRING")),
        partition_by=("p",) if options.pop("partitioned", "") else (),
        options={name.replace("_", "-"): value for name, value in options.items()},
    ).create()


def in_order(table: LiveTable) -> dict[str, list[int]]:
    """Numbers by partition and text in the order in which Java reads them; writers count up."""
    found: dict[str, list[int]] = {}
    for p, n, v in table.judge.read(table.path):
        found.setdefault(f"{p} {v}", []).append(n)
    return found


@pytest.mark.parametrize("partitioned", ["", "yes"], ids=["plain", "partitioned"])
@pytest.mark.parametrize("commits", [5, 6, 11])
def test_small_files_without_buckets_are_packed_as_by_java(
    judge: Judge, tmp_path: Path, partitioned: str, commits: int
) -> None:
    table = append_table(judge, tmp_path / "db.db" / "t", bucket="-1", partitioned=partitioned)
    for commit in range(commits):
        table.write([[n % 3, n, None if n % 5 else f"{commit}"] for n in range(7 + commit)])
    twin = table.copy("java")
    assert table.settle().snapshots
    twin.java_settle(full=False)
    assert_same_outcome(table, twin)
    table.write([[1, -1, "later"]])
    table.java_settle(full=False)
    table.check()


def test_few_files_without_buckets_wait_and_full_packs_them(judge: Judge, tmp_path: Path) -> None:
    table = append_table(judge, tmp_path / "db.db" / "t", bucket="-1")
    for commit in range(4):
        table.write([[0, commit, None]])
    assert not table.settle().snapshots
    assert judge.compact(table.path, full=False) is None
    assert table.settle(Strategy.FULL).snapshots
    assert len(table.files()) == 1
    table.check()


def test_large_files_without_buckets_are_left_and_outputs_reach_the_target(
    judge: Judge, tmp_path: Path
) -> None:
    options = {
        "target_file_size": "20 kb",
        "source.split.open_file_cost": "1 b",
        "file.block_size": "2 kb",
        "file.compression": "none",
        "bucket": "-1",
    }
    table = append_table(judge, tmp_path / "db.db" / "t", **options)
    table.write([[0, n, f"{n:032x}"] for n in range(3000)])
    large = {file["file_name"] for file in table.files()}
    for commit in range(12):
        table.write([[0, n, f"{n:032x}"] for n in range(100 * commit, 100 * commit + 150)])
    assert table.settle().snapshots
    after = table.files()
    assert large & {file["file_name"] for file in after}
    assert len(after) > 2
    assert_exact_sizes(table)
    table.check()
    table.java_settle(full=False)
    table.check()


@pytest.mark.parametrize("buckets", ["1", "3"])
def test_rows_of_a_bucket_keep_their_order(judge: Judge, tmp_path: Path, buckets: str) -> None:
    table = append_table(
        judge, tmp_path / "db.db" / "t", bucket=buckets, bucket_key="v", partitioned="yes"
    )
    # With nine files Java picks twice in one commit, and its own conflict check then refuses that.
    for commit in range(6):
        table.write([[p, 10 * commit + n, f"{n % 4}"] for p in range(3) for n in range(10)])
    before = in_order(table)
    twin = table.copy("java")
    assert table.settle().snapshots
    twin.java_settle(full=False)
    assert_same_outcome(table, twin)
    assert in_order(table) == before == in_order(twin)
    for commit in range(6, 15):
        table.write([[p, 10 * commit + n, f"{n % 4}"] for p in range(3) for n in range(10)])
    table.settle()
    table.check()
    assert all(numbers == sorted(numbers) for numbers in in_order(table).values())


@pytest.mark.parametrize("commits", [2, 3, 8])
def test_full_compaction_of_ordered_buckets_is_javas(
    judge: Judge, tmp_path: Path, commits: int
) -> None:
    table = append_table(judge, tmp_path / "db.db" / "t", bucket="1", bucket_key="n")
    for commit in range(commits):
        table.write([[0, 10 * commit + n, ""] for n in range(5)])
    twin = table.copy("java")
    ours = table.settle(Strategy.FULL)
    java = twin.java_settle(full=True)
    assert bool(ours.snapshots) == bool(java)
    if java:
        assert_same_outcome(table, twin)
    assert in_order(table) == in_order(twin)


def test_several_outputs_of_an_ordered_bucket_stay_in_order_for_java(
    judge: Judge, tmp_path: Path
) -> None:
    """Their sequence ranges are disjoint (ORDERED_SEQUENCES): a later rewrite keeps the order."""
    table = append_table(
        judge,
        tmp_path / "db.db" / "t",
        **{"target-file-size": "20 kb", "file.block-size": "2 kb", "file.compression": "none"},
        **{"parquet.enable.dictionary": "false"},
        bucket="1",
        bucket_key="p",
    )
    for commit in range(12):
        table.write([[0, 300 * commit + n, "text" * 8] for n in range(120)])
    rows = canonical(judge.read(table.path))
    assert table.settle(Strategy.FULL).files_out > 2
    files = sorted(table.files(), key=lambda file: int(file["min_sequence_number"]))
    assert len(files) > 2
    for before, after in itertools.pairwise(files):
        assert before["max_sequence_number"] < after["min_sequence_number"]
    numbers = [n for _, n, _ in judge.read(table.path)]
    assert numbers == sorted(numbers)
    for commit in range(12, 18):
        table.write([[0, 300 * commit + n, ""] for n in range(20)])
    judge.compact(table.path, full=True)
    numbers = [n for _, n, _ in judge.read(table.path)]
    assert numbers == sorted(numbers)
    assert set(rows) < set(canonical(judge.read(table.path)))
    table.check()
