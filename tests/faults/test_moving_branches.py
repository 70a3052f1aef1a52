"""Main is fast-forwarded to a branch while that expires: what main then needs is spared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from compactord.catalog.access import table_in_folder
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind, read_snapshot, read_tags, snapshot_ids
from compactord.storage.base import Storage
from compactord.storage.calls import AT_ONCE
from compactord.table.opening import OpenTable, open_table
from tests.lineage import Lineage
from tests.rounds import Expired, ExpiredTags, expire_changelogs, expire_snapshots, expire_tags
from tests.storages import Call, HookedStorage, MemoryStorage, RequestCounter
from tests.unit.maintenance.expiring import HOME, LATER_MS, check, lacks, with_data

BRANCH = paths.branch_root(HOME, "b")
_FILES = 30


def _table(newest: int = 4) -> MemoryStorage:
    """Main has snapshots 1 to `newest`, branch `b` went on from 2 with others, 3 to 8, no tag."""
    table = Lineage()
    first = table.append(2, commits=2)
    fork = table.fork()
    table.append(1, commits=newest - 2)
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
    """As BranchManager.fastForward moves main to a branch; its tags come last."""
    first = min(snapshot_ids(storage, BRANCH))
    storage.now_ms += 1
    storage.delete(paths.latest_hint(HOME))
    yield
    for id_ in (each for each in snapshot_ids(storage, HOME) if each >= first):
        storage.delete(paths.snapshot_path(HOME, id_))
        yield
    for folder in (paths.snapshot_folder, paths.tag_folder):
        for status in tuple(storage.list(folder(BRANCH))):
            data = storage.read(paths.join(folder(BRANCH), status.name))
            storage.overwrite(paths.join(folder(HOME), status.name), data)
            yield


def _opened(storage: Storage, branch: str, keep: int = 1, **options: str) -> OpenTable:
    retained = {"snapshot.num-retained.min": str(keep), "snapshot.time-retained": "0 ms"}
    ref = TableRef(database="db", name="t", location=HOME, branch=branch)
    return open_table(table_in_folder(storage, ref), {**retained, **options})


def _expire(storage: Storage, branch: str, keep: int = 1, **options: str) -> Expired:
    opened = _opened(storage, branch, keep, **options)
    return expire_snapshots(opened, opened.options.expire, now_ms=LATER_MS, keep_from=None)


def _tagged() -> MemoryStorage:
    """Only a tag of the branch, whose time has passed, needs the files of its snapshot 6."""
    storage = _table(newest=9)
    snapshot = storage.read(paths.snapshot_path(BRANCH, 6)).rstrip().removesuffix(b"}")
    times = b', "tagCreateTime": [2023, 11, 14, 12, 0], "tagTimeRetained": 3600.0}'
    storage.overwrite(paths.tag_path(BRANCH, "old"), snapshot + times)
    assert _expire(storage, "b", keep=2).snapshots == 5
    return storage


_CHANGELOGS = "changelog.num-retained.min"


def _with_changelogs() -> MemoryStorage:
    """Only changelogs of the branch need the files that its snapshots 4 and 6 added."""
    storage = _table(newest=9)
    assert _expire(storage, "b", keep=2, **{_CHANGELOGS: "100"}).snapshots == 5
    return storage


def _expire_changelogs(storage: Storage) -> Expired:
    return expire_changelogs(_opened(storage, "b", **{_CHANGELOGS: "3"}), LATER_MS)


# A table with a branch `b`, and what expires of that.
EXPIRIES: dict[
    str, tuple[Callable[[], MemoryStorage], Callable[[Storage], Expired | ExpiredTags]]
] = {
    "snapshots": (_table, lambda storage: _expire(storage, "b")),
    "tags": (
        _tagged,
        lambda storage: expire_tags(_opened(storage, "b"), LATER_MS),
    ),
    "changelogs": (_with_changelogs, _expire_changelogs),
}


def _lacking(storage: MemoryStorage) -> Sequence[str]:
    """Of main."""
    snapshots = [read_snapshot(storage, HOME, id_) for id_ in snapshot_ids(storage, HOME)]
    return lacks(storage, [*snapshots, *read_tags(storage, HOME).values()])


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("kind", EXPIRIES)
def test_main_that_is_moved_to_a_branch_while_that_expires_loses_no_more(
    kind: str, *, at_once: bool
) -> None:
    """At any moment; with `at_once` false a step of it before each call from then on."""
    table, expire = EXPIRIES[kind]
    template = table()
    plain = HookedStorage(template.copy())
    done = expire(plain)
    assert done.why_not is None
    assert done.data_files > 2 * AT_ONCE
    # A deletion is three calls.
    for at in range(1, plain.calls + 1, 1 if at_once and kind == "snapshots" else 4):
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

        expire(HookedStorage(storage, before=before))
        for _ in steps:
            pass
        after = deleted[moved[0] - 1 :] if moved[0] else []
        # What was decided after the move is right. Other threads delete one more each while one
        # looks.
        if kind == "snapshots" or moved[0] > 1:
            assert len(after) <= AT_ONCE, at
        if kind != "snapshots" or (moved[0] == 1 and not after):
            assert {*snapshot_ids(template, BRANCH)} <= {*snapshot_ids(storage, HOME)}, at
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
