"""A hold is placed, read and lifted while any storage call fails or is the last of its process.

Nothing of the table goes meanwhile, and the next process holds, or goes on, as the files say.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from compactord.errors import (
    AccessDenied,
    CompactordError,
    StorageError,
    TransientStorageError,
)
from compactord.plan.table import Strategy
from compactord.storage.base import Storage
from compactord.table.jobs import InFlight
from compactord.verify.holds import HOLD_FILE
from tests.sampling import CutPoints
from tests.storages import Call, Fault, FaultyStorage, HookedStorage
from tests.unit.table.compacting import ALL, outcome_of
from tests.unit.verify.holding import Held, held_table


class _Killed(BaseException):
    """As kill -9: nothing of the process runs any more."""


@dataclass(slots=True)
class _Killer:
    """Ends the process at its so-many-eth call, once it `is_armed`."""

    at: int
    is_armed: bool = False
    calls: int = 0

    def __call__(self, call: Call) -> None:
        self.calls += self.is_armed
        if self.is_armed and self.calls == self.at:
            raise _Killed


def _killed_at(storage: Storage, at: int, *, after: bool) -> HookedStorage:
    def end(call: Call) -> None:
        if call.number >= at:
            raise _Killed

    return HookedStorage(storage, after=end) if after else HookedStorage(storage, before=end)


_KINDS: dict[str, Callable[[Storage, int], HookedStorage | FaultyStorage]] = {
    "killed before": lambda storage, at: _killed_at(storage, at, after=False),
    "killed after": lambda storage, at: _killed_at(storage, at, after=True),
    "one fails": lambda storage, at: FaultyStorage(
        storage, Fault(at=at, error=TransientStorageError)
    ),
    "one is done and fails": lambda storage, at: FaultyStorage(
        storage,
        Fault(at=at, error=StorageError, after_effect=True, concerns=lambda call: call.is_mutation),
    ),
    "all fail": lambda storage, at: FaultyStorage(
        storage, Fault(at=at, error=AccessDenied, lasts=True)
    ),
}


def _without_hold(held: Held) -> dict[str, bytes]:
    return {path: data for path, data in held.storage.objects.items() if HOLD_FILE not in path}


def _copy(held: Held) -> Held:
    return Held(held.storage.copy(), held.table, held.live, held.merged)


def _rounds(held: Held, storage: Storage) -> None:
    """A process starts and has two rounds of expiry, whatever becomes of them."""
    with contextlib.suppress(_Killed, CompactordError):
        compactor = held.started(storage)
        for _ in range(2):
            with contextlib.suppress(CompactordError):
                held.expired(compactor)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("is_placed", [False, True], ids=["placed", "read"])
def test_nothing_goes_whatever_fails_while_a_file_is_lost(
    kind: str, cut_points: CutPoints, *, is_placed: bool
) -> None:
    """At every third call."""
    template = held_table()
    template.lose()
    if is_placed:
        template.expired()
    before, safe = _without_hold(template), None
    for at in cut_points(3):
        held = _copy(template)
        faulty = _KINDS[kind](held.storage, at)
        _rounds(held, faulty)
        assert _without_hold(held) == before, f"call {at}"
        assert held.expired().why_not is not None, f"call {at}"
        assert _without_hold(held) == before, f"call {at}"
        [file] = held.hold["files"]
        safe = safe or file["safe_version"]
        assert file["safe_version"] == safe
        if faulty.calls < at or (kind == "one is done and fails" and at > 5):
            break
    assert at > 5


@pytest.mark.parametrize("kind", _KINDS)
def test_a_hold_ends_whatever_failed_once_the_file_is_back(
    kind: str, cut_points: CutPoints
) -> None:
    """At every third call."""
    template = held_table()
    path, data = template.lose()
    template.expired()
    template.storage.objects[path] = data
    for at in cut_points(3):
        held = _copy(template)
        faulty = _KINDS[kind](held.storage, at)
        _rounds(held, faulty)
        # A round may have been cut short: what a whole one lets go goes now.
        assert held.expired().why_not is None, f"call {at}"
        assert len(held.snapshots) == 2, f"call {at}"
        assert held.hold is None, f"call {at}"
        if faulty.calls < at or (kind == "one is done and fails" and at > 20):
            break
    assert at > 5


@pytest.mark.parametrize("after", [False, True])
def test_a_damaged_file_that_was_told_holds_the_next_process_too(*, after: bool) -> None:
    """Its size is right: no listing finds it again."""
    template = held_table()
    path = template.merged[0]
    whole = template.storage.objects[path]
    [bucket] = [
        each for each in template.state().files.bucket_ids() if f"bucket-{each.bucket}/" in path
    ]
    for at in itertools.count(1):
        held = _copy(template)
        killer = _Killer(at)
        hooked = HookedStorage(held.storage, **{"after" if after else "before": killer})
        compactor = held.started(hooked, strategy=Strategy.FULL)
        dispatched = compactor.dispatch(bucket, compaction_id=1, free_slots=1)
        assert isinstance(dispatched, InFlight)
        held.storage.objects[path] = whole[:-12] + bytes(12)
        ended = outcome_of(dispatched)
        killer.is_armed = True
        with contextlib.suppress(_Killed):
            cycle = compactor.cycle([ended], ALL)
            assert cycle.hold is not None
            assert held.hold is not None
        is_written = held.hold is not None
        assert (held.expired().why_not is not None) == is_written, f"call {at}"
        if killer.calls < at:
            assert is_written
            break
    assert at > 3
