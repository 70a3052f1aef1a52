"""What the text cases cannot say: times, refusals and arithmetic at the edges of doubles."""

from __future__ import annotations

import pytest

from compactord.errors import UsageError
from compactord.model import CompactReason, PickRule, SortedRun
from compactord.plan.picks import last_full_compaction_ms
from compactord.plan.triggers import offpeak_ratio, pick_universal
from tests.unit.plan.builders import compaction_options, data_file


def runs_of(*sizes: int, last_level: int = 0) -> list[SortedRun]:
    levels = [0] * (len(sizes) - 1) + [last_level]
    return [
        SortedRun(level=level, files=(data_file(f"{n}", level=level, size=size),))
        for n, (size, level) in enumerate(zip(sizes, levels, strict=True))
    ]


def test_ratio_compares_doubles_where_neighbouring_integers_are_equal() -> None:
    exact = 1 << 53
    options = compaction_options(
        compaction_trigger=2, size_ratio_percent=0, max_size_amplification_percent=1000
    )
    picks = [
        pick_universal(
            runs_of(exact, exact + more, last_level=5),
            6,
            options,
            rule=PickRule.RELEASE_2_1,
            now_ms=0,
            last_full_ms=None,
            hour_of_day=0,
        )
        for more in (1, 2)
    ]
    assert [pick and pick.reason for pick in picks] == [CompactReason.SIZE_RATIO, None]


def test_a_trigger_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match=r"num-sorted-run\.compaction-trigger is 0"):
        pick_universal(
            runs_of(1, 1),
            6,
            compaction_options(compaction_trigger=0),
            rule=PickRule.RELEASE_2_1,
            now_ms=0,
            last_full_ms=None,
            hour_of_day=0,
        )


def test_no_runs_are_no_pick_even_when_a_full_compaction_is_due() -> None:
    options = compaction_options(optimization_interval_ms=1, force_up_level_0=True)
    pick = pick_universal(
        [],
        6,
        options,
        rule=PickRule.RELEASE_2_1,
        now_ms=9,
        last_full_ms=None,
        hour_of_day=0,
    )
    assert pick is None


def test_last_full_compaction_is_the_newest_file_on_the_configured_highest_level() -> None:
    files = [
        data_file("a", level=5, created_ms=10),
        data_file("b", level=5, created_ms=30),
        data_file("c", level=5, created_ms=None),
        data_file("d", level=4, created_ms=99),
        data_file("e", level=7, created_ms=98),
    ]
    assert last_full_compaction_ms(files, compaction_options(num_levels=6)) == 30
    assert last_full_compaction_ms(files, compaction_options(num_levels=4)) is None


@pytest.mark.parametrize(
    ("start", "end", "hours"),
    [
        (22, 6, {22, 23, 0, 1, 2, 3, 4, 5}),
        (1, 3, {1, 2}),
        (0, 24, set(range(24))),
        (3, 3, set()),
        (-1, 6, set()),
        (22, -1, set()),
        # No hours of a day; Java compares them all the same.
        (25, -2, set()),
        (-2, 25, set(range(24))),
        (25, 3, {0, 1, 2}),
    ],
)
def test_offpeak_hours(start: int, end: int, hours: set[int]) -> None:
    options = compaction_options(
        offpeak_start_hour=start, offpeak_end_hour=end, offpeak_ratio_percent=9
    )
    active = {hour for hour in range(24) if offpeak_ratio(options, hour) == 9}
    assert active == hours
    assert {offpeak_ratio(options, hour) for hour in range(24)} <= {0, 9}
