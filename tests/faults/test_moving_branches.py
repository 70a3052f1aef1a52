"""Main is fast-forwarded to a branch while that expires: what main then needs is spared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from compactord.catalog.access import table_in_folder
from compactord.maintenance.expire import Expired, expire_snapshots
from compactord.paimon import paths
from compactord.paimon.snapshot import CommitKind, read_snapshot, snapshot_ids
from compactord.paimon.table import TableRef
from compactord.storage.base import Storage
from compactord.storage.parallel import AT_ONCE
from compactord.table.opening import open_table
from tests.lineage import Lineage
from tests.storages import Call, HookedStorage, MemoryStorage, RequestCounter
from tests.unit.maintenance.expiring import HOME, LATER_MS, check, lacks, with_data

BRANCH = paths.branch_root(HOME, "b")
_FILES = 30


def _table() -> MemoryStorage:
    """Main has snapshots 1 to 4, branch `b` went on from 2 with others, 3 to 8; no tag is left."""
    table = Lineage()
    first = table.append(2, commits=2)
    fork = table.fork()
    table.append(1, commits=2)
    before = fork.compacted_by_others(first)
    for _ in range(2):
        before = fork.compacted_by_others([before, *fork.append(_FILES)])
    fork.append(1)
    check(with_data(table))
    check(with_data(fork))
    for path, data in fork.storage.objects.items():
        name = path.removeprefix(f"{HOME}/")
        if name.startswith(("manifest/", "bucket-0/")):
            table.storage.objects.setdefault(path, data)
        elif name != "snapshot/snapshot-1":
            table.storage.objects[f"{BRANCH}/{name}"] = data
    return table.storage


def _steps(storage: MemoryStorage) -> Iterator[None]:
    """As BranchManager.fastForward moves main, from which a branch begins at its snapshot 2."""
    storage.now_ms += 1
    storage.delete(paths.latest_hint(HOME))
    yield
    for id_ in (each for each in snapshot_ids(storage, HOME) if each >= 2):
        storage.delete(paths.snapshot_path(HOME, id_))
        yield
    for status in tuple(storage.list(paths.snapshot_folder(BRANCH))):
        data = storage.read(paths.join(paths.snapshot_folder(BRANCH), status.name))
        storage.overwrite(paths.join(paths.snapshot_folder(HOME), status.name), data)
        yield


def _expire(storage: Storage, branch: str, keep: int = 1) -> Expired:
    retained = {"snapshot.num-retained.min": str(keep), "snapshot.time-retained": "0 ms"}
    ref = TableRef(database="db", name="t", location=HOME, branch=branch)
    opened = open_table(table_in_folder(storage, ref), retained)
    return expire_snapshots(opened, opened.options.expire, now_ms=LATER_MS, keep_from=None)


def _lacking(storage: MemoryStorage) -> Sequence[str]:
    ids = snapshot_ids(storage, HOME)
    return lacks(storage, [read_snapshot(storage, HOME, id_) for id_ in ids])


@pytest.mark.parametrize("at_once", [True, False])
def test_main_that_is_moved_to_a_branch_while_that_expires_loses_no_more(*, at_once: bool) -> None:
    """At any moment; with `at_once` false a step of it before each call from then on."""
    template = _table()
    plain = HookedStorage(template.copy())
    done = _expire(plain, "b")
    assert (done.snapshots, done.why_not) == (6, None)
    assert done.data_files > 2 * AT_ONCE
    for at in range(1, plain.calls + 1, 1 if at_once else 3):
        storage = template.copy()
        steps, deleted, moved = _steps(storage), list[str](), [0]

        def before(
            call: Call,
            at: int = at,
            steps: Iterator[None] = steps,
            deleted: list[str] = deleted,
            moved: list[int] = moved,
        ) -> None:
            if call.number == at or (call.number > at and not at_once):
                while next(steps, 0) is None and at_once:
                    pass
                moved[0] = moved[0] or len(deleted) + 1
            if call.method == "delete":
                deleted.append(call.path)

        _expire(HookedStorage(storage, before=before), "b")
        for _ in steps:
            pass
        after = deleted[moved[0] - 1 :] if moved[0] else []
        # Other threads delete one more each while one looks.
        assert len(after) <= AT_ONCE, at
        if moved[0] == 1 and not after:
            assert snapshot_ids(storage, HOME) == tuple(range(1, 9))
            assert not _lacking(storage), at


def _commit(kind: CommitKind) -> Callable[[MemoryStorage], None]:
    def act(storage: MemoryStorage) -> None:
        storage.now_ms += 1
        data = storage.read(paths.snapshot_path(HOME, 4)).replace(b'"id": 4', b'"id": 5')
        data = data.replace(b"APPEND", kind.value.encode())
        storage.overwrite(paths.snapshot_path(HOME, 5), data)
        storage.overwrite(paths.latest_hint(HOME), b"5")

    return act


def _replace_newest(storage: MemoryStorage) -> None:
    storage.now_ms += 1
    path = paths.snapshot_path(HOME, 4)
    storage.overwrite(path, storage.read(path) + b"\n")


def _tag(storage: MemoryStorage) -> None:
    storage.overwrite(paths.tag_path(HOME, "v"), storage.read(paths.snapshot_path(HOME, 3)))


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (_commit(CommitKind.APPEND), None),
        (_commit(CommitKind.COMPACT), None),
        (_commit(CommitKind.OVERWRITE), f"snapshot 5 of {HOME}, made meanwhile"),
        (_replace_newest, f"snapshots of {HOME} were rolled back or replaced"),
        (_tag, "tags or branches"),
    ],
)
def test_what_happens_to_another_branch_meanwhile(
    act: Callable[[MemoryStorage], None], why: str | None
) -> None:
    """Jobs may write main all the time."""
    storage = _table()
    acted: list[int] = []

    def after(call: Call) -> None:
        # It is the last that is read before the first deletion.
        if call.method == "read" and call.path == paths.snapshot_path(BRANCH, 8) and not acted:
            acted.append(1)
        elif call.method == "read" and "/manifest/" in call.path and len(acted) == 1:
            acted.append(2)
            act(storage)

    done = _expire(HookedStorage(storage, after=after), "b")
    assert len(acted) == 2
    if why is None:
        assert (done.why_not, done.snapshots) == (None, 6)
    else:
        assert why in str(done.why_not)
        assert (done.snapshots, done.data_files) == (0, 0)


def test_a_deletion_costs_a_small_request_for_each_branch_and_none_without() -> None:
    storage = _table()
    counter = RequestCounter(storage)
    done = _expire(counter, "b")
    deletions = sum(call.method == "delete" for call in counter.log)
    assert deletions > done.data_files
    hints = [call for call in counter.log if call.method == "status"]
    assert deletions * 2 <= len(hints) <= deletions * 2 + 20
    for path in [path for path in storage.objects if path.startswith(BRANCH)]:
        storage.delete(path)
    counter = RequestCounter(storage)
    assert _expire(counter, paths.MAIN_BRANCH).snapshots == 3
    assert not [call for call in counter.log if call.method == "status"]
    assert snapshot_ids(storage, HOME) == (4,)
