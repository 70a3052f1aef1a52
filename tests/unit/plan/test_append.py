"""What the text cases cannot say: final outputs, order of equal numbers."""

from __future__ import annotations

from dataclasses import replace

from compactord.plan.append import in_arrival_order, pick_bucketed, pick_bucketed_full
from tests.unit.plan.builders import append_options, data_file, names

SMALL = [data_file(f"f{n}", sequences=(n, n)) for n in range(7)]


def test_settled_files_promise_no_gain_in_a_window() -> None:
    options = append_options(min_file_num=3)
    picks = pick_bucketed(SMALL, options, final={"f0", "f1"})
    assert [names(pick) for pick in picks] == [["f1", "f2", "f3"], ["f4", "f5", "f6"]]


def test_full_picks_start_behind_the_last_settled_file() -> None:
    options = append_options()
    (pick,) = pick_bucketed_full(SMALL, options, final={"f1", "f2"})
    assert names(pick) == ["f3", "f4", "f5", "f6"]
    assert pick_bucketed_full(SMALL, options, final={"f4"}) == ()
    forced = replace(options, force_rewrite_all_files=True)
    assert names(pick_bucketed_full(SMALL, forced, final={"f5"})[0]) == ["f6"]
    assert pick_bucketed_full(SMALL, forced, final={"f6"}) == ()


def test_equal_sequences_keep_the_order_of_the_writer() -> None:
    file = data_file("data-0-9.parquet", sequences=(5, 9), created_ms=7)
    others = [
        replace(file, file_name="data-0-10.parquet"),
        replace(file, file_name="data-0-11.parquet", creation_time_ms=6),
        data_file("first.parquet", sequences=(4, 4), created_ms=8),
    ]
    assert names(in_arrival_order([*others, file])) == [
        "first.parquet",
        "data-0-11.parquet",
        "data-0-9.parquet",
        "data-0-10.parquet",
    ]
