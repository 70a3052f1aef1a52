"""pypaimon and compactord take turns on a table; `python -m tests.compat` runs many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.asking import PyPaimon
from tests.compat.histories import History
from tests.compat.reachable import Walked, Walker
from tests.oracle.judge import Judge

SEEDS = range(12)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_read_the_rows_and_nothing_is_lost_or_left(
    pypaimon: PyPaimon, judge: Judge, warehouse: Path, seed: int
) -> None:
    History(pypaimon, judge, warehouse, f"h{seed}", seed).run()


@pytest.mark.parametrize(
    ("number", "pattern"),
    [
        (1, "manifest/manifest-list-*-0"),
        (2, "manifest/manifest-list-*-1"),
        (3, "manifest/manifest-[!l]*-0"),
        (4, "manifest/*.sidecar"),
        (5, "bucket-0/data-*"),
    ],
)
def test_the_walk_finds_what_is_missing_and_what_nobody_names(
    pypaimon: PyPaimon, warehouse: Path, number: int, pattern: str
) -> None:
    table, path = f"walked.t{number}", warehouse / "walked.db" / f"t{number}"
    pypaimon.ask(
        "create",
        table=table,
        columns=[["k", "INT NOT NULL"]],
        primary_key=["k"],
        partition_by=[],
        options={"bucket": "1", "manifest.sidecar.enabled": "true"},
    )
    pypaimon.ask("prepare", table=table, number=1, rows=[[1]])
    pypaimon.ask("commit", number=1)
    walked = Walker(path).walk()
    assert walked == Walked(walked.there, walked.there, ())
    [victim] = path.glob(pattern)
    stray = victim.rename(victim.with_name(f"{victim.name}-0"))
    walked = Walker(path).walk()
    assert [Path(missing).name for missing in walked.missing] == [victim.name]
    assert str(stray.relative_to(path)) in walked.orphans
