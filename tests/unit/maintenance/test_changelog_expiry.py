"""Which changelogs stay after their snapshots, for how long, and whatever fails meanwhile."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timezone

import pytest
from structlog.testing import capture_logs

from compactord.catalog.access import table_in_folder
from compactord.clock import WallTime
from compactord.config.choices import MaintenanceRule
from compactord.errors import CompactordError, FormatError, StorageError, UsageError
from compactord.maintenance.changelog_expiry import ExpireChangelogs
from compactord.maintenance.changelogs import changelog_ids
from compactord.maintenance.kind import MaintenanceRecord
from compactord.maintenance.rounds import RoundResult
from compactord.maintenance.snapshots import changelog_range
from compactord.paimon import paths
from compactord.paimon.data_file import DataFile, EntryKind, FileSource
from compactord.paimon.manifest.manifest_files import read_entries, read_manifest_list
from compactord.paimon.options.maintenance import ChangelogRetention
from compactord.paimon.snapshot import CommitKind, Snapshot, read_changelogs, snapshot_json
from compactord.storage.base import Storage
from compactord.table.opening import OpenTable, open_table
from tests.builders import consumer_path
from tests.lineage import TABLE, Lineage
from tests.rounds import Expired, expire_changelogs, expire_snapshots, preview_changelogs
from tests.storages import Call, Fault, FaultyStorage, HookedStorage
from tests.unit.maintenance.due_table import Due
from tests.unit.maintenance.expiring import (
    FAULTS,
    HOME,
    LATER_MS,
    change,
    check,
    data_files,
    make_tag,
    snapshot_of,
    snapshots_of,
    with_data,
)
from tests.unit.paimon.table_builder import deleted

PRODUCER = {"changelog-producer": "input"}


def _merge(table: Lineage, before: list[DataFile], **merged: object) -> DataFile:
    file = replace(table.new_file(level=5), file_source=FileSource.COMPACT, **merged)  # type: ignore[arg-type]
    entries = [deleted(table._entry(each, 0)) for each in before]
    table._foreign([*entries, table._entry(file, 0)], CommitKind.COMPACT)
    return file


def _table(*, told: bool = False) -> tuple[Lineage, dict[str, str]]:
    """Files a and b are added by 1 and 2 and merged by 3 into m, c by 4, merged with it by 5.

    With `told` snapshots 1, 2 and 4 have a changelog file each. The names of the files by these.
    """
    table = Lineage()
    [a], [b] = table.append(1), table.append(1)
    m = _merge(table, [a, b])
    [c] = table.append(1)
    n = _merge(table, [m, c])
    with_data(table)
    for id_ in (1, 2, 4) if told else ():
        entry = table._entry(replace(table.new_file(), file_name=f"changelog-{id_}.parquet"), 0)
        name, size = table.history._write_list(table.history.write_manifests([entry]))
        change(table, id_, changelog_manifest_list=name, changelog_manifest_list_size=size)
        table.storage.write_new(f"{HOME}/bucket-0/changelog-{id_}.parquet", b"rows")
    names = {"a": a, "b": b, "m": m, "c": c, "n": n}
    return table, {letter: file.file_name for letter, file in names.items()}


def _opened(storage: Storage, keep: int = 100, **options: str) -> OpenTable:
    retained = {"snapshot.num-retained.min": "1", "snapshot.time-retained": "0 ms"}
    changelogs = {"changelog.num-retained.min": str(keep)}
    return open_table(table_in_folder(storage, TABLE), {**retained, **changelogs, **options})


def _expire(
    table: Lineage, keep: int, storage: Storage | None = None, **options: str
) -> tuple[Expired, Expired]:
    opened = _opened(storage or table.storage, keep, **options)
    snapshots = expire_snapshots(opened, opened.options.expire, now_ms=LATER_MS, keep_from=None)
    return snapshots, expire_changelogs(opened, LATER_MS)


def _left(table: Lineage, names: dict[str, str]) -> str:
    there = data_files(table)
    return "".join(letter for letter, name in names.items() if name in there)


def _lists(table: Lineage) -> int:
    return sum("-list-" in path for path in table.storage.objects)


def _but_hints(table: Lineage) -> set[str]:
    """Readers that do not find a hint list the folder."""
    return {path for path in table.storage.objects if path.rpartition("/")[2].islower()}


def _readable(table: Lineage, *, first: int) -> None:
    """Each id from `first` on is a snapshot or a changelog, whose readers find what they need."""
    changelogs = {each.id: each for each in read_changelogs(table.storage, HOME)}
    known = {**changelogs, **{each.id: each for each in snapshots_of(table)}}
    assert {*range(first, 6)} <= known.keys()
    for id_ in range(first, 6):
        for name in _needed(table, known[id_]):
            assert name in data_files(table), (id_, name)


def _needed(table: Lineage, version: Snapshot) -> Iterator[str]:
    name = version.changelog_manifest_list or version.delta_manifest_list
    if version.commit_kind is CommitKind.COMPACT:
        return
    for manifest in read_manifest_list(table.storage, paths.manifest_path(HOME, name), None):
        for entry in read_entries(table.storage, HOME, manifest):
            if entry.kind is EntryKind.ADD:
                yield entry.file.file_name


def test_without_a_producer_readers_need_what_writers_added() -> None:
    table, names = _table()
    rows = table.storage.read(paths.snapshot_path(HOME, 2))
    snapshots, changelogs = _expire(table, 100)
    assert (snapshots.snapshots, snapshots.data_files, changelogs.changelogs) == (4, 1, 0)
    assert changelog_ids(table.storage, HOME) == (1, 2, 3, 4)
    assert table.storage.read(paths.changelog_path(HOME, 2)) == rows
    assert table.storage.read(f"{HOME}/changelog/LATEST") == b"4"
    assert (_left(table, names), _lists(table)) == ("abcn", 10)
    _readable(table, first=1)
    opened = _opened(table.storage, 2)
    before = dict(table.storage.objects)
    preview, files = preview_changelogs(opened, LATER_MS)
    assert table.storage.objects == before
    done = expire_changelogs(opened, LATER_MS)
    assert (done.first, done.end, done.changelogs, done.data_files) == (1, 4, 3, 2)
    assert preview == done
    assert before.keys() - table.storage.objects.keys() == set(files or ())
    assert (_left(table, names), _lists(table)) == ("cn", 4)
    assert table.storage.read(f"{HOME}/changelog/EARLIEST") == b"4"
    _readable(table, first=4)
    check(table)
    assert not expire_changelogs(opened, LATER_MS).changelogs


def test_with_a_producer_readers_need_its_files_alone() -> None:
    table, names = _table(told=True)
    snapshots, _ = _expire(table, 100, **PRODUCER)
    assert (snapshots.snapshots, snapshots.changelog_files) == (4, 0)
    # The lists of 5, and three of changelogs.
    assert (_left(table, names), _lists(table)) == ("n", 5)
    _readable(table, first=4)
    _, done = _expire(table, 2, **PRODUCER)
    assert (done.changelogs, done.changelog_files) == (3, 2)
    assert {name for name in data_files(table) if "changelog" in name} == {"changelog-4.parquet"}
    assert _lists(table) == 3
    check(table)


def test_a_changelog_of_another_producer_s_time_keeps_what_its_readers_need() -> None:
    table, names = _table()
    opened = _opened(table.storage)
    expire_snapshots(opened, opened.options.expire, now_ms=LATER_MS, keep_from=3)
    assert changelog_ids(table.storage, HOME) == (1, 2)
    snapshots, _ = _expire(table, 100, **PRODUCER)
    assert snapshots.snapshots == 2
    # No changelog needs c: 4 was told to nobody.
    assert _left(table, names) == "abn"
    _readable(table, first=5)


@pytest.mark.parametrize("from_overwrites", [False, True])
def test_what_an_overwrite_removed_stays_where_it_is_told(*, from_overwrites: bool) -> None:
    table, names = _table()
    [n] = table.files()
    table._foreign([deleted(table._entry(n, 0))], CommitKind.OVERWRITE)
    table.append(1)
    with_data(table)
    options = {"streaming-read-overwrite": "true"} if from_overwrites else {}
    _expire(table, 100, **options)
    assert _left(table, names) == ("abcn" if from_overwrites else "abc")
    _expire(table, 2, **options)
    assert changelog_ids(table.storage, HOME) == (6,)
    assert _left(table, names) == ("n" if from_overwrites else "")


@pytest.mark.parametrize("keeper", ["tag", "branch", "branch tag", "branch changelog", "overwrite"])
def test_what_others_need_stays(keeper: str) -> None:
    table, names = _table()
    second, root = snapshot_of(table, 2), paths.branch_root(HOME, "dev")
    data = snapshot_json(second)
    place = {
        "branch": paths.snapshot_path(root, 2),
        "branch tag": paths.tag_path(root, "v"),
        "branch changelog": paths.changelog_path(root, 2),
    }.get(keeper)
    if keeper == "tag":
        make_tag(table, second)
    elif keeper == "overwrite":
        table.history.snapshot = snapshots_of(table)[-1]
        entries = [
            entry
            for manifest in read_manifest_list(
                table.storage, paths.manifest_path(HOME, second.delta_manifest_list), None
            )
            for entry in read_entries(table.storage, HOME, manifest)
        ]
        table._foreign(entries, CommitKind.OVERWRITE)
    elif place is not None:
        table.storage.write_new(place, data)
    opened = _opened(table.storage, 3 if keeper == "overwrite" else 2)
    expire_snapshots(opened, opened.options.expire, now_ms=LATER_MS, keep_from=5)
    assert expire_changelogs(opened, LATER_MS).changelogs == 3
    left = _left(table, names)
    assert "b" in left
    assert ("a" in left) == (keeper in ("tag", "branch", "branch tag"))
    check(table)


@pytest.mark.parametrize("alone", [False, True])
def test_consumers_hold_changelogs(*, alone: bool) -> None:
    table, _ = _table()
    table.storage.overwrite(consumer_path(HOME, "app"), b'{"nextSnapshot": 2}')
    options = {"consumer.changelog-only": "true"} if alone else {}
    _expire(table, 2, **options)
    assert [each.id for each in snapshots_of(table)] == ([5] if alone else [2, 3, 4, 5])
    assert changelog_ids(table.storage, HOME) == ((2, 3, 4) if alone else (1,))


@pytest.mark.parametrize(
    ("what", "message"),
    [("tag", "tags or branches"), ("gone", "changelog 4 is gone"), ("other", "changelog 4 was")],
)
def test_a_table_that_changed_meanwhile_loses_nothing(what: str, message: str) -> None:
    table, names = _table()
    _expire(table, 100)
    path = paths.changelog_path(HOME, 4)
    at = f"{HOME}/changelog/changelog-4"
    reads = itertools.count()

    def before(call: Call) -> None:
        if call.method == "read" and call.path == at and next(reads) == 1:
            if what == "tag":
                make_tag(table, snapshot_of(table, 5))
            elif what == "gone":
                table.storage.delete(path)
            else:
                other = replace(snapshot_of(table, 5), id=4)
                table.storage.overwrite(path, snapshot_json(other))

    storage = HookedStorage(table.storage, before=before)
    done = expire_changelogs(_opened(storage, 2), LATER_MS)
    assert message in str(done.why_not)
    assert (done.changelogs, done.data_files) == (0, 0)
    assert _left(table, names) == "abcn"


def test_a_changelog_of_a_snapshot_that_had_the_id_before_gives_way() -> None:
    table, _ = _table()
    stale = replace(snapshot_of(table, 2), uuid="stale", id=3)
    table.storage.write_new(paths.changelog_path(HOME, 3), snapshot_json(stale))
    table.storage.write_new(paths.changelog_path(HOME, 2), b"half")
    _expire(table, 100)
    assert [each.id for each in read_changelogs(table.storage, HOME)] == [1, 2, 3, 4]
    assert all(each.uuid != "stale" for each in read_changelogs(table.storage, HOME))


@pytest.mark.parametrize(
    ("told", "error", "concerns", "after_effect", "lasts"),
    [*((False, *fault) for fault in FAULTS), (True, *FAULTS[0])],
)
def test_whatever_call_fails_readers_find_what_is_kept_and_the_next_round_goes_on(
    *,
    told: bool,
    error: type[StorageError],
    concerns: Callable[[Call], bool],
    after_effect: bool,
    lasts: bool,
) -> None:
    options = PRODUCER if told else {}
    clean, _ = _table(told=told)
    _expire(clean, 2, **options)
    table, _ = _table(told=told)
    objects = dict(table.storage.objects)
    for at in itertools.count(1):
        table.storage.objects = dict(objects)
        fault = Fault(at=at, error=error, after_effect=after_effect, lasts=lasts, concerns=concerns)
        faulty = FaultyStorage(table.storage, fault)
        with contextlib.suppress(CompactordError):
            _expire(table, 2, faulty, **options)
        _readable(table, first=4)
        _expire(table, 2, **options)
        check(table)
        assert _but_hints(table) == _but_hints(clean), at
        if not faulty.failed:
            return


def test_another_expiry_at_any_moment_does_no_harm() -> None:
    clean, _ = _table()
    _expire(clean, 2)
    table, _ = _table()
    objects = dict(table.storage.objects)
    for at in itertools.count(1, 2):
        table.storage.objects = dict(objects)

        def other(call: Call, at: int = at) -> None:
            if call.number == at:
                _expire(table, 2)

        storage = HookedStorage(table.storage, before=other)
        _expire(table, 2, storage)
        _readable(table, first=4)
        assert _but_hints(table) == _but_hints(clean), at
        if storage.calls < at:
            break
    assert at > 80


def test_damage_and_options_that_contradict_each_other_stop_it() -> None:
    table, _ = _table()
    _expire(table, 100)
    table.storage.overwrite(paths.changelog_path(HOME, 3), b"half")
    before = dict(table.storage.objects)
    with pytest.raises(FormatError):
        expire_changelogs(_opened(table.storage, 2), LATER_MS)
    with pytest.raises(UsageError, match=r"changelog\.num-retained\.max=1: expected at least 2"):
        expire_changelogs(
            _opened(table.storage, 2, **{"changelog.num-retained.max": "1"}), LATER_MS
        )
    table.storage.delete(paths.latest_hint(HOME))
    assert "no hint" in str(expire_changelogs(_opened(table.storage, 2), LATER_MS).why_not)
    before.pop(paths.latest_hint(HOME))
    assert table.storage.objects == before


@pytest.mark.parametrize(
    ("fewest", "most", "retained_ms", "limit", "consumer", "expected", "more"),
    [
        (1, 100, 0, 50, None, (3, 12), False),
        (10, 100, 0, 50, None, (3, 11), False),
        (10, 100, 0, 4, None, (3, 7), True),
        (10, 100, 0, 0, None, (3, 3), False),
        (1, 100, 1000, 50, None, (3, 3), False),
        (1, 100, 495, 50, None, (3, 6), False),
        (1, 14, 1000, 50, None, (3, 7), False),
        (1, 100, 0, 50, 5, (3, 5), False),
    ],
)
def test_the_range_is_javas(
    fewest: int,
    most: int,
    retained_ms: int,
    limit: int,
    *,
    consumer: int | None,
    expected: tuple[int, int],
    more: bool,
) -> None:
    """Of changelogs 3 to 12 beside snapshots 13 to 20, each made in ms 100 and its id; now 600."""
    found = changelog_range(
        ChangelogRetention(
            num_retained_min=fewest, num_retained_max=most, time_retained_ms=retained_ms
        ),
        limit=limit,
        earliest=3,
        latest=12,
        snapshots=(13, 20),
        next_of_consumers=consumer,
        time_of=lambda id_: 100 + id_,
        now_ms=601,
    )
    assert ((found.first, found.end), found.more) == (expected, more)


@pytest.mark.parametrize(
    ("asked", "rule", "waited_ms", "expected"),
    [
        (("changelogs",), MaintenanceRule.FROM_TABLE, 10, True),
        (("changelogs",), MaintenanceRule.FROM_TABLE, 9, False),
        (("changelogs",), MaintenanceRule.OFF, 10, False),
        (("tags",), MaintenanceRule.FROM_TABLE, 10, False),
    ],
)
def test_it_is_due_where_options_ask_for_it(
    asked: tuple[str, ...], rule: MaintenanceRule, waited_ms: int, expected: bool
) -> None:
    kind, record = ExpireChangelogs(interval_ms=10), MaintenanceRecord(ended_ms=5)
    due = Due(asked, expire_changelogs=rule)
    assert kind.is_due(due, record, 5 + waited_ms, WallTime(timezone.utc)) is expected


def test_what_a_round_came_to_is_counted_and_logged() -> None:
    kind = ExpireChangelogs(interval_ms=10)
    figures = Counter(data_files=2, manifests=4, index_files=7)
    done = RoundResult(items=[1, 2, 3], figures=figures, first=1, end=4, more=True)
    with capture_logs() as events:
        ended = kind.ended(done, 0.1)
        assert not kind.ended(RoundResult(why_not="tags"), 0.1).has_failed
        assert kind.ended(StorageError("p", "m"), 0.1).has_failed
    assert ended.counts == {"expired_changelogs": 3, "expired_changelog_files": 6}
    assert ended.more
    names = [event["event"] for event in events]
    assert names == ["changelogs_failed", "changelogs_failed"]
    assert kind.fields(done, 0.1)["files"] == 6
