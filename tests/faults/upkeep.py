"""A table that asks for maintenance of several kinds, one run of them all, and what that leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from compactord import ids
from compactord.catalog.access import table_in_folder
from compactord.clock import Clock, SystemClock
from compactord.ids import Liveness
from compactord.maintenance.changelogs import changelog_ids
from compactord.maintenance.orphan_search import OrphanSearch, TableFolders
from compactord.maintenance.orphans import remove_found
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import read_tags, snapshot_ids
from compactord.plan.table import Strategy
from compactord.state.table_state import load_state
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from compactord.table.opening import open_table
from compactord.table.planning import CompactRequest
from compactord.table.session import TableSession
from compactord.verify.rules import Finding
from tests import builders
from tests.builders import DAY_MS, FIRST, NOW_MS, VirtualClock
from tests.rounds import (
    create_tags,
    expire_changelogs,
    expire_consumers,
    expire_partitions,
    expire_snapshots,
    mark_done,
)
from tests.unit.maintenance.days import HOME, table_of_days, write_days
from tests.unit.verify.verified import verified

LOCAL = LocalStorage()
_HOUR_MS = 3_600_000
_STAYS = "2999-01-01"
# They stay, too, and are done once they have been idle for an hour.
_DONE = ("2023-11-14", "2023-11-15", "2023-11-16")
OPTIONS = {
    "partition.expiration-time": "3 d",
    "partition.expiration-batch-size": "1",
    "tag.automatic-creation": "process-time",
    "tag.creation-period": "hourly",
    "tag.num-retained-max": "1",
    "tag.create-success-file": "true",
    "snapshot.num-retained.min": "1",
    "snapshot.time-retained": "0 ms",
    "changelog.num-retained.min": "3",
    "partition.idle-time-to-done": "1 h",
    "partition.time-interval": "1 h",
    "consumer.expiration-time": "1 d",
}
STATES = (
    "killed",
    "one partition",
    "no mark",
    "some marks",
    "no tag",
    "some tags",
    "all tags",
    "no consumer",
    "changelogs",
    "left over",
    "foreign",
    "half a copy",
    "two copies",
    "ended",
)
_CONSUMER = "paused"
# Old enough to go: what a process of ours left, and what others did.
_LEFT_OVER = (
    f"dt={_STAYS}/bucket-0/data-{FIRST.unique_name()}-0.parquet",
    f"index/index-{FIRST.unique_name()}-0",
    f"manifest/manifest-{FIRST.unique_name()}-0",
)
FOREIGN = (
    f"dt={_STAYS}/bucket-0/data-0b4e1a2c-7f1d-4c3a-9d2e-0123456789ab-0.parquet",
    "manifest/manifest-0b4e1a2c-7f1d-4c3a-9d2e-0123456789ab-0",
)
_CONTENT = b"what nothing names"


def table_with_all(folder: Path) -> Path:
    """Two partitions of six are old, one of them merged from two files; five snapshots.

    With a consumer, and files that nothing names.
    """
    storage, table = table_of_days(OPTIONS)
    write_days(storage, table, NOW_MS, "2023-11-12")
    write_days(storage, table, NOW_MS, "2023-11-12")
    builders.compact(storage, table, strategy=Strategy.FULL, clock=VirtualClock(NOW_MS))
    write_days(storage, table, NOW_MS + _HOUR_MS, "2023-11-13")
    write_days(storage, table, NOW_MS + 2 * _HOUR_MS, *_DONE, _STAYS)
    storage.write_new(builders.consumer_path(HOME, _CONSUMER), b'{"nextSnapshot": 1}')
    for name in (*_LEFT_OVER, *FOREIGN):
        storage.write_new(f"{HOME}/{name}", _CONTENT)
    for name, data in storage.objects.items():
        LOCAL.write_new(str(folder) + name.removeprefix(HOME), data)
    return folder


def maintain(storage: Storage, table: TableRef, *, clock: Clock | None = None) -> None:
    """One round of each kind, two days later unless a clock says when.

    What goes by the time of a file goes two days from now; beside others, by a clock, it stays.
    """
    is_alone, owner = clock is None, ids.this_process()
    clock = clock or VirtualClock(NOW_MS + 2 * DAY_MS)
    access = table_in_folder(storage, table)
    followed = TableSession(access, CompactRequest(), clock=clock, owner=owner)
    followed.refresh()
    opened, now_ms, zone = followed.table, clock.now_ms(), clock.time_zone
    expire_partitions(followed, now_ms)
    mark_done(opened, now_ms, zone=zone)
    create_tags(opened, now_ms, zone=zone, owner=owner)
    if is_alone:
        expire_consumers(opened, SystemClock().now_ms() + 2 * DAY_MS)
    # A snapshot expires once its successor is older than now.
    expire_snapshots(opened, opened.options.expire, now_ms=now_ms + 1, keep_from=None)
    expire_changelogs(opened, now_ms + 1)
    builders.sweep_later(storage, table.location, partition_depth=1)
    if is_alone:
        _sweep_foreign(storage, table)


def _sweep_foreign(storage: Storage, table: TableRef) -> None:
    folders = TableFolders(location=table.location, partition_depth=1, of_others=True)
    rule = builders.later_rule(others_grace_ms=10 * 60_000)
    search = OrphanSearch(storage, folders, replace(rule, liveness=lambda owner: Liveness.ALIVE))
    remove_found(storage, folders, search, search.find(), trash=str(_trash(table)))


def _trash(table: TableRef) -> Path:
    """Beside the folder of the tables."""
    folder = Path(table.location)
    return folder.parent.with_name("trash") / folder.name


def maintain_next(table: TableRef) -> None:
    """The next hour: a row comes, and a tag is due."""
    now_ms = NOW_MS + 2 * DAY_MS + _HOUR_MS
    write_days(LOCAL, table, now_ms, _STAYS)
    maintain(LOCAL, table, clock=VirtualClock(now_ms))


@dataclass(frozen=True)
class Left:
    """What there is: ids, names of tags, data files, and the rows of each partition.

    Of done partitions what their marks say; of files that nothing names those that are where they
    were, of which there are whole copies in the trash, and how many others there are.
    """

    snapshots: tuple[int, ...]
    changelogs: tuple[int, ...]
    tags: tuple[str, ...]
    successes: frozenset[str]
    data_files: int
    rows: Mapping[str, int]
    marks: Mapping[str, bytes]
    consumers: frozenset[str]
    strays: frozenset[str]
    copies: frozenset[str]
    half_copies: int

    @property
    def versions(self) -> frozenset[str]:
        """As `verify` names them."""
        return frozenset(
            [
                *(f"snapshot {id_}" for id_ in self.snapshots),
                *(f"changelog {id_}" for id_ in self.changelogs),
                *(f"tag {name}" for name in self.tags),
            ]
        )

    def is_like(self, other: Left) -> bool:
        """The same, but that half copies may be left."""
        return replace(self, half_copies=other.half_copies) == other


def left(table: TableRef) -> Left:
    opened, state = open_table(table_in_folder(LOCAL, table), {}), load_state(LOCAL, table)
    rows: Counter[str] = Counter()
    for bucket in state.files.bucket_ids():
        rows[opened.partition_text(bucket.partition)] += state.files.summary(bucket).row_count
    folder, trash = Path(table.location), _trash(table)
    moved = [path for path in trash.rglob("*") if path.is_file()]
    # Each sweep has a folder of its own.
    whole = [
        "/".join(path.relative_to(trash).parts[1:])
        for path in moved
        if path.read_bytes() == _CONTENT
    ]
    return Left(
        snapshots=snapshot_ids(LOCAL, table.root),
        changelogs=changelog_ids(LOCAL, table.root),
        tags=tuple(sorted(read_tags(LOCAL, table.root))),
        successes=frozenset(path.name for path in folder.glob("tag/tag-success-file/*")),
        data_files=sum(1 for _ in folder.rglob("data-*.parquet")),
        rows=dict(rows),
        marks={path.parent.name: path.read_bytes() for path in folder.glob("*/_SUCCESS")},
        consumers=frozenset(path.name for path in folder.glob("consumer/*")),
        strays=frozenset(name for name in (*_LEFT_OVER, *FOREIGN) if (folder / name).exists()),
        copies=frozenset(whole),
        half_copies=len(moved) - len(whole),
    )


def lacking(table: TableRef, versions: frozenset[str] | None) -> list[Finding]:
    """What any of these versions lacks, None: what is wrong at all."""
    found = verified(table)
    assert not found.unknown
    return [
        each for each in found.findings if versions is None or versions.intersection(each.needed_by)
    ]


def states(found: Left, expected: Left) -> Iterator[str]:
    """What a kill has left, by names in `STATES`."""
    yield "ended" if found == expected else "killed"
    if max(found.snapshots) == 6:
        yield "one partition"
    if max(found.snapshots) == 7:
        if len(found.marks) < len(_DONE):
            yield "some marks" if found.marks else "no mark"
        yield "no tag" if not found.tags else "all tags" if len(found.tags) > 3 else "some tags"
    if not found.consumers and len(found.snapshots) == 7:
        yield "no consumer"
    if len(found.changelogs) > len(expected.changelogs):
        yield "changelogs"
    if len(found.strays.intersection(_LEFT_OVER)) in (1, 2):
        yield "left over"
    if len(found.strays.intersection(FOREIGN)) == 1:
        yield "foreign"
    if found.half_copies:
        yield "half a copy"
    if found.strays & found.copies:
        yield "two copies"
