"""Deletions of all stores of one pace together are no more than so many a second."""

from __future__ import annotations

import pytest

from compactord.storage.calls import DeleteRateLimiter
from tests.builders import VirtualClock
from tests.storages import MemoryStorage


@pytest.mark.parametrize(("per_second", "seconds"), [(None, 0.0), (1, 9.0), (10, 0.9), (1000, 0)])
def test_deletions_wait_for_their_turn(per_second: int | None, seconds: float) -> None:
    clock = VirtualClock()
    pace = DeleteRateLimiter(clock, per_second)
    stores = [MemoryStorage({f"/f/{number}": b"" for number in range(5)}) for _ in range(2)]
    began_s = clock.monotonic_s()
    for number in range(5):
        for store in stores:
            pace.rate_limited(store).delete(f"/f/{number}")
    assert clock.monotonic_s() - began_s == pytest.approx(seconds, abs=0.02)
    assert not any(store.objects for store in stores)


def test_all_else_is_the_store_s_own_and_a_new_limit_holds_at_once() -> None:
    clock, store = VirtualClock(), MemoryStorage({"/f/a": b"x"})
    pace = DeleteRateLimiter(clock, 1)
    rate_limited = pace.rate_limited(store)
    assert (rate_limited.read("/f/a"), rate_limited.capabilities) == (b"x", store.capabilities)
    began_s = clock.monotonic_s()
    for _ in range(3):
        assert not rate_limited.remove_empty_folder("/f")
    assert clock.monotonic_s() - began_s == pytest.approx(2)
    pace.per_second = None
    rate_limited.delete("/f/a")
    assert clock.monotonic_s() - began_s == pytest.approx(2)
