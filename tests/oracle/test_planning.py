"""Random states of buckets: our picks equal those of Java's own classes, file by file.

The seeds are fixed; a failure prints the seed, the number of the case and the case.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compactord.errors import FormatError
from compactord.model import Compaction, CompactReason, PickRule, Rewrite, Upgrade
from compactord.paimon.binary_row import comparable_key
from compactord.paimon.data_file import DataFile
from compactord.paimon.options.table_options import CompactionOptions
from compactord.paimon.types import AtomicType, TypeRoot
from compactord.plan.append import pack_unaware, pick_bucketed, pick_bucketed_full
from compactord.plan.picks import (
    Pick,
    bucket_runs,
    level_count,
    pick_full,
)
from compactord.plan.sections import interval_partition
from compactord.plan.table import Strategy, plan_bucket
from compactord.plan.triggers import offpeak_ratio, pick_universal
from compactord.state.files_by_size import FilesBySize
from tests.oracle.judge import Judge
from tests.sampling import seeds
from tests.unit.plan.builders import (
    MB,
    append_options,
    bucket_of,
    compaction_options,
    data_file,
    key_of,
    names,
    plan_request,
)
from tests.unit.plan.test_cases import cases as text_cases
from tests.unit.plan.test_cases import parse_block, parse_question

SEEDS = seeds(1, 1, 3)
Case = dict[str, Any]


def file_of(case: Case) -> DataFile:
    return data_file(
        case["name"],
        level=case.get("level", 0),
        size=case["size"],
        keys=(case.get("min", 0), case.get("max", 0)),
        sequences=(case.get("min_seq", 0), case.get("max_seq", 0)),
        created_ms=case.get("creation", 0),
    )


def files_of(case: Case) -> list[DataFile]:
    return [file_of(file) for file in case["files"]]


def highest_level(files: list[DataFile]) -> int:
    return max((file.level for file in files), default=-1)


def random_lsm(rng: random.Random, *, valid: bool = True) -> list[Case]:
    """Files of one bucket, shuffled. Few distinct sequences and times, so that ties are common."""
    scale = rng.choice((10, 1000, 10**6, 10**12))
    files = []
    for _ in range(rng.choice((0, 1, 2, 3, 4, 5, 6, 12))):
        low, high = sorted((rng.randrange(30), rng.randrange(30)))
        first, last = sorted((rng.randrange(12), rng.randrange(12)))
        files.append({"level": 0, "min": low, "max": high, "min_seq": first, "max_seq": last})
    for level in rng.sample(range(1, 9), rng.choice((0, 0, 1, 1, 2, 3))):
        bounds = sorted(rng.sample(range(60), 2 * rng.randrange(1, 4)))
        if not valid and rng.random() < 0.3:
            rng.shuffle(bounds)
        for low, high in zip(bounds[::2], bounds[1::2], strict=True):
            files.append({"level": level, "min": low, "max": high})
    rng.shuffle(files)
    growth = rng.choice((1, 1, 3, 10))
    for number, file in enumerate(files):
        file["name"] = f"f{number}"
        file["size"] = rng.randrange(1, scale) * growth ** file["level"]
        file["creation"] = rng.randrange(3)
    return files


def random_merge_case(rng: random.Random) -> Case:
    case: Case = {
        "files": random_lsm(rng),
        "num_levels": rng.choice((2, 3, 6, 6, 6, 9)),
        "trigger": rng.choice((1, 2, 3, 5, 5, 8)),
        "max_size_amp": rng.choice((200, 200, 0, 25, 1000, 2**31 - 1)),
        "size_ratio": rng.choice((1, 1, 0, 20, 300)),
        "force_up_level0": rng.random() < 0.4,
    }
    if rng.random() < 0.2:
        case["off_peak_ratio"] = rng.choice((10, 1000))
    if rng.random() < 0.3:
        case["optimization_interval"] = 1000
        case["now"] = 5000
        if rng.random() < 0.8:
            case["last_full"] = rng.choice((3999, 4000, 4001))
    if rng.random() < 0.3:
        case["total_size_threshold"] = rng.randrange(1, 10**6)
    if rng.random() < 0.3:
        case["incremental_size_threshold"] = rng.randrange(1, 10**6)
    return case


def merge_options(case: Case) -> CompactionOptions:
    return compaction_options(
        num_levels=case["num_levels"],
        compaction_trigger=case["trigger"],
        max_size_amplification_percent=case["max_size_amp"],
        size_ratio_percent=case["size_ratio"],
        force_up_level_0=case["force_up_level0"],
        offpeak_start_hour=0,
        offpeak_end_hour=24,
        offpeak_ratio_percent=case.get("off_peak_ratio", 0),
        optimization_interval_ms=case.get("optimization_interval"),
        total_size_threshold=case.get("total_size_threshold"),
        incremental_size_threshold=case.get("incremental_size_threshold"),
    )


def our_minor_pick(case: Case) -> Pick | None:
    files, options = files_of(case), merge_options(case)
    return pick_universal(
        bucket_runs(files, key_of),
        level_count(highest_level(files), options.num_levels),
        options,
        rule=PickRule.RELEASE_2_0,
        now_ms=case.get("now", 0),
        last_full_ms=case.get("last_full"),
        hour_of_day=12,
    )


def filtered(unit: Case | None, case: Case) -> Case | None:
    """As MergeTreeCompactManager filters minor picks."""
    if unit is None or not unit["files"]:
        return None
    levels = {file["name"]: file["level"] for file in case["files"]}
    if len(unit["files"]) == 1 and levels[unit["files"][0]] == unit["output_level"]:
        return None
    return unit


def shown(pick: Pick | None) -> Case | None:
    if pick is None:
        return None
    return {
        "files": names(pick.files),
        "output_level": pick.output_level,
        "file_rewrite": pick.reason is CompactReason.FORCED_REWRITE,
    }


def assert_same(seed: int, cases: Sequence[Any], ours: Sequence[Any], java: Sequence[Any]) -> None:
    assert len(cases) == len(ours) == len(java)
    for number, (case, mine, expected) in enumerate(zip(cases, ours, java, strict=True)):
        assert mine == expected, f"seed {seed}, case {number}: {case}"


@pytest.mark.parametrize("seed", SEEDS)
def test_minor_picks(judge: Judge, seed: int) -> None:
    rng = random.Random(seed)
    cases = [random_merge_case(rng) for _ in range(1500)]
    picks = [our_minor_pick(case) for case in cases]
    units = judge.algorithms.pick_universal(cases)
    java = [filtered(unit, case) for unit, case in zip(units, cases, strict=True)]
    assert_same(seed, cases, [shown(pick) for pick in picks], java)
    reasons = {pick.reason for pick in picks if pick is not None}
    assert reasons == {
        CompactReason.EARLY_FULL_INTERVAL,
        CompactReason.EARLY_FULL_TOTAL_SIZE,
        CompactReason.EARLY_FULL_INCREMENTAL_SIZE,
        CompactReason.SIZE_AMPLIFICATION,
        CompactReason.SIZE_RATIO,
        CompactReason.RUN_COUNT,
        CompactReason.FORCED_LEVEL_0,
    }
    assert sum(pick is None for pick in picks) > 100


def test_text_cases_hold_what_java_picks(judge: Judge) -> None:
    """`hour` has no counterpart: Java asks the clock, so off-peak is on or off as a whole."""
    names_of = {
        "levels": "num_levels",
        "amp": "max_size_amp",
        "ratio": "size_ratio",
        "force-level-0": "force_up_level0",
        "interval": "optimization_interval",
        "total": "total_size_threshold",
        "incremental": "incremental_size_threshold",
        "trigger": "trigger",
    }
    cases: list[Case] = []
    expected = []
    for parameter in text_cases():
        _, command_line, files_line, text = parse_block(parameter.values[1])
        command, files, settings = parse_question(command_line, files_line)
        if command != "pick":
            continue
        case: Case = {"files": [case_of(file) for file in files], "now": 0}
        case |= {names_of[key]: value for key, value in settings.items() if key in names_of}
        if "last-full" in settings:
            case["last_full"] = -settings["last-full"]
        if settings.get("hour") == 23:
            case["off_peak_ratio"] = settings["offpeak-ratio"]
        cases.append(case)
        expected.append(text)
    ours = []
    for unit, case in zip(judge.algorithms.pick_universal(cases), cases, strict=True):
        kept = filtered(unit, case)
        ours.append(f"{' '.join(kept['files'])} -> L{kept['output_level']}" if kept else "none")
    assert len(ours) > 30
    assert ours == [text.rpartition(" ")[0] or text for text in expected]


def case_of(file: DataFile) -> Case:
    return {
        "name": file.file_name,
        "level": file.level,
        "size": file.file_size,
        "min": key_of(file.min_key)[0],
        "max": key_of(file.max_key)[0],
        "min_seq": file.min_sequence_number,
        "max_seq": file.max_sequence_number,
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_full_picks(judge: Judge, seed: int) -> None:
    rng = random.Random(seed)
    cases = [
        {
            "files": random_lsm(rng),
            "num_levels": rng.choice((2, 6, 9)),
            "force_rewrite_all_files": rng.random() < 0.5,
        }
        for _ in range(500)
    ]
    ours = []
    for case in cases:
        files = files_of(case)
        pick = pick_full(
            bucket_runs(files, key_of),
            level_count(highest_level(files), case["num_levels"]),
            force_rewrite=case["force_rewrite_all_files"],
        )
        ours.append(shown(pick))
    assert_same(seed, cases, ours, judge.algorithms.pick_full(cases))
    assert any(unit is not None and unit["file_rewrite"] for unit in ours)


@pytest.mark.parametrize("seed", SEEDS)
def test_sorted_runs_and_refusals(judge: Judge, seed: int) -> None:
    rng = random.Random(seed)
    cases = [{"files": random_lsm(rng, valid=False), "num_levels": 6} for _ in range(500)]
    ours: list[Case | None] = []
    for case in cases:
        files = files_of(case)
        try:
            runs = bucket_runs(files, key_of)
        except FormatError:
            ours.append(None)
            continue
        ours.append(
            {
                "runs": [[run.level, names(run.files)] for run in runs],
                "num_levels": level_count(highest_level(files), 6),
                "highest": highest_level(files),
            }
        )
    java = [None if "error" in answer else answer for answer in judge.algorithms.sorted_runs(cases)]
    assert_same(seed, cases, ours, java)
    assert None in ours


@pytest.mark.parametrize("seed", SEEDS)
def test_sections_with_their_order_of_runs(judge: Judge, seed: int) -> None:
    rng = random.Random(seed)
    cases = []
    for _ in range(1000):
        keys = rng.choice((6, 30, 300))
        cases.append(
            [
                {"name": f"f{number}", "size": 1, "min": low, "max": low + rng.randrange(keys // 3)}
                for number in range(rng.choice((1, 2, 3, 6, 12, 40)))
                for low in [rng.randrange(keys)]
            ]
        )
    ours = [
        [
            [names(run.files) for run in section.runs]
            for section in interval_partition([file_of(file) for file in case], key_of)
        ]
        for case in cases
    ]
    assert_same(seed, cases, ours, judge.algorithms.interval_partition(cases))


def test_offpeak_ratio_of_every_hour(judge: Judge) -> None:
    cases = [
        (start, end, 7, hour)
        for start in (-1, 0, 3, 22, 23)
        for end in (-1, 0, 3, 6, 22, 24)
        for hour in range(24)
    ]
    ours = [
        offpeak_ratio(
            compaction_options(
                offpeak_start_hour=start, offpeak_end_hour=end, offpeak_ratio_percent=ratio
            ),
            hour,
        )
        for start, end, ratio, hour in cases
    ]
    assert_same(0, cases, ours, judge.algorithms.off_peak(cases))


def random_append_case(rng: random.Random) -> Case:
    """Distinct sizes: Java's order among equal ones is that of a hash set."""
    largest = rng.choice((3, 60, 250, 250, 700)) * MB
    count = rng.choice((0, 1, 2, 4, 5, 9, 30))
    sizes = rng.sample(range(1, largest), count)
    sequences = sorted(rng.sample(range(1000), count))
    return {
        "files": [
            {"name": f"f{number}", "size": size, "min_seq": sequence, "max_seq": sequence}
            for number, (size, sequence) in enumerate(zip(sizes, sequences, strict=True))
        ],
        "min_file_num": rng.choice((2, 3, 5, 5, 8)),
        "target_file_size": rng.choice((256, 256, 100)) * MB,
        "open_file_cost": rng.choice((0, 4 * MB, 200 * MB)),
        "small_file_ratio": rng.choice((0.7, 0.5, 0.001)),
    }


def options_of_append(case: Case) -> CompactionOptions:
    return append_options(
        min_file_num=case["min_file_num"],
        target_file_size=case["target_file_size"],
        small_file_ratio=case["small_file_ratio"],
        open_file_cost=case.get("open_file_cost", 4 * MB),
        force_rewrite_all_files=case.get("force_rewrite_all_files", False),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_packing_without_buckets(judge: Judge, seed: int) -> None:
    rng = random.Random(seed)
    cases = [random_append_case(rng) for _ in range(400)]
    ours = []
    for case in cases:
        files = FilesBySize.of(bucket_of(files_of(case)))
        packed, _ = pack_unaware(files, options_of_append(case), now_local_ms=0, wait_ms=0)
        ours.append([names(one.inputs) for one in packed])
    assert_same(seed, cases, ours, judge.algorithms.pack_append(cases))
    assert any(len(picks) > 1 for picks in ours)


@pytest.mark.parametrize("seed", SEEDS)
def test_packing_of_what_has_waited_is_that_of_java_after_six_rounds(
    judge: Judge, seed: int
) -> None:
    rng = random.Random(seed)
    cases = [{**random_append_case(rng), "rounds": 8} for _ in range(100)]
    fresh = [{**case, "rounds": 1} for case in cases]
    java_last = judge.algorithms.pack_append([{**case, "rounds": 6} for case in cases])
    ours, java = [], []
    for case, first, last in zip(
        cases, judge.algorithms.pack_append(fresh), java_last, strict=True
    ):
        if first:
            continue
        files = FilesBySize.of(bucket_of(files_of(case)))
        packed, _ = pack_unaware(files, options_of_append(case), now_local_ms=1, wait_ms=0)
        ours.append([sorted(names(one.inputs)) for one in packed])
        java.append([sorted(group) for group in last])
    assert len(ours) > 20
    assert_same(seed, ours, ours, java)
    assert any(ours)


@pytest.mark.parametrize("seed", SEEDS)
def test_minor_picks_in_append_buckets(judge: Judge, seed: int) -> None:
    rng = random.Random(seed)
    cases = [random_append_case(rng) for _ in range(500)]
    kept, ours, java = [], [], []
    for case, expected in zip(cases, judge.algorithms.pick_bucketed_append(cases), strict=True):
        options = options_of_append(case)
        if expected is not None and not lowers_file_count(case, expected):
            continue
        kept.append(case)
        ours.append(first_names(pick_bucketed(files_of(case), options)))
        java.append(expected)
    assert len(kept) > 350
    assert_same(seed, kept, ours, java)
    assert sum(pick is not None for pick in ours) > 50


def lowers_file_count(case: Case, picked: Sequence[str]) -> bool:
    total = sum(file["size"] for file in case["files"] if file["name"] in picked)
    return -(-total // case["target_file_size"]) < len(picked)


@pytest.mark.parametrize("seed", SEEDS)
def test_minor_picks_in_append_buckets_differ_only_where_nothing_is_gained(
    judge: Judge, seed: int
) -> None:
    rng = random.Random(seed)
    cases = [random_append_case(rng) for _ in range(300)]
    differing = 0
    for case, expected in zip(cases, judge.algorithms.pick_bucketed_append(cases), strict=True):
        if expected is None or lowers_file_count(case, expected):
            continue
        differing += 1
        mine = first_names(pick_bucketed(files_of(case), options_of_append(case)))
        assert mine != expected
        assert mine is None or lowers_file_count(case, mine), f"seed {seed}: {case}"
    assert differing > 5


@pytest.mark.parametrize("seed", SEEDS)
def test_full_picks_in_append_buckets(judge: Judge, seed: int) -> None:
    rng = random.Random(seed)
    cases = [
        {
            **random_append_case(rng),
            "full": True,
            "force_rewrite_all_files": rng.random() < 0.3,
        }
        for _ in range(400)
    ]
    # Java's classes hand an empty bucket to a rewrite when forced; there is nothing to rewrite.
    cases = [case for case in cases if case["files"]]
    ours = [
        first_names(pick_bucketed_full(files_of(case), options_of_append(case))) for case in cases
    ]
    assert_same(seed, cases, ours, judge.algorithms.pick_bucketed_append(cases))
    assert sum(pick is not None for pick in ours) > 50
    assert sum(pick is None for pick in ours) > 50


def first_names(picks: Sequence[Sequence[DataFile]]) -> list[str] | None:
    return names(picks[0]) if picks else None


def test_full_compactions_rewrite_and_upgrade_the_same_files(judge: Judge, tmp_path: Path) -> None:
    """Real tables: what our plan rewrites Java replaces, what it upgrades Java keeps."""
    compactions = [
        compaction
        for seed in range(12)
        for compaction in compare_full_compactions(judge, tmp_path / "db.db" / f"t{seed}", seed)
    ]
    actions = [action for compaction in compactions for action in compaction.actions]
    assert sum(isinstance(action, Upgrade) for action in actions) > 10
    assert sum(isinstance(action, Rewrite) for action in actions) > 20
    assert sum(len(compaction.actions) > 2 for compaction in compactions) > 2


def compare_full_compactions(judge: Judge, path: Path, seed: int) -> list[Compaction]:
    rng = random.Random(seed)
    force_rewrite = seed % 4 == 3
    options = {
        "bucket": "1",
        "write-only": "true",
        "target-file-size": "6 kb",
        "compaction.force-rewrite-all-files": str(force_rewrite).lower(),
    }
    columns = [("k", "INT NOT NULL"), ("v", "STRING")]
    judge.create_table(path, columns, primary_key=["k"], options=options)
    compactions = []
    for _ in range(2):
        for _ in range(rng.randrange(1, 7)):
            write_some(judge, path, rng)
        before = {file["file_name"]: file for file in judge.files(path)}
        compaction = plan_full(list(before.values()), force_rewrite=force_rewrite)
        judge.compact(path, full=True)
        after = {file["file_name"]: file for file in judge.files(path)}
        upgraded = {a.file.file_name for a in compaction.actions if isinstance(a, Upgrade)}
        inputs = set(names(compaction.inputs))
        assert inputs - upgraded == before.keys() - after, f"seed {seed}"
        assert upgraded == {
            name for name in before.keys() & after if before[name]["level"] != after[name]["level"]
        }, f"seed {seed}"
        assert {file["level"] for file in after.values()} <= {compaction.output_level}
        spans = [span_of(action) for action in compaction.actions if isinstance(action, Rewrite)]
        for name in after.keys() - before:
            low, high = (int_key(bytes.fromhex(after[name][end])) for end in ("min_key", "max_key"))
            assert sum(first <= low and high <= last for first, last in spans) == 1, f"seed {seed}"
        compactions.append(compaction)
    return compactions


def int_key(data: bytes) -> tuple[Any, ...]:
    return comparable_key(data, [AtomicType(root=TypeRoot.INT, nullable=False)])


def span_of(rewrite: Rewrite) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    files = [file for section in rewrite.sections for run in section.runs for file in run.files]
    return min(int_key(file.min_key) for file in files), max(int_key(f.max_key) for f in files)


def write_some(judge: Judge, path: Path, rng: random.Random) -> None:
    start, count = rng.randrange(20_000), rng.choice((1, 20, 400, 900))
    deletes = rng.random() < 0.3
    rows = [(start + number, f"{rng.random()}") for number in range(count)]
    kinds = ["-D" if deletes and number % 5 == 1 else "+I" for number in range(count)]
    judge.write(path, rows, kinds)


def plan_full(entries: Sequence[Case], *, force_rewrite: bool) -> Compaction:
    files = [
        replace(
            data_file(
                entry["file_name"],
                level=entry["level"],
                size=entry["file_size"],
                sequences=(entry["min_sequence_number"], entry["max_sequence_number"]),
                created_ms=entry["creation_time"],
                deletes=entry["delete_row_count"],
            ),
            min_key=bytes.fromhex(entry["min_key"]),
            max_key=bytes.fromhex(entry["max_key"]),
        )
        for entry in entries
    ]
    request = plan_request(
        strategy=Strategy.FULL,
        options=compaction_options(target_file_size=6 << 10, force_rewrite_all_files=force_rewrite),
        key_of=int_key,
    )
    (compaction,) = plan_bucket(bucket_of(files), request).compactions
    return compaction
