from __future__ import annotations

from datetime import datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from compactord.config.windows import Window, may_start, next_change_ms
from compactord.model import WorkKind

UTC = timezone.utc
BERLIN = ZoneInfo("Europe/Berlin")
FULL, MINOR = WorkKind.FULL, WorkKind.MINOR


def _window(**keys: Any) -> Window:
    return Window.model_validate({key.rstrip("_"): value for key, value in keys.items()})


def _at(text: str, zone: Any = UTC, *, fold: int = 0) -> int:
    """2026-11-16 is a Monday."""
    reading = datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold)
    return int(reading.timestamp()) * 1000


def test_work_that_no_window_lists_may_start_at_any_time() -> None:
    night = _window(from_="01:00", to="06:00", allow=["full"])
    noon = _at("2026-11-16T12:00")
    assert may_start([], FULL, noon, UTC)
    assert may_start([night], MINOR, noon, UTC)
    assert not may_start([night], FULL, noon, UTC)
    assert next_change_ms([night], MINOR, noon, UTC) is None


def test_a_window_that_lists_nothing_gates_every_kind() -> None:
    night = _window(from_="01:00", to="06:00")
    assert not any(may_start([night], kind, _at("2026-11-16T12:00"), UTC) for kind in WorkKind)
    assert all(may_start([night], kind, _at("2026-11-16T03:00"), UTC) for kind in WorkKind)


def test_one_open_window_of_several_is_enough_but_only_one_that_lists_the_kind() -> None:
    windows = [
        _window(from_="01:00", to="02:00", allow=["full"]),
        _window(from_="03:00", to="04:00", allow=["full", "minor"]),
        _window(from_="05:00", to="06:00", allow=["minor"]),
    ]
    open_at = [h for h in range(24) if may_start(windows, FULL, _at(f"2026-11-16T{h:02}:30"), UTC)]
    assert open_at == [1, 3]


@pytest.mark.parametrize(
    ("time", "is_open"),
    [
        ("2026-11-16T00:59:59", False),
        ("2026-11-16T01:00:00", True),
        ("2026-11-16T05:59:59", True),
        ("2026-11-16T06:00:00", False),
    ],
)
def test_the_start_is_inside_and_the_end_is_not(time: str, is_open: bool) -> None:
    assert _window(from_="01:00", to="06:00").is_open(_at(time), UTC) is is_open


@pytest.mark.parametrize(
    ("time", "is_open"),
    [
        ("2026-11-20T21:59", False),  # Friday
        ("2026-11-20T22:00", True),
        ("2026-11-21T05:59", True),
        ("2026-11-21T06:00", False),
        ("2026-11-21T22:00", False),  # Saturday is no day to start on
        ("2026-11-20T05:00", False),  # nor was Thursday
    ],
)
def test_a_window_over_midnight_belongs_to_the_day_it_starts(time: str, is_open: bool) -> None:
    friday_night = _window(days="fri", from_="22:00", to="06:00")
    assert friday_night.is_open(_at(time), UTC) is is_open


def test_a_window_over_midnight_reaches_from_sunday_into_monday() -> None:
    window = _window(days="sun", from_="22:00", to="02:00")
    assert window.is_open(_at("2026-11-16T01:00"), UTC)


def test_a_window_reads_the_clock_of_its_own_zone_or_of_the_service() -> None:
    shanghai = _window(from_="01:00", to="06:00", tz="Asia/Shanghai")
    ours = _window(from_="01:00", to="06:00")
    at = _at("2026-11-16T18:00")  # 02:00 in Shanghai
    assert shanghai.is_open(at, UTC)
    assert not ours.is_open(at, UTC)
    assert ours.is_open(at, ZoneInfo("Asia/Shanghai"))


@pytest.mark.parametrize(
    ("days", "numbers"),
    [
        ("mon-sun", (0, 1, 2, 3, 4, 5, 6)),
        ("mon-fri", (0, 1, 2, 3, 4)),
        ("sat,sun", (5, 6)),
        ("Fri - Mon", (0, 4, 5, 6)),
        ("wed", (2,)),
        (["sat", "mon-tue"], (0, 1, 5)),
    ],
)
def test_days_are_names_ranges_and_lists(days: object, numbers: tuple[int, ...]) -> None:
    window = _window(days=days)
    assert window.days == numbers
    assert Window.model_validate(window.model_dump(mode="json", by_alias=True)) == window


@pytest.mark.parametrize(
    "keys",
    [
        {"days": "someday"},
        {"days": "mon-"},
        {"days": ""},
        {"days": []},
        {"days": [9]},
        {"from_": "1"},
        {"from_": 60},
        {"from_": "12:60"},
        {"to": "24:01"},
        {"from_": "24:00", "to": "01:00"},
        {"from_": "01:00", "to": "01:00"},
        {"tz": "Mars/Base"},
        {"allow": []},
        {"allow": ["major"]},
        {"until": "12:00"},
    ],
)
def test_what_is_no_window_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        _window(**keys)


def test_the_next_change_is_the_next_edge_that_matters() -> None:
    windows = [
        _window(days="mon-fri", from_="01:00", to="06:00", allow=["full"]),
        _window(from_="05:00", to="07:00", allow=["full"]),
        _window(from_="02:00", to="03:00", allow=["minor"]),
    ]
    at = _at("2026-11-16T00:00")
    seen = []
    for _ in range(4):
        found = next_change_ms(windows, FULL, at, UTC)
        assert found is not None
        at = found
        seen.append(at)
    days = ("2026-11-16T01:00", "2026-11-16T07:00", "2026-11-17T01:00", "2026-11-17T07:00")
    assert seen == [_at(day) for day in days]


def test_windows_that_are_always_open_never_change() -> None:
    halves = [_window(from_="00:00", to="12:00"), _window(from_="12:00", to="24:00")]
    assert next_change_ms(halves, FULL, _at("2026-11-16T03:00"), UTC) is None


def test_a_reading_that_is_skipped_in_spring_does_not_open_a_window() -> None:
    # 2026-03-29, a Sunday: 02:00 becomes 03:00 in Berlin.
    window = _window(days="sun", from_="02:15", to="02:45")
    at = _at("2026-03-29T00:00", BERLIN)
    opens = next_change_ms([window], FULL, at, BERLIN)
    assert opens == _at("2026-04-05T02:15", BERLIN)


def test_a_window_that_begins_in_the_skipped_hour_opens_when_the_clock_jumps() -> None:
    window = _window(from_="02:30", to="04:00")
    opens = next_change_ms([window], FULL, _at("2026-03-29T00:00", BERLIN), BERLIN)
    assert opens == _at("2026-03-29T03:00", BERLIN)


def test_a_reading_that_comes_twice_in_autumn_is_inside_both_times() -> None:
    # 2026-10-25: 03:00 becomes 02:00 in Berlin.
    window = _window(from_="02:00", to="02:30")
    at, edges = _at("2026-10-25T00:00", BERLIN), []
    for _ in range(4):
        found = next_change_ms([window], FULL, at, BERLIN)
        assert found is not None
        at = found
        edges.append(at)
    assert edges == [
        _at("2026-10-25T02:00", BERLIN),
        _at("2026-10-25T02:30", BERLIN),
        _at("2026-10-25T02:00", BERLIN, fold=1),
        _at("2026-10-25T02:30", BERLIN, fold=1),
    ]
