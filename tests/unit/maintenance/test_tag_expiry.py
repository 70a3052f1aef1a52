"""Which tags expire, that only what nobody else needs goes with them, and whatever fails."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone

import pytest
from structlog.testing import capture_logs

from compactord.catalog.access import table_in_folder
from compactord.clock import WallTime
from compactord.config.choices import MaintenanceRule
from compactord.errors import (
    CompactordError,
    FormatError,
    StorageError,
)
from compactord.maintenance.kind import MaintenanceRecord
from compactord.maintenance.rounds import RoundResult
from compactord.maintenance.tags import DueTag, ExpireTags, TagDeletion, due_tags
from compactord.paimon import paths
from compactord.paimon.manifest.manifest_files import read_entries, read_manifest_list
from compactord.paimon.snapshot import CommitKind, Snapshot, read_tags, snapshot_json
from compactord.state.table_state import delta_manifests
from compactord.storage.base import Storage
from compactord.table.opening import OpenTable, open_table
from tests.lineage import TABLE, Lineage
from tests.rounds import ExpiredTags, expire_tags
from tests.storages import Call, Fault, FaultyStorage, HookedStorage, MemoryStorage
from tests.unit.maintenance.due_table import Due
from tests.unit.maintenance.expiring import (
    FAULTS,
    HOME,
    change,
    check,
    data_files,
    expire,
    make_tag,
    snapshot_of,
    snapshots_of,
    some_table,
)

UTC = timezone.utc
MADE_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
LATER_MS = MADE_MS + 2 * HOUR_MS


def _timed_tag(
    table: Lineage, snapshot: Snapshot, name: str, *, hours: float = 1.0, root: str = HOME
) -> None:
    made = datetime.fromtimestamp(MADE_MS // 1000, UTC).timetuple()[:6]
    times = {"tagCreateTime": list(made), "tagTimeRetained": hours * 3600}
    data = json.loads(snapshot_json(snapshot)) | times
    table.storage.overwrite(paths.tag_path(root, name), json.dumps(data).encode())


def _expired_table(*kept: int) -> Lineage:
    """Tag `old` on snapshot 2, whose time has passed, tags on `kept`, and snapshot 5 alone.

    Two files were added by 1 and 2, merged by 3; 4 added one, 5 merges all.
    """
    table = some_table()
    _timed_tag(table, snapshot_of(table, 2), "old")
    for number in kept:
        make_tag(table, snapshot_of(table, number), f"v{number}")
    expire(table)
    assert [snapshot.id for snapshot in snapshots_of(table)] == [5]
    check(table)
    return table


def _opened(storage: Storage, **options: str) -> OpenTable:
    return open_table(table_in_folder(storage, TABLE), options)


def _expire(table: Lineage, storage: Storage | None = None, now_ms: int = LATER_MS) -> ExpiredTags:
    return expire_tags(_opened(storage or table.storage), now_ms)


def _tags(table: Lineage) -> set[str]:
    return set(read_tags(table.storage, HOME))


def test_a_tag_expires_once_its_time_has_passed_with_what_only_it_needs() -> None:
    table = _expired_table(4)
    _timed_tag(table, snapshot_of(table, 5), "young", hours=3)
    before = dict(table.storage.objects)
    assert not _expire(table, now_ms=MADE_MS + HOUR_MS).tags
    (due,) = due_tags(_opened(table.storage), LATER_MS, UTC)
    plan = TagDeletion(_opened(table.storage), due, LATER_MS).plan
    assert table.storage.objects == before
    with capture_logs() as events:
        done = _expire(table)
    assert [event["tags"] for event in events] == [["old"]]
    assert (list(done.tags), done.data_files, done.why_not) == (["old"], 4, None)
    gone = before.keys() - table.storage.objects.keys()
    assert gone == {due.path, *plan.data_files, *plan.metadata}
    assert len(gone) == 1 + done.data_files + done.metadata
    assert len(plan.data_files) == 4
    assert _tags(table) == {"v4", "young"}
    check(table)
    assert not _expire(table).tags


@pytest.mark.parametrize("keeper", ["tag", "snapshot", "branch", "tag of a branch"])
def test_nothing_goes_with_it_that_another_version_needs(keeper: str) -> None:
    table = some_table()
    _timed_tag(table, snapshot_of(table, 2), "old")
    branch = paths.branch_root(HOME, "b")
    snapshot = snapshot_of(table, 2)
    places = {
        "tag": paths.tag_path(HOME, "other"),
        "branch": paths.snapshot_path(branch, 2),
        "tag of a branch": paths.tag_path(branch, "other"),
    }
    if keeper in places:
        table.storage.overwrite(places[keeper], snapshot_json(snapshot))
        expire(table)
    files, before = data_files(table), dict(table.storage.objects)
    assert list(_expire(table).tags) == ["old"]
    assert data_files(table) == files
    assert before.keys() - table.storage.objects.keys() == {paths.tag_path(HOME, "old")}
    check(table)


@pytest.mark.parametrize("branch", ["main", "b"])
def test_readers_of_a_long_lived_changelog_keep_what_writers_added(branch: str) -> None:
    table = some_table()
    tagged = snapshot_of(table, 2)
    _timed_tag(table, tagged, "old")
    folder = paths.changelog_folder(paths.branch_root(HOME, branch))
    table.storage.write_new(f"{folder}/changelog-2", snapshot_json(tagged))
    expire(table)
    before = data_files(table)
    manifests = {path for path in table.storage.objects if "/manifest/" in path}
    assert list(_expire(table).tags) == ["old"]
    [manifest] = delta_manifests(table.storage, HOME, tagged)
    added = {e.file.file_name for e in read_entries(table.storage, HOME, manifest)}
    assert len(added) == 2
    assert len(before - data_files(table)) == 2
    assert added <= data_files(table)
    assert manifests <= table.storage.objects.keys()


def test_a_file_that_a_later_snapshot_has_added_again_stays() -> None:
    table = _expired_table()
    table.history.snapshot = snapshots_of(table)[-1]
    old = read_tags(table.storage, HOME)["old"]
    # A rollback to the tag as a new snapshot: its lists are those of the old one.
    newer = snapshot_of(table, 5)
    data = json.loads(snapshot_json(old)) | {"id": 6, "uuid": "again", "commitKind": "OVERWRITE"}
    table.storage.write_new(paths.snapshot_path(HOME, 6), json.dumps(data).encode())
    table.storage.overwrite(paths.latest_hint(HOME), b"6")
    files = data_files(table)
    assert list(_expire(table).tags) == ["old"]
    assert data_files(table) == files
    assert newer.id == 5
    check(table)


def test_statistics_and_sidecars_of_the_tag_go_and_shared_manifests_stay() -> None:
    table = some_table()
    change(table, 2, statistics="stat-2")
    change(table, 4, statistics="stat-4")
    _timed_tag(table, snapshot_of(table, 2), "old")
    make_tag(table, snapshot_of(table, 3), "v3")
    expire(table)
    third = read_tags(table.storage, HOME)["v3"]
    path = paths.manifest_path(HOME, third.base_manifest_list)
    shared = {m.file_name for m in read_manifest_list(table.storage, path, None)}
    _expire(table)
    assert paths.statistics_path(HOME, "stat-2") not in table.storage.objects
    assert all(paths.manifest_path(HOME, name) in table.storage.objects for name in shared)
    check(table)


@pytest.mark.parametrize(
    "times",
    [
        {"tagCreateTime": "2024-01-01", "tagTimeRetained": 1},
        {"tagCreateTime": [2024, 1], "tagTimeRetained": 1},
        {"tagCreateTime": [2024, 13, 1, 0, 0], "tagTimeRetained": 1},
        {"tagCreateTime": [2024, 1, 1, 0, 0], "tagTimeRetained": "1 d"},
    ],
)
def test_a_tag_that_cannot_be_understood_is_named_and_none_goes(times: dict[str, object]) -> None:
    table = _expired_table()
    data = json.loads(snapshot_json(snapshot_of(table, 5))) | times
    table.storage.overwrite(paths.tag_path(HOME, "zz"), json.dumps(data).encode())
    with pytest.raises(FormatError, match="tag-zz"):
        _expire(table)
    assert _tags(table) == {"old", "zz"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [({}, True), ({"tag.time-expire-enabled": "false"}, False)],
)
def test_options_may_keep_them_and_a_restore_does(text: dict[str, str], expected: bool) -> None:
    table = _expired_table()
    opened = _opened(table.storage, **text)
    assert ("tags" in opened.options.maintenance.requested) is expected
    hint = table.storage.objects.pop(paths.latest_hint(HOME))
    done = expire_tags(opened, LATER_MS)
    assert (done.why_not is not None) is expected
    assert not done.tags
    table.storage.objects[paths.latest_hint(HOME)] = hint
    assert bool(expire_tags(opened, LATER_MS).tags) is expected


@pytest.mark.parametrize(("error", "concerns", "after_effect", "lasts"), FAULTS)
def test_whatever_call_fails_all_that_stays_is_whole(
    error: type[StorageError],
    concerns: Callable[[Call], bool],
    after_effect: bool,
    lasts: bool,
) -> None:
    template = _expired_table(4)
    objects = dict(template.storage.objects)
    for at in itertools.count(1):
        template.storage.objects = dict(objects)
        fault = Fault(at=at, error=error, after_effect=after_effect, lasts=lasts, concerns=concerns)
        faulty = FaultyStorage(template.storage, fault)
        with contextlib.suppress(CompactordError):
            _expire(template, faulty)
        if "old" in _tags(template):
            assert template.storage.objects == objects, "the tag goes first"
        check(template)
        _expire(template)
        assert _tags(template) == {"v4"}
        check(template)
        if not faulty.failed:
            return


@pytest.mark.parametrize("taken_up_as", ["tag", "branch", "rollback", "overwrite"])
def test_whoever_takes_the_snapshot_up_while_the_tag_is_there_finds_it_whole(
    taken_up_as: str,
) -> None:
    template = _expired_table(4)
    objects = dict(template.storage.objects)
    outcomes = set()
    for at in itertools.count(1):
        storage = template.storage = MemoryStorage(objects)
        calls = itertools.count(1)

        def meanwhile(
            call: Call, storage: MemoryStorage = storage, at: int = at, calls: object = calls
        ) -> None:
            if next(calls) == at:  # type: ignore[call-overload]
                _take_up(storage, taken_up_as)

        done = None
        with contextlib.suppress(CompactordError):
            done = _expire(template, HookedStorage(storage, before=meanwhile))
        if next(calls) <= at:
            break
        check(template)
        lacking = {p for p in objects if "/bucket-" in p or "/manifest/" in p}
        lacking -= storage.objects.keys()
        was_taken = storage.objects.keys() - objects.keys()
        assert not (was_taken and lacking), (at, was_taken, lacking)
        outcomes.add(None if done is None else done.why_not)
    assert len(outcomes) > 1, "some were seen meanwhile"


def _take_up(storage: MemoryStorage, how: str) -> None:
    """What others do with a tag, if it is still there."""
    data = storage.objects.get(paths.tag_path(HOME, "old"))
    if data is None:
        return
    if how == "tag":
        storage.overwrite(paths.tag_path(HOME, "copy"), data)
        storage.changed_ms[paths.tag_path(HOME, "copy")] = 7
    elif how == "branch":
        storage.overwrite(paths.snapshot_path(paths.branch_root(HOME, "b"), 2), data)
    elif how == "rollback":
        storage.overwrite(paths.snapshot_path(HOME, 2), data)
        storage.overwrite(paths.latest_hint(HOME), b"2")
        storage.delete(paths.snapshot_path(HOME, 5))
    else:
        kind = CommitKind.OVERWRITE.value
        newer = json.loads(data) | {"id": 6, "uuid": "again", "commitKind": kind}
        storage.overwrite(paths.snapshot_path(HOME, 6), json.dumps(newer).encode())
        storage.overwrite(paths.latest_hint(HOME), b"6")


def test_a_tag_that_is_made_anew_under_its_name_keeps_its_files() -> None:
    table = _expired_table(4)
    path, storage = paths.tag_path(HOME, "old"), table.storage
    data, files = storage.read(path), data_files(table)

    def at_once(call: Call) -> None:
        if (call.method, call.path) == ("delete", path):
            storage.overwrite(path, data)
            storage.changed_ms[path] = 7

    done = _expire(table, HookedStorage(storage, after=at_once))
    assert done.why_not is not None
    assert data_files(table) == files
    check(table)


@pytest.mark.parametrize(
    ("asked", "rule", "has_news", "waited_ms", "expected"),
    [
        (("tags",), MaintenanceRule.FROM_TABLE, True, 1_000, True),
        (("tags",), MaintenanceRule.FROM_TABLE, True, 999, False),
        (("tags",), MaintenanceRule.FROM_TABLE, False, 1_000, False),
        (("tags",), MaintenanceRule.OFF, True, 1_000, False),
        (("done",), MaintenanceRule.FROM_TABLE, True, 1_000, False),
    ],
)
def test_it_is_due_after_a_plan_unless_options_or_a_rule_forbid_it(
    asked: tuple[str, ...], rule: MaintenanceRule, has_news: bool, waited_ms: int, expected: bool
) -> None:
    kind, record = ExpireTags(interval_ms=1_000), MaintenanceRecord(ended_ms=5, has_news=has_news)
    due = Due(asked, expire_tags=rule)
    assert kind.is_due(due, record, 5 + waited_ms, WallTime(UTC)) is expected


def test_what_a_round_came_to_is_counted_and_what_kept_a_tag_is_logged() -> None:
    kind = ExpireTags(interval_ms=1)
    tag = DueTag(name="a", path="/a", snapshot=snapshot_of(some_table(), 2), changed_ms=0)
    done = RoundResult(items=[tag], figures=Counter(data_files=2, metadata=3))
    assert kind.ended(done, 0.1).counts == {"expired_tags": 1, "expired_tag_files": 5}
    with capture_logs() as events:
        assert not kind.ended(RoundResult(why_not="it was changed"), 0.1).has_failed
        assert kind.ended(StorageError("/p", "it failed"), 0.1).has_failed
    assert [event["event"] for event in events] == ["tags_failed"] * 2
