"""Random append tables with deletion vectors: Java writes, deletes and updates, both compact."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from compactord.plan.table import Strategy
from tests.oracle.differential import LiveTable
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import JudgeError, Row
from tests.oracle.vectors import (
    VECTORS,
    assert_same_vectors,
    assert_sound,
    compact_beside,
    delete,
    update,
)

STEPS = {
    "write": 8,
    "delete": 6,
    "update": 2,
    "minor": 3,
    "full": 1,
    "java minor": 1,
    "java full": 1,
    "minor beside delete": 2,
    "full beside update": 2,
}


class AppendHistory:
    """One table and random steps on it, all from one seed."""

    def __init__(self, judge: Judge, path: Path, seed: int) -> None:
        self.chance = random.Random(f"append {seed}")
        self.judge = judge
        self.written = 0
        self.steps: list[str] = []
        self.table = LiveTable(
            judge=judge,
            path=path,
            columns=(("p", "INT NOT NULL"), ("n", "INT"), ("v", "STRING")),
            partition_by=("p",) if self.chance.random() < 0.5 else (),
            options=self._options(),
        ).create()

    def _options(self) -> dict[str, str]:
        chance = self.chance
        options = {
            **VECTORS,
            "bucket": "-1",
            "deletion-vectors.bitmap64": chance.choice(["true", "false"]),
            "deletion-vector.index-file.target-size": chance.choice(["2 mb", "60 b"]),
            "compaction.delete-ratio-threshold": chance.choice(["0.2", "0.05", "0.6"]),
            "target-file-size": chance.choice(["128 mb", "3 kb", "2 kb"]),
            "source.split.open-file-cost": "1 b",
            "compaction.min.file-num": chance.choice(["2", "5"]),
        }
        if chance.random() < 0.5:
            options |= {"bucket": chance.choice(["1", "2"]), "bucket-key": "n"}
        return options

    def rows(self) -> list[Row]:
        first = self.written
        self.written += self.chance.choice([1, 5, 40, 200])
        return [[n % 2, n, f"{n:09}"] for n in range(first, self.written)]

    def some(self) -> Callable[[Row], bool]:
        """Rows of a range, all or part of them."""
        first = self.chance.randrange(self.written)
        end = first + self.chance.choice([1, 10, 200, 10**6])
        step = self.chance.choice([1, 1, 2, 7])
        return lambda row: first <= int(row[1]) < end and row[1] % step == 0

    def step(self) -> None:
        name = self.chance.choices(list(STEPS), list(STEPS.values()))[0]
        self.steps.append(name)
        match name:
            case "write":
                self.table.write(self.rows())
            case "delete":
                delete(self.table, self.some())
            case "update":
                update(self.table, self.some())
            case "minor":
                self.as_java()
            case "full":
                self.table.settle(Strategy.FULL)
            case "java minor":
                _java_compacts(self.table, full=False)
            case "java full":
                _java_compacts(self.table, full=True)
            case "minor beside delete":
                compact_beside(self.table, lambda: delete(self.table, self.some()))
            case "full beside update":
                beside = lambda: update(self.table, self.some())  # noqa: E731
                compact_beside(self.table, beside, Strategy.FULL)
        self.table.check()

    def as_java(self) -> None:
        """We compact the table and Java a copy: the same rows of the files that both have count."""
        java = self.table.copy(f"java{len(self.steps)}")
        while _java_compacts(java, full=False):
            pass
        self.table.settle()
        assert_same_vectors(self.table, java)
        java.check()


def _java_compacts(table: LiveTable, *, full: bool) -> bool:
    """Whether Java found something to do.

    It refuses its own commit where it has compacted a bucket twice for it: a file is gone in it,
    then added.
    """
    try:
        return table.judge.compact(table.path, full=full) is not None
    except JudgeError as error:
        if "which is already in the the map" not in str(error):
            raise
        return False


def run_append_history(judge: Judge, path: Path, seed: int) -> None:
    """Raises `AssertionError` with the seed and the steps when a row is wrong."""
    history = AppendHistory(judge, path, seed)
    history.table.write(history.rows())
    try:
        for _ in range(12):
            history.step()
        history.table.settle(Strategy.FULL)
        history.table.check()
        assert_sound(history.table)
        assert not history.table.settle(Strategy.FULL).snapshots
    except AssertionError as error:
        raise AssertionError(
            f"seed {seed}, {history.steps} {history.table.options}: {error}"
        ) from error
