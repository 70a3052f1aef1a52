"""Pauses between attempts, and when there are no more."""

from __future__ import annotations

import pytest

from compactord.storage.calls import RetryPolicy
from tests.builders import VirtualClock


@pytest.mark.parametrize(
    ("jitter", "pauses"),
    [
        (1.0, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]),
        (0.0, [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]),
    ],
)
def test_pauses_double_between_half_and_all_of_their_length(
    jitter: float, pauses: list[float]
) -> None:
    clock = VirtualClock()
    policy = RetryPolicy(clock=clock, jitter=lambda: jitter)
    assert list(policy.attempts()) == [*[False] * 6, True]
    assert clock.sleeps == pytest.approx(pauses)


def test_a_pause_is_five_seconds_at_most() -> None:
    clock = VirtualClock()
    list(RetryPolicy(clock=clock, attempts_max=12, jitter=lambda: 1.0).attempts())
    assert max(clock.sleeps) == 5.0


def test_the_first_attempt_after_the_time_is_used_up_is_the_last() -> None:
    clock = VirtualClock()
    policy = RetryPolicy(clock=clock, give_up_after_s=60, jitter=lambda: 1.0)
    lasts = []
    for is_last in policy.attempts():
        lasts.append(is_last)
        clock.sleep(29.0)
    # Each takes 29 s until it fails.
    assert lasts == [False, False, False, True]


def test_who_succeeds_does_not_wait() -> None:
    clock = VirtualClock()
    assert next(RetryPolicy(clock=clock).attempts()) is False
    assert clock.sleeps == []
