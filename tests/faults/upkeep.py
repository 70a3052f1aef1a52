"""A table that asks for maintenance of several kinds, one run of them all, and what that leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from compactord import ids
from compactord.catalog.access import table_in_folder
from compactord.clock import Clock
from compactord.maintenance.changelog_expiry import expire_changelogs
from compactord.maintenance.changelogs import changelog_ids
from compactord.maintenance.finding import Finding
from compactord.maintenance.partition_expiry import expire_partitions
from compactord.maintenance.snapshot_expiry import expire_table
from compactord.maintenance.tag_creation import TagProgress
from compactord.maintenance.tag_writing import create_tags
from compactord.paimon.snapshot import read_tags, snapshot_ids
from compactord.paimon.table import TableRef
from compactord.plan.table import Strategy
from compactord.state.table_state import load_state
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from compactord.table.followed import FollowedTable
from compactord.table.opening import open_table
from compactord.table.request import CompactRequest
from tests import builders
from tests.builders import DAY_MS, NOW_MS, VirtualClock
from tests.unit.maintenance.days import HOME, table_of_days, write_days
from tests.unit.maintenance.verified import verified

LOCAL = LocalStorage()
_HOUR_MS = 3_600_000
_STAYS = "2999-01-01"
OPTIONS = {
    "partition.expiration-time": "1 d",
    "partition.expiration-batch-size": "1",
    "tag.automatic-creation": "process-time",
    "tag.creation-period": "hourly",
    "tag.num-retained-max": "1",
    "tag.create-success-file": "true",
    "snapshot.num-retained.min": "1",
    "snapshot.time-retained": "0 ms",
    "changelog.num-retained.min": "3",
}
STATES = ("killed", "one partition", "no tag", "some tags", "all tags", "changelogs", "ended")


def table_with_all(folder: Path) -> Path:
    """Two partitions of three are old, one of them merged from two files; five snapshots."""
    storage, table = table_of_days(OPTIONS)
    write_days(storage, table, NOW_MS, "2023-11-12")
    write_days(storage, table, NOW_MS, "2023-11-12")
    builders.compact(storage, table, strategy=Strategy.FULL, clock=VirtualClock(NOW_MS))
    write_days(storage, table, NOW_MS + _HOUR_MS, "2023-11-13")
    write_days(storage, table, NOW_MS + 2 * _HOUR_MS, _STAYS)
    for name, data in storage.objects.items():
        LOCAL.write_new(str(folder) + name.removeprefix(HOME), data)
    return folder


def maintain(storage: Storage, table: TableRef, *, clock: Clock | None = None) -> None:
    """One round of each kind, two days later unless a clock says when."""
    clock, owner = clock or VirtualClock(NOW_MS + 2 * DAY_MS), ids.this_process()
    access = table_in_folder(storage, table)
    followed = FollowedTable(access, CompactRequest(), clock=clock, owner=owner)
    followed.refresh()
    opened, now_ms, zone = followed.table, clock.now_ms(), clock.time_zone
    drop = partial(followed.drop_partitions, busy=())
    expire_partitions(opened, followed.state, drop, now_ms=now_ms, zone=zone)
    create_tags(opened, TagProgress(), owner=owner, now_ms=now_ms, zone=zone)
    # A snapshot expires once its successor is older than now.
    expire_table(opened, opened.options.expire, now_ms=now_ms + 1, keep_from=None)
    expire_changelogs(opened, now_ms + 1)


def maintain_next(table: TableRef) -> None:
    """The next hour: a row comes, and a tag is due."""
    now_ms = NOW_MS + 2 * DAY_MS + _HOUR_MS
    write_days(LOCAL, table, now_ms, _STAYS)
    maintain(LOCAL, table, clock=VirtualClock(now_ms))


@dataclass(frozen=True)
class Left:
    """What there is: ids, names of tags, data files, and the rows of each partition."""

    snapshots: tuple[int, ...]
    changelogs: tuple[int, ...]
    tags: tuple[str, ...]
    successes: frozenset[str]
    data_files: int
    rows: Mapping[str, int]

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
        """The same, but that files which told of tags that are gone may be left."""
        return (
            self.successes >= other.successes and replace(self, successes=other.successes) == other
        )


def left(table: TableRef) -> Left:
    opened, state = open_table(table_in_folder(LOCAL, table), {}), load_state(LOCAL, table)
    rows: Counter[str] = Counter()
    for bucket in state.files.bucket_ids():
        rows[opened.partition_text(bucket.partition)] += state.files.summary(bucket).row_count
    folder = Path(table.location)
    return Left(
        snapshots=snapshot_ids(LOCAL, table.root),
        changelogs=changelog_ids(LOCAL, table.root),
        tags=tuple(sorted(read_tags(LOCAL, table.root))),
        successes=frozenset(path.name for path in folder.glob("tag/tag-success-file/*")),
        data_files=sum(1 for _ in folder.rglob("data-*.parquet")),
        rows=dict(rows),
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
        yield "no tag" if not found.tags else "all tags" if len(found.tags) > 3 else "some tags"
    if len(found.changelogs) > len(expected.changelogs):
        yield "changelogs"
