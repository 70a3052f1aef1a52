from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.config.windows import Window, may_start, next_change_ms
from compactord.model import WorkKind
from tests.sampling import examples

_MINUTE_MS = 60_000
# Ordinary weeks, and those in which the clocks change; Lord Howe changes by half an hour.
_ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
_WEEKS = ["2026-01-12", "2026-03-06", "2026-03-27", "2026-04-03", "2026-10-02", "2026-10-23"]

_times = st.integers(0, 95).map(lambda quarter: f"{quarter // 4:02}:{quarter % 4 * 15:02}")


@st.composite
def _windows(draw: st.DrawFn) -> Window:
    start = draw(_times)
    return Window.model_validate(
        {
            "days": draw(st.lists(st.integers(0, 6), min_size=1)),
            "from": start,
            "to": draw(st.one_of(_times, st.just("24:00")).filter(lambda end: end != start)),
            "tz": draw(st.sampled_from([None, *_ZONES])),
            "allow": draw(st.lists(st.sampled_from(list(WorkKind)), min_size=1, max_size=3)),
        }
    )


@settings(max_examples=examples(60), deadline=None)
@given(
    windows=st.lists(_windows(), max_size=3),
    kind=st.sampled_from(list(WorkKind)),
    zone=st.sampled_from(_ZONES).map(ZoneInfo),
    week=st.sampled_from(_WEEKS),
    minutes=st.integers(0, 4 * 24 * 60),
)
def test_the_next_change_is_what_asking_every_quarter_of_an_hour_would_find(
    windows: list[Window], kind: WorkKind, zone: ZoneInfo, week: str, minutes: int
) -> None:
    start = datetime.fromisoformat(week).replace(tzinfo=zone)
    now_ms = int(start.timestamp()) * 1000 + minutes * _MINUTE_MS
    now = may_start(windows, kind, now_ms, zone)
    found = next_change_ms(windows, kind, now_ms, zone)
    # All edges lie on quarters of an hour of UTC.
    step_ms = 15 * _MINUTE_MS
    first = (now_ms // step_ms + 1) * step_ms
    horizon_ms = first + 3 * 86_400_000
    asked = (
        at for at in range(first, horizon_ms, step_ms) if may_start(windows, kind, at, zone) != now
    )
    expected = next(asked, None)
    if expected is not None:
        assert found == expected
    else:
        assert found is None or found >= horizon_ms


@given(_windows())
def test_a_window_reads_back_from_what_is_shown(window: Window) -> None:
    assert Window.model_validate(window.model_dump(mode="json", by_alias=True)) == window
