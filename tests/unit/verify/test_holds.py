"""Holds: what is found after a start, what is kept, what lifts it, and who asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from compactord.config.model import Recovery
from compactord.errors import StorageError, TransientStorageError
from compactord.maintenance.done import MarkDone
from compactord.maintenance.kind import UnderWay
from compactord.maintenance.registry import maintenance_kinds
from compactord.paimon import paths
from compactord.plan.table import Strategy
from compactord.state.table_state import load_state
from compactord.verify.damage import Damage, DamageKind
from compactord.verify.holds import (
    HOLD_FILE,
    TableHolds,
    hold_json,
    hold_path,
    parse_hold,
)
from tests import builders
from tests.builders import FIRST, SECOND, VirtualClock
from tests.storages import (
    Call,
    Fault,
    FaultyStorage,
    HookedStorage,
    LateListings,
    MemoryStorage,
)
from tests.unit.verify.holding import HOME, Held, held_table


def _cut(held: Held) -> str:
    held.storage.objects[held.live[0]] += b"x"
    return "data file has"


def _lost(held: Held) -> str:
    held.lose()
    return "data file does not exist"


@pytest.mark.parametrize("damage", [_lost, _cut])
def test_after_a_start_nothing_expires_while_a_live_file_is_not_as_recorded(
    damage: Callable[[Held], str],
) -> None:
    held = held_table()
    before, path = held.snapshots, held.live[0]
    whole = held.storage.objects[path]
    message = damage(held)
    for _ in range(2):
        done = held.expired()
        assert done.why_not is not None
        assert message in done.why_not
        assert path in done.why_not
        assert held.snapshots == before
    [file] = held.hold["files"]
    assert file["path"] == path
    assert f"the newest version without it is {file['safe_version']}" in done.why_not
    version = int(file["safe_version"].removeprefix("snapshot "))
    assert version in before
    held.storage.objects[path] = whole
    compactor = held.started()
    assert held.expired(compactor).snapshots > 0
    assert compactor.why_held() is None
    assert held.hold is None
    assert set(held.snapshots) < set(before)


def test_a_start_lists_each_bucket_once_and_a_healthy_table_is_not_listed_again() -> None:
    held = held_table()
    listed: list[str] = []

    def watch(call: Call) -> None:
        if call.method == "list" and "/bucket-" in call.path:
            listed.append(call.path)

    compactor = held.started(HookedStorage(held.storage, before=watch))
    listed.clear()
    for _ in range(3):
        assert compactor.expiry_blocker() is None
    assert sorted(listed) == [f"{HOME}/bucket-0", f"{HOME}/bucket-1"]


def test_a_listing_that_fails_keeps_everything_and_the_next_round_lists_again() -> None:
    held = held_table()
    before = held.snapshots
    fault = Fault(
        at=1,
        error=TransientStorageError,
        concerns=lambda call: call.method == "list" and call.path.endswith("/bucket-1"),
    )
    compactor = held.started(FaultyStorage(held.storage, fault))
    with pytest.raises(TransientStorageError):
        held.expired(compactor)
    assert held.snapshots == before
    assert held.expired(compactor).snapshots > 0


def test_a_file_that_a_listing_lacks_is_asked_for_by_itself() -> None:
    held = held_table()
    late = LateListings(held.storage, [held.live[0]])
    assert held.started(late).why_held() is None


def test_what_a_commit_replaces_while_files_are_listed_is_no_damage() -> None:
    """Another process compacts and expires: the file is gone, and not live any more."""
    held = held_table()
    is_begun = False

    def compact(call: Call) -> None:
        nonlocal is_begun
        if call.method == "list" and call.path.endswith("/bucket-0") and not is_begun:
            is_begun = True
            builders.compact(held.storage, held.table, strategy=Strategy.FULL)
            for path in held.live:
                held.storage.objects.pop(path)

    compactor = held.started()
    assert compactor.why_held() is None
    assert not is_begun
    assert held.started(HookedStorage(held.storage, before=compact)).why_held() is None
    assert is_begun


def test_a_file_that_is_not_live_any_more_ends_the_hold() -> None:
    held = held_table()
    path, data = held.lose()
    compactor = held.started()
    assert compactor.why_held() is not None
    held.storage.objects[path] = data
    builders.compact(held.storage, held.table)
    held.storage.objects.pop(path)
    assert compactor.why_held() is None
    assert held.hold is None


def test_an_index_file_with_deletion_vectors_counts_too() -> None:
    storage = MemoryStorage()
    table = builders.keyed_table(
        storage, HOME, buckets=1, options={"deletion-vectors.enabled": "true"}
    )
    target = builders.writer(storage, table)
    for keys in (200, 5):
        target.write(builders.rows_of([(key, keys) for key in range(keys)]))
        builders.compact(storage, table)
    held = Held(storage, table, ())
    assert held.started().why_held() is None
    [path] = [path for path in storage.objects if path.startswith(paths.index_folder(HOME) + "/")]
    data = storage.objects.pop(path)
    hold = held.started().why_held()
    assert hold is not None
    assert "index file with deletion vectors does not exist" in hold.message
    assert hold.path == path
    storage.objects[path] = data
    assert held.started().why_held() is None


def test_a_hold_of_a_branch_holds_main_and_the_other_way_round() -> None:
    held = held_table()
    branch = builders.make_branch(held.storage, held.table, "b", 8)
    path, data = held.lose()
    of_branch = Held(held.storage, branch, held.live)
    assert of_branch.started().why_held() is not None
    assert held.hold["files"][0]["branch"] == "b"
    held.storage.objects[path] = data
    lost = held.live[-1]
    other = held.storage.objects.pop(lost)
    hold = held.started().why_held()
    assert hold is not None
    assert hold.path == lost
    held.storage.objects[lost] = other
    assert held.started().why_held() is None
    assert of_branch.started().why_held() is None


def test_two_branches_do_not_hold_each_other_once_neither_has_its_file_any_more() -> None:
    held = held_table()
    branch = builders.make_branch(held.storage, held.table, "b", 8)
    folder = held.started().table.bucket_folder
    states = [load_state(held.storage, table) for table in (held.table, branch)]
    holds = [TableHolds(held.storage, t, VirtualClock(), FIRST) for t in (held.table, branch)]
    for one, state in zip(holds, states, strict=True):
        assert one.why_held(lambda state=state: state, folder) is None
    for one, state, path in zip(holds, states, held.live, strict=False):
        bucket = next(b for b in state.files.bucket_ids() if f"/bucket-{b.bucket}/" in path)
        one.add(Damage(path=path, kind=DamageKind.MISSING, message="it is gone", bucket=bucket))
        del held.storage.objects[path]
    for one, state in zip(holds, states, strict=True):
        assert one.why_held(lambda state=state: state, folder) is not None
    # Both were overwritten: what is live is there.
    empty = MemoryStorage()
    bare = load_state(empty, builders.keyed_table(empty, HOME, buckets=2))
    for _ in range(2):
        found = [one.why_held(lambda: bare, folder) for one in holds]
    assert found == [None, None]
    assert held.hold is None


def test_a_hold_that_another_process_wrote_and_that_makes_no_sense_holds() -> None:
    held = held_table()

    def race(call: Call) -> None:
        if call.method == "create_if_absent" and call.path == hold_path(HOME):
            held.storage.objects[call.path] = b"{"

    path, _ = held.lose()
    holds = TableHolds(HookedStorage(held.storage, before=race), held.table, VirtualClock(), FIRST)
    bucket = held.state().files.bucket_ids()[0]
    holds.add(Damage(path=path, kind=DamageKind.MISSING, message="it is gone", bucket=bucket))
    assert holds.known is not None
    assert held.expired().why_not is not None


def test_a_branch_that_is_gone_holds_nothing() -> None:
    held = held_table()
    branch = builders.make_branch(held.storage, held.table, "b", 8)
    builders.compact(held.storage, held.table)
    held.lose()
    of_branch = Held(held.storage, branch, held.live)
    assert of_branch.started().why_held() is not None
    assert held.started().why_held() is not None
    for path in [path for path in held.storage.objects if path.startswith(branch.root + "/")]:
        del held.storage.objects[path]
    assert held.started().why_held() is None


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"files": []}', b'{"files": [{"path": 1}]}', b"\xff"]
)
def test_a_hold_that_cannot_be_read_holds(data: bytes) -> None:
    held = held_table()
    before = held.snapshots
    held.storage.objects[hold_path(HOME)] = data
    done = held.expired()
    assert done.why_not is not None
    assert HOLD_FILE in done.why_not
    assert held.snapshots == before
    del held.storage.objects[hold_path(HOME)]
    assert held.expired().snapshots > 0


def test_where_the_folder_takes_no_file_the_process_holds_and_says_so() -> None:
    held = held_table()
    path, data = held.lose()
    fault = Fault(
        at=1,
        error=StorageError,
        lasts=True,
        concerns=lambda call: HOLD_FILE in call.path and call.is_mutation,
    )
    compactor = held.started(FaultyStorage(held.storage, fault))
    for _ in range(2):
        hold = compactor.why_held()
        assert hold is not None
        assert "kept until this process ends" in hold.message
    assert held.hold is None
    held.storage.objects[path] = data
    assert compactor.why_held() is None


def test_a_hold_that_somebody_removes_is_placed_again_if_a_listing_shows_the_damage() -> None:
    held = held_table()
    held.lose()
    compactor = held.started()
    assert compactor.why_held() is not None
    del held.storage.objects[hold_path(HOME)]
    assert compactor.why_held() is not None
    assert held.hold is not None


def test_what_is_written_is_what_is_read() -> None:
    held = held_table()
    held.lose()
    held.started().why_held()
    data = held.storage.objects[hold_path(HOME)]
    assert hold_json(parse_hold(data, "p")) == data


@pytest.mark.parametrize(
    "kind",
    [kind for kind in maintenance_kinds(Recovery()) if kind.name != MarkDone.name],
    ids=lambda kind: kind.name,
)
def test_no_kind_that_deletes_does_so_while_a_file_is_lost(kind: Any) -> None:
    held = held_table()
    held.lose()
    compactor = held.started()
    compactor.why_held()
    left = f"{HOME}/bucket-0/data-{SECOND.unique_name()}-0.parquet"
    held.storage.objects[left] = b"left over long ago"
    objects = dict(held.storage.objects)
    kind.run(compactor, UnderWay(since_ms=0, for_ms=0))
    assert held.storage.objects == objects


def test_damage_that_is_found_while_the_table_is_listed_waits_for_no_listing() -> None:
    held = held_table()
    compactor = held.started()
    hold = held.started().why_held()
    assert hold is None
    damage = Damage(
        path=held.merged[0],
        kind=DamageKind.CONTENT,
        message="a checksum does not hold",
        bucket=held.state().files.bucket_ids()[0],
        size_bytes=len(held.storage.objects[held.merged[0]]),
    )
    holds: TableHolds

    def find(call: Call) -> None:
        if call.method == "list" and call.path.endswith("/bucket-0"):
            other = threading.Thread(target=holds.add, args=(damage,))
            other.start()
            other.join(60)
            assert not other.is_alive()

    hooked = HookedStorage(held.storage, before=find)
    holds = TableHolds(hooked, held.table, VirtualClock(), FIRST)
    found = holds.why_held(held.state, compactor.table.bucket_folder)
    assert found is not None
    assert found.path == damage.path
    assert held.hold is not None
