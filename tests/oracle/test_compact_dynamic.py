"""Dynamic buckets: Java's writers assign them by HASH indexes, which no compaction changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compactord.plan.table import Strategy
from tests.oracle.differential import (
    LiveTable,
    assert_exact_sizes,
    assert_same_outcome,
    folder_digest,
)
from tests.oracle.judge import Judge
from tests.oracle.merging import run_history
from tests.oracle.test_compact_history import History

SEEDS = range(4)
STEPS = 8


class DynamicHistory(History):
    """A random table of this kind, with compactions by both sides."""

    has_key = True
    compactions = 0

    def _options(self, *, has_key: bool, buckets_by: str) -> dict[str, str]:
        options = super()._options(has_key=has_key, buckets_by=buckets_by)
        # Java would lose the statistics of files that it moves to another level.
        options["manifest.delete-file-drop-stats"] = "false"
        # Java does not commit for manifests alone.
        options["manifest.merge-min-count"] = "30"
        options["manifest.full-compaction-threshold-size"] = "16 mb"
        # With `snapshot` Java's write-only writers forget the keys that a bucket had.
        options["write.sequence-number-init-mode"] = "scan"
        options["dynamic-bucket.target-row-num"] = str(self.chance.choice([1, 3, 10]))
        options["dynamic-bucket.max-buckets"] = self.chance.choice(["-1", "4"])
        if self.chance.random() < 0.5:
            # The most common table there is: its owner sets no number of buckets.
            del options["bucket"]
        else:
            options["bucket"] = "-1"
        return options

    def compact(self, strategy: Strategy) -> None:
        """As Java does with a copy; the HASH indexes are those of before, byte for byte."""
        self.compactions += 1
        twin = self.table.copy(f"java{self.compactions}")
        twin.java_settle(full=strategy is Strategy.FULL)
        before = indexes(self.table)
        self.table.settle(strategy)
        assert indexes(self.table) == before
        assert_same_outcome(self.table, twin)
        # Writers of Java go on after Java's compaction as after ours.
        rows = self.rows()
        twin.write(rows)
        self.table.write(rows)
        twin.check()
        assert known_keys(twin) == known_keys(self.table)

    def step(self) -> None:
        name = self.chance.choices(["write", "minor", "full"], weights=[8, 3, 1])[0]
        if name == "write":
            super().step()
            return
        self.steps.append(name)
        self.compact(Strategy.FULL if name == "full" else Strategy.MINOR)


def indexes(table: LiveTable) -> tuple[str, list[dict[str, Any]], dict[str, str]]:
    """Name of the index manifest, its entries, and the bytes of all index files."""
    snapshot = table.judge.snapshot(table.path)
    assert snapshot is not None
    files = table.judge.index_files(table.path)
    assert {file["index_type"] for file in files} == {"HASH"}
    digest = folder_digest(table.path / "index")
    assert all(file["file_name"] in digest for file in files)
    return snapshot["indexManifest"], files, digest


def known_keys(table: LiveTable) -> int:
    return sum(file["row_count"] for file in table.judge.index_files(table.path))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_tables_are_compacted_as_by_java_and_written_on(
    judge: Judge, tmp_path: Path, seed: int
) -> None:
    history = DynamicHistory(judge, tmp_path / "db.db" / "t", seed)
    table = history.table
    table.write(history.rows())
    try:
        for _ in range(STEPS):
            history.step()
            table.check()
        history.compact(Strategy.FULL)
        table.check()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, {history.steps}: {error}") from error
    assert {file["total_buckets"] for file in table.files()} == {-1}
    assert_exact_sizes(table)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_merge_engine_merges_in_dynamic_buckets_as_java_does(
    judge: Judge, tmp_path: Path, seed: int
) -> None:
    options = {"bucket": "-1", "dynamic-bucket.target-row-num": "2"}
    run_history(judge, tmp_path / "db.db" / "t", seed, options)
