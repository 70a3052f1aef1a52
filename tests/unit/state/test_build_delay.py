"""How long a snapshot of ours has to stand, and whether a replaced one had been relied on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactord.paimon.snapshot import CommitKind, Snapshot
from compactord.state.ancestry import SettleDelay
from tests.builders import FIRST, NOW_MS, VirtualClock

SETTLE_MS = 10_000
OURS = Snapshot(
    uuid="ours",
    id=3,
    schema_id=0,
    base_manifest_list=f"manifest-list-{FIRST.unique_name()}-0",
    delta_manifest_list=f"manifest-list-{FIRST.unique_name()}-1",
    commit_user="a user with a prefix of its own",
    commit_identifier=1,
    commit_kind=CommitKind.COMPACT,
    time_ms=NOW_MS,
    total_record_count=0,
    delta_record_count=0,
)
JAVAS = replace(OURS, uuid="java's", delta_manifest_list="manifest-list-1")


def test_what_was_published_stands_first_and_is_relied_on_once_it_was_looked_at() -> None:
    clock = VirtualClock()
    guard = SettleDelay(clock, SETTLE_MS)
    assert (guard.wait_ms(), guard.is_unread) == (0, False)
    guard.published(OURS)
    clock.sleep(4)
    guard.read_back()
    assert (guard.wait_ms(), guard.is_unread) == (6_000, True), "it has to stand first"
    clock.sleep(6)
    assert (guard.wait_ms(), guard.is_unread) == (0, True)
    assert not guard.has_relied_on(OURS)
    assert guard.has_relied_on(JAVAS), "only the newest is waited for"
    guard.read_back()
    assert not guard.is_unread
    assert guard.has_relied_on(OURS)


def test_without_a_time_to_stand_nothing_waits() -> None:
    guard = SettleDelay(VirtualClock(), 0)
    guard.published(OURS)
    guard.opened(OURS)
    assert (guard.wait_ms(), guard.is_unread) == (0, False)
    assert guard.has_relied_on(OURS)


@pytest.mark.parametrize(
    ("newest", "wait_ms"),
    [
        (None, 0),
        (JAVAS, 0),
        (OURS, SETTLE_MS),
        (replace(OURS, time_ms=NOW_MS - 60_000), SETTLE_MS),
        (replace(OURS, time_ms=NOW_MS + 60_000), SETTLE_MS),
        (replace(OURS, time_ms=NOW_MS - 3_600_000), 0),
        (replace(OURS, time_ms=NOW_MS + 3_600_000), 0),
    ],
    ids=["none", "java's", "now", "a minute ago", "a clock ahead", "an hour ago", "a wrong clock"],
)
def test_what_another_process_of_ours_published_stands_as_well(
    newest: Snapshot | None, wait_ms: int
) -> None:
    """Clocks of two machines differ, so that a minute ago may have been just now."""
    guard = SettleDelay(VirtualClock(), SETTLE_MS)
    guard.opened(newest)
    assert guard.wait_ms() == wait_ms
