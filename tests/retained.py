"""A table whose old snapshots are needed by others, and a run that compacts, expires and sweeps it.

Whatever fails in such a run: each snapshot that somebody needs keeps its rows. They are counted
for the newest snapshot, those that a consumer has not read, a tag, a branch, a long-lived
changelog.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from compactord.catalog.access import table_in_folder
from compactord.errors import CompactordError
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import Snapshot, parse_snapshot, snapshot_ids
from compactord.plan.table import Strategy
from compactord.state.loading import load_live_files
from compactord.state.table_state import TableState, data_manifests, load_state
from compactord.storage.base import Storage
from compactord.table.opening import open_table
from tests import builders
from tests.builders import FIRST, NOW_MS, SECOND, consumer_path
from tests.rounds import expire_snapshots
from tests.storages import MemoryStorage

_TEMPLATE = "/t"
_OPTIONS = {
    "snapshot.num-retained.min": "1",
    "snapshot.time-retained": "0 ms",
    "num-sorted-run.compaction-trigger": "2",
}
# Next to be read by the consumer: it and later snapshots must stay.
_UNREAD = 8
_TAG = paths.tag_path("", "v1")
_BRANCH = paths.snapshot_path(paths.branch_root("", "dev"), 4)
_CHANGELOG = f"{paths.changelog_folder('')}/changelog-5"
_CONSUMER = consumer_path("", "app")
Rows = Mapping[int, int]


@dataclass(frozen=True)
class Retained:
    """The table's files by their paths in it, and the rows of what somebody needs by its path.

    Snapshots 1 to 11: after two APPENDs each comes a compaction, but for the last two. Dead
    processes wrote all files, and left `strays`, which nothing names.
    """

    objects: Mapping[str, bytes]
    needed: Mapping[str, Rows]
    strays: frozenset[str]

    def put(self, storage: Storage, location: str) -> TableRef:
        """The table in a store, at an empty place."""
        for name, data in self.objects.items():
            storage.write_new(location + name, data)
        return TableRef(database="db", name="t", location=location)

    def check(self, storage: Storage, table: TableRef, what: str) -> None:
        """All that somebody needs is there, with the rows that it had."""
        newest = self.needed[_snapshot(11)]
        assert builders.read_keyed(storage, table) == newest, what
        for root, rows in self.needed.items():
            assert _rows_of(storage, table, root) == rows, f"{root}: {what}"
        assert storage.status(table.location + _CONSUMER) is not None, what

    def check_tidy(self, storage: Storage, table: TableRef, what: str) -> None:
        """What a run without faults leaves: one run, and neither old snapshots nor orphans."""
        state = load_state(storage, table)
        assert [state.files.summary(b).run_count for b in state.files.bucket_ids()] == [1], what
        assert min(snapshot_ids(storage, table.location)) == _UNREAD, what
        assert self.strays.isdisjoint(names_in(storage, table)), what


@functools.cache
def retained() -> Retained:
    storage = MemoryStorage()
    table = builders.keyed_table(storage, _TEMPLATE, buckets=1, options=_OPTIONS)
    target = builders.writer(storage, table)
    for _ in range(3):
        builders.fill_keyed(target, commits=2, keys=12)
        builders.compact(storage, table, strategy=Strategy.FULL)
    builders.fill_keyed(target, commits=2, keys=12)
    for id_, path in ((2, _TAG), (4, _BRANCH), (5, _CHANGELOG)):
        storage.write_new(_TEMPLATE + path, storage.read(_TEMPLATE + _snapshot(id_)))
    storage.write_new(_TEMPLATE + _CONSUMER, b'{"nextSnapshot": %d}' % _UNREAD)
    strays = frozenset(
        f"/{folder}/{kind}-{FIRST.unique_name()}-0{suffix}"
        for folder, kind, suffix in (("bucket-0", "data", ".parquet"), ("manifest", "manifest", ""))
    )
    for path in strays:
        storage.write_new(_TEMPLATE + path, b"half a file")
    roots = [_TAG, _BRANCH, _CHANGELOG, *map(_snapshot, range(_UNREAD, 12))]
    return Retained(
        {path.removeprefix(_TEMPLATE): data for path, data in storage.objects.items()},
        {root: _rows_of(storage, table, root) for root in roots},
        strays,
    )


def compact(storage: Storage, table: TableRef) -> None:
    builders.compact(storage, table, owner=SECOND)


def expire(storage: Storage, table: TableRef) -> None:
    opened = open_table(table_in_folder(storage, table), {})
    expire_snapshots(opened, opened.options.expire, now_ms=NOW_MS + 3_600_000, keep_from=None)


def sweep(storage: Storage, table: TableRef) -> None:
    builders.remove_leftovers(storage, table, myself=SECOND)


STEPS: tuple[Callable[[Storage, TableRef], None], ...] = (compact, expire, sweep)


def maintain(
    storage: Storage,
    table: TableRef,
    steps: tuple[Callable[[Storage, TableRef], None], ...] = STEPS,
) -> list[CompactordError]:
    """All steps, each whatever became of those before; the errors, which are our own."""
    errors = []
    for step in steps:
        try:
            step(storage, table)
        except CompactordError as error:
            errors.append(error)
    return errors


def _snapshot(id_: int) -> str:
    return paths.snapshot_path("", id_)


def _rows_of(storage: Storage, table: TableRef, root: str) -> Rows:
    path = table.location + root
    snapshot: Snapshot = parse_snapshot(storage.read(path), path)
    files = load_live_files(
        storage, table.location, data_manifests(storage, table.location, snapshot)
    )
    state = TableState(table=table, snapshot=snapshot, files=files)
    return builders.read_keyed(storage, table, state)


def names_in(storage: Storage, table: TableRef) -> dict[str, int]:
    """The sizes of all files by their paths in the table."""
    found: dict[str, int] = {}
    folders = [""]
    while folders:
        folder = folders.pop()
        for child in storage.list(table.location + folder):
            path = f"{folder}/{child.name}"
            if child.is_folder:
                folders.append(path)
            else:
                found[path] = child.size_bytes
    return found
