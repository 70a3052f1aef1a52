"""Expiry is cut short at any storage call: what stays is whole, and the next run finishes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

import pytest

from compactord.catalog.access import table_in_folder
from compactord.errors import (
    AccessDenied,
    CompactordError,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
)
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import Snapshot, read_snapshot, read_tags, snapshot_ids
from compactord.plan.table import Strategy
from compactord.state.loading import load_live_files
from compactord.state.table_state import TableState, data_manifests
from compactord.storage.base import Storage
from compactord.table.opening import open_table
from tests import builders
from tests.builders import NOW_MS
from tests.rounds import Expired, expire_snapshots
from tests.sampling import CutPoints
from tests.storages import Call, Fault, FaultyStorage, MemoryStorage

HOME = "/warehouse/db.db/t"
TABLE = TableRef(database="db", name="t", location=HOME)
OPTIONS = {
    "snapshot.num-retained.min": "2",
    "snapshot.time-retained": "0 ms",
    "manifest.merge-min-count": "3",
}


def _anything(call: Call) -> bool:
    return True


def _mutation(call: Call) -> bool:
    return call.is_mutation


def _read(call: Call) -> bool:
    return call.method == "read"


def _expire(storage: Storage) -> Expired:
    table = open_table(table_in_folder(storage, TABLE), OPTIONS)
    return expire_snapshots(table, table.options.expire, now_ms=NOW_MS + 3_600_000, keep_from=None)


@pytest.fixture(scope="module")
def template() -> MemoryStorage:
    """Merges, upgrades, merged manifests, two tags, a branch without its tag."""
    storage = MemoryStorage()
    options = {**OPTIONS, "num-sorted-run.compaction-trigger": "2"}
    builders.keyed_table(storage, HOME, buckets=2, options=options)
    writer = builders.writer(storage, TABLE)
    for round_ in range(5):
        builders.fill_keyed(writer, commits=2, keys=12)
        builders.compact(storage, TABLE, strategy=Strategy.FULL if round_ % 2 else Strategy.MINOR)
    for tagged, path in (
        (2, paths.tag_path(HOME, "old")),
        (5, paths.tag_path(HOME, "young")),
        (4, paths.snapshot_path(paths.branch_root(HOME, "dev"), 4)),
    ):
        data = storage.read(paths.snapshot_path(HOME, tagged))
        storage.write_new(path, data)
    return storage


def _kept(storage: MemoryStorage, end: int) -> list[Snapshot]:
    """Snapshots that stay, tags, and those of the branch."""
    branch = paths.branch_root(HOME, "dev")
    return [
        *(read_snapshot(storage, HOME, i) for i in snapshot_ids(storage, HOME) if i >= end),
        *read_tags(storage, HOME).values(),
        *(read_snapshot(storage, branch, i) for i in snapshot_ids(storage, branch)),
    ]


def _check_readable(storage: MemoryStorage, end: int, count: int, what: str) -> None:
    table = open_table(table_in_folder(storage, TABLE), {})
    kept = _kept(storage, end)
    assert len(kept) == count, what
    for snapshot in kept:
        manifests = data_manifests(storage, HOME, snapshot)
        assert manifests
        files = load_live_files(storage, HOME, manifests)
        state = TableState(table=TABLE, snapshot=snapshot, files=files)
        for path in builders.live_paths(storage, TABLE, state):
            assert storage.status(path) is not None, f"{what}: {snapshot.id} lacks {path}"
    assert table.schema.id == 0


# At last how many calls there are from one that fails to the next: kinds of errors hardly differ.
CASES = [
    (TransientStorageError, _anything, False, False, 4),
    (TransientStorageError, _anything, False, True, 6),
    (ObjectNotFound, _read, False, False, 2),
    (AccessDenied, _anything, False, False, 6),
    (StorageError, _mutation, True, False, 2),
    (TransientStorageError, _mutation, True, True, 2),
    (AccessDenied, _mutation, False, True, 2),
]


@pytest.mark.parametrize(
    ("kind", "concerns", "after_effect", "lasts", "step"),
    CASES,
    ids=lambda value: getattr(value, "__name__", str(value)).strip("_"),
)
def test_a_failing_call_hurts_nothing_that_stays_and_the_next_run_finishes(
    template: MemoryStorage,
    cut_points: CutPoints,
    *,
    kind: type[StorageError],
    concerns: Callable[[Call], bool],
    after_effect: bool,
    lasts: bool,
    step: int,
) -> None:
    """More, at random: `make faults`."""
    clean = template.copy()
    done = _expire(clean)
    assert done.snapshots > 6
    assert done.data_files > 6
    count = len(_kept(template, done.end))
    _check_readable(clean, done.end, count, "no fault")
    for at in cut_points(step):
        storage = template.copy()
        fault = Fault(at=at, error=kind, after_effect=after_effect, lasts=lasts, concerns=concerns)
        faulty = FaultyStorage(storage, fault)
        with contextlib.suppress(CompactordError):
            _expire(faulty)
        what = str(faulty.failed[:1])
        _check_readable(storage, done.end, count, what)
        _expire(storage)
        assert storage.objects == clean.objects, what
        if not faulty.failed:
            break
    assert at > {_anything: 100, _read: 60, _mutation: 30}[concerns], (
        "the faults reached the whole run"
    )


def test_cut_short_again_and_again_it_still_ends(template: MemoryStorage) -> None:
    clean = template.copy()
    done = _expire(clean)
    count = len(_kept(template, done.end))
    storage = template.copy()
    for at in itertools.count(2, 5):
        fault = Fault(
            at=at, error=TransientStorageError, after_effect=True, lasts=True, concerns=_mutation
        )
        faulty = FaultyStorage(storage, fault)
        with contextlib.suppress(CompactordError):
            _expire(faulty)
        _check_readable(storage, done.end, count, str(at))
        if not faulty.failed:
            break
    assert at > 30
    assert set(storage.objects) == set(clean.objects)
