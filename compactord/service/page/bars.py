"""Bars: runs against their triggers, and how much of something is used.

Widths are attributes in percent, which need neither script nor inline style and follow the
window's width.
"""

from __future__ import annotations

from compactord.service.page.figures import count, status_mark
from compactord.service.page.markup import Markup, element, join
from compactord.table.status import RunState

# A stop trigger beyond this many compaction triggers is shown as a number only.
_FAR = 10


def run_state(runs: int, compaction_trigger: int, stop_trigger: int) -> RunState:
    """The band of a run count, from the last band down."""
    if runs > stop_trigger:
        return RunState.OVER_STOP
    if runs >= stop_trigger - 1:
        return RunState.NEAR_STOP
    return RunState.DUE if runs >= compaction_trigger else RunState.IDLE


def band_mark(state: RunState) -> Markup:
    """The band of a run count. Runs from the trigger on need not make anything due."""
    return status_mark("at_trigger" if state is RunState.DUE else state.value)


def runs_bar(runs: int, compaction_trigger: int, stop_trigger: int) -> Markup:
    """The run count as number, word and bar with both triggers as ticks."""
    state = run_state(runs, compaction_trigger, stop_trigger)
    is_near = stop_trigger <= _FAR * max(compaction_trigger, runs)
    scale = max(runs, stop_trigger + 1 if is_near else 2 * compaction_trigger, 1)
    ticks = [compaction_trigger, *([stop_trigger] if is_near else [])]
    drawn = element(
        "svg",
        _rect(100, "track"),
        _rect(100 * runs / scale, f"{state.value.replace('_', '-')}-fill"),
        *(_tick(100 * tick / scale) for tick in ticks),
        aria_hidden="true",
    )
    mark = band_mark(state) if state is not RunState.IDLE else None
    return join(
        element("div", element("strong", count(runs)), " ", drawn, mark, class_="bar"),
        element("small", f"trigger {count(compaction_trigger)}, stop {count(stop_trigger)}"),
    )


def meter(used: float, total: float) -> Markup:
    """How much of `total` is used; without words of its own."""
    share = 100 * min(1.0, used / total) if total > 0 else 0.0
    fill = "near-stop-fill" if share >= 95 else "plain-fill"
    return element(
        "svg", _rect(100, "track"), _rect(share, fill), class_="meter", aria_hidden="true"
    )


def _rect(width: float, kind: str) -> Markup:
    return element("rect", x="0.00%", y="2", width=f"{width:.2f}%", height="8", rx="2", class_=kind)


def _tick(x: float) -> Markup:
    return element("rect", x=f"{min(x, 99.0):.2f}%", width="2", height="12", class_="tick")
