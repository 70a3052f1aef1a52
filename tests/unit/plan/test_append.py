"""What the text cases cannot say: settled outputs, unknown times, order of equal numbers."""

from __future__ import annotations

from dataclasses import replace

from compactord.model import CompactReason
from compactord.plan.append import (
    in_arrival_order,
    pack_unaware,
    pack_unaware_full,
    pick_bucketed,
    pick_bucketed_full,
)
from tests.unit.plan.builders import MB, NOW_MS, append_options, data_file, names

SMALL = [data_file(f"f{n}", sequences=(n, n)) for n in range(7)]


def pack(files: list, **changed: object) -> tuple[list[list[str]], list[str]]:
    settled = changed.pop("settled", frozenset())
    packing = pack_unaware(
        files, append_options(**changed), now_local_ms=NOW_MS, wait_ms=60_000, settled=settled
    )
    return [names(pick.files) for pick in packing.picks], names(packing.waiting)


def test_files_without_creation_time_have_waited() -> None:
    files = [replace(file, creation_time_ms=None) for file in SMALL[:2]]
    assert pack(files) == ([["f0", "f1"]], [])
    assert pack([files[0], SMALL[1]]) == ([], ["f0", "f1"])


def test_settled_files_are_no_candidates() -> None:
    assert pack(SMALL[:5], settled={"f3"}) == ([], ["f0", "f1", "f2", "f4"])
    picks = pack_unaware_full(SMALL[:3], append_options(), settled={"f1"})
    assert [names(pick.files) for pick in picks] == [["f0", "f2"]]


def test_bins_that_would_leave_as_many_small_files_are_not_picked() -> None:
    files = [data_file(f"f{n}", size=256 * MB) for n in range(2)]
    assert pack(files, small_file_ratio=1.5) == ([], [])
    mixed = [data_file("large", size=256 * MB), *SMALL[:4]]
    assert pack(mixed, small_file_ratio=1.5)[0] == [["f0", "f1", "f2", "f3", "large"]]


def test_a_file_of_the_size_that_counts_as_full_is_not_small() -> None:
    limit = append_options().small_file_size
    files = [data_file("full", size=limit), data_file("below", size=limit - 1), *SMALL[:4]]
    assert pack(files) == ([["f0", "f1", "f2", "f3", "below"]], [])


def test_a_bin_has_two_files_though_one_would_fill_it() -> None:
    assert pack(SMALL[:5], open_file_cost=600 * MB) == ([["f0", "f1"], ["f2", "f3"]], ["f4"])


def test_settled_files_promise_no_gain_in_a_window() -> None:
    options = append_options(min_file_num=3)
    picks = pick_bucketed(SMALL, options, settled={"f0", "f1"})
    assert [names(pick.files) for pick in picks] == [["f1", "f2", "f3"], ["f4", "f5", "f6"]]
    assert {pick.reason for pick in picks} == {CompactReason.APPEND_SMALL_FILES}


def test_full_picks_start_behind_the_last_settled_file() -> None:
    options = append_options()
    (pick,) = pick_bucketed_full(SMALL, options, settled={"f1", "f2"})
    assert names(pick.files) == ["f3", "f4", "f5", "f6"]
    assert pick_bucketed_full(SMALL, options, settled={"f4"}) == ()
    forced = replace(options, force_rewrite_all_files=True)
    assert names(pick_bucketed_full(SMALL, forced, settled={"f5"})[0].files) == ["f6"]
    assert pick_bucketed_full(SMALL, forced, settled={"f6"}) == ()


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
