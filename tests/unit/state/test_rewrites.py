"""Who rewrites files of a table, as its snapshots tell: followed, and looked back for."""

from __future__ import annotations

import pytest

from compactord.commit.committer import commit_user
from compactord.paimon import paths
from compactord.paimon.snapshot import CommitKind
from compactord.state.rewrites import Rewrite, Rewrites
from compactord.state.table_state import (
    TableState,
    delta_manifests,
    load_state,
    refresh_state,
    with_rewrites,
)
from tests.builders import FIRST
from tests.unit.state.table_by_day import MINUTE, NOW_MS, TableByDay, day


class Days(TableByDay):
    """Looked at: `since` is in minutes before now."""

    def state(self, *, since: int | None = None) -> TableState:
        return self.again(load_state(self.storage, self.table), since=since)

    def again(self, state: TableState, *, since: int | None, now_ms: int = NOW_MS) -> TableState:
        since_ms = None if since is None else now_ms - since * MINUTE
        return with_rewrites(self.storage, state, since_ms=since_ms, now_ms=now_ms)

    def followed(self, state: TableState) -> TableState:
        return refresh_state(self.storage, state).state


def rewrites_of(state: TableState) -> Rewrites:
    assert state.rewrites is not None
    return state.rewrites


def newest_id(state: TableState) -> int | None:
    newest = rewrites_of(state).newest
    return None if newest is None else newest.snapshot_id


def days_of(state: TableState) -> dict[int, int]:
    """Day → snapshot."""
    found = rewrites_of(state).by_partition
    return {n: found[day(n)].snapshot_id for n in range(100) if day(n) in found}


@pytest.mark.parametrize("follows", [True, False], ids=["followed", "looked back"])
@pytest.mark.parametrize(
    ("kind", "operation", "user", "is_rewrite"),
    [
        (CommitKind.OVERWRITE, "DELETE", "u", True),
        (CommitKind.OVERWRITE, "UPDATE", "u", True),
        (CommitKind.OVERWRITE, "MERGE", "u", True),
        # An older Java, or Flink's INSERT OVERWRITE: nothing tells which.
        (CommitKind.OVERWRITE, None, "u", True),
        (CommitKind.OVERWRITE, "of a later release", "u", True),
        (CommitKind.OVERWRITE, "OVERWRITE", "u", False),
        (CommitKind.OVERWRITE, "TRUNCATE", "u", False),
        # Partitions that we removed.
        pytest.param(CommitKind.OVERWRITE, None, commit_user(FIRST, "p"), False, id="ours"),
        (CommitKind.COMPACT, None, "u", False),
    ],
)
def test_what_replaces_files_by_name_is_a_rewrite(
    kind: CommitKind, operation: str | None, user: str, is_rewrite: bool, follows: bool
) -> None:
    table = Days()
    before = table.state(since=30)
    assert rewrites_of(before).newest is None
    snapshot = table.rewrite(0, 2, ago=5, kind=kind, operation=operation, user=user)
    table.append(ago=1)
    state = table.followed(before) if follows else table.state(since=30)
    rewrite = Rewrite(
        snapshot_id=2, commit_user="u", operation=operation, time_ms=NOW_MS - 5 * MINUTE
    )
    assert rewrites_of(state).newest == (rewrite if is_rewrite else None)
    assert days_of(state) == (dict.fromkeys((0, 2), snapshot.id) if is_rewrite else {})


@pytest.mark.parametrize("follows", [True, False], ids=["followed", "looked back"])
def test_an_overwrite_of_what_was_empty_is_none(follows: bool) -> None:
    table = Days()
    before = table.state(since=30)
    table.append(ago=5, kind=CommitKind.OVERWRITE)
    state = table.followed(before) if follows else table.state(since=30)
    assert newest_id(state) is None


def test_files_deleted_by_an_append_are_met_on_the_way() -> None:
    table = Days()
    state = table.state(since=30)
    table.rewrite(1, ago=5, kind=CommitKind.APPEND, operation=None)
    assert days_of(table.followed(state)) == {1: 2}


def test_nobody_asked_and_nothing_is_remembered() -> None:
    table = Days()
    state = load_state(table.storage, table.table)
    table.rewrite(0, ago=5)
    assert table.followed(state).rewrites is None


def test_of_each_partition_the_newest_is_remembered_and_forgotten_with_time() -> None:
    table = Days()
    state = table.state(since=30)
    for ago, days in ((29, (0, 1)), (20, (1, 2)), (10, (2,))):
        table.rewrite(*days, ago=ago)
        state = table.followed(state)
    assert days_of(state) == days_of(table.state(since=30)) == {0: 2, 1: 3, 2: 4}
    for later, expected in ((2, {1: 3, 2: 4}), (15, {2: 4}), (30, {})):
        state = table.again(state, since=30, now_ms=NOW_MS + later * MINUTE)
        assert days_of(state) == expected
        assert newest_id(state) == 4, "the table is still known for it"


def test_without_a_time_only_the_newest_is_remembered_and_no_entry_is_read() -> None:
    table = Days()
    state = table.state()
    table.rewrite(0, 1, ago=9)
    table.rewrite(2, ago=5)
    assert (newest_id(table.followed(state)), days_of(table.followed(state))) == (3, {})
    loaded = load_state(table.storage, table.table)
    table.storage.reads.clear()
    state = table.again(loaded, since=None)
    assert (newest_id(state), days_of(state)) == (3, {})
    # The list of its delta tells that it deletes files; then the snapshot before it is too old.
    assert [path.rsplit("/", 1)[1].rsplit("-", 1)[0] for path in table.storage.reads] == [
        "manifest-list-00000000-0000-4000-8000-000000000000",
        "snapshot",
    ]


def test_asked_for_more_it_looks_back_once_more() -> None:
    table = Days()
    table.rewrite(0, ago=40)
    table.rewrite(1, ago=20)
    state = table.state(since=30)
    assert days_of(state) == {1: 3}
    state = table.again(state, since=60)
    assert days_of(state) == {0: 2, 1: 3}
    table.storage.reads.clear()
    assert days_of(table.again(state, since=30)) == {1: 3}
    assert table.storage.reads == []


@pytest.mark.parametrize(
    ("appends", "since", "expected"),
    [(48, None, 2), (60, None, None), (60, 30, 2), (60, 4, None), (510, 30, None)],
)
def test_how_far_it_looks_back(appends: int, since: int | None, expected: int | None) -> None:
    table = Days()
    table.rewrite(0, ago=5)
    for _ in range(appends):
        # Without the list of all manifests so far, which nobody looks at here.
        table.commit_on((), [], time_ms=NOW_MS - 3 * MINUTE)
    loaded = load_state(table.storage, table.table)
    table.storage.reads.clear()
    state = table.again(loaded, since=since)
    assert newest_id(state) == expected
    assert days_of(state) == ({0: 2} if since and expected else {})
    assert len(table.storage.reads) < 510


@pytest.mark.parametrize("damage", ["expired", "unreadable", "newer", "delta list", "delta"])
def test_what_cannot_be_read_ends_the_look_back_quietly(damage: str) -> None:
    table = Days()
    table.rewrite(0, ago=9)
    broken = table.rewrite(1, ago=7)
    table.rewrite(2, ago=5)
    loaded = load_state(table.storage, table.table)
    path = paths.snapshot_path(table.table.location, broken.id)
    content = table.storage.objects[path]
    match damage:
        case "expired":
            table.storage.delete(path)
        case "unreadable":
            table.storage.overwrite(path, content[:40])
        case "newer":
            table.storage.overwrite(path, content.replace(b'"version": 3', b'"version": 4'))
        case "delta list":
            path = paths.manifest_path(table.table.location, broken.delta_manifest_list)
            table.storage.delete(path)
        case "delta":
            for manifest in delta_manifests(table.storage, table.table.location, broken):
                path = paths.manifest_path(table.table.location, manifest.file_name)
                table.storage.delete(path)
    assert days_of(table.again(loaded, since=30)) == {2: 4}


def test_a_clock_that_was_ahead_makes_no_partition_rest_for_longer() -> None:
    table = Days()
    table.rewrite(0, ago=-600)
    state = table.state(since=30)
    assert rewrites_of(state).by_partition[day(0)].time_ms == NOW_MS
    later = table.again(state, since=30, now_ms=NOW_MS + 31 * MINUTE)
    assert days_of(later) == {}


def test_a_rewrite_that_was_rolled_back_is_forgotten() -> None:
    table = Days()
    table.rewrite(0, ago=9)
    kept = table.snapshot
    assert kept is not None
    table.rewrite(1, ago=7)
    state = table.state(since=30)
    assert days_of(state) == {0: 2, 1: 3}
    table.rollback(kept)
    state = table.followed(state)
    assert (newest_id(state), days_of(state)) == (2, {0: 2})


def test_a_partition_rests_until_its_time_is_over() -> None:
    table = Days()
    table.rewrite(0, ago=9)
    table.rewrite(1, ago=3)
    known = rewrites_of(table.state(since=30))
    cooldowns = known.cooling_down(quiet_for_ms=10 * MINUTE, now_ms=NOW_MS)
    assert {p: (each.age_ms, each.until_ms) for p, each in cooldowns.items()} == {
        day(0): (9 * MINUTE, NOW_MS + MINUTE),
        day(1): (3 * MINUTE, NOW_MS + 7 * MINUTE),
    }
    assert set(known.cooling_down(quiet_for_ms=9 * MINUTE, now_ms=NOW_MS)) == {day(1)}
    assert known.cooling_down(quiet_for_ms=0, now_ms=NOW_MS) == {}
