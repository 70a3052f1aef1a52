"""How tags come about: one of several that make one does, and whatever fails none is wrong."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone, tzinfo

import pytest
from structlog.testing import capture_logs

from compactord.catalog.access import table_in_folder
from compactord.clock import WallTime
from compactord.config.choices import MaintenanceRule
from compactord.errors import CompactordError, FormatError, StorageError, TransientStorageError
from compactord.maintenance.kind import MaintenanceRecord
from compactord.maintenance.new_tags import (
    CreatedTags,
    CreateTags,
    TagProgress,
)
from compactord.maintenance.rounds import RoundResult
from compactord.maintenance.tags import DueTag
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import read_tags, snapshot_json
from compactord.storage.base import Storage
from compactord.table.opening import OpenTable, open_table
from tests.builders import WRITER
from tests.lineage import TABLE, Lineage
from tests.rounds import create_tags
from tests.storages import Call, Fault, FaultyStorage, HookedStorage, RecordingStorage
from tests.unit.maintenance.due_table import Due
from tests.unit.maintenance.expiring import (
    FAULTS,
    HOME,
    change,
    check,
    expire,
    snapshot_of,
    some_table,
)

UTC = timezone.utc
START_MS = int(datetime(2024, 3, 2, 5, 20, tzinfo=UTC).timestamp() * 1000)
HOUR_MS = 3_600_000
NOW_MS = START_MS + 10 * HOUR_MS + 7
ASKS = {"tag.automatic-creation": "process-time", "tag.creation-period": "hourly"}
SUCCEED = {**ASKS, "tag.create-success-file": "true"}
# One an hour, from the hour before the first snapshot on.
NAMES = [f"2024-03-02 0{hour}" for hour in range(4, 9)]


def _hourly_table() -> Lineage:
    """`some_table`, with a snapshot each hour."""
    table = some_table()
    for id_ in range(1, 6):
        change(table, id_, time_ms=START_MS + (id_ - 1) * HOUR_MS)
    return table


def _opened(storage: Storage, texts: Mapping[str, str], ref: TableRef = TABLE) -> OpenTable:
    return open_table(table_in_folder(storage, ref), dict(texts))


def _create(
    table: Lineage,
    texts: Mapping[str, str] = ASKS,
    storage: Storage | None = None,
    progress: TagProgress | None = None,
    *,
    ref: TableRef = TABLE,
    zone: tzinfo = UTC,
) -> CreatedTags:
    return create_tags(
        _opened(storage or table.storage, texts, ref),
        NOW_MS,
        progress=progress,
        zone=zone,
        owner=WRITER,
    )


def _tags(table: Lineage, root: str = HOME) -> dict[str, int]:
    return {name: each.id for name, each in read_tags(table.storage, root).items()}


def _success(name: str) -> str:
    return f"{HOME}/tag/tag-success-file/{name}_SUCCESS"


def test_tags_are_the_files_of_snapshots_and_more_only_where_options_say_so() -> None:
    table = _hourly_table()
    with capture_logs() as events:
        assert _create(table).tags == dict(zip(NAMES, range(1, 6), strict=True))
    assert [(e["event"], e["tags"], e["snapshot_ids"]) for e in events] == [
        ("tags_created", NAMES, [1, 2, 3, 4, 5])
    ]
    for id_, name in enumerate(NAMES, 1):
        data = table.storage.read(paths.tag_path(HOME, name))
        assert data == table.storage.read(paths.snapshot_path(HOME, id_))
    assert not any("success" in path for path in table.storage.objects)
    other = _hourly_table()
    # What newer releases write stays.
    path = paths.snapshot_path(HOME, 1)
    other.storage.overwrite(path, other.storage.read(path)[:-1] + b', "newKey": [1]}')
    asks = {**SUCCEED, "tag.default-time-retained": "90 min", "sink.process-time-zone": "UTC"}
    _create(other, asks, zone=timezone(timedelta(hours=2)))
    found = json.loads(other.storage.read(paths.tag_path(HOME, NAMES[0])))
    # Of the machine's zone.
    assert found.pop("tagCreateTime") == [2024, 3, 2, 17, 20, 0, 7_000_000]
    assert found.pop("tagTimeRetained") == 5400
    assert found == json.loads(other.storage.read(path))
    assert found["newKey"] == [1]
    times = json.loads(other.storage.read(_success(NAMES[4])))
    assert times == {"creationTime": NOW_MS, "modificationTime": NOW_MS}


def test_those_beyond_the_most_go_with_their_files_and_a_preview_names_all() -> None:
    table = _hourly_table()
    # A tag that somebody made, and the first of ours.
    table.storage.overwrite(paths.tag_path(HOME, "mine"), snapshot_json(snapshot_of(table, 1)))
    table.storage.overwrite(paths.tag_path(HOME, NAMES[1]), snapshot_json(snapshot_of(table, 2)))
    expire(table, keep=3)
    asks = {**SUCCEED, "tag.num-retained-max": "2"}
    before = dict(table.storage.objects)
    due = create_tags(_opened(table.storage, asks), NOW_MS, is_dry=True)
    assert table.storage.objects == before
    assert list(due.tags) == NAMES[2:]
    assert [each.name for each in due.surplus.items] == [NAMES[1]]
    done = _create(table, asks)
    assert list(done.tags) == NAMES[2:]
    assert [each.name for each in done.surplus.items] == NAMES[1:3]
    assert _tags(table) == {"mine": 1, NAMES[3]: 4, NAMES[4]: 5}
    assert done.surplus.figures["data_files"] > 0
    assert {path for path in table.storage.objects if "SUCCESS" in path} == {
        _success(name) for name in NAMES[3:]
    }
    check(table)


def test_a_tag_that_is_there_is_left_alone_also_one_that_comes_meanwhile() -> None:
    table = _hourly_table()
    other = snapshot_json(snapshot_of(table, 2))
    path = paths.tag_path(HOME, NAMES[2])

    def meanwhile(call: Call) -> None:
        if (call.method, call.path) == ("create_if_absent", path):
            table.storage.overwrite(path, other)

    asks = {**ASKS, "tag.num-retained-max": "4"}
    done = _create(table, asks, HookedStorage(table.storage, before=meanwhile))
    assert list(done.tags) == [*NAMES[:2], *NAMES[3:]]
    assert _tags(table) == {NAMES[1]: 2, NAMES[2]: 2, NAMES[3]: 4, NAMES[4]: 5}
    table.storage.objects.pop(paths.tag_path(HOME, NAMES[3]))
    assert not _create(table).tags


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("at", ["read", "create_if_absent"])
def test_a_tag_of_a_snapshot_that_expires_meanwhile_is_taken_back(
    at: str, is_replaced: bool
) -> None:
    table, reads = _hourly_table(), itertools.count(1)
    path, tag = paths.snapshot_path(HOME, 2), paths.tag_path(HOME, NAMES[1])

    def meanwhile(call: Call) -> None:
        # It is read once to decide, and again for the tag.
        is_moment = call.method == at and call.path == (path if at == "read" else tag)
        if not is_moment or (at == "read" and next(reads) != 2):
            return
        if is_replaced:
            change(table, 2, uuid="another")
        else:
            table.storage.delete(path)

    progress = TagProgress()
    storage = HookedStorage(table.storage, before=meanwhile)
    done = _create(table, SUCCEED, storage, progress)
    assert done.tags == _tags(table) == {NAMES[0]: 1}
    assert done.why_not == (
        f"snapshot 2 was deleted or replaced before tag {NAMES[1]} was complete"
    )
    assert _success(NAMES[1]) not in table.storage.objects
    # The tag is made of the next one, or of what came in its place.
    after = _create(table, SUCCEED, progress=progress)
    assert list(after.tags) == NAMES[1:] if is_replaced else NAMES[2:]
    assert NAMES[2] in _tags(table)


@pytest.mark.parametrize(("error", "concerns", "after_effect", "lasts"), FAULTS)
def test_whatever_call_fails_the_next_round_goes_on(
    error: type[StorageError],
    concerns: Callable[[Call], bool],
    after_effect: bool,
    lasts: bool,
) -> None:
    asks = {**SUCCEED, "tag.num-retained-max": "2", "tag.default-time-retained": "1 h"}
    template = _hourly_table()
    expire(template, keep=3)
    objects = dict(template.storage.objects)
    for at in itertools.count(1):
        template.storage.objects = dict(objects)
        fault = Fault(at=at, error=error, after_effect=after_effect, lasts=lasts, concerns=concerns)
        faulty, progress = FaultyStorage(template.storage, fault), TagProgress()
        with contextlib.suppress(CompactordError):
            _create(template, asks, faulty, progress)
        # The tags that are there are those of their snapshots, and whole.
        assert _tags(template).items() <= dict(zip(NAMES, range(1, 6), strict=True)).items()
        check(template)
        _create(template, asks, progress=progress if at % 2 else None)
        found = _tags(template)
        assert found.keys() >= set(NAMES[-2:])
        # A surplus one may wait for the next tag to go.
        successes = {path for path in template.storage.objects if "success" in path}
        assert successes <= {_success(name) for name in found}
        assert {_success(name) for name in NAMES[-2:]} <= successes
        check(template)
        if not faulty.failed:
            return


def test_a_tag_that_was_made_though_its_call_failed_counts_as_made() -> None:
    table = _hourly_table()
    fault = Fault(
        at=3,
        error=TransientStorageError,
        after_effect=True,
        concerns=lambda call: call.method == "create_if_absent",
    )
    assert list(_create(table, ASKS, FaultyStorage(table.storage, fault)).tags) == NAMES


def test_a_kill_between_a_tag_and_its_success_file_is_made_good() -> None:
    table = _hourly_table()

    class _Killed(BaseException):
        pass

    def kill(call: Call) -> None:
        if call.path == _success(NAMES[4]) and call.is_mutation:
            raise _Killed

    with pytest.raises(_Killed):
        _create(table, SUCCEED, HookedStorage(table.storage, before=kill))
    assert NAMES[4] in _tags(table)
    assert _success(NAMES[4]) not in table.storage.objects
    # Also one that was cut short.
    table.storage.overwrite(_success(NAMES[4]), b'{"creationT')
    assert not _create(table, SUCCEED).tags
    assert json.loads(table.storage.read(_success(NAMES[4])))["creationTime"] == NOW_MS


def test_a_round_without_news_reads_a_snapshot_and_forgets_what_does_not_hold() -> None:
    table = _hourly_table()
    progress, watched = TagProgress(), RecordingStorage(table.storage)
    _create(table, ASKS, watched, progress)
    watched.log.clear()
    # A tag that somebody deletes does not come back in this process.
    table.storage.delete(paths.tag_path(HOME, NAMES[4]))
    table.append(1)
    change(table, 6, time_ms=START_MS + 4 * HOUR_MS + 1)
    assert not _create(table, ASKS, watched, progress).tags
    assert not any(call.path.startswith(f"{HOME}/tag") for call in watched.log)
    assert len([call for call in watched.log if "/snapshot/" in call.path]) < 8
    daily = {"tag.automatic-creation": "process-time", "tag.period-formatter": "without_dashes"}
    assert _create(table, daily, progress=progress).tags == {"20240301": 1}
    # Snapshots are rolled back, and made again.
    progress.next_id = 99
    assert not _create(table, daily, progress=progress).tags
    assert progress.next_id == 2, "after the last tag"


@pytest.mark.parametrize("data", [b"", b"{}", b'{"version": 3'])
def test_a_tag_that_cannot_be_parsed_is_named_and_none_is_made(data: bytes) -> None:
    table = _hourly_table()
    table.storage.overwrite(paths.tag_path(HOME, "v1"), data)
    before = dict(table.storage.objects)
    with pytest.raises(FormatError, match="tag-v1"):
        _create(table)
    assert table.storage.objects == before


def test_a_branch_has_tags_of_its_own() -> None:
    table = _hourly_table()
    root = paths.branch_root(HOME, "b")
    for path, data in dict(table.storage.objects).items():
        if path.startswith((f"{HOME}/schema/", f"{HOME}/snapshot/")):
            table.storage.overwrite(path.replace(HOME, root), data)
    ref = TableRef(database="db", name="t", location=HOME, branch="b")
    assert len(_create(table, ref=ref).tags) == 5
    assert (len(_tags(table)), len(_tags(table, root))) == (0, 5)


_BOTH = ("create_tags", "tags")


@pytest.mark.parametrize(
    ("asked", "rule", "seen_id", "at_ms", "expected"),
    [
        (_BOTH, MaintenanceRule.FROM_TABLE, 6, 1_000, True),
        (_BOTH, MaintenanceRule.FROM_TABLE, 9, 1_000, True),
        (_BOTH, MaintenanceRule.FROM_TABLE, 7, 1_000, False),
        (_BOTH, MaintenanceRule.FROM_TABLE, 6, 999, False),
        (_BOTH, MaintenanceRule.OFF, 6, 1_000, False),
        (("tags",), MaintenanceRule.FROM_TABLE, 6, 1_000, False),
    ],
)
def test_it_is_due_after_new_snapshots_where_options_ask_for_it(
    asked: tuple[str, ...], rule: MaintenanceRule, seen_id: int, at_ms: int, expected: bool
) -> None:
    kind = CreateTags(interval_ms=1_000)
    record = MaintenanceRecord(snapshot_id=seen_id)
    due = Due(asked, settling_until_ms=5, snapshot_id=7, create_tags=rule)
    assert kind.is_due(due, record, at_ms, WallTime(UTC)) is expected


def test_what_a_round_came_to_is_counted_and_what_kept_it_is_logged() -> None:
    kind = CreateTags(interval_ms=1)
    tag = DueTag(name="a", path="/a", snapshot=snapshot_of(_hourly_table(), 1), changed_ms=0)
    figures = Counter(data_files=2, metadata=3)
    surplus = RoundResult(items=[tag], figures=figures, why_not="it was changed")
    with capture_logs() as events:
        round_ = kind.ended(CreatedTags(tags={"b": 1}, surplus=surplus), 0.1)
        assert kind.ended(CreatedTags(why_not="it is gone"), 0.1).has_failed
        assert kind.ended(StorageError("/p", "it failed"), 0.1).has_failed
    assert not round_.has_failed
    assert round_.counts == {"new_tags": 1, "expired_tags": 1, "expired_tag_files": 5}
    assert [event["event"] for event in events] == ["tags_failed", *["tags_not_created"] * 2]
