"""Which partitions expire, in which order and when; what comes between; that a failure heals."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import pytest
from structlog.testing import capture_logs

from compactord.catalog.access import table_in_folder
from compactord.clock import WallTime
from compactord.commit.changes import CommitOutcome, Committed, Replaced
from compactord.config.choices import MaintenanceRule
from compactord.errors import CompactordError, FormatError, StorageError
from compactord.maintenance.kind import MaintenanceRecord
from compactord.maintenance.partitions import (
    DuePartitions,
    ExpirePartitions,
    due_partitions,
)
from compactord.model import Conflict
from compactord.paimon import paths
from compactord.paimon.binary_row import Value, encode_row
from compactord.paimon.data_file import DataFile, ManifestEntry
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.plan.table import Strategy
from compactord.state.table_state import TableState, load_state
from compactord.storage.base import Storage
from compactord.table.compactor import TableCompactor
from compactord.table.opening import OpenTable, open_table
from compactord.table.session import ChosenPartitions
from compactord_demo.schema_files import schema_json
from compactord_demo.writer import create_table
from tests.builders import FIRST, NOW_MS, SECOND, leftovers
from tests.rounds import Opened
from tests.storages import Call, Fault, FaultyStorage, HookedStorage, MemoryStorage
from tests.unit.maintenance.days import HOME, TEXT, table_of_days, write_days
from tests.unit.maintenance.due_table import Due
from tests.unit.maintenance.expiring import FAULTS
from tests.unit.paimon.table_builder import SoundStatistics, data_file, entry
from tests.unit.table.compacting import ALL, compactor_of, outcome_of

UTC = datetime.timezone.utc
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
# `NOW_MS` is 2023-11-14 22:13:20 UTC.
MIDNIGHT_MS = NOW_MS - 22 * HOUR_MS - 13 * 60_000 - 20_000
OLD, TODAY = "2023-11-13", "2023-11-14"
BY_VALUES = {"partition.expiration-time": "1 d"}
BY_UPDATE = {**BY_VALUES, "partition.expiration-strategy": "update-time"}
_NULLABLE = replace(TEXT, nullable=True)
_DATE = AtomicType(root=TypeRoot.DATE, nullable=False)
_INT = AtomicType(root=TypeRoot.INT, nullable=False)


class Parts:
    """A table whose data files hold no rows; its partition columns are `p0`, `p1`, …"""

    def __init__(
        self, options: Mapping[str, str], *types: AtomicType, storage: MemoryStorage | None = None
    ) -> None:
        self.types = types or (TEXT,)
        self.storage = storage or MemoryStorage()
        self.ref = TableRef(database="db", name="t", location=HOME)
        columns = [DataField(id=n, name=f"p{n}", type=t) for n, t in enumerate(self.types)]
        create_table(
            self.storage,
            self.ref,
            [*columns, DataField(id=9, name="v", type=_INT)],
            partition_keys=[column.name for column in columns],
            options={"bucket": "-1", **options},
        )
        self.history = SoundStatistics(
            self.storage,  # type: ignore[arg-type]
            self.ref,
            self.types,
            sound=self.row(*(None for _ in self.types)),
        )

    def row(self, *values: Value) -> bytes:
        return encode_row(values, self.types)

    def add(
        self, *rows: Sequence[Value] | bytes, bucket: int = 0, created_ms: int | None = NOW_MS
    ) -> None:
        """A file in each partition; one that is bytes cannot be read."""
        entries: list[ManifestEntry] = []
        for row in rows:
            partition = row if isinstance(row, bytes) else self.row(*row)
            file: DataFile = data_file(f"data-{next(_NUMBERS)}.parquet")
            file = replace(file, creation_time_ms=created_ms)
            entries.append(entry(file, partition=partition, bucket=bucket, total_buckets=-1))
        self.history.commit(entries, CommitKind.APPEND)
        for each in entries:
            with contextlib.suppress(FormatError):
                path = paths.join(self.opened.bucket_folder(each.bucket_id), each.file.file_name)
                self.storage.write_new(path, bytes(each.file.file_size))

    @property
    def opened(self) -> OpenTable:
        return open_table(table_in_folder(self.storage, self.ref), {})

    def due(self, now_ms: int, zone: datetime.tzinfo = UTC) -> tuple[list[str], list[str]]:
        """As texts: those that are due, and those of which it is not known."""
        opened, state = self.opened, load_state(self.storage, self.ref)
        found = due_partitions(opened, state, now_ms=now_ms, zone=zone)
        return [opened.partition_text(each) for each in found.due], list(found.unknown)


_NUMBERS = itertools.count()
LATER_MS = 4_000_000_000_000


@pytest.mark.parametrize(
    ("options", "types", "rows", "due", "unknown"),
    [
        ({}, [TEXT], [["2023-11-12"], ["2999-1-1"]], ["p0=2023-11-12"], []),
        # Lenient, as Java without a formatter: these are days of 2024.
        ({}, [TEXT], [["2023-13-05"], ["2023-1-40"]], ["p0=2023-1-40", "p0=2023-13-05"], []),
        ({}, [TEXT], [["never"], [""]], [], ["p0=''", "p0=never"]),
        ({}, [_NULLABLE], [[None], ["2023-01-01"]], ["p0=2023-01-01"], ["p0=null"]),
        # Java asks for the text of the first column alone, unless there is a pattern.
        ({}, [TEXT, _NULLABLE], [["2023-01-01", None]], ["p0=2023-01-01, p1=null"], []),
        (
            {"timestamp-pattern": "$p0"},
            [TEXT, _NULLABLE],
            [["2023-01-01", None]],
            [],
            ["p0=2023-01-01, p1=null"],
        ),
        (
            {"timestamp-pattern": "$p0 $p1:00:00"},
            [TEXT, _INT],
            [["2023-01-01", 7], ["2999-01-01", 7]],
            ["p0=2023-01-01, p1=7"],
            [],
        ),
        (
            {"timestamp-formatter": "yyyyMMdd"},
            [_INT],
            [[20230101], [20231301], [29990101]],
            ["p0=20230101"],
            ["p0=20231301"],
        ),
        # A number of days to Java, which stands for no time.
        ({}, [_DATE], [[19_000]], [], ["p0=2022-01-08"]),
        ({}, [TEXT], [b"\0\0"], [], ["0x0000"]),
        # What is null is, whatever its folder is called.
        ({"default-name": "2023-01-01"}, [_NULLABLE], [[None]], [], ["p0=null"]),
        # By the order of their texts, which are UTF-16 to Java.
        (
            {"expiration-strategy": "update-time"},
            [TEXT, TEXT],
            [["b", "a"], ["a", "\uffee"], ["a", "\U0001f600"], ["a,b", "a"], ["a", ""]],
            [
                "p0=a, p1=''",
                "p0=a,b, p1=a",
                "p0=a, p1=\U0001f600",
                "p0=a, p1=\uffee",
                "p0=b, p1=a",
            ],
            [],
        ),
        (
            {"expiration-strategy": "update-time", "default-name": "x"},
            [_NULLABLE],
            [["w"], ["y"], [None], b"\0\0"],
            ["p0=w", "p0=null", "p0=y"],
            ["0x0000"],
        ),
    ],
)
def test_what_expires_and_in_which_order(
    options: Mapping[str, str],
    types: Sequence[AtomicType],
    rows: Sequence[Sequence[Value] | bytes],
    due: list[str],
    unknown: list[str],
) -> None:
    texts = {f"partition.{key}": text for key, text in options.items()}
    table = Parts({**BY_VALUES, **texts}, *types)
    table.add(*rows)
    assert table.due(LATER_MS) == (due, unknown)


def test_a_partition_expires_a_moment_after_its_time() -> None:
    ahead = datetime.timezone(datetime.timedelta(hours=2))
    table = Parts(BY_VALUES)
    table.add([OLD])
    for zone, end_ms in ((UTC, MIDNIGHT_MS), (ahead, MIDNIGHT_MS - 2 * HOUR_MS)):
        assert table.due(end_ms, zone) == ([], [])
        assert table.due(end_ms + 1, zone) == ([f"p0={OLD}"], [])


def test_by_update_time_the_newest_file_counts_and_all_must_say_when_they_were_made() -> None:
    table = Parts(BY_UPDATE)
    table.add(["a"], ["b"], ["c"])
    table.add(["b"], created_ms=NOW_MS + 5)
    table.add(["c"], created_ms=None)
    ahead = datetime.timezone(datetime.timedelta(hours=2))
    for now_ms, due in (
        (NOW_MS + DAY_MS, []),
        (NOW_MS + DAY_MS + 1, ["p0=a"]),
        (NOW_MS + DAY_MS + 5, ["p0=a"]),
        (NOW_MS + DAY_MS + 6, ["p0=a", "p0=b"]),
    ):
        expected = due, ["p0=c"] if due else []
        assert table.due(now_ms) == expected
        assert table.due(now_ms - 2 * HOUR_MS, ahead) == expected


def test_postponed_files_alone_do_not_expire_and_do_not_go_with_others() -> None:
    table = Parts(BY_VALUES)
    table.add([OLD], ["2023-01-01"], bucket=-2)
    table.add([OLD])
    assert table.due(LATER_MS) == ([f"p0={OLD}"], [])
    compactor = _compactor(table.storage, table.ref)
    done = ExpirePartitions(interval_ms=0).run(compactor, None)
    assert (done.items, done.figures["files"]) == ([f"p0={OLD}"], 1)
    left = load_state(table.storage, table.ref).files.bucket_ids()
    assert {(each.partition, each.bucket) for each in left} == {
        (table.row(OLD), -2),
        (table.row("2023-01-01"), -2),
    }


def test_a_partition_that_cannot_be_read_holds_nothing() -> None:
    table = Parts(BY_VALUES)
    table.add([TODAY], b"\0" * 12)
    assert _compactor(table.storage, table.ref).why_held() is None


def test_many_go_in_batches_and_not_more_than_options_say() -> None:
    table = Parts(
        {
            **BY_VALUES,
            "partition.expiration-max-num": "990",
            "partition.expiration-batch-size": "250",
        }
    )
    first = datetime.date(1990, 1, 1)
    days = [str(first + datetime.timedelta(days=number)) for number in range(1_000)]
    table.add(*([day] for day in days))
    compactor = _compactor(table.storage, table.ref)
    with capture_logs() as events:
        done = ExpirePartitions(interval_ms=0).run(compactor, None)
    assert done.items == [f"p0={day}" for day in days[:990]]
    assert done.figures == {"files": 990, "rows": 9_900, "left": 10}
    said = [event for event in events if event["event"] == "partitions_expired"]
    assert [len(event["partitions"]) for event in said] == [250, 250, 250, 240]
    assert [event["snapshot_id"] for event in said] == [2, 3, 4, 5]
    state = load_state(table.storage, table.ref)
    assert sorted(each.partition for each in state.files.bucket_ids()) == sorted(
        table.row(day) for day in days[990:]
    )


def _compactor(storage: Storage, table: TableRef, **how: object) -> TableCompactor:
    """Of the day after next, as it is after its first cycle."""
    compactor: TableCompactor = compactor_of(storage, table, **how)  # type: ignore[arg-type]
    compactor.clock.sleep(2 * DAY_MS // 1000)
    assert compactor.cycle((), ALL).error is None
    return compactor


def _table(options: Mapping[str, str], *days: str) -> tuple[MemoryStorage, TableRef]:
    storage, table = table_of_days(options)
    write_days(storage, table, NOW_MS, *days)
    return storage, table


def _rows(storage: Storage, table: TableRef) -> dict[str, int]:
    """How many each partition has, by its day."""
    opened, state = open_table(table_in_folder(storage, table), {}), load_state(storage, table)
    found: dict[str, int] = {}
    for bucket in state.files.bucket_ids():
        day = opened.partition_text(bucket.partition).removeprefix("dt=")
        found[day] = found.get(day, 0) + state.files.summary(bucket).row_count
    return found


@pytest.mark.parametrize(
    ("options", "late_goes"), [(BY_VALUES, True), (BY_UPDATE, False)], ids=["values", "update"]
)
@pytest.mark.parametrize("attempts", [0, 1, 2])
def test_rows_that_come_before_the_commit_go_by_values_and_keep_it_by_update_time(
    options: Mapping[str, str], attempts: int, *, late_goes: bool
) -> None:
    storage, table = _table(options, OLD, "2023-11-12")
    now_ms = NOW_MS + 2 * DAY_MS
    races = iter(range(attempts))

    def write(call: Call) -> None:
        if call.method == "create_if_absent" and next(races, None) is not None:
            write_days(storage, table, now_ms, OLD)

    compactor = _compactor(HookedStorage(storage, before=write), table)
    if not attempts:
        # After the round has looked at the table.
        known = compactor.newest_state()
        write_days(storage, table, now_ms, OLD)
        assert known.snapshot is not None
    with capture_logs() as events:
        done = ExpirePartitions(interval_ms=0).run(compactor, None)
    is_kept = not late_goes
    assert _rows(storage, table) == ({OLD: 1 + max(1, attempts)} if is_kept else {})
    [said] = [event for event in events if event["event"] == "partitions_expired"]
    count = 1 if is_kept else 2 + max(1, attempts)
    assert (said["rows"], said["files"]) == (count, count)
    assert done.figures == Counter(files=count, rows=count)
    assert done.items == said["partitions"]
    assert done.items == [f"dt={day}" for day in (["2023-11-12"] + [OLD] * late_goes)]


def test_options_that_change_before_the_commit_count() -> None:
    table = Parts(BY_VALUES)
    table.add([OLD])
    compactor = _compactor(table.storage, table.ref)
    chosen: list[DuePartitions] = []

    def choose(opened: OpenTable, state: TableState) -> tuple[bytes, ...]:
        chosen.append(due_partitions(opened, state, now_ms=LATER_MS, zone=UTC))
        return chosen[-1].due

    later = {**table.opened.schema.options, "partition.expiration-time": "99999 d"}
    schema = replace(table.opened.schema, id=1, options=later)
    table.storage.write_new(f"{HOME}/schema/schema-1", schema_json(schema))
    compactor.drop_partitions(choose)
    assert chosen == [DuePartitions(())]


def test_a_compaction_under_way_is_dropped_and_the_next_cycle_plans_what_is_left() -> None:
    storage, table = _table(BY_VALUES, OLD, "2999-01-01")
    write_days(storage, table, NOW_MS, OLD, "2999-01-01")
    compactor: TableCompactor = compactor_of(storage, table, strategy=Strategy.FULL)
    compactor.clock.sleep(2 * DAY_MS // 1000)
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    ended = []
    for number, pending in enumerate(planned.offered, start=1):
        dispatched = compactor.dispatch(pending.bucket, compaction_id=number, free_slots=1)
        ended.append(outcome_of(dispatched))  # type: ignore[arg-type]
    assert len(ended) == 2
    ExpirePartitions(interval_ms=0).run(compactor, None)
    cycle = compactor.cycle(ended, ALL)
    assert cycle.error is None
    assert isinstance(cycle.commit, Committed)
    [drop] = cycle.commit.dropped
    assert drop.conflict is Conflict.PARTITION_EXPIRED
    assert len(cycle.commit.published) == 1
    assert cycle.planned is not None
    assert [each.partition for each in cycle.planned.emptied] == [drop.change.bucket.partition]
    assert leftovers(storage, table, [FIRST, SECOND]) == set()
    assert _rows(storage, table) == {"2999-01-01": 1}


def test_a_round_takes_turns_with_the_cycles_of_its_table() -> None:
    storage, table = _table(BY_VALUES, OLD)
    waiting: list[bool] = []

    def beside(call: Call) -> None:
        if call.method == "create_if_absent" and not waiting:
            thread = threading.Thread(target=lambda: compactor.cycle((), ALL))
            # It needs this store, which takes one call at a time, only once it has its turn.
            thread.start()
            thread.join(0.2)
            waiting.append(thread.is_alive() and not compactor.cycle_began)
            threads.append(thread)

    threads: list[threading.Thread] = []
    hooked = HookedStorage(storage, before=beside)
    compactor = cast("_Watched", _compactor(hooked, table, made_by=_Watched))
    compactor.cycle_began = False
    ExpirePartitions(interval_ms=0).run(compactor, None)
    assert waiting == [True]
    for thread in threads:
        thread.join()
    assert compactor.cycle_began


class _Watched(TableCompactor):
    cycle_began = False

    def _cycle(self, *args: object) -> object:  # type: ignore[override]
        self.cycle_began = True
        return super()._cycle(*args)  # type: ignore[arg-type]


def test_a_round_ends_once_its_snapshot_was_replaced_or_it_is_to_stop() -> None:
    storage, table = _table(
        {**BY_VALUES, "partition.expiration-batch-size": "1"}, OLD, "2023-11-12"
    )
    opened = open_table(table_in_folder(storage, table), {})
    asked: list[ChosenPartitions] = []

    def drop(chosen: ChosenPartitions) -> CommitOutcome:
        asked.append(chosen)
        return Replaced(changes=(), dropped=(), why="another came")

    round_, kind = Opened(table=opened, now_ms=LATER_MS, drop=drop), ExpirePartitions(interval_ms=0)
    with capture_logs() as events:
        done = kind.run(round_, None)
        kind.ended(done, 0.1)
    assert (done.items, done.why_not, len(asked)) == ([], "another came", 1)
    assert [event["error"] for event in events] == ["another came"]
    round_.is_stopping = True
    done = kind.run(round_, None)
    assert (done.items, done.why_not, len(asked)) == ([], None, 1)


@pytest.mark.parametrize("goes_on", [True, False])
def test_once_it_is_to_stop_nothing_is_chosen_of_a_state_that_was_waited_for(
    *, goes_on: bool
) -> None:
    storage, table = _table(BY_VALUES, OLD)
    opened, state = open_table(table_in_folder(storage, table), {}), load_state(storage, table)
    found: list[bytes] = []

    def drop(chosen: ChosenPartitions) -> CommitOutcome:
        round_.is_stopping = not goes_on
        found.extend(chosen(opened, state))
        return Replaced(changes=(), dropped=(), why="another came")

    round_ = Opened(table=opened, now_ms=LATER_MS, drop=drop)
    ExpirePartitions(interval_ms=0).run(round_, None)
    assert len(found) == goes_on


def test_a_snapshot_that_has_to_stand_is_waited_for_between_batches() -> None:
    storage, table = _table(
        {**BY_VALUES, "partition.expiration-batch-size": "1"}, OLD, "2023-11-12"
    )
    compactor = _compactor(storage, table, settle_ms=10_000)
    before = compactor.clock.monotonic_s()
    done = ExpirePartitions(interval_ms=0).run(compactor, None)
    assert len(done.items) == 2
    assert compactor.clock.monotonic_s() - before == 10
    assert compactor.expiry_blocker() is not None


@pytest.mark.parametrize(("error", "concerns", "after_effect", "lasts"), FAULTS)
def test_whatever_call_fails_the_next_round_finishes(
    error: type[StorageError],
    concerns: Callable[[Call], bool],
    after_effect: bool,
    lasts: bool,
) -> None:
    template, table = _table(
        {
            **BY_VALUES,
            "partition.expiration-batch-size": "1",
            "commit.max-retries": "1",
        },
        OLD,
        "2023-11-12",
        "2999-01-01",
    )
    for at in itertools.count(1):
        storage = template.copy()
        in_round: list[bool] = []
        fault = Fault(
            at=at,
            error=error,
            after_effect=after_effect,
            lasts=lasts,
            concerns=lambda call, in_round=in_round: bool(in_round) and concerns(call),  # type: ignore[misc]
        )
        faulty = FaultyStorage(storage, fault)
        compactor = _compactor(faulty, table)
        in_round.append(True)
        kind = ExpirePartitions(interval_ms=0)
        with contextlib.suppress(CompactordError):
            kind.run(compactor, None)
        rows = _rows(storage, table)
        assert rows.items() <= {OLD: 1, "2023-11-12": 1, "2999-01-01": 1}.items()
        assert "2999-01-01" in rows
        kind.run(_compactor(storage, table), None)
        assert _rows(storage, table) == {"2999-01-01": 1}
        if not faulty.failed:
            break
    assert at > 8


def test_a_round_is_due_where_options_ask_as_often_as_they_say() -> None:
    kind = ExpirePartitions(interval_ms=1_000)
    record, wall = MaintenanceRecord(ended_ms=5), WallTime(UTC)
    for asked, rule, waited_ms, expected in (
        ({"partitions": 3_000}, MaintenanceRule.FROM_TABLE, 3_000, True),
        ({"partitions": 3_000}, MaintenanceRule.FROM_TABLE, 2_999, False),
        ({"partitions": 0}, MaintenanceRule.FROM_TABLE, 1_000, True),
        ({"partitions": 0}, MaintenanceRule.FROM_TABLE, 999, False),
        ({"partitions": 0}, MaintenanceRule.OFF, 9_000, False),
        ({"done": 0}, MaintenanceRule.FROM_TABLE, 9_000, False),
    ):
        due = Due(asked, expire_partitions=rule)
        assert kind.is_due(due, record, 5 + waited_ms, wall) is expected
    held = Due(
        {"partitions": 0}, settling_until_ms=9_006, expire_partitions=MaintenanceRule.FROM_TABLE
    )
    assert not kind.is_due(held, record, 9_005, wall)
    assert kind.is_due(held, record, 9_006, wall)


def test_what_a_round_came_to_is_counted_and_what_stands_for_no_time_is_named() -> None:
    storage, table = _table(BY_VALUES, OLD, *(f"never-{number}" for number in range(12)))
    kind = ExpirePartitions(interval_ms=0)
    compactor = _compactor(storage, table)
    with capture_logs() as events:
        done = kind.run(compactor, None)
        round_ = kind.ended(done, 0.1)
    assert round_.counts == {"expired_partitions": 1, "expired_partition_files": 1}
    assert not round_.more
    assert not round_.has_failed
    [said] = [event for event in events if event["event"] == "partitions_without_time"]
    assert (said["count"], len(said["partitions"])) == (12, 10)
    with capture_logs() as events:
        assert kind.ended(StorageError("/p", "it failed"), 0.1).has_failed
        # Nothing more to do: no snapshot is made.
        assert not kind.run(compactor, None).items
    assert [event["event"] for event in events] == ["partitions_failed", "partitions_without_time"]


def test_the_next_cycle_plans_without_expired_partitions_though_nothing_else_changes() -> None:
    storage, table = _table(BY_VALUES, OLD, "2999-01-01")
    write_days(storage, table, NOW_MS, OLD, "2999-01-01")
    compactor: TableCompactor = compactor_of(storage, table, strategy=Strategy.FULL)
    compactor.clock.sleep(2 * DAY_MS // 1000)
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    assert len(planned.offered) == 2
    ExpirePartitions(interval_ms=0).run(compactor, None)
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    assert len(planned.offered) == len(planned.emptied) == 1
