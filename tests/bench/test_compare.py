"""Figures beside those of an earlier run."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.bench.compare import compare, comparison_text, is_as_quick, read_cases, slower
from tests.bench.test_bench import REPOSITORY

PK = {"rows_in": 1000, "worker_cpu_s": 2.0, "wall_s": 1.0, "peak_rss_mib": 100, "java_wall_s": 3.0}


def _rewrite(**cpu_s: float) -> dict[str, Any]:
    lines = [{"case": case, "files": 10, "rows_in": 5, "cpu_s": s} for case, s in cpu_s.items()]
    return {"rewrite": {"lines": lines}}


@pytest.mark.parametrize(
    ("before", "now", "ratios", "too_slow"),
    [
        ({"pk": PK}, {"pk": PK}, [1, 1, 1], []),
        ({"pk": PK}, {"pk": PK | {"worker_cpu_s": 2.08}}, [1.04, 1, 1], []),
        ({"pk": PK}, {"pk": PK | {"worker_cpu_s": 2.12}}, [1.06, 1, 1], ["pk"]),
        ({"pk": PK}, {"pk": PK | {"worker_cpu_s": 1.0}}, [0.5, 1, 1], []),
        # Only shown: neither is CPU.
        ({"pk": PK}, {"pk": PK | {"wall_s": 9.0, "peak_rss_mib": 300}}, [1, 9, 3], []),
        # A bench of several lines, which may come in another order.
        (
            _rewrite(string=1, bigint=2),
            _rewrite(bigint=3, string=1),
            [1.5, 1],
            ["rewrite bigint 10"],
        ),
        # Another size, another case, and a figure that was not measured, or was nothing.
        ({"pk": PK}, {"pk": PK | {"rows_in": 10}}, [], []),
        ({"pk": PK}, {"append": PK}, [], []),
        ({"pk": {"rows_in": 1000, "worker_cpu_s": 0}}, {"pk": PK}, [], []),
    ],
)
def test_figures_of_the_same_size_are_compared_and_only_more_cpu_is_slower(
    before: Mapping[str, Any], now: Mapping[str, Any], ratios: list[float], too_slow: list[str]
) -> None:
    found = compare(before, now)
    assert [one.ratio for one in found] == pytest.approx(ratios)
    assert [one.case for one in slower(found, 0.05)] == too_slow
    assert is_as_quick(found, 0.05) == (bool(ratios) and not too_slow)
    text = comparison_text(found, now, 0.05)
    assert ("SLOWER" in text) == bool(too_slow)
    assert ("not compared" in text) == (not ratios)
    assert ("nowhere" in text) == (not too_slow)


@pytest.mark.parametrize("text", ["[]", "{}", '{"cases": 1}', "no JSON"])
def test_a_file_without_figures_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"no figures|Expecting value"):
        read_cases(path)


def _bench(json_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.bench", "--quick", "rewrite", "--json", str(json_path)]
    return subprocess.run(
        [*command, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run wrote."""
    path = tmp_path_factory.mktemp("earlier") / "figures.json"
    run = _bench(path)
    assert run.returncode == 0, run.stderr
    return json.loads(path.read_text())


@pytest.mark.bench
@pytest.mark.parametrize(
    ("factor", "code", "said"),
    [(1000, 0, "5%: nowhere"), (0.001, 1, "5%: rewrite append")],
    ids=["quicker", "slower"],
)
def test_the_exit_code_tells_that_cpu_has_grown(
    factor: float, code: int, said: str, earlier: dict[str, Any], tmp_path: Path
) -> None:
    before = copy.deepcopy(earlier)
    for line in before["cases"]["rewrite"]["lines"]:
        line["cpu_s"] *= factor
    # The new figures take its place, so it is read first.
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(before))
    run = _bench(path, "--compare", str(path))
    assert run.returncode == code, run.stdout + run.stderr
    assert said in run.stdout
    assert json.loads(path.read_text()) != before


def test_a_file_that_cannot_be_compared_with_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    run = _bench(tmp_path / "figures.json", "--compare", str(tmp_path / "none.json"))
    assert run.returncode == 2
    assert "none.json" in run.stderr
