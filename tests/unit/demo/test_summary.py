from __future__ import annotations

import pytest

from compactord.model import WorkKind
from compactord.scheduler.compaction import Outcome, TableCounters
from compactord_demo.ingestion import Tally
from compactord_demo.observer import History
from compactord_demo.summary import Result, verdict


def _result(name: str, *, is_same: bool = True, committed: int = 3) -> Result:
    """Its figures at the end are those after a backlog that was left on purpose."""
    runs = [0, 15, 2] if name == "orders" else []
    return Result(
        name=name,
        tally=Tally(commits=9, rows=90),
        counters=TableCounters(
            compactions={(WorkKind.MINOR, Outcome.COMMITTED): committed},
            input_files=30,
            output_files=4,
        ),
        history=History(runs=runs, files=[0, 18, 4]),
        runs=8,
        files=10,
        snapshots_made=9,
        snapshots_kept=5,
        rows=90,
        rows_expected=90,
        is_same=is_same,
        has_runs=bool(runs),
    )


@pytest.mark.parametrize(
    ("orders", "clicks", "said", "is_good"),
    [
        pytest.param(
            _result("orders"),
            _result("clicks"),
            "Rows equal: yes; orders from 30 to 4 files, at most 15 sorted runs; "
            "clicks from 30 to 4 files; next: go",
            True,
            id="compacted",
        ),
        pytest.param(
            _result("orders"),
            _result("clicks", committed=0),
            "Rows equal: yes, but nothing was compacted in clicks.",
            False,
            id="one table not compacted",
        ),
        pytest.param(
            _result("orders", is_same=False, committed=0),
            _result("clicks", is_same=False),
            "Rows equal: no, orders and clicks differ from what was ingested.",
            False,
            id="different rows come first",
        ),
    ],
)
def test_the_verdict_is_one_sentence(
    orders: Result, clicks: Result, said: str, is_good: bool
) -> None:
    assert verdict([orders, clicks], "go") == (said, is_good)
