"""Which consumers expire, and that a consumer that moves is never lost."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from datetime import timezone

import pytest
from structlog.testing import capture_logs

from compactord.catalog.access import table_in_folder
from compactord.clock import WallTime
from compactord.config.choices import MaintenanceRule
from compactord.errors import CompactordError, StorageError
from compactord.maintenance.consumer_expiry import ExpireConsumers, idle_consumers
from compactord.maintenance.kind import MaintenanceRecord
from compactord.paimon.schema import TableRef
from compactord.storage.base import NO_TIME_MS, Storage
from compactord.table.opening import OpenTable, open_table
from tests.builders import NOW_MS, consumer_path, keyed_table, make_branch
from tests.rounds import expire_consumers
from tests.storages import Call, Fault, FaultyStorage, HookedStorage, MemoryStorage
from tests.unit.maintenance.due_table import Due
from tests.unit.maintenance.expiring import FAULTS

HOME = "/wh/db.db/t"
HOUR_MS = 3_600_000
ASKS = {"consumer.expiration-time": "1 h"}
# Ages at `NOW_MS`, whether they expire.
AGES = {
    "new": (0, False),
    "at-the-limit": (HOUR_MS, False),
    "just-over": (HOUR_MS + 1, True),
    "old": (30 * HOUR_MS, True),
    "of-the-future": (-HOUR_MS, False),
    "of-no-time": (NOW_MS - NO_TIME_MS, False),
}


def _move(storage: MemoryStorage, root: str, name: str, age_ms: int, text: str = "") -> None:
    path = consumer_path(root, name)
    storage.overwrite(path, (text or '{"nextSnapshot": 7}').encode())
    storage.changed_ms[path] = NOW_MS - age_ms


def _table() -> tuple[MemoryStorage, TableRef]:
    storage = MemoryStorage()
    table = keyed_table(storage, HOME)
    for name, (age_ms, _) in AGES.items():
        _move(storage, table.root, name, age_ms)
    return storage, table


def _opened(storage: Storage, table: TableRef, **options: str) -> OpenTable:
    return open_table(table_in_folder(storage, table), options or ASKS)


def _consumers(storage: MemoryStorage, root: str = HOME) -> set[str]:
    prefix = consumer_path(root, "")
    return {path.removeprefix(prefix) for path in storage.objects if path.startswith(prefix)}


def test_those_that_have_not_moved_for_longer_than_the_option_expire() -> None:
    storage, table = _table()
    _move(storage, table.root, "damaged", 2 * HOUR_MS, "half")
    storage.overwrite(f"{HOME}/consumer/other", b"not a consumer")
    before = dict(storage.objects)
    expected = {"damaged", *(name for name, (_, expires) in AGES.items() if expires)}
    assert {each.name for each in idle_consumers(_opened(storage, table), NOW_MS)} == expected
    assert storage.objects == before
    with capture_logs() as events:
        gone = expire_consumers(_opened(storage, table), NOW_MS)
    assert {each.name: each.next_snapshot for each in gone} == {
        name: None if name == "damaged" else 7 for name in expected
    }
    assert [event["consumers"] for event in events] == [{e.name: e.next_snapshot for e in gone}]
    paths = {consumer_path(HOME, name) for name in expected}
    assert storage.objects == {p: data for p, data in before.items() if p not in paths}
    assert not expire_consumers(_opened(storage, table), NOW_MS)


def test_without_the_option_none_expires_and_nothing_is_listed() -> None:
    storage, table = _table()
    fault = Fault(at=1, error=StorageError, concerns=lambda call: "/consumer" in call.path)
    opened = _opened(FaultyStorage(storage, fault), table, bucket="2")
    assert "consumers" not in opened.options.maintenance.requested
    assert not expire_consumers(opened, NOW_MS)
    assert _consumers(storage) == AGES.keys()


def test_a_branch_has_consumers_of_its_own() -> None:
    storage, table = _table()
    branch = make_branch(storage, table, "b")
    _move(storage, branch.root, "of-b", 2 * HOUR_MS)
    gone = expire_consumers(_opened(storage, branch), NOW_MS)
    assert [each.name for each in gone] == ["of-b"]
    assert _consumers(storage) == AGES.keys()


@pytest.mark.parametrize("vanishes", [False, True])
def test_one_that_moves_before_it_is_deleted_stays(vanishes: bool) -> None:
    storage, table = _table()
    path = consumer_path(HOME, "just-over")

    def meanwhile(call: Call) -> None:
        if call.method == "status" and call.path == path:
            storage.delete(path) if vanishes else _move(storage, HOME, "just-over", 0)

    opened = _opened(HookedStorage(storage, before=meanwhile), table)
    assert [each.name for each in expire_consumers(opened, NOW_MS)] == ["old"]
    assert ("just-over" in _consumers(storage)) is not vanishes


@pytest.mark.parametrize(("error", "concerns", "after_effect", "lasts"), FAULTS)
def test_whatever_call_fails_no_other_consumer_goes_and_the_next_round_finishes(
    error: type[StorageError],
    concerns: Callable[[Call], bool],
    after_effect: bool,
    lasts: bool,
) -> None:
    kept = {name for name, (_, expires) in AGES.items() if not expires}
    for at in itertools.count(1):
        storage, table = _table()
        fault = Fault(at=at, error=error, after_effect=after_effect, lasts=lasts, concerns=concerns)
        faulty = FaultyStorage(storage, fault)
        with contextlib.suppress(CompactordError):
            expire_consumers(_opened(faulty, table), NOW_MS)
        assert kept <= _consumers(storage)
        expire_consumers(_opened(storage, table), NOW_MS)
        assert _consumers(storage) == kept
        if not faulty.failed:
            return


@pytest.mark.parametrize(
    ("asked", "rule", "waited_ms", "expected"),
    [
        (("consumers",), MaintenanceRule.FROM_TABLE, 1_000, True),
        (("consumers",), MaintenanceRule.FROM_TABLE, 999, False),
        (("consumers",), MaintenanceRule.OFF, 1_000, False),
        ((), MaintenanceRule.FROM_TABLE, 1_000, False),
    ],
)
def test_it_is_due_where_options_ask_and_no_rule_forbids(
    asked: tuple[str, ...], rule: MaintenanceRule, waited_ms: int, expected: bool
) -> None:
    kind = ExpireConsumers(interval_ms=1_000)
    record, wall = MaintenanceRecord(ended_ms=5), WallTime(timezone.utc)
    assert kind.is_due(Due(asked, expire_consumers=rule), record, 5 + waited_ms, wall) is expected
