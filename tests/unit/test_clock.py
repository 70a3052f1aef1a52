"""What the wall clock shows at moments of steady time, however it is set."""

from __future__ import annotations

import random
from datetime import timezone

import pytest

from compactord.clock import SystemClock, WallTime


def _wall(*settings: tuple[int, int]) -> WallTime:
    """Set to a lead at a steady time, one after the other."""
    wall = WallTime(timezone.utc)
    for steady_ms, lead_ms in settings:
        wall.set(lead_ms, steady_ms)
    return wall


def test_steady_time_goes_on_from_what_the_wall_clock_showed() -> None:
    machine = SystemClock(timezone.utc)
    first = machine.steady_ms()
    assert abs(first - machine.now_ms()) < 1_000
    machine.sleep(0.01)
    assert machine.steady_ms() >= first + 10


def test_it_shows_what_it_is_set_to_now_and_never_stays_never() -> None:
    wall = _wall((100, 7), (200, -3))
    assert (wall.lead_ms, wall.at(1_000), wall.shown(1_000), wall.shown(0)) == (-3, 997, 997, 0)


@pytest.mark.parametrize("count", [1, 3, 40])
def test_no_reading_since_a_moment_was_lower_than_is_said(count: int) -> None:
    draw = random.Random(count)
    for _ in range(200):
        times = sorted(draw.sample(range(1, 1_000), count))
        settings = [(at, draw.randint(-50, 50)) for at in times]
        wall = _wall(*settings)
        for moment in draw.sample(range(1_000), 20):
            before = [lead for at, lead in [(0, 0), *settings] if at <= moment]
            later = [lead for at, lead in settings if at > moment]
            said = wall.lowest_since(moment) - moment
            assert said <= min([before[-1], *later])
            assert said == before[-1] or later


def test_a_clock_that_was_wrong_long_ago_does_not_count_for_what_began_since() -> None:
    wall = _wall((100, -10_000), (200, 7))
    assert (wall.lowest_since(150), wall.lowest_since(200)) == (150 - 10_000, 207)
