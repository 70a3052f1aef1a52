"""Which snapshots expire: cases of the rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactord.errors import UsageError
from compactord.maintenance.snapshots import ExpireRange, expire_range
from compactord.paimon.options.maintenance import ExpireOptions

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
DEFAULTS = ExpireOptions(
    num_retained_min=10,
    num_retained_max=2**31 - 1,
    time_retained_ms=HOUR_MS,
    limit=50,
    clean_empty_directories=False,
)


def _range(
    options: ExpireOptions = DEFAULTS,
    *,
    earliest: int = 1,
    latest: int = 100,
    old_until: int = 70,
    next_of_consumers: int | None = None,
    keep_from: int | None = None,
) -> ExpireRange:
    """Snapshots up to `old_until` are two hours old, the later ones new."""
    return expire_range(
        options,
        earliest=earliest,
        latest=latest,
        next_of_consumers=next_of_consumers,
        keep_from=keep_from,
        time_of=lambda id_: NOW_MS - (2 * HOUR_MS if id_ <= old_until else 0),
        now_ms=NOW_MS,
    )


def test_a_round_takes_no_more_than_the_limit_and_the_next_one_goes_on() -> None:
    assert _range() == ExpireRange(first=1, end=51, more=True)
    assert _range(earliest=51) == ExpireRange(first=51, end=70, more=False)


def test_a_snapshot_stays_while_its_successor_is_young() -> None:
    assert _range(old_until=5).end == 5
    assert _range(old_until=1).is_empty
    assert _range(old_until=0).is_empty


def test_a_successor_exactly_as_old_as_the_time_retained_is_young() -> None:
    def end_at(age_ms: int) -> int:
        found = expire_range(
            replace(DEFAULTS, num_retained_min=1),
            earliest=1,
            latest=2,
            next_of_consumers=None,
            keep_from=None,
            time_of=lambda _: NOW_MS - age_ms,
            now_ms=NOW_MS,
        )
        return found.end

    assert end_at(HOUR_MS) == 1
    assert end_at(HOUR_MS + 1) == 2


def test_the_fewest_to_retain_stay_whatever_their_age() -> None:
    assert _range(old_until=100, earliest=60) == ExpireRange(first=60, end=91, more=False)
    assert _range(latest=10, old_until=100).is_empty


def test_beyond_the_most_to_retain_age_does_not_matter() -> None:
    most = replace(DEFAULTS, num_retained_max=80, limit=1000)
    assert _range(most, old_until=0).end == 21
    assert _range(most, old_until=30).end == 30


def test_consumers_and_readers_hold_back_even_what_is_too_much() -> None:
    most = replace(DEFAULTS, num_retained_max=10, limit=1000)
    assert _range(most, next_of_consumers=40).end == 40
    assert _range(most, keep_from=33).end == 33
    assert _range(most, next_of_consumers=40, keep_from=33).end == 33
    assert _range(most, next_of_consumers=1).is_empty
    assert _range(most, next_of_consumers=-5) == ExpireRange(first=1, end=1, more=False)


def test_more_is_said_only_when_the_limit_was_the_reason() -> None:
    assert not _range(replace(DEFAULTS, limit=69)).more
    assert _range(replace(DEFAULTS, limit=68)).more
    assert not _range(keep_from=51).more
    assert _range(keep_from=52).more


def test_a_limit_of_nothing_expires_nothing_and_asks_for_no_further_round() -> None:
    for limit in (0, -3):
        assert _range(replace(DEFAULTS, limit=limit)) == ExpireRange(first=1, end=1, more=False)


def test_missing_successors_are_passed_over() -> None:
    found = expire_range(
        replace(DEFAULTS, num_retained_min=1),
        earliest=1,
        latest=10,
        next_of_consumers=None,
        keep_from=None,
        time_of=lambda id_: None if id_ < 5 else NOW_MS,
        now_ms=NOW_MS,
    )
    assert found.end == 4


@pytest.mark.parametrize(
    ("fewest", "most", "named"),
    [(0, 5, "num-retained.min=0"), (5, 4, "num-retained.max=4"), (-1, -1, "num-retained.min=-1")],
)
def test_options_that_would_expire_everything_or_contradict_are_refused(
    fewest: int, most: int, named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        _range(replace(DEFAULTS, num_retained_min=fewest, num_retained_max=most))
