"""Since when rows wait for readers, as snapshots add, take and move the files they are in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from compactord.paimon.data_file import BucketId, ManifestEntry
from compactord.paimon.snapshot import CommitKind
from compactord.state.columns import WaitingRows
from compactord.state.table_state import TableState, load_state, refresh_state
from tests.unit.paimon.table_builder import UNPARTITIONED, History, data_file, deleted, entry

BUCKET = BucketId(UNPARTITIONED, 0)
AHEAD_MS = 7
# Files that wait below level 1, as with `lookup`, or below the highest.
LOWEST, HIGHEST = 1, 5


@dataclass(frozen=True)
class Commit:
    """`added` and `deleted` are `name@level`; with `time_ms` of the snapshot."""

    time_ms: int
    added: str = ""
    deleted: str = ""

    def entries(self, bucket: int = 0) -> list[ManifestEntry]:
        gone = [deleted(_entry(text, bucket)) for text in self.deleted.split()]
        return gone + [_entry(text, bucket) for text in self.added.split()]


def _entry(text: str, bucket: int) -> ManifestEntry:
    """A file created at the number in its name, by a clock that is ahead."""
    name, _, level = text.partition("@")
    created_ms = int(name[1:]) + AHEAD_MS if name[1:] else None
    file = data_file(name, level=int(level), creation_time_ms=created_ms)
    return entry(file, bucket=bucket)


def _commit(history: History, commit: Commit, bucket: int = 0) -> None:
    kind = CommitKind.COMPACT if commit.deleted else CommitKind.APPEND
    history.commit(commit.entries(bucket), kind, time_ms=commit.time_ms)


def _opened(history: History, level: int) -> TableState:
    state = load_state(history.storage, history.table)
    return replace(state, waiting=WaitingRows.of(state.files, level, ahead_ms=AHEAD_MS))


def _since(state: TableState, bucket: BucketId = BUCKET) -> int:
    assert state.waiting is not None
    return state.waiting.since_ms(bucket)


@pytest.mark.parametrize(
    ("level", "before", "seen", "since"),
    [
        pytest.param(LOWEST, "a10@0 b20@0", [], 10, id="what was there counts from its creation"),
        pytest.param(LOWEST, "a10@3", [], 0, id="above the lowest level nothing waits"),
        pytest.param(HIGHEST, "a10@3", [], 10, id="below the highest all does"),
        pytest.param(HIGHEST, "a10@5", [], 0, id="on the highest nothing does"),
        pytest.param(LOWEST, "a@0", [], 0, id="no creation is known"),
        pytest.param(LOWEST, "", [(30, "a10@0", "")], 30, id="what is seen from its snapshot"),
        pytest.param(
            LOWEST, "", [(30, "a10@0", ""), (40, "b11@0", "")], 30, id="the oldest is told"
        ),
        pytest.param(
            LOWEST,
            "a10@0",
            [(30, "b11@0", ""), (40, "c35@5", "a10@0")],
            30,
            id="a compaction that took some leaves the others",
        ),
        pytest.param(
            LOWEST,
            "a10@0 b20@0",
            [(40, "c35@5", "a10@0")],
            20,
            id="some of those that were there",
        ),
        pytest.param(
            LOWEST,
            "a10@0 b20@0",
            [(40, "c35@5", "a10@0 b20@0"), (50, "d45@0", "")],
            50,
            id="all of them, and then a new one",
        ),
        pytest.param(
            HIGHEST,
            "",
            [(30, "a10@0", ""), (40, "b11@0", ""), (50, "c45@3", "b11@0 a10@0")],
            30,
            id="on a level where they wait on rows keep their age",
        ),
        pytest.param(
            HIGHEST,
            "a10@0 b20@4",
            [(50, "c45@3", "a10@0"), (60, "d55@4", "c45@3 b20@4")],
            10,
            id="also those that were there",
        ),
        pytest.param(
            HIGHEST,
            "",
            [(30, "a10@0", ""), (50, "a10@3", "a10@0"), (60, "b55@0", "")],
            30,
            id="also in a file that only moved",
        ),
        pytest.param(
            HIGHEST,
            "a10@5",
            [(30, "b20@0", ""), (50, "c45@5", "b20@0 a10@5")],
            0,
            id="a full compaction takes all",
        ),
    ],
)
def test_since_when_the_oldest_row_waits(
    level: int, before: str, seen: Sequence[tuple[int, str, str]], since: int
) -> None:
    history = History()
    _commit(history, Commit(1, before))
    state = _opened(history, level)
    for commit in seen:
        _commit(history, Commit(*commit))
        state = refresh_state(history.storage, state).state
    assert _since(state) == since
    assert state.waiting is not None
    assert state.waiting.oldest_ms == since


def test_buckets_wait_apart_and_the_table_as_long_as_the_oldest() -> None:
    history = History()
    _commit(history, Commit(1, "a10@0"))
    state = _opened(history, LOWEST)
    _commit(history, Commit(30, "b20@0"), bucket=1)
    _commit(history, Commit(40, "c35@5", "a10@0"))
    state = refresh_state(history.storage, state).state
    assert state.waiting is not None
    assert [_since(state), _since(state, BucketId(UNPARTITIONED, 1))] == [0, 30]
    assert state.waiting.oldest_ms == 30


def test_what_was_followed_is_the_same_after_a_consolidation() -> None:
    history = History()
    _commit(history, Commit(30, "a10@0"))
    state = _opened(history, LOWEST)
    _commit(history, Commit(40, "b20@0"))
    followed = refresh_state(history.storage, state).state
    anew = WaitingRows.of(followed.files, LOWEST, ahead_ms=AHEAD_MS)
    assert anew.since_ms(BUCKET) == 10
    _commit(history, Commit(50, "c45@5", "a10@0"))
    later = refresh_state(history.storage, followed).state
    assert _since(later) == 40


def test_a_table_that_is_read_anew_must_be_asked_again() -> None:
    history = History()
    _commit(history, Commit(30, "a10@0"))
    state = _opened(history, LOWEST)
    history.commit([_entry("b20@0", 0)], CommitKind.OVERWRITE)
    assert refresh_state(history.storage, state).state.waiting is None
