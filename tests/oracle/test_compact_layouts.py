"""Options that shape files, levels and snapshots: each compacted by us and by Java."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from compactord.plan.table import Strategy
from tests.oracle.differential import (
    LiveTable,
    assert_exact_sizes,
    assert_same_outcome,
    canonical,
    compact,
)
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import Row, TypeName

COLUMNS: tuple[tuple[str, TypeName], ...] = (
    ("k", "INT NOT NULL"),
    ("s", "STRING"),
    ("n", "BIGINT"),
    ("b", "BYTES"),
)


def new_table(
    judge: Judge,
    path: Path,
    options: Mapping[str, str],
    *,
    columns: tuple[tuple[str, TypeName], ...] = COLUMNS,
    key: tuple[str, ...] = ("k",),
    partition_by: tuple[str, ...] = (),
) -> LiveTable:
    return LiveTable(
        judge=judge,
        path=path,
        columns=columns,
        primary_key=key,
        partition_by=partition_by,
        options={"bucket": "1", **options},
    ).create()


def fill(table: LiveTable, *, commits: int, seed: int, keys: int = 60, rows: int = 30) -> None:
    """Random commits on the columns of COLUMNS with updates and deletes of every kind."""
    chance = random.Random(seed)
    for commit in range(commits):
        chosen: dict[int, Row] = {}
        for _ in range(rows):
            key = chance.randrange(keys)
            text = "" if chance.random() < 0.1 else f"{'wörter ' * 3}{key % 7}-{commit}"
            number = None if chance.random() < 0.1 else chance.randrange(-(2**40), 2**40)
            chosen[key] = [key, text, number, f"x:{key:04x}"]
        kinds = [chance.choice(["+I", "+U", "+I", "-D", "+I", "-U"]) for _ in chosen]
        if not table.primary_key:
            kinds = ["+I"] * len(chosen)
        table.write(list(chosen.values()), kinds)


OPTIONS: dict[str, dict[str, str]] = {
    "one-bucket": {},
    "four-buckets": {"bucket": "4"},
    "thin": {"data-file.thin-mode": "true"},
    "zstd-9": {"file.compression.zstd-level": "9"},
    **{
        codec: {"file.compression": codec, "file.suffix.include.compression": "true"}
        for codec in ("none", "snappy", "gzip", "lz4", "lz4_raw")
    },
    "compression-per-level": {"file.compression.per.level": "0:none,5:gzip"},
    "statistics-none": {"metadata.stats-mode": "none"},
    "statistics-counts": {"metadata.stats-mode": "counts"},
    "statistics-full": {"metadata.stats-mode": "full"},
    "statistics-truncated": {"metadata.stats-mode": "truncate(3)"},
    "statistics-per-level": {"metadata.stats-mode.per.level": "0:none,5:full"},
    "statistics-per-field": {
        "metadata.stats-mode": "none",
        "fields.s.stats-mode": "truncate(2)",
        "fields.n.stats-mode": "counts",
    },
    "statistics-of-first-columns": {"metadata.stats-keep-first-n-columns": "2"},
    "statistics-of-no-columns": {"metadata.stats-keep-first-n-columns": "0"},
    "statistics-not-dense": {
        "metadata.stats-dense-store": "false",
        "metadata.stats-mode": "counts",
    },
    "statistics-none-not-dense": {
        "metadata.stats-dense-store": "false",
        "metadata.stats-mode": "none",
    },
    "thin-with-statistics-none": {"data-file.thin-mode": "true", "metadata.stats-mode": "none"},
    "suffix-with-compression": {"file.suffix.include.compression": "true"},
    "prefix": {"data-file.prefix": "part_"},
    "sequence-from-snapshot": {"write.sequence-number-init-mode": "snapshot"},
    "deletes-without-statistics": {"manifest.delete-file-drop-stats": "true"},
    "input-changelog": {"changelog-producer": "input"},
    "plain-manifests": {"manifest.compression": "null"},
    "small-row-groups": {"file.block-size": "1 kb", "parquet.enable.dictionary": "false"},
    "few-levels": {"num-levels": "3"},
    "forced-rewrite": {"compaction.force-rewrite-all-files": "true"},
    "commit-user-prefix": {"commit.user-prefix": "nightly"},
}


@pytest.mark.parametrize(
    "name",
    OPTIONS,
)
def test_files_and_snapshots_are_javas_under_option(
    judge: Judge, tmp_path: Path, name: str
) -> None:
    table = new_table(judge, tmp_path / "db.db" / "t", OPTIONS[name])
    fill(table, commits=6, seed=1)
    twin = table.copy("java")
    assert table.settle().snapshots
    if name == "forced-rewrite":
        judge.compact(twin.path, full=False)
    else:
        twin.java_settle(full=False)
    assert_same_outcome(table, twin)

    fill(table, commits=2, seed=2)
    twin = table.copy("java-full")
    assert table.settle(Strategy.FULL).snapshots
    if name == "forced-rewrite":
        judge.compact(twin.path, full=True)
    else:
        twin.java_settle(full=True)
    assert_same_outcome(table, twin)

    fill(table, commits=5, seed=3)
    judge.compact(table.path, full=False)
    table.check()
    judge.compact(table.path, full=True)
    table.check()


@pytest.mark.parametrize("name", ["suffix-with-compression", "gzip", "prefix", "zstd-9"])
def test_names_of_our_files_are_those_that_java_would_choose(
    judge: Judge, tmp_path: Path, name: str
) -> None:
    table = new_table(judge, tmp_path / "db.db" / "t", OPTIONS[name])
    fill(table, commits=2, seed=1)
    [sample, *_] = table.files()
    table.settle(Strategy.FULL)
    [ours] = table.files()
    prefix = OPTIONS[name].get("data-file.prefix", "data-")
    assert ours["file_name"].startswith(prefix)
    assert sample["file_name"].startswith(prefix)
    assert ours["file_name"].partition(".")[2] == sample["file_name"].partition(".")[2]


def test_changelog_files_of_the_input_stay_and_compaction_adds_none(
    judge: Judge, tmp_path: Path
) -> None:
    table = new_table(judge, tmp_path / "db.db" / "t", {"changelog-producer": "input"})
    fill(table, commits=4, seed=1)
    before = judge.changes(table.path)
    table.settle(Strategy.FULL)
    assert judge.entries(table.path, "changelog") == []
    assert "changelogManifestList" not in (judge.snapshot(table.path) or {})
    assert judge.changes(table.path) == before
    fill(table, commits=1, seed=2)
    assert len(judge.changes(table.path)) > len(before)


def test_streaming_readers_pass_our_snapshots(judge: Judge, tmp_path: Path) -> None:
    table = new_table(judge, tmp_path / "db.db" / "t", {})
    fill(table, commits=3, seed=1)
    before = judge.changes(table.path)
    table.settle(Strategy.FULL)
    fill(table, commits=1, seed=2)
    table.settle(Strategy.FULL)
    after = judge.changes(table.path)
    assert after[: len(before)] == before
    assert len(after) > len(before)


SEQUENCES: dict[str, dict[str, str]] = {
    "one": {"sequence.field": "n"},
    "two": {"sequence.field": "n,s"},
    "descending": {"sequence.field": "n", "sequence.field.sort-order": "descending"},
    "two-descending": {"sequence.field": "s,n", "sequence.field.sort-order": "descending"},
    "binary": {"sequence.field": "b"},
    "ignored-deletes": {"ignore-delete": "true"},
    "sequence-and-ignored-deletes": {"sequence.field": "n", "ignore-delete": "true"},
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_winner_of_a_key_is_javas(judge: Judge, tmp_path: Path, name: str) -> None:
    """With few values and nulls in the sequence columns, so that they tie."""
    table = new_table(judge, tmp_path / "db.db" / "t", {"bucket": "2", **SEQUENCES[name]})
    chance = random.Random(name)

    def write(commits: int) -> None:
        for _ in range(commits):
            rows = [
                [
                    k,
                    chance.choice(["", "a", "b"]),
                    chance.choice([None, -1, 0, 7]),
                    f"x:{chance.randrange(3):02x}",
                ]
                for k in chance.sample(range(40), 25)
            ]
            judge.write(table.path, rows, [chance.choice(["+I", "+U", "-D", "+I"]) for _ in rows])

    for round_, strategy in enumerate((Strategy.MINOR, Strategy.FULL)):
        write(6 if round_ == 0 else 2)
        before = canonical(judge.read(table.path))
        twin = table.copy(f"java-{round_}")
        assert table.settle(strategy).snapshots
        twin.java_settle(full=strategy is Strategy.FULL)
        assert canonical(judge.read(table.path)) == before
        table.model = twin.model = {
            str(position): row for position, row in enumerate(judge.read(twin.path))
        }
        assert_same_outcome(table, twin)
    write(5)
    before = canonical(judge.read(table.path))
    judge.compact(table.path, full=True)
    assert canonical(judge.read(table.path)) == before


def test_deletes_stay_on_a_middle_level_and_go_with_the_last(judge: Judge, tmp_path: Path) -> None:
    table = new_table(judge, tmp_path / "db.db" / "t", {})
    table.write([[k, f"{k}" * 50, k, f"x:{k:08x}"] for k in range(4000)])
    table.settle(Strategy.FULL)
    for commit in range(5):
        rows = [[k, "", 0, "x:"] for k in range(commit * 3, commit * 3 + 5)]
        table.write(rows, ["-D", "+I", "-D", "-U", "+U"])
    twin = table.copy("java")
    assert table.settle().snapshots
    twin.java_settle(full=False)
    assert_same_outcome(table, twin)
    deletes = {file["level"]: file["delete_row_count"] for file in table.files()}
    assert deletes[4] > 0
    assert deletes[5] == 0

    table.settle(Strategy.FULL)
    twin.java_settle(full=True)
    assert_same_outcome(table, twin)
    assert [file["delete_row_count"] for file in table.files()] == [0]


def test_a_bucket_of_which_nothing_is_left_has_no_file(judge: Judge, tmp_path: Path) -> None:
    table = new_table(judge, tmp_path / "db.db" / "t", {"bucket": "2"})
    fill(table, commits=3, seed=1)
    table.write([list(row) for row in table.model.values()], ["-D"] * len(table.model))
    twin = table.copy("java")
    table.settle(Strategy.FULL)
    twin.java_settle(full=True)
    assert_same_outcome(table, twin)
    assert table.files() == []
    fill(table, commits=1, seed=2)
    table.check()


TINY = {"target-file-size": "4 kb", "file.block-size": "1 kb", "bucket": "1"}


def test_levels_of_many_files_are_merged_upgraded_and_left_as_by_java(
    judge: Judge, tmp_path: Path
) -> None:
    """Each compaction starts from the same files, since boundaries of outputs differ."""
    table = new_table(judge, tmp_path / "db.db" / "t", TINY)

    def spread(first: int, count: int) -> None:
        chance = random.Random(first)
        rows = [
            [k, f"{chance.random()}" * 3, k, f"x:{chance.randrange(2**64):016x}"]
            for k in range(first, first + count)
        ]
        table.write(rows)

    spread(0, 3000)
    table.settle(Strategy.FULL)
    for step in range(6):
        spread(3000 * (step + 1), 2500)
        spread(500 * step, 40)
        twin = table.copy(f"java-{step}")
        strategy = Strategy.FULL if step % 3 == 2 else Strategy.MINOR
        ours = compact(table.path, strategy)
        java = judge.compact(twin.path, full=strategy is Strategy.FULL)
        assert bool(ours.snapshots) == (java is not None)
        assert_same_outcome(table, twin)
        assert_exact_sizes(table)
    assert len(table.files()) > 8
    judge.compact(table.path, full=True)
    table.check()


def test_a_lone_new_range_is_upgraded_without_being_rewritten(judge: Judge, tmp_path: Path) -> None:
    table = new_table(judge, tmp_path / "db.db" / "t", {"target-file-size": "1 kb"})
    for commit in range(6):
        table.write([[1000 * commit + k, "text", k, "x:00"] for k in range(200)])
    names = {file["file_name"] for file in table.files()}
    twin = table.copy("java")
    totals = table.settle()
    twin.java_settle(full=False)
    assert_same_outcome(table, twin)
    assert totals.upgraded_files == 6
    assert {file["file_name"] for file in table.files()} == names
    assert {(file["level"], file["file_source"]) for file in table.files()} == {(5, "APPEND")}


@pytest.mark.parametrize("levels", ["2", "4", "9"])
def test_num_levels_may_change_over_the_life_of_a_table(
    judge: Judge, tmp_path: Path, levels: str
) -> None:
    table = new_table(judge, tmp_path / "db.db" / "t", {})
    fill(table, commits=6, seed=1)
    table.settle()
    judge.alter_options(table.path, {"num-levels": levels})
    fill(table, commits=6, seed=2)
    twin = table.copy("java")
    table.settle()
    twin.java_settle(full=False)
    assert_same_outcome(table, twin)
    fill(table, commits=1, seed=3)
    twin = table.copy("java-full")
    table.settle(Strategy.FULL)
    twin.java_settle(full=True)
    assert_same_outcome(table, twin)


def test_schema_versions_of_the_same_columns_are_merged_into_the_latest(
    judge: Judge, tmp_path: Path
) -> None:
    table = new_table(judge, tmp_path / "db.db" / "t", {})
    for version in range(4):
        fill(table, commits=2, seed=version)
        judge.alter_options(table.path, {"metadata.stats-mode": f"truncate({version + 2})"})
    assert {file["schema_id"] for file in table.files()} == {0, 1, 2, 3}
    twin = table.copy("java")
    table.settle()
    twin.java_settle(full=False)
    assert_same_outcome(table, twin)
    assert [file["schema_id"] for file in table.files()] == [4]
