from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from compactord.clock import iso_text
from compactord.service.page.lsm import key_positions, scale_text
from compactord.service.page.pages import environment
from compactord.table.status import BucketDetail, RunView
from compactord.text import age_text

LSM: Any = environment().get_template("lsm.html.j2").module
MACROS: Any = environment().get_template("macros.html.j2").module
PARAGRAPH = environment().from_string('<p title="{{ value }}">{{ text }}</p>')
KEYS = st.one_of(st.integers(-(10**30), 10**30).map(str), st.text(max_size=8), st.just(""))
RUNS = st.builds(
    RunView,
    level=st.integers(0, 9),
    files=st.integers(0, 10**6),
    rows=st.integers(0, 10**12),
    size_bytes=st.integers(0, 1 << 60),
    min_key=KEYS,
    max_key=KEYS,
)
TRIGGERS = st.integers(0, 2**31 - 1)


@st.composite
def buckets(draw: st.DrawFn) -> BucketDetail:
    runs = tuple(draw(st.lists(RUNS, max_size=30)))
    return BucketDetail(
        partition=draw(st.text(max_size=8)),
        bucket=draw(st.integers(-2, 1000)),
        sorted_runs=len(runs) + draw(st.sampled_from([0, 0, 3, 500])),
        files=0,
        size_bytes=0,
        runs=runs,
        plan="",
    )


def _percents(svg: str) -> list[tuple[float, float]]:
    return [
        (float(x), float(width))
        for x, width in re.findall(r'<rect x="([-\d.]+)%"[^>]*?width="([-\d.]+)%"', svg)
    ]


@given(buckets(), TRIGGERS, TRIGGERS)
def test_a_drawing_has_a_lane_per_run_and_stays_inside(
    bucket: BucketDetail, trigger: int, stop: int
) -> None:
    svg = LSM.lsm(bucket, compaction_trigger=trigger, stop_trigger=stop)
    assert svg.count('class="run"') == len(bucket.runs)
    for x, width in _percents(svg):
        assert x >= 0
        assert width >= 0
        assert x + width <= 100.011
    height = re.search(r'height="(\d+)"', svg)
    assert height is not None
    # Not in proportion to a trigger, whatever somebody has set it to.
    assert int(height[1]) <= 30 * len(bucket.runs) + 250
    assert scale_text(bucket.runs)


@given(st.lists(RUNS, max_size=12))
def test_positions_of_keys_lie_between_nought_and_one(runs: list[RunView]) -> None:
    position = key_positions(runs)
    keys = {key for run in runs for key in (run.min_key, run.max_key) if key}
    assert (position is None) == (not keys)
    if position is not None:
        places = [position(key) for key in keys]
        assert all(0 <= place <= 1 for place in places)
        assert min(places) == 0


@given(st.integers(0, 10**6), TRIGGERS, TRIGGERS)
def test_bars_of_runs_stay_inside(runs: int, trigger: int, stop: int) -> None:
    svg = MACROS.runs_bar(runs, trigger, stop)
    assert all(x <= 100 and 0 <= width <= 100 for x, width in _percents(svg))


@given(st.floats(0, 1e18), st.floats(0, 1e18))
def test_meters_stay_inside(used: float, total: float) -> None:
    assert all(0 <= width <= 100 for _, width in _percents(MACROS.meter(used, total)))


@given(st.integers(-(2**63), 2**63), st.integers(0, 2**44))
def test_any_time_can_be_shown(epoch_ms: int, now_ms: int) -> None:
    assert age_text(now_ms - epoch_ms)
    assert iso_text(epoch_ms)
    assert MACROS.moment(epoch_ms, now_ms)


@given(st.text(), st.text())
def test_no_text_leaves_its_element_or_its_attribute(text: str, value: str) -> None:
    markup = PARAGRAPH.render(text=text, value=value)
    assert markup.count("<") == markup.count(">") == 2
    assert markup.count('"') == 2
