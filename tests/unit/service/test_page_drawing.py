"""The drawing of a bucket's sorted runs."""

from __future__ import annotations

import re
from typing import Any

from compactord.service.page.lsm import key_positions, scale_text
from compactord.service.page.pages import environment
from compactord.service.view import TableDetail
from tests.unit.service.test_page import ORDERS, page
from tests.views import (
    GIB,
    KIB,
    MIB,
    FixedStatus,
    bucket_detail,
    busy_detail,
    run_view,
    service_view,
    table_view,
)

LSM: Any = environment().get_template("lsm.html.j2").module


def test_a_bucket_has_a_lane_for_each_run_with_the_newest_on_top() -> None:
    runs = busy_detail(table_view()).buckets[0].runs
    svg = LSM.lsm(bucket_detail(*runs), compaction_trigger=5, stop_trigger=8)
    assert svg.count('class="run"') == len(runs) == 9
    levels = re.findall(r">L(\d)<", svg)
    assert levels == ["0", "0", "0", "0", "0", "0", "3", "4", "5"]
    assert re.findall(r"stop trigger 8|compaction trigger 5|>L\d<", svg) == [
        *(">L0<", "stop trigger 8", ">L0<", ">L0<", ">L0<", "compaction trigger 5"),
        *(">L0<", ">L0<", ">L3<", ">L4<", ">L5<"),
    ]


def test_a_bucket_below_its_triggers_shows_the_room_up_to_them() -> None:
    calm = bucket_detail(run_view(0, MIB, "1..2"), run_view(5, GIB, "1..9"))
    svg = LSM.lsm(calm, compaction_trigger=5, stop_trigger=8)
    assert svg.count('class="room"') == 6
    assert svg.index("stop trigger") < svg.index("compaction trigger") < svg.index(">L0<")
    far = LSM.lsm(calm, compaction_trigger=5, stop_trigger=2_147_483_647)
    assert far.count('class="room"') == 3
    assert "stop trigger" not in far


def test_runs_that_are_not_drawn_are_counted_and_the_triggers_among_them_are_not_drawn() -> None:
    newest = [run_view(0, MIB, "1..2")] * 200
    svg = LSM.lsm(bucket_detail(*newest, sorted_runs=230), compaction_trigger=5, stop_trigger=40)
    assert svg.count('class="run"') == 200
    assert "30 older runs not drawn" in svg
    assert "compaction trigger" not in svg
    before_stop = svg[: svg.index("stop trigger 40")]
    assert before_stop.count('class="run"') == 190


def test_bars_grow_with_the_size_and_spans_lie_where_the_keys_are() -> None:
    svg = LSM.lsm(
        bucket_detail(
            run_view(0, MIB, "0..50"), run_view(4, 30 * MIB, "25..75"), run_view(5, GIB, "0..100")
        ),
        compaction_trigger=5,
        stop_trigger=8,
    )
    bars = _bars(svg)
    assert bars == sorted(bars)
    assert bars[0] > 0
    assert bars[-1] == 44
    spans = re.findall(r'<rect x="([\d.]+)%" y="\d+" width="([\d.]+)%"[^>]*class="span"', svg)
    assert spans == [("56.00", "22.00"), ("67.00", "22.00"), ("56.00", "44.00")]


def test_bars_begin_at_zero_so_that_runs_of_like_sizes_look_alike() -> None:
    sizes = (136 * KIB, 143 * KIB, 14 * KIB, 1)
    svg = LSM.lsm(
        bucket_detail(*(run_view(0, size, "0..9") for size in sizes)),
        compaction_trigger=5,
        stop_trigger=8,
    )
    assert _bars(svg) == [round(44 * 136 / 143, 2), 44, round(44 * 14 / 143, 2), 0.4]


def _bars(svg: str) -> list[float]:
    """The widths of the bars in percent of the drawing, from the newest run down."""
    return [
        float(re.search(r'width="([\d.]+)%"', rect)[1])  # type: ignore[index]
        for rect in re.findall(r"<rect[^>]*class=\"(?:level0|level|oldest)\"", svg)
    ]


def test_keys_that_are_numbers_lie_by_value_and_others_by_rank() -> None:
    by_value = key_positions([run_view(0, 1, "9..10"), run_view(1, 1, "-10..90")])
    assert by_value is not None
    assert [by_value(key) for key in ("-10", "10", "90")] == [0, 0.2, 1]
    by_rank = key_positions([run_view(0, 1, "ant..bee"), run_view(1, 1, "ant..zebra")])
    assert by_rank is not None
    assert [by_rank(key) for key in ("ant", "bee", "zebra")] == [0, 0.5, 1]
    assert key_positions([run_view(0, 1, "")]) is None


def test_the_drawing_says_how_it_is_scaled() -> None:
    assert "size, from 0 to 1.0 GiB" in scale_text(
        [run_view(0, MIB, "1..2"), run_view(5, GIB, "1..9")]
    )
    assert "by value" in scale_text([run_view(0, MIB, "1..2")])
    assert "ordered as text" in scale_text([run_view(0, MIB, "1..b")])
    assert "Spans" not in scale_text([run_view(0, MIB, "")])
    assert scale_text([]) == "No files."


def test_long_keys_are_cut_in_the_drawing_and_whole_in_the_numbers() -> None:
    key = "k" * 300
    bucket = bucket_detail(run_view(0, MIB, f"{key}..{key}"))
    view = table_view()
    status = FixedStatus(
        service_view(view), TableDetail(view=view, buckets=(bucket,), bucket_count=1)
    )
    found = page(status, ORDERS)
    assert "k" * 21 + "…" in found.texts
    assert key in found.texts
