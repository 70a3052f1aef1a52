"""The benchmark runs, so that it cannot rot."""

from __future__ import annotations

import pytest

from tests.bench.bench_kernel import CASES, lines


@pytest.mark.parametrize("case", CASES)
def test_a_tiny_run_reports_both_figures(case: str) -> None:
    disjoint, overlapping = lines(rows=2000, window_rows=500, repetitions=1, cases=[case])
    assert disjoint["rows_out"] == overlapping["rows_out"]
    assert 0 < disjoint["rows_out"] < disjoint["rows_in"]
    assert disjoint["keys_ns"] > 0
    assert overlapping["rows_ns"] > 0
