"""Keys that move between partitions, placed by Java's own index before, beside and after us.

The primary key lacks a partition column: Java's bucket mode KEY_DYNAMIC. Its dedicated job refuses
such tables, so that ours are compared with what its writers do when they compact.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from compactord.errors import UnsupportedTable
from compactord.plan.table import Strategy
from tests.oracle.differential import (
    LiveTable,
    assert_exact_sizes,
    assert_same_files,
    assert_same_outcome,
    assert_same_rows,
    canonical,
    compact,
)
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import HERE, JudgeError, Row
from tests.oracle.test_compact_beside_writers import compact_beside

PROGRAM = HERE / "CrossPartitions.java"
SEEDS = range(2)
STEPS = 7
ENGINES: Mapping[str, Mapping[str, str]] = {
    "deduplicate": {},
    "partial-update": {},
    "aggregation": {
        "fields.a.aggregate-function": "sum",
        "fields.b.aggregate-function": "max",
    },
}
COLUMNS = (
    ("p", "INT"),
    ("q", "INT NOT NULL"),
    ("k", "INT NOT NULL"),
    ("a", "INT"),
    ("b", "STRING"),
)
NEVER_EXPIRES = {"record-level.expire-time": "100 d", "record-level.time-field": "a"}
# Of a job, for each of its checkpoints: kind and row.
Job = Sequence[Sequence[tuple[str, Row]]]


@pytest.fixture(scope="module", autouse=True)
def _programs(judge: Judge, writer: Judge) -> None:
    judge.jvm.load(PROGRAM)
    writer.jvm.load(PROGRAM)


@dataclass(kw_only=True)
class MovingTable(LiveTable):
    """A table of one of `ENGINES`, whose rows Java's GlobalIndexAssigner places."""

    engine: str = "deduplicate"

    def run(
        self,
        job: Job,
        *,
        writer: Judge | None = None,
        assigners: int = 1,
        is_batch: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Java starts a job that reads where the keys are, and commits at each checkpoint."""
        arguments = {
            "path": str(self.path),
            "assigners": assigners,
            "is_batch": is_batch,
            "options": dict(options or {}),
        }
        lines = [[*map(json.dumps, checkpoint)] for checkpoint in job]
        text = "\n[]\n".join("\n".join(each) for each in lines)
        (writer or self.judge).jvm.call("CrossPartitions", "write", arguments, text)
        self.follow([change for checkpoint in job for change in checkpoint])

    def follow(self, changes: Sequence[tuple[str, Row]]) -> None:
        """The model after a job. Only `deduplicate` moves a row; others keep its partition."""
        if self.engine == "deduplicate":
            self.apply([row for _, row in changes], [kind for kind, _ in changes])
            return
        for _, row in changes:
            old = self.model.get(self.key(row))
            self.model[self.key(row)] = row if old is None else self._merged(old, row)

    def _merged(self, old: Row, new: Row) -> Row:
        merged = [
            before if after is None else after for before, after in zip(old, new, strict=True)
        ]
        depth = len(self.partition_by)
        merged[:depth] = old[:depth]
        if self.engine == "aggregation":
            for column, merge in ((3, sum), (4, max)):
                known = [row[column] for row in (old, new) if row[column] is not None]
                merged[column] = merge(known) if known else None
        return merged


def moving_table(
    judge: Judge,
    path: Path,
    engine: str = "deduplicate",
    *,
    partition_by: tuple[str, ...] = ("p",),
    **options: str,
) -> MovingTable:
    """With a second partition column, that one is in the key, and the first is not."""
    found = MovingTable(
        judge=judge,
        path=path,
        columns=COLUMNS,
        primary_key=("k", *partition_by[1:]),
        partition_by=partition_by,
        options={"bucket": "-1", "merge-engine": engine, **ENGINES[engine], **options},
        engine=engine,
    )
    found.create()
    return found


class MovingHistory:
    """Random jobs of Java's on one table, with compactions between them."""

    def __init__(self, judge: Judge, path: Path, engine: str, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.compactions = 0
        self.steps: list[str] = []
        self.table = moving_table(
            judge,
            path,
            engine,
            partition_by=("p", "q") if seed % 2 else ("p",),
            **{
                "dynamic-bucket.target-row-num": str(chance.choice([1, 3, 10])),
                "num-sorted-run.compaction-trigger": str(chance.choice([2, 3, 5])),
                "num-levels": str(chance.choice([3, 6])),
                "target-file-size": chance.choice(["128 mb", "3 kb"]),
                "sequence.snapshot-ordering": chance.choice(["true", "false"]),
                "write.sequence-number-init-mode": chance.choice(["scan", "snapshot"]),
                # Java would lose the statistics of files that it moves to another level.
                "manifest.delete-file-drop-stats": "false",
                # Java does not commit for manifests alone.
                "manifest.merge-min-count": "30",
            },
        )

    def job(self, checkpoints: int) -> Job:
        return [
            [self._change() for _ in range(self.chance.choice([1, 4, 12]))]
            for _ in range(checkpoints)
        ]

    def _change(self) -> tuple[str, Row]:
        chance = self.chance
        weights = (6, 3, 2, 1) if self.table.engine == "deduplicate" else (6, 3, 0, 0)
        kind = chance.choices(("+I", "+U", "-D", "-U"), weights)[0]
        place = [chance.choice([None, 1, 2]), chance.choice([7, 8])]
        values = [chance.choice([None, 1, 5]), chance.choice([None, "x", "y"])]
        return kind, [*place, chance.randrange(12), *values]

    def compact(self, strategy: Strategy) -> None:
        """As Java does with a copy; then Java's next job finds the same keys in the same places."""
        self.compactions += 1
        twin = self.table.copy(f"java{self.compactions}")
        twin.java_settle(full=strategy is Strategy.FULL)
        self.table.settle(strategy)
        assert_same_outcome(self.table, twin)
        job, assigners = self.job(1), self.chance.choice([1, 2])
        for table in (twin, self.table):
            table.run(job, assigners=assigners)
            table.check()
        assert _new_files(self.table) == _new_files(twin)

    def step(self) -> None:
        name = self.chance.choices(["job", "batch", "minor", "full"], [4, 1, 4, 2])[0]
        self.steps.append(name)
        match name:
            case "job":
                self.table.run(self.job(3), assigners=self.chance.choice([1, 2]))
            case "batch":
                self.table.run(self.job(1), is_batch=True)
            case _:
                self.compact(Strategy.FULL if name == "full" else Strategy.MINOR)


def _new_files(table: MovingTable) -> list[tuple[Any, ...]]:
    """Partition, bucket and keys of each file of level 0; numbers may be those of snapshots."""
    names = ("partition_hex", "bucket", "min_key", "max_key", "row_count", "delete_row_count")
    return sorted(
        tuple(file[name] for name in names) for file in table.files() if file["level"] == 0
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_random_moves_are_compacted_as_by_java_and_go_on(
    judge: Judge, tmp_path: Path, engine: str, seed: int
) -> None:
    history = MovingHistory(judge, tmp_path / "db.db" / "t", engine, seed)
    table = history.table
    # A batch job into an empty table has a way of its own, in which Java takes all for inserts.
    table.run([[("+I", row) for _, row in history.job(1)[0]]], is_batch=True)
    try:
        for _ in range(STEPS):
            history.step()
            table.check()
        history.compact(Strategy.FULL)
    except (AssertionError, JudgeError) as error:
        raise AssertionError(f"seed {seed}, {history.steps}: {error}") from error
    assert {file["total_buckets"] for file in table.files()} == {-1}
    assert judge.index_files(table.path) == []
    assert_exact_sizes(table)


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_lost_or_doubled_while_java_moves_keys_and_we_compact(
    judge: Judge, writer: Judge, tmp_path: Path, engine: str
) -> None:
    history = MovingHistory(judge, tmp_path / "db.db" / "t", engine, 0)
    table = history.table
    table.run(history.job(3))

    def write() -> None:
        for _ in range(4):
            table.run(history.job(8), writer=writer)

    compact_beside(table, write)
    # A writer that compacts by itself.
    compacting = {"write-only": "false", "sequence.snapshot-ordering": "false"}
    table.run(history.job(3), options=compacting)
    table.check()


def _minor_and_full(table: MovingTable) -> Iterator[tuple[MovingTable, MovingTable]]:
    """The table and a twin after compactions by us and by Java, first minor, then full."""
    snapshot = max(table.judge.snapshots(table.path))
    for strategy in (Strategy.MINOR, Strategy.FULL):
        twin = table.copy(f"java-{snapshot}-{strategy.value}")
        twin.java_settle(full=strategy is Strategy.FULL)
        table.settle(strategy)
        assert canonical(table.judge.read(table.path)) == canonical(table.judge.read(twin.path))
        yield table, twin


def test_whatever_a_sum_makes_of_a_partition_column_readers_see_the_partition(
    judge: Judge, tmp_path: Path
) -> None:
    """Java reads a partition column from the folder. A sum of the file's own would overflow."""
    table = moving_table(
        judge,
        tmp_path / "db.db" / "t",
        "aggregation",
        **{"fields.default-aggregate-function": "sum", "fields.b.aggregate-function": "max"},
    )
    date = 20_260_101
    for round_ in range(2):
        for commit in range(6):
            table.run([[("+I", [date + commit % 2, 0, 1, 1, "x"])]])
        for ours, _ in _minor_and_full(table):
            assert judge.read(ours.path) == [(date, 0, 1, 6 * (round_ + 1), "x")]
            [file] = ours.files()
            stored = table.path / f"p={date}" / "bucket-0" / file["file_name"]
            assert pq.ParquetFile(stored).read(["p"]).to_pydict() == {"p": [date]}


def test_a_bucket_number_keeps_rows_where_they_were_written(judge: Judge, tmp_path: Path) -> None:
    table = moving_table(judge, tmp_path / "db.db" / "t", bucket="2")
    for commit in range(6):
        rows = [[p, 0, k, commit, "x"] for p in (None, 1, 2) for k in range(4) if k % 3 != p]
        judge.write(table.path, rows, ["-D" if row[2] == commit else "+I" for row in rows])
    before = canonical(judge.read(table.path))
    for ours, twin in _minor_and_full(table):
        assert canonical(judge.read(ours.path)) == before
        assert_same_files(ours, twin)


@pytest.mark.parametrize(
    ("option", "value", "old"), [("ignore-delete", "true", 5), ("rowkind.field", "b", 7)]
)
def test_a_row_whose_delete_is_none_stays_as_it_does_without_compaction(
    judge: Judge, tmp_path: Path, option: str, value: str, old: int
) -> None:
    """What writers leave in the partition that the key has left: its old row, or its new one."""
    table = moving_table(judge, tmp_path / "db.db" / "t", **{option: value})
    for number in range(6):
        table.run([[("+I", [1, 0, k, number, "+I"]) for k in (1, 2)]])
    table.run([[("+I", [2, 0, 1, 7, "+I"])]])
    rows = [(1, 0, 1, old, "+I"), (1, 0, 2, 5, "+I"), (2, 0, 1, 7, "+I")]
    assert sorted(judge.read(table.path)) == rows
    _assert_java_finds_a_key_twice(table.copy("before"))
    for ours, _ in _minor_and_full(table):
        assert sorted(judge.read(ours.path)) == rows
    _assert_java_finds_a_key_twice(table)


def _assert_java_finds_a_key_twice(table: MovingTable, **options: str) -> None:
    with pytest.raises(JudgeError, match="your data contains duplicates"):
        table.run([[("+I", [1, 0, 9, 9, "+I"])]], options=options)


def _assert_refused(table: MovingTable, option: str) -> None:
    with pytest.raises(UnsupportedTable) as refused:
        compact(table.path, Strategy.FULL)
    [reason] = refused.value.reasons
    assert reason.startswith(f"option {option}=")
    assert " with a primary key without p: " in reason


def _moved_from_a_large_file(table: MovingTable) -> Row:
    """A row of 3 hours ago, moved an hour later; a compaction of the new files leaves its file."""
    hour, now = 3600, int(time.time())
    was, moved, new = (
        [place, 0, 1, now - age * hour, "x"] for place, age in ((1, 3), (2, 2), (2, 0))
    )
    others = [[1, 0, k, now, f"{random.Random(k).random()}"] for k in range(2, 1000)]
    table.run([[("+I", row) for row in (was, *others)]])
    table.judge.compact(table.path, full=True, options=NEVER_EXPIRES)
    for row in (moved, new, *others[:5]):
        table.run([[("+I", row)]])
    table.check()
    return was


def test_the_delete_of_a_row_that_moved_stays_until_it_has_met_the_row(
    judge: Judge, tmp_path: Path
) -> None:
    table = moving_table(judge, tmp_path / "db.db" / "t")
    _moved_from_a_large_file(table)
    partition = min(file["partition_hex"] for file in table.files())
    for levels, (ours, twin) in zip(([4, 5], [5]), _minor_and_full(table), strict=True):
        assert_same_outcome(ours, twin)
        files = [file for file in ours.files() if file["partition_hex"] == partition]
        assert sorted(file["level"] for file in files) == levels
        assert sum(file["delete_row_count"] for file in files) == len(levels) - 1


def test_where_a_delete_can_expire_before_its_row_a_compaction_may_bring_a_key_back(
    judge: Judge, tmp_path: Path
) -> None:
    """Why `record-level.expire-time` is refused: Java's own compaction does so."""
    table = moving_table(
        judge,
        tmp_path / "db.db" / "t",
        **{"record-level.expire-time": "1 h", "record-level.time-field": "a"},
    )
    was = _moved_from_a_large_file(table)
    judge.compact(table.path, full=False)
    found = canonical(judge.read(table.path))
    assert_same_rows(found, sorted([*table.expected(), *canonical([was])]))
    _assert_java_finds_a_key_twice(table)
    _assert_refused(table, "record-level.expire-time")


def test_where_writers_forget_keys_of_old_files_a_compaction_may_bring_them_back(
    judge: Judge, tmp_path: Path
) -> None:
    """Why `cross-partition-upsert.index-ttl` is refused: Java's own compaction does so."""
    option = "cross-partition-upsert.index-ttl"
    table = moving_table(judge, tmp_path / "db.db" / "t", **{option: "1 ms"})
    for value in range(2):
        table.run([[("+I", [1, 0, 1, value, None])]], options={option: "1 d"})
    time.sleep(4)
    table.run([[("+I", [2, 0, 1, 2, None])]])
    rows = [(1, 0, 1, 1, None), (2, 0, 1, 2, None)]
    assert sorted(judge.read(table.path)) == rows, "the key was forgotten"
    before = table.copy("before")
    judge.compact(table.path, full=True)
    before.run([[("+I", [2, 0, 2, 2, None])]], options={option: "4 s"})
    _assert_java_finds_a_key_twice(table, **{option: "4 s"})
    _assert_refused(table, option)
