from __future__ import annotations

import io

import pytest
from rich.console import Console

from compactord.service.view import TableStatus
from compactord.top.top import console_on
from compactord_demo.observer import History, Observer
from compactord_demo.screen import curve, screen_on
from tests.views import halt, table_view

NAMES = ("sales.orders", "logs.clicks")


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        pytest.param([], "", id="nothing yet"),
        pytest.param([0, 0], "  ", id="nothing at all"),
        pytest.param([0, 1, 4, 8], " ▁▄█", id="rises"),
        pytest.param([8, 4, 1, 0], "█▄▁ ", id="falls"),
        pytest.param([1, 1000], "▁█", id="little is told from nothing"),
        pytest.param([5, 5, 5], "███", id="stays"),
    ],
)
def test_a_curve_goes_from_nothing_to_the_highest(values: list[int], drawn: str) -> None:
    assert curve(values) == drawn


def test_a_curve_shows_the_newest_values_against_the_highest_of_them() -> None:
    assert curve([100, 1, 2], cells=2) == "▄█"


def test_a_plain_line_tells_of_trouble() -> None:
    stream = io.StringIO()
    observer = _observer()
    halted = table_view(status=TableStatus.HALTED, halt=halt(message="merges fail"))
    observer.tables["sales.orders"] = halted
    with screen_on(console_on(stream), NAMES, 0.0) as screen:
        screen.show(observer, "writing", 0.0)
    assert stream.getvalue().endswith("  sales.orders is halted: merges fail\n")


def _observer() -> Observer:
    observer = Observer()
    observer.histories["sales.orders"] = History(runs=[9, 4], level0_files=[9, 3], files=[9, 5])
    observer.histories["logs.clicks"] = History(runs=[0, 0], level0_files=[7, 2], files=[7, 2])
    return observer


def test_a_pipe_gets_a_plain_line_every_three_seconds() -> None:
    stream = io.StringIO()
    with screen_on(console_on(stream), NAMES, 100.0) as screen:
        for now_s in (100.0, 101.0, 102.9, 103.0, 105.9, 106.1):
            screen.show(_observer(), "writing", now_s)
    lines = stream.getvalue().splitlines()
    assert [line.split("  writing")[0] for line in lines] == ["   0 s", "   3 s", "   6 s"]
    assert lines[0].endswith("sales.orders: 4 runs, 3 in level 0, 5 files  logs.clicks: 2 files"), (
        "append tables have no runs"
    )


def test_a_terminal_gets_a_curve_for_each_figure() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, height=24, color_system=None)
    with screen_on(console, NAMES, 0.0) as screen:
        screen.show(_observer(), "writing", 0.0)
    drawn = stream.getvalue()
    assert "writing" in drawn
    assert "sales.orders  runs   █▄ 4 (max 9)" in drawn
    assert "sales.orders  files  █▅ 5 (max 9)" in drawn
    assert "logs.clicks   files  █▃ 2 (max 7)" in drawn
    assert "logs.clicks   runs" not in drawn
