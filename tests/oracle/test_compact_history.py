"""Random histories: Java writes, Java and we compact, in any order; a dict knows the rows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from compactord.plan.table import Strategy
from tests.oracle.differential import LiveTable, assert_exact_sizes, assert_filters
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import Row, TypeName, Value
from tests.oracle.samples import ATOMIC, EVERY_TYPE, not_null
from tests.sampling import seeds

SEEDS = seeds(0, 12, 24)
STEPS = 14
PARTITION_KINDS = ("date", "varchar", "int", "boolean", "tinyint", "decimal-9", "timestamp-3")


class History:
    """One table of random columns and options, and random steps on it, all from one seed."""

    # Whether it is certain to have a primary key.
    has_key = False

    def __init__(self, judge: Judge, path: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.judge = judge
        has_key = self.chance.random() < 0.7 or self.has_key
        keys = self.chance.sample(list(ATOMIC), self.chance.choice([1, 1, 2, 3]))
        partitions = self.chance.sample(PARTITION_KINDS, self.chance.choice([0, 0, 1, 2]))
        values = self.chance.sample(list(EVERY_TYPE), self.chance.randrange(1, 9))
        self.pools: list[list[Value]] = [self._partition_pool(kind) for kind in partitions]
        self.pools += [ATOMIC[kind][1] for kind in keys]
        # A column of numbers makes enough different keys of few values.
        self.pools.append(list(range(12)))
        self.key_count = len(self.pools)
        self.pools += [EVERY_TYPE[kind][1] for kind in values]
        columns: list[tuple[str, TypeName]] = [
            *((f"p{i}", not_null(ATOMIC[kind][0])) for i, kind in enumerate(partitions)),
            *((f"k{i}", not_null(ATOMIC[kind][0])) for i, kind in enumerate(keys)),
            ("k", "SMALLINT NOT NULL"),
        ]
        names = [name for name, _ in columns]
        columns += [(f"v{i}", EVERY_TYPE[kind][0]) for i, kind in enumerate(values)]
        self.table = LiveTable(
            judge=judge,
            path=path,
            columns=tuple(columns),
            primary_key=tuple(names) if has_key else (),
            partition_by=tuple(names[: len(partitions)]),
            options=self._options(has_key=has_key, buckets_by=names[len(partitions)]),
        ).create()
        self.steps: list[str] = []

    def _partition_pool(self, kind: str) -> list[Value]:
        pool = [value for value in ATOMIC[kind][1] if value not in ("", "a\x00")]
        return self.chance.sample(pool, min(len(pool), 3))

    def _options(self, *, has_key: bool, buckets_by: str) -> dict[str, str]:
        chance = self.chance
        options = {
            "bucket": str(chance.choice([1, 1, 2, 3])),
            "file.compression": chance.choice(["zstd", "none", "gzip"]),
            "metadata.stats-mode": chance.choice(["truncate(16)", "full", "counts", "none"]),
            "metadata.stats-dense-store": chance.choice(["true", "false"]),
            "target-file-size": chance.choice(["128 mb", "8 kb", "3 kb"]),
            "file.block-size": chance.choice(["128 mb", "2 kb"]),
            "num-sorted-run.compaction-trigger": str(chance.choice([2, 3, 5])),
            "manifest.merge-min-count": str(chance.choice([3, 30])),
            "manifest.full-compaction-threshold-size": chance.choice(["1 kb", "16 mb"]),
            "manifest.delete-file-drop-stats": chance.choice(["true", "false"]),
            "write.sequence-number-init-mode": chance.choice(["scan", "snapshot"]),
        }
        if has_key:
            options["data-file.thin-mode"] = chance.choice(["true", "false"])
            options["num-levels"] = str(chance.choice([2, 3, 6]))
        elif chance.random() < 0.5:
            options["bucket"] = "-1"
        else:
            options["bucket-key"] = buckets_by
        return options

    def rows(self) -> list[Row]:
        rows: dict[str, Row] = {}
        for _ in range(self.chance.choice([1, 5, 40])):
            row = [self._value(index) for index in range(len(self.pools))]
            rows[str(row[: self.key_count])] = row
        return list(rows.values())

    def _value(self, index: int) -> Value:
        if index >= self.key_count and self.chance.random() < 0.2:
            return None
        return self.chance.choice(self.pools[index])

    def step(self) -> None:
        name = self.chance.choices(
            ["write", "minor", "full", "java minor", "java full", "java flush"],
            weights=[10, 3, 1, 1, 1, 1],
        )[0]
        self.steps.append(name)
        match name:
            case "write":
                rows = self.rows()
                kinds = None
                if self.table.primary_key:
                    kinds = [self.chance.choice(["+I", "+U", "-D", "-U", "+I"]) for _ in rows]
                self.table.write(rows, kinds)
            case "minor":
                self.table.settle()
            case "full":
                self.table.settle(Strategy.FULL)
            case "java minor":
                self.judge.compact(self.table.path, full=False)
            case "java full":
                self.judge.compact(self.table.path, full=True)
            case "java flush":
                # A writer that compacts by itself while it writes.
                self.table.write(self.rows(), options={"write-only": "false"})

    def samples(self) -> dict[str, tuple[TypeName, list[Value]]]:
        """A few columns."""
        found = [
            (name, (type_, pool))
            for (name, type_), pool in zip(self.table.columns, self.pools, strict=True)
        ]
        return dict(self.chance.sample(found, min(2, len(found))))


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_those_of_the_model_after_every_step(
    judge: Judge, tmp_path: Path, seed: int
) -> None:
    history = History(judge, tmp_path / "db.db" / "t", seed)
    history.table.write(history.rows())
    for _ in range(STEPS):
        history.step()
        try:
            history.table.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {history.steps}: {error}") from error
    history.table.settle(Strategy.FULL)
    history.table.check()
    assert_exact_sizes(history.table)
    assert not history.table.settle(Strategy.FULL).snapshots
    assert_filters(history.table, history.samples())
