"""Entries and events of partitions in a catalog: what goes first, and that a failure heals."""

from __future__ import annotations

import contextlib
import datetime
import itertools
from collections.abc import Mapping, Sequence

import pytest
from structlog.testing import capture_logs

from compactord.catalog.access import TableAccess
from compactord.commit.publish import StorePublisher
from compactord.errors import CompactordError, FormatError, StorageError
from compactord.maintenance.done import Marks
from compactord.maintenance.rounds import RoundResult
from compactord.paimon.paths import snapshot_path
from compactord.paimon.schema import TableRef
from compactord.state.table_state import load_state
from compactord.storage.base import Storage
from compactord.table.opening import open_table
from compactord.table.planning import CompactRequest
from compactord.table.session import TableSession
from tests.builders import FIRST, NOW_MS, VirtualClock, make_branch
from tests.rounds import expire_partitions, mark_done
from tests.storages import Call, Fault, FaultyStorage, HookedStorage, MemoryStorage
from tests.unit.maintenance.days import table_of_days, write_days
from tests.unit.maintenance.kept_partitions import KeptPartitions

UTC = datetime.timezone.utc
HOUR_MS = 3_600_000
# `NOW_MS` is 2023-11-14 22:13:20 UTC.
OLD, OLDER, FAR = "2023-11-13", "2023-11-12", "2999-01-01"
KEPT = {"metastore.partitioned-table": "true"}
EXPIRES = {**KEPT, "partition.expiration-time": "1 d", "commit.max-retries": "2"}
BY_UPDATE = {**EXPIRES, "partition.expiration-strategy": "update-time"}
LATER_MS = NOW_MS + 48 * HOUR_MS


def _access(storage: Storage, ref: TableRef, kept: KeptPartitions | None) -> TableAccess:
    publisher = StorePublisher(storage)
    return TableAccess(ref=ref, storage=storage, publisher=publisher, entries=kept, events=kept)


def _table(
    options: Mapping[str, str], *days: str
) -> tuple[MemoryStorage, TableRef, KeptPartitions]:
    """With an entry for each day, and one that says that it is done."""
    storage, table = table_of_days(options)
    write_days(storage, table, NOW_MS, *days)
    entries = {f"dt={day}{end}": NOW_MS for day in days for end in ("", ".done")}
    return storage, table, KeptPartitions(made_ms=entries)


def _expire(storage: Storage, ref: TableRef, kept: KeptPartitions) -> RoundResult[str]:
    """A round two days later."""
    access, clock = _access(storage, ref, kept), VirtualClock(LATER_MS)
    followed = TableSession(access, CompactRequest(), clock=clock, owner=FIRST)
    followed.refresh()
    return expire_partitions(followed, LATER_MS)


def _rows(storage: Storage, ref: TableRef) -> list[str]:
    """The days that have rows."""
    opened, state = open_table(_access(storage, ref, None), {}), load_state(storage, ref)
    return sorted(opened.partition_path(b.partition)[3:] for b in state.files.bucket_ids())


def test_entries_go_before_the_files_and_marks_first() -> None:
    storage, table, kept = _table(EXPIRES, OLD, OLDER, FAR)
    seen: list[list[str]] = []
    kept.before = lambda: seen.append(_rows(storage, table))
    with capture_logs() as events:
        done = _expire(storage, table, kept)
    assert done.items == [f"dt={OLDER}", f"dt={OLD}"]
    assert kept.calls == [f"drop dt={day}{end}" for end in (".done", "") for day in (OLDER, OLD)]
    assert seen == [[OLDER, OLD, FAR]] * 4
    assert kept.made_ms.keys() == {f"dt={FAR}", f"dt={FAR}.done"}
    said = [(event["event"], event["partitions"]) for event in events]
    gone = [f"dt={OLDER}", f"dt={OLD}"]
    assert said == [("partition_entries_dropped", gone), ("partitions_expired", gone)]


def test_a_catalog_is_told_nothing_where_the_table_does_not_ask_for_it() -> None:
    storage, table, kept = _table({**EXPIRES, **dict.fromkeys(KEPT, "false")}, OLD)
    assert _expire(storage, table, kept).items == [f"dt={OLD}"]
    assert not kept.calls


@pytest.mark.parametrize("after_effect", [False, True])
def test_a_call_of_the_catalog_that_fails_leaves_the_files_and_the_next_round_finishes(
    *, after_effect: bool
) -> None:
    for at in range(1, 5):
        storage, table, kept = _table(EXPIRES, OLD, OLDER, FAR)
        kept.fails_at, kept.after_effect = at, after_effect
        with pytest.raises(StorageError, match="out of order"):
            _expire(storage, table, kept)
        assert _rows(storage, table) == [OLDER, OLD, FAR]
        assert _expire(storage, table, kept).items == [f"dt={OLDER}", f"dt={OLD}"]
        assert kept.made_ms.keys() == {f"dt={FAR}", f"dt={FAR}.done"}


@pytest.mark.parametrize(("after_effect", "lasts"), [(False, True), (True, False)])
def test_a_call_of_the_store_that_fails_leaves_no_entry_without_files(
    *, after_effect: bool, lasts: bool
) -> None:
    template, table, made = _table(EXPIRES, OLD, FAR)
    for at in itertools.count(1):
        storage, kept = template.copy(), KeptPartitions(made_ms=dict(made.made_ms))
        fault = Fault(
            at=at,
            error=StorageError,
            lasts=lasts,
            after_effect=after_effect,
            concerns=lambda call: call.is_mutation,
        )
        faulty = FaultyStorage(storage, fault)
        with contextlib.suppress(CompactordError):
            _expire(faulty, table, kept)
        assert OLD in _rows(storage, table) or f"dt={OLD}" not in kept.made_ms
        _expire(storage, table, kept)
        assert _rows(storage, table) == [FAR]
        assert kept.made_ms.keys() == {f"dt={FAR}", f"dt={FAR}.done"}
        if not faulty.failed:
            break
    assert at > 3


def test_a_partition_that_stays_after_all_has_its_entry_back() -> None:
    """Rows came while its snapshot was published."""
    storage, table, kept = _table(BY_UPDATE, OLD, OLDER)
    races = iter(range(1))

    def write(call: Call) -> None:
        if call.method == "create_if_absent" and next(races, None) is not None:
            write_days(storage, table, LATER_MS, OLD)

    done = _expire(HookedStorage(storage, before=write), table, kept)
    assert done.items == [f"dt={OLDER}"]
    assert _rows(storage, table) == [OLD]
    assert kept.made_ms.keys() == {f"dt={OLD}"}
    assert kept.calls[4:] == [f"add dt={OLD}"]


def test_what_another_branch_has_keeps_its_entry() -> None:
    storage, table, kept = _table(EXPIRES, OLD)
    write_days(storage, table, NOW_MS, OLDER)
    kept.made_ms[f"dt={OLDER}"] = NOW_MS
    branch = make_branch(storage, table, "b", 1)
    assert _expire(storage, table, kept).items == [f"dt={OLDER}", f"dt={OLD}"]
    assert kept.made_ms.keys() == {f"dt={OLD}", f"dt={OLD}.done"}
    assert _expire(storage, branch, kept).items == [f"dt={OLD}"]
    assert not kept.made_ms


def test_a_branch_that_cannot_be_read_keeps_everything() -> None:
    storage, table, kept = _table(EXPIRES, OLD)
    branch = make_branch(storage, table, "b", 1)
    storage.overwrite(snapshot_path(branch.root, 1), b"{")
    with pytest.raises(FormatError):
        _expire(storage, table, kept)
    assert not kept.calls
    assert _rows(storage, table) == [OLD]


@pytest.mark.parametrize("has_entries", [True, False])
def test_entries_that_stand_for_tags_keep_partitions(*, has_entries: bool) -> None:
    storage, table, kept = _table({**EXPIRES, "metastore.tag-to-partition": "dt"}, OLD)
    opened = open_table(_access(storage, table, kept if has_entries else None), {})
    text = "option metastore.tag-to-partition: the entries in the catalog belong to tags"
    assert (f"{text}; partitions are not expired" in opened.warnings) is has_entries
    done = _expire(storage, table, kept) if has_entries else None
    assert done is None or (done.why_not, done.items) == (text, [])


def _marks(actions: str) -> dict[str, str]:
    idle = {"partition.idle-time-to-done": "1 h", "partition.time-interval": "1 d"}
    return {**KEPT, **idle, "partition.mark-done-action": actions}


def _mark(
    storage: Storage, table: TableRef, kept: KeptPartitions, now_ms: int, marks: Marks
) -> list[str]:
    """A round at `now_ms`; the catalog's clock is the same."""
    kept.now_ms = now_ms
    return mark_done(open_table(_access(storage, table, kept), {}), now_ms, marks=marks)


@pytest.mark.parametrize(
    ("actions", "changes"),
    [
        ("done-partition", ["add"]),
        ("mark-event", ["mark"]),
        ("MARK_EVENT,success-file,done-partition", ["mark", "add"]),
    ],
)
def test_a_partition_is_marked_once_and_again_for_rows_that_come_later(
    actions: str, changes: Sequence[str]
) -> None:
    storage, table = table_of_days(_marks(actions))
    write_days(storage, table, NOW_MS, OLD)
    kept, marks = KeptPartitions(), Marks()
    day = f"dt={OLD}"
    names = {"add": f"add {day}.done", "mark": f"mark {day}", "drop": f"drop {day}.done"}
    first_ms, late_ms = NOW_MS + 2 * HOUR_MS, NOW_MS + 5 * HOUR_MS
    assert _mark(storage, table, kept, NOW_MS + HOUR_MS, marks) == []
    assert _mark(storage, table, kept, first_ms, marks) == [day]
    assert kept.changes == [names[each] for each in changes]
    # Whoever starts anew sees it, too.
    for again in (marks, Marks()):
        assert _mark(storage, table, kept, first_ms + HOUR_MS, again) == []
    kept.calls.clear()
    write_days(storage, table, late_ms, OLD)
    assert _mark(storage, table, kept, late_ms + 2 * HOUR_MS, marks) == [day]
    replaced = [("drop", "add") if each == "add" else (each,) for each in changes]
    assert kept.changes == [names[each] for pair in replaced for each in pair]
    assert kept.made_ms.get(f"{day}.done", late_ms + 2 * HOUR_MS) == late_ms + 2 * HOUR_MS
    assert _mark(storage, table, kept, late_ms + 4 * HOUR_MS, Marks()) == []


@pytest.mark.parametrize(
    ("actions", "is_known", "due"),
    [
        # Nobody tells when the event was: it is believed to be of now.
        ("mark-event", False, False),
        ("mark-event", True, True),
        # A mark with a time tells, and then events are not asked about.
        ("done-partition,mark-event", False, True),
        ("success-file,mark-event", False, True),
    ],
)
def test_what_is_known_of_rows_that_came_after_an_event(
    actions: str, due: bool, *, is_known: bool
) -> None:
    storage, table = table_of_days(_marks(actions))
    write_days(storage, table, NOW_MS, OLD)
    kept, marks = KeptPartitions(), Marks()
    assert _mark(storage, table, kept, NOW_MS + 2 * HOUR_MS, marks)
    write_days(storage, table, NOW_MS + 3 * HOUR_MS, OLD)
    kept.calls.clear()
    found = _mark(storage, table, kept, NOW_MS + 6 * HOUR_MS, marks if is_known else Marks())
    assert bool(found) is due
    asks = actions == "mark-event" and not is_known
    assert [call for call in kept.calls if call.startswith("asks")] == [f"asks dt={OLD}"] * asks


@pytest.mark.parametrize("after_effect", [False, True])
@pytest.mark.parametrize("forgets", [False, True])
def test_a_mark_that_fails_is_made_by_the_next_round(*, after_effect: bool, forgets: bool) -> None:
    """In all ways, whether the process lives on or not."""
    for at in (1, 2, 3):
        storage, table = table_of_days(_marks("success-file,done-partition,mark-event"))
        write_days(storage, table, NOW_MS, OLD)
        kept = KeptPartitions(made_ms={f"dt={OLD}.done": NOW_MS - 1})
        kept.fails_at, kept.after_effect = at, after_effect
        marks, now_ms = Marks(), NOW_MS + 2 * HOUR_MS
        with pytest.raises(StorageError, match="out of order"):
            _mark(storage, table, kept, now_ms, marks)
        assert _mark(storage, table, kept, now_ms + 1, Marks() if forgets else marks)
        assert kept.made_ms[f"dt={OLD}.done"] >= now_ms
        assert f"dt={OLD}" in kept.marked
        assert _mark(storage, table, kept, now_ms + HOUR_MS, Marks()) == []


@pytest.mark.parametrize(
    ("actions", "keeps", "said"),
    [
        ("done-partition", "nothing", "done-partition: the table's catalog cannot; set success"),
        ("mark-event,success-file", "nothing", "mark-event: the table's catalog cannot"),
        ("mark-event", "events", None),
        ("done-partition,mark-event", "events", "action=done-partition: the table's catalog"),
        ("done-partition,mark-event", "both", None),
        ("success-file", "nothing", None),
    ],
)
def test_ways_that_the_catalog_has_not_are_refused_by_name(
    actions: str, keeps: str, said: str | None
) -> None:
    storage, table = table_of_days(_marks(actions))
    write_days(storage, table, NOW_MS, OLD)
    kept = KeptPartitions()
    access = TableAccess(
        ref=table,
        storage=storage,
        publisher=StorePublisher(storage),
        entries=kept if keeps == "both" else None,
        events=kept if keeps in ("both", "events") else None,
    )
    opened = open_table(access, {})
    assert bool(mark_done(opened, LATER_MS, is_dry=True)) is (said is None)
    assert [said in warning for warning in opened.warnings if said] == ([True] if said else [])
    assert len(opened.warnings) == (said is not None)
