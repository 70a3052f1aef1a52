"""The judge itself works: what it answers on tables and cases whose outcome is known."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import JudgeError

PK = [("id", "BIGINT NOT NULL"), ("v", "STRING")]


@pytest.fixture
def table(judge: Judge, tmp_path: Path) -> Path:
    """An empty write-only primary-key table of one bucket."""
    path = tmp_path / "db.db" / "t"
    judge.create_table(path, PK, primary_key=["id"], options={"bucket": "1", "write-only": "true"})
    return path


@pytest.fixture
def append_table(judge: Judge, tmp_path: Path) -> Path:
    path = tmp_path / "db.db" / "a"
    judge.create_table(
        path,
        [("dt", "STRING"), ("n", "INT")],
        partition_by=["dt"],
        options={"bucket": "-1", "write-only": "true", "deletion-vectors.enabled": "true"},
    )
    return path


def test_write_only_commits_pile_up_in_level_0_and_java_compacts_them(
    judge: Judge, table: Path
) -> None:
    for commit in range(4):
        assert judge.write(table, [(key, f"{key}@{commit}") for key in range(commit, 6)])
    judge.write(table, [(5, None)], ["-D"])
    assert [file["level"] for file in judge.files(table)] == [0] * 5
    before = judge.read_checksum(table)
    expected = [(0, "0@0"), (1, "1@1"), (2, "2@2"), (3, "3@3"), (4, "4@3")]
    assert sorted(judge.read(table)) == expected

    assert judge.compact(table, full=True) == 6

    [file] = judge.files(table)
    assert (file["level"], file["row_count"], file["file_source"]) == (5, 5, "COMPACT")
    assert judge.algorithms.decode_rows(
        ["BIGINT NOT NULL"], [file["min_key"], file["max_key"]]
    ) == [
        (0,),
        (4,),
    ]
    assert judge.algorithms.decode_rows(["BIGINT", "STRING"], [file["value_stats"]["max"]]) == [
        (4, "4@3")
    ]
    assert judge.read_checksum(table) == before
    assert before[0] == 5
    assert judge.snapshots(table) == [1, 2, 3, 4, 5, 6]
    snapshot = judge.snapshot(table)
    assert snapshot is not None
    assert (snapshot["id"], snapshot["commitKind"]) == (6, "COMPACT")
    assert judge.compact(table, full=True) is None


def test_minor_compaction_leaves_a_lone_file_in_level_0(judge: Judge, table: Path) -> None:
    judge.write(table, [(1, "a")])
    assert judge.compact(table, full=False) is None
    assert judge.snapshots(table) == [1]


def test_read_pushes_a_filter_and_projects(judge: Judge, table: Path) -> None:
    judge.write(table, [(1, "a"), (2, None), (3, "c")])
    assert judge.read(table, filter=[("id", "gt", 1), ("v", "is_not_null")]) == [(3, "c")]
    assert judge.read(table, filter=[("v", "is_null")], columns=["id"]) == [(2,)]
    assert judge.read(table, columns=["v", "id"], filter=[("id", "lt", 2)]) == [("a", 1)]


def test_commits_carry_user_and_identifier(judge: Judge, table: Path) -> None:
    judge.write(table, [(1, "a")], commit_user="writer", identifier=7)
    judge.compact(table, full=True, commit_user="compactor", identifier=8)
    written, compacted = judge.snapshot(table, 1), judge.snapshot(table, 2)
    assert written is not None
    assert compacted is not None
    assert (written["commitUser"], written["commitIdentifier"]) == ("writer", 7)
    assert (compacted["commitUser"], compacted["commitIdentifier"]) == ("compactor", 8)


def test_java_errors_carry_class_and_message(judge: Judge, tmp_path: Path) -> None:
    with pytest.raises(JudgeError, match="Please create table first") as caught:
        judge.read(tmp_path / "db.db" / "absent")
    assert caught.value.java_class == "java.lang.IllegalArgumentException"


EVERY_TYPE: list[tuple[Any, list[Any]]] = [
    ("BOOLEAN", [True, False]),
    ("TINYINT", [-128, 127]),
    ("SMALLINT", [-32768, 32767]),
    ("INT", [-(2**31), 2**31 - 1]),
    ("BIGINT", [-(2**63), 2**63 - 1, 2**53 + 1]),
    ("FLOAT", [0.10000000149011612, "NaN", "Infinity", "-Infinity", "-0.0", 0.0, 2.0**-149]),
    ("DOUBLE", [0.1, "NaN", "Infinity", "-Infinity", "-0.0", 0.0, 5e-324, 1.7e308]),
    ("DECIMAL(5, 2)", ["-999.99", "0.00", "1.50"]),
    ("DECIMAL(38, 18)", ["12345678901234567890.123456789012345678"]),
    ("CHAR(3)", ["abc"]),
    ("VARCHAR(9)", ["", 'x\ny\u2028z"\\']),
    ("STRING", ["caf\u00e9 \U0001f600", "\x00\x1f"]),
    ("BINARY(2)", ["x:00ff"]),
    ("BYTES", ["x:", "x:0102"]),
    ("DATE", [-1, 19000]),
    ("TIME(3)", [0, 86399999]),
    ("TIMESTAMP(0)", ["1000:0", "-1000:0"]),
    ("TIMESTAMP(3)", ["-1:0", "1700000000123:0"]),
    ("TIMESTAMP(6)", ["1700000000123:456000"]),
    ("TIMESTAMP(9)", ["1700000000123:456789", "-1:999999"]),
    ("TIMESTAMP(6) WITH LOCAL TIME ZONE", ["1700000000123:456000"]),
    ({"type": "ARRAY", "element": "INT"}, [[], [1, None, 3]]),
    ({"type": "MAP", "key": "STRING NOT NULL", "value": "BIGINT"}, [[], [["k", None]]]),
    (
        {
            "type": "ROW",
            "fields": [
                {"name": "a", "type": "INT"},
                {"name": "b", "type": {"type": "ARRAY", "element": "STRING"}},
            ],
        },
        [[1, ["x", None]], [None, None]],
    ),
]
# No Parquet or ORC form in Java, so only through rows.
MULTISET: tuple[Any, list[Any]] = (
    {"type": "MULTISET", "element": "STRING NOT NULL"},
    [[["a", 2]], []],
)


def test_values_of_every_type_come_back_as_written(judge: Judge, tmp_path: Path) -> None:
    path = tmp_path / "db.db" / "types"
    columns = [("n", "INT"), *((f"c{i}", type) for i, (type, _) in enumerate(EVERY_TYPE))]
    judge.create_table(path, columns, options={"bucket": "-1"})
    height = max(len(values) for _, values in EVERY_TYPE)
    rows = [
        (n, *(values[n] if n < len(values) else None for _, values in EVERY_TYPE))
        for n in range(height)
    ]
    judge.write(path, rows)
    assert repr(sorted(judge.read(path), key=lambda row: row[0])) == repr(rows)


@pytest.mark.parametrize(
    ("type", "values"), [*EVERY_TYPE, MULTISET], ids=lambda case: str(case)[:30]
)
def test_serialised_rows_decode_to_their_values(judge: Judge, type: Any, values: list[Any]) -> None:
    rows = [(value,) for value in [*values, None]]
    encoded = [hex for hex, _, _ in judge.algorithms.binary_rows([type], rows)]
    assert repr(judge.algorithms.decode_rows([type], encoded)) == repr(rows)


def test_python_floats_may_be_written_as_they_are(judge: Judge) -> None:
    plain = [(float("nan"),), (float("-inf"),), (-0.0,)]
    named = [("NaN",), ("-Infinity",), ("-0.0",)]
    assert judge.algorithms.binary_rows(["FLOAT"], plain) == judge.algorithms.binary_rows(
        ["FLOAT"], named
    )


def test_values_out_of_range_are_refused(judge: Judge) -> None:
    for type, value in [("TINYINT", 128), ("BIGINT", 2**63), ("DECIMAL(3, 1)", "100.0")]:
        with pytest.raises(JudgeError):
            judge.algorithms.binary_row([type], [value])


def test_a_binary_row_has_arity_null_bits_and_eight_bytes_a_field(judge: Judge) -> None:
    hex, hash, bucket = judge.algorithms.binary_row(["INT", "STRING"], [258, None], num_buckets=4)
    assert hex == "00000002" + "0002000000000000"[:2] + "02" + "00" * 6 + "02010000" + "00" * 12
    assert bucket == abs(hash) % 4
    assert judge.algorithms.murmur_bucket(["INT", "STRING"], [258, None], 4) == bucket


def test_rows_sort_as_java_compares_them(judge: Judge) -> None:
    values: list[list[Any]] = [["NaN"], ["Infinity"], [None], [0.0], ["-0.0"]]
    assert judge.algorithms.sort_rows(["DOUBLE"], values) == [2, 4, 3, 1, 0]
    words = [["b"], ["\U0001f600"], ["\uffff"], ["B"], ["bb"]]
    assert judge.algorithms.sort_rows(["STRING"], words) == [3, 0, 4, 2, 1]


def test_schema_versions(judge: Judge, table: Path) -> None:
    judge.write(table, [(1, "a")])
    assert judge.add_column(table, "extra", "INT") == 1
    assert judge.rename_column(table, "v", "w") == 2
    assert judge.change_column_type(table, "extra", "BIGINT") == 3
    assert judge.alter_options(table, {"num-levels": "4"}, ["write-only"]) == 4
    assert judge.drop_column(table, "w") == 5
    assert (
        judge.alter(
            table,
            {"change": "add", "column": ["first"], "type": "STRING", "first": True},
            {"change": "move_after", "column": ["id"], "after": "extra"},
        )
        == 6
    )
    judge.write(table, [(None, 2**40, 2)])
    assert sorted(judge.read(table, columns=["id", "extra"])) == [(1, None), (2, 2**40)]
    assert {file["schema_id"] for file in judge.files(table)} == {0, 6}


def test_tags_branches_rollback_and_expiry(judge: Judge, table: Path) -> None:
    for value in "abcd":
        judge.write(table, [(1, value)])
    judge.create_tag(table, "second", 2)
    judge.create_branch(table, "side", "second")
    judge.write(table, [(2, "side")], options={"branch": "side"})
    assert sorted(judge.read(table, options={"branch": "side"})) == [(1, "b"), (2, "side")]
    assert judge.snapshots(table, options={"branch": "side"}) == [2, 3]
    assert judge.read(table, options={"scan.tag-name": "second"}) == [(1, "b")]
    judge.rollback(table, 3)
    assert judge.read(table) == [(1, "c")]
    assert judge.expire_snapshots(table, 1) == 2
    assert judge.snapshots(table) == [3]
    assert judge.read(table, options={"scan.tag-name": "second"}) == [(1, "b")]


def test_orphan_files_are_those_nobody_needs(judge: Judge, table: Path) -> None:
    judge.write(table, [(1, "a")])
    judge.create_tag(table, "first")
    judge.compact(table, full=True)
    judge.expire_snapshots(table, 1)
    assert judge.orphan_files(table) == []
    stray = table / "bucket-0" / "data-stray.parquet"
    stray.write_bytes(b"x")
    assert judge.orphan_files(table) == [str(stray)]


def test_overwrite_and_truncate_of_partitions(judge: Judge, append_table: Path) -> None:
    judge.write(append_table, [("a", 1), ("b", 2)])
    judge.overwrite(append_table, [("a", 3)], {"dt": "a"})
    assert sorted(judge.read(append_table)) == [("a", 3), ("b", 2)]
    judge.truncate(append_table, [{"dt": "b"}])
    assert judge.read(append_table) == [("a", 3)]
    snapshot = judge.snapshot(append_table)
    assert snapshot is not None
    assert snapshot["commitKind"] == "OVERWRITE"


def test_append_files_are_packed_and_deletions_applied(judge: Judge, append_table: Path) -> None:
    for number in range(6):
        judge.write(append_table, [("a", number), ("a", -number), ("b", number)])
    first = min(
        (file for file in judge.files(append_table) if file["partition"] == ["a"]),
        key=lambda file: file["min_sequence_number"],
    )
    judge.delete_positions(append_table, {first["file_name"]: [0]})
    judge.delete_positions(append_table, {first["file_name"]: [1]})
    assert judge.deletion_vectors(append_table) == {first["file_name"]: [0, 1]}
    [index] = judge.index_files(append_table)
    assert index["index_type"] == "DELETION_VECTORS"
    assert [entry[0] for entry in index["dv_ranges"]] == [first["file_name"]]
    count, checksum = judge.read_checksum(append_table)
    assert count == 16

    groups = judge.plan_append(append_table)
    assert sorted((group["partition"], len(group["files"])) for group in groups) == [
        (["a"], 1),
        (["a"], 5),
        (["b"], 6),
    ]
    assert judge.compact(append_table, full=True, partition=["b"])
    assert judge.compact(append_table, full=True)
    assert judge.read_checksum(append_table) == (count, checksum)
    assert judge.deletion_vectors(append_table) == {}


def test_an_update_deletes_and_appends_in_one_commit(judge: Judge, append_table: Path) -> None:
    judge.write(append_table, [("a", 1), ("a", 2), ("a", 3)])
    [file] = judge.files(append_table)
    assert judge.delete_positions(append_table, {file["file_name"]: [0, 2]}, rows=[("a", 7)])
    assert sorted(judge.read(append_table)) == [("a", 2), ("a", 7)]
    snapshot = judge.snapshot(append_table)
    assert snapshot is not None
    assert (snapshot["id"], snapshot["commitKind"], snapshot["operation"]) == (
        2,
        "OVERWRITE",
        "UPDATE",
    )


def test_of_two_vectors_of_a_file_the_later_counts(judge: Judge, append_table: Path) -> None:
    judge.write(append_table, [("a", 1), ("a", 2), ("a", 3)])
    [file] = judge.files(append_table)
    judge.delete_positions(append_table, {file["file_name"]: [0]})
    judge.add_vectors(append_table, {file["file_name"]: [1], "gone": [5]}, partition=["a"])
    assert judge.deletion_vectors(append_table) == {file["file_name"]: [1], "gone": [5]}
    assert len(judge.index_files(append_table)) == 2
    assert sorted(judge.read(append_table)) == [("a", 1), ("a", 3)]


def test_manifests_and_their_entries(judge: Judge, table: Path) -> None:
    for value in "ab":
        judge.write(table, [(1, value)])
    old = {file["file_name"] for file in judge.files(table)}
    judge.compact(table, full=True)
    lists = [manifest["list"] for manifest in judge.manifests(table)]
    assert lists == ["base"] * 2 + ["delta"]
    assert judge.manifests(table)[-1]["num_deleted_files"] == 2
    delta = judge.entries(table, "delta")
    assert {entry["file_name"] for entry in delta if entry["kind"] == "DELETE"} == old
    assert [entry["level"] for entry in delta if entry["kind"] == "ADD"] == [5]
    assert len(judge.entries(table, "base")) == 2
    assert len(judge.entries(table, "delta", 1)) == 1


def test_changelog_of_a_lookup_table(judge: Judge, tmp_path: Path) -> None:
    path = tmp_path / "db.db" / "lookup"
    judge.create_table(
        path,
        PK,
        primary_key=["id"],
        options={"bucket": "1", "write-only": "true", "changelog-producer": "lookup"},
    )
    judge.write(path, [(1, "a"), (2, "b")])
    judge.compact(path, full=False)
    judge.write(path, [(1, "c"), (2, None)], ["+I", "-D"])
    judge.compact(path, full=False)
    assert judge.changes(path, 3) == [
        ("-U", (1, "a")),
        ("+U", (1, "c")),
        ("-D", (2, "b")),
    ]
    assert len(judge.changes(path)) == 5
    assert len(judge.entries(path, "changelog")) == 1


def test_deletion_vectors_of_a_primary_key_table(judge: Judge, tmp_path: Path) -> None:
    path = tmp_path / "db.db" / "dv"
    judge.create_table(
        path,
        PK,
        primary_key=["id"],
        options={"bucket": "1", "write-only": "true", "deletion-vectors.enabled": "true"},
    )
    judge.write(path, [(key, "a" * 50) for key in range(9)])
    judge.compact(path, full=True)
    [bottom] = judge.files(path)
    judge.write(path, [(3, "b")])
    judge.compact(path, full=False)
    assert judge.deletion_vectors(path) == {bottom["file_name"]: [3]}
    assert (3, "b") in judge.read(path)


def test_rows_of_a_dynamic_bucket_table_go_where_they_are_told(
    judge: Judge, tmp_path: Path
) -> None:
    path = tmp_path / "db.db" / "dynamic"
    judge.create_table(path, PK, primary_key=["id"], options={"bucket": "-1"})
    judge.write(path, [(1, "a"), (2, "b")], buckets=[0, 3])
    assert sorted(file["bucket"] for file in judge.files(path)) == [0, 3]
    assert {index["index_type"] for index in judge.index_files(path)} == {"HASH"}


def level_runs(text: str) -> list[dict[str, int]]:
    """`level:size` pairs, newest first."""
    return [
        {"level": int(level), "size": int(size)} for level, size in re.findall(r"(\d+):(\d+)", text)
    ]


@pytest.mark.parametrize(
    ("runs", "picked"),
    [
        ("0:50 0:50 0:50 0:51 5:100", (5, 5)),
        ("0:500 0:500 0:500 5:1", None),
        ("0:1 0:1 0:2 4:100 5:1000", (3, 3)),
        ("0:100 0:101 0:300 4:10000 5:100000", (4, 4)),
        ("0:100 0:102 0:300 4:10000 5:100000", None),
        ("0:10 0:100 0:1000 0:10000 0:100000 4:1000000 5:10000000", (6, 4)),
    ],
)
def test_universal_pick(judge: Judge, runs: str, picked: tuple[int, int] | None) -> None:
    [unit] = judge.algorithms.pick_universal([{"runs": level_runs(runs)}])
    assert (None if unit is None else (len(unit["files"]), unit["output_level"])) == picked


def test_forced_gentle_off_peak_and_early_picks(judge: Judge) -> None:
    runs = level_runs("0:1 1:10 2:12 5:1000")
    forced = {"runs": runs, "force_up_level0": True}
    early = {"runs": level_runs("0:1 5:1000"), "optimization_interval": 100, "now": 5000}
    units = judge.algorithms.pick_universal(
        [
            {"runs": runs},
            forced,
            {**forced, "off_peak_ratio": 20},
            {**forced, "gentle_interval": 3, "calls": 2},
            {**forced, "gentle_interval": 3, "calls": 3},
            {**early, "last_full": 4900},
            {**early, "last_full": 4899},
            early,
            {"runs": level_runs("0:1 5:998"), "total_size_threshold": 1000},
            {"runs": level_runs("0:10 5:998"), "incremental_size_threshold": 10},
        ]
    )
    assert [None if unit is None else unit["output_level"] for unit in units] == [
        *(None, 1, 4, None, 1),
        *(None, 5, 5, 5, None),
    ]
    assert judge.algorithms.off_peak([(22, 6, 9, 5), (22, 6, 9, 6), (3, 3, 9, 3)]) == [9, 0, 0]


def test_full_pick(judge: Judge) -> None:
    bottom = {"runs": [{"level": 5, "files": [{"name": "a"}, {"name": "b"}]}]}
    units = judge.algorithms.pick_full(
        [
            bottom,
            {**bottom, "force_rewrite_all_files": True},
            {**bottom, "deletion_vectors": ["b"]},
            {"runs": level_runs("0:1")},
            {"runs": []},
        ]
    )
    assert units == [
        None,
        {"files": ["a", "b"], "output_level": 5, "file_rewrite": True},
        {"files": ["b"], "output_level": 5, "file_rewrite": True},
        {"files": ["0"], "output_level": 5, "file_rewrite": False},
        None,
    ]


def test_runs_of_files(judge: Judge) -> None:
    files = [
        {"name": "old", "max_seq": 1},
        {"name": "new", "max_seq": 2},
        {"name": "right", "level": 3, "min": 5, "max": 9},
        {"name": "left", "level": 3, "min": 1, "max": 4},
    ]
    overlapping = [{**file, "level": 1, "min": 0, "max": 9} for file in files]
    good, bad = judge.algorithms.sorted_runs([{"files": files}, {"files": overlapping}])
    assert good == {
        "runs": [[0, ["new"]], [0, ["old"]], [3, ["left", "right"]]],
        "num_levels": 6,
        "highest": 3,
    }
    assert "overlapping" in bad["error"]


def test_sections_of_overlapping_files(judge: Judge) -> None:
    bounds = {1: (1, 5), 2: (3, 8), 3: (6, 9), 4: (9, 12), 6: (12, 12), 5: (20, 30)}
    files = [{"name": str(n), "min": low, "max": high} for n, (low, high) in bounds.items()]
    assert judge.algorithms.interval_partition([files, []]) == [
        [[["2", "4"], ["1", "3", "6"]], [["5"]]],
        [],
    ]


def test_append_packing(judge: Judge) -> None:
    small = {"open_file_cost": 0, "target_file_size": 100, "small_file_ratio": 0.7}

    def files(*sizes: int) -> list[dict[str, int]]:
        return [{"size": size} for size in sizes]

    few = {**small, "files": files(3, 1, 2)}
    assert judge.algorithms.pack_append(
        [
            few,
            {**few, "rounds": 5},
            {**small, "files": files(5, 4, 3, 2, 1)},
            {**small, "files": files(60, 61, 62, 63, 70)},
            {**few, "min_file_num": 3, "open_file_cost": 100},
        ]
    ) == [[], [], [["4", "3", "2", "1", "0"]], [["0", "1", "2", "3"]], [["1", "2"]]]
    [aged] = judge.algorithms.pack_append([{**few, "rounds": 6}])
    assert sorted(aged[0]) == ["0", "1", "2"]


def test_bucketed_append_pick(judge: Judge) -> None:
    sizes = {"target_file_size": 100, "min_file_num": 3}
    three = [{"size": 90, "min_seq": 2}, {"size": 1, "min_seq": 1}, {"size": 1, "min_seq": 0}]
    four = [*three, {"size": 99, "min_seq": -1}]
    assert judge.algorithms.pick_bucketed_append(
        [
            {**sizes, "files": three},
            {**sizes, "files": three[:2]},
            {**sizes, "files": three, "full": True},
            {**sizes, "files": four, "full": True},
            {**sizes, "files": three[:2], "full": True},
            {**sizes, "files": three[:1], "full": True, "force_rewrite_all_files": True},
            {**sizes, "files": three[:1], "full": True, "deletion_vectors": ["0"]},
        ]
    ) == [
        *(["2", "1", "0"], None),
        # A full compaction takes the files as the priority queue happens to hold them.
        *(["2", "0", "1"], ["2", "1", "0"], None, ["0"], ["0"]),
    ]


def test_merge_order(judge: Judge) -> None:
    readers = [[[1, 5, 10], [2, 9, 1]], [[1, 4, 11]], [[1, 5, 9], [2, None, 4]]]
    by_sequence, by_user = judge.algorithms.merge_order(
        [{"readers": readers}, {"readers": readers, "user_sequence": True}]
    )
    assert by_sequence == [(1, [[2, 0], [0, 0], [1, 0]]), (2, [[0, 1], [2, 1]])]
    assert by_user == [(1, [[1, 0], [2, 0], [0, 0]]), (2, [[2, 1], [0, 1]])]


def test_compactions_are_timed_on_copies(judge: Judge, table: Path) -> None:
    judge.write(table, [(1, "a")])
    times = judge.compact_seconds(table, full=True, repetitions=2)
    assert len(times) == 2
    assert all(0 < seconds < 60 for seconds in times)
    assert judge.snapshots(table) == [1]
