"""The lock of a JDBC catalog on SQLite: taken as Java takes it, waited for, robbed, contested."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import tzinfo
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from compactord import ids
from compactord.catalog.jdbc.database import Database, JdbcAddress, jdbc_address
from compactord.catalog.jdbc.lock import JdbcLock
from compactord.catalog.jdbc.options import jdbc_options
from compactord.commit.publish import Delta, LockedPublisher, StorePublisher
from compactord.errors import CatalogDown, CatalogUnavailable, TransientStorageError
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import read_snapshot, snapshot_ids
from compactord.storage.base import Capabilities, Creation
from compactord.storage.local import LocalStorage
from tests import builders
from tests.builders import VirtualClock
from tests.databases import run_sql, sqlite_database
from tests.storages import Call, HookedStorage, MemoryStorage
from tests.unit.catalog.locked_commits import snapshot

TABLE = TableRef(database="db", name="t", location="/w/db.db/t")
_ID = "jdbc.db.t"


class LosingDatabase(Database):
    """Loses the answers to statements; `meanwhile` happens when one is lost.

    `losses` are the first words of the statements, one after the other, each with whether the
    statement takes effect.
    """

    def __init__(self, address: JdbcAddress, *, pool_size: int, zone: tzinfo | None) -> None:
        super().__init__(address, pool_size=pool_size, zone=zone)
        self.losses: list[tuple[str, bool]] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def rows(self, sql: str, **values: object) -> Sequence[tuple[Any, ...]]:
        if self.losses and sql.startswith(self.losses[0][0]):
            self._lose()
        return super().rows(sql, **values)

    def execute(self, sql: str, **values: object) -> int:
        if self.losses and sql.startswith(self.losses[0][0]):
            if self.losses[0][1]:
                super().execute(sql, **values)
            self._lose()
        return super().execute(sql, **values)

    def execute_at_once(self, sql: str, **values: object) -> int:
        return self.execute(sql, **values)

    def _lose(self) -> None:
        self.losses.pop(0)
        self.meanwhile()
        raise CatalogDown(self.address.shown, "server closed the connection unexpectedly")


class _Extra(random.Random):
    """Draws one number, whatever the bounds."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._number = number

    def randint(self, a: int, b: int) -> int:
        assert a <= self._number <= b
        return self._number


class Locked:
    """A lock on a database of its own; others are played by `rows`, statements of their own.

    The time limit of its rows is the time-out and `extra_s`.
    """

    extra_s = 77

    def __init__(self, folder: Path, **options: str) -> None:
        self.path = folder / "c.db"
        uri = sqlite_database(self.path)
        given = {key.replace("_", "-"): text for key, text in options.items()}
        self.options = jdbc_options({"uri": uri, "lock.enabled": "true", **given})
        self.clock = VirtualClock()
        self.database = LosingDatabase(jdbc_address(uri, {}), pool_size=2, zone=None)
        self.lock = JdbcLock(self.database, self.options, self.clock, _Extra(self.extra_s))

    def rows(self, sql: str = "SELECT lock_id, expire_time_seconds FROM LOCKS") -> object:
        return run_sql(self.path, sql.replace("LOCKS", "paimon_distributed_locks"))

    def take(self, *, age_s: int = 0, expire_s: int = 480) -> None:
        """As another process does, so many seconds ago."""
        self.rows(
            f"INSERT INTO LOCKS VALUES ('{_ID}', datetime('now', '{-age_s} seconds'), {expire_s})"
        )


def test_a_lock_is_a_row_as_java_writes_it_and_is_gone_after_its_release(tmp_path: Path) -> None:
    locked = Locked(tmp_path, catalog_key="lake", lock_acquire_timeout="2 min")
    held = locked.lock.acquire(TABLE)
    assert locked.rows() == [("lake.db.t", 120 + 77)]
    assert locked.rows("SELECT datetime(acquired_at) = acquired_at FROM LOCKS") == [(1,)]
    assert held.release()
    assert locked.rows() == []
    assert locked.clock.sleeps == []


def test_tables_have_locks_of_their_own(tmp_path: Path) -> None:
    locked = Locked(tmp_path)
    locked.take()
    other = TableRef(database="db", name="other", location="/w/db.db/other")
    assert locked.lock.acquire(other).release()


def test_a_busy_lock_is_waited_for_as_in_java_and_then_given_up(tmp_path: Path) -> None:
    locked = Locked(tmp_path, lock_acquire_timeout="10 s", lock_check_max_sleep="1 s")
    locked.take()
    with pytest.raises(
        CatalogUnavailable, match=r"the lock jdbc\.db\.t was held by other writers for 10 s"
    ):
        locked.lock.acquire(TABLE)
    assert locked.clock.sleeps[:6] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert 10 < sum(locked.clock.sleeps) < 12
    assert locked.rows() == [(_ID, 480)], "the other's"


@pytest.mark.parametrize(("age_s", "is_taken"), [(470, False), (482, True), (-3600, False)])
def test_a_lock_is_taken_over_only_when_its_own_time_is_over(
    tmp_path: Path, age_s: int, is_taken: bool
) -> None:
    locked = Locked(tmp_path, lock_acquire_timeout="1 s")
    locked.take(age_s=age_s)
    if is_taken:
        with capture_logs() as logs:
            assert locked.lock.acquire(TABLE).release()
        assert [log["event"] for log in logs] == ["catalog_lock_expired"]
    else:
        with pytest.raises(CatalogUnavailable):
            locked.lock.acquire(TABLE)


def test_a_lock_from_the_future_hints_at_another_time_zone(tmp_path: Path) -> None:
    locked = Locked(tmp_path, lock_acquire_timeout="1 s")
    locked.take(age_s=-8 * 3600)
    with pytest.raises(CatalogUnavailable, match=r"in the future: the time zone .* service.timez"):
        locked.lock.acquire(TABLE)


def _rob(locked: Locked) -> None:
    """Our time is over and another takes the lock."""
    locked.rows("DELETE FROM LOCKS")
    locked.take(age_s=-1)


def _rob_and_end(locked: Locked) -> None:
    locked.rows("DELETE FROM LOCKS")


def _break(locked: Locked) -> None:
    locked.rows("DROP TABLE LOCKS")


@pytest.mark.parametrize(
    ("meanwhile", "left"),
    [
        pytest.param(_rob, [(_ID, 480)], id="another has it"),
        pytest.param(_rob_and_end, [], id="another had it"),
        pytest.param(_break, None, id="the database does not say"),
    ],
)
def test_a_lock_that_was_robbed_is_told_and_the_robbers_is_left(
    tmp_path: Path, meanwhile: Callable[[Locked], None], left: object
) -> None:
    locked = Locked(tmp_path)
    held = locked.lock.acquire(TABLE)
    meanwhile(locked)
    assert not held.release()
    assert left is None or locked.rows() == left


_INSERT, _SELECT, _DELETE = ("INSERT", True), ("SELECT", True), ("DELETE", True)
_UNHEARD = ("INSERT", False)


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param([_INSERT], id="the row is there"),
        pytest.param([_UNHEARD], id="no row is there"),
        pytest.param([_SELECT], id="it cannot be read back"),
        pytest.param([_INSERT, _DELETE], id="nor can it be looked for at first"),
        pytest.param([_UNHEARD, _INSERT], id="twice"),
    ],
)
def test_a_row_of_ours_whose_answer_was_lost_is_not_waited_for(
    tmp_path: Path, losses: list[tuple[str, bool]]
) -> None:
    locked = Locked(tmp_path)
    locked.database.losses = [*losses]
    held = locked.lock.acquire(TABLE)
    assert locked.database.losses == []
    assert sum(locked.clock.sleeps) < 1
    assert locked.rows() == [(_ID, 480 + 77)]
    assert held.release()
    assert locked.rows() == []


@pytest.mark.parametrize(
    ("age_s", "expire_s"),
    [
        pytest.param(0, 5, id="of Java"),
        pytest.param(0, 5 + 78, id="of another compactord"),
        pytest.param(30, 5 + 77, id="older, with our value by chance"),
    ],
)
def test_a_row_of_another_is_left_when_an_answer_of_ours_was_lost(
    tmp_path: Path, age_s: int, expire_s: int
) -> None:
    locked = Locked(tmp_path, lock_acquire_timeout="5 s")
    locked.database.losses = [_UNHEARD]
    locked.database.meanwhile = lambda: locked.take(age_s=age_s, expire_s=expire_s)
    with pytest.raises(CatalogUnavailable, match="held by other writers"):
        locked.lock.acquire(TABLE)
    assert locked.rows() == [(_ID, expire_s)]


def test_a_database_that_stays_away_while_the_lock_is_taken_leaves_a_row_we_know(
    tmp_path: Path,
) -> None:
    locked = Locked(tmp_path)
    locked.database.losses = [_INSERT, ("DELETE", False), ("DELETE", False)]
    with pytest.raises(CatalogDown):
        locked.lock.acquire(TABLE)
    assert locked.rows() == [(_ID, 480 + 77)]
    slept = len(locked.clock.sleeps)
    with capture_logs() as logs:
        assert locked.lock.acquire(TABLE).release()
    assert [log["event"] for log in logs] == ["catalog_lock_found"]
    assert len(locked.clock.sleeps) == slept


@pytest.mark.parametrize(
    ("losses", "is_ours"),
    [
        pytest.param([("DELETE", False)] * 3, True, id="it stays"),
        pytest.param([("DELETE", True)], False, id="it is gone"),
    ],
)
def test_a_release_is_tried_until_the_database_is_back(
    tmp_path: Path, losses: list[tuple[str, bool]], is_ours: bool
) -> None:
    locked = Locked(tmp_path)
    held = locked.lock.acquire(TABLE)
    locked.database.losses = [*losses]
    assert held.release() == is_ours
    assert locked.rows() == []
    assert locked.clock.sleeps


def test_a_lock_that_could_not_be_released_is_found_by_the_next_commit(tmp_path: Path) -> None:
    locked = Locked(tmp_path)
    held = locked.lock.acquire(TABLE)
    locked.database.losses = [("DELETE", False)] * 1000
    assert not held.release()
    waited = sum(locked.clock.sleeps)
    assert 30 < waited < 35
    locked.database.losses = []
    # As old as it says.
    locked.rows(f"UPDATE LOCKS SET acquired_at = datetime('now', '{-int(waited)} seconds')")
    assert locked.lock.acquire(TABLE).release()
    assert sum(locked.clock.sleeps) == waited


def _publisher(locked: Locked, meanwhile: Callable[[], None]) -> tuple[MemoryStorage, object]:
    inner = MemoryStorage()

    def hook(call: Call) -> None:
        if call.method == "create_if_absent":
            assert locked.rows() == [(_ID, 480 + 77)], "held around the publish step"
            meanwhile()

    storage = HookedStorage(inner, before=hook)
    return inner, LockedPublisher(StorePublisher(storage), locked.lock)


class _Unreplaced(MemoryStorage):
    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(replaces_nothing=True)


def test_what_a_store_excludes_is_excluded_under_a_lock_too(tmp_path: Path) -> None:
    lock = Locked(tmp_path).lock
    for storage, expected in ((_Unreplaced(), True), (MemoryStorage(), False)):
        publisher = StorePublisher(storage)
        assert publisher.excludes_writers is expected
        assert LockedPublisher(publisher, lock).excludes_writers is expected


def test_a_snapshot_is_published_under_the_lock_and_nothing_stays_locked(tmp_path: Path) -> None:
    locked = Locked(tmp_path)
    storage, publisher = _publisher(locked, lambda: None)
    assert isinstance(publisher, LockedPublisher)
    assert not publisher.excludes_writers, "the lock expires"
    owner = ids.this_process()
    created = [
        publisher.publish(TABLE, snapshot(1, "us", n), Delta(base=None), owner=owner)
        for n in range(2)
    ]
    assert created == [Creation.CREATED, Creation.EXISTS]
    assert read_snapshot(storage, TABLE.location, 1).commit_identifier == 0
    assert locked.rows() == []


def test_a_store_that_fails_leaves_nothing_locked(tmp_path: Path) -> None:
    locked = Locked(tmp_path)

    def fail() -> None:
        raise TransientStorageError("/w", "no answer")

    _, publisher = _publisher(locked, fail)
    assert isinstance(publisher, LockedPublisher)
    with pytest.raises(TransientStorageError, match="no answer"):
        publisher.publish(TABLE, snapshot(1, "us", 1), Delta(base=None), owner=ids.this_process())
    assert locked.rows() == []


class _Compacted:
    """A table that is due, compacted through a lock; `meanwhile` happens once, before the link."""

    def __init__(self, folder: Path, meanwhile: Callable[[_Compacted], None]) -> None:
        self.locked = Locked(folder, lock_acquire_timeout="1 s")
        self.inner = MemoryStorage()
        self.table = builders.keyed_table(self.inner, TABLE.location)
        self.writer = builders.writer(self.inner, self.table)
        self.rows = builders.fill_keyed(self.writer, commits=6)
        left = [meanwhile]

        def hook(call: Call) -> None:
            if call.method == "create_if_absent" and "/snapshot/" in call.path and left:
                left.pop()(self)

        storage = HookedStorage(self.inner, before=hook)
        publisher = LockedPublisher(StorePublisher(storage), self.locked.lock)
        self.totals = builders.compact(storage, self.table, publisher=publisher)

    def write(self) -> None:
        self.writer.write(builders.rows_of([(1000, 1)]))
        self.rows[1000] = 1


def _robbed_and_first(compacted: _Compacted) -> None:
    _rob_and_end(compacted.locked)
    compacted.write()


@pytest.mark.parametrize(
    ("meanwhile", "published"),
    [
        pytest.param(lambda compacted: None, [7], id="kept"),
        pytest.param(lambda compacted: _rob_and_end(compacted.locked), [7], id="robbed, ours"),
        pytest.param(_robbed_and_first, [8], id="robbed, another's"),
    ],
)
def test_a_commit_whose_lock_was_robbed_looks_whose_snapshot_it_is(
    tmp_path: Path, meanwhile: Callable[[_Compacted], None], published: list[int]
) -> None:
    compacted = _Compacted(tmp_path, meanwhile)
    totals = compacted.totals
    assert (totals.snapshots, totals.failures, totals.lost_snapshots) == (published, [], [])
    assert builders.read_keyed(compacted.inner, compacted.table) == compacted.rows
    builders.check_chain(compacted.inner, compacted.table)
    assert compacted.locked.rows() == []


def test_a_lock_that_cannot_be_had_fails_the_commit_and_publishes_nothing(tmp_path: Path) -> None:
    locked = Locked(tmp_path, lock_acquire_timeout="1 s")
    locked.take()
    storage = MemoryStorage()
    table = builders.keyed_table(storage, TABLE.location)
    rows = builders.fill_keyed(builders.writer(storage, table), commits=6)
    publisher = LockedPublisher(StorePublisher(storage), locked.lock)
    with pytest.raises(
        CatalogUnavailable, match=r"held by other writers for 1 s.*no snapshot was publ"
    ):
        builders.compact(storage, table, publisher=publisher)
    assert max(snapshot_ids(storage, table.location)) == 6
    assert builders.read_keyed(storage, table) == rows
    assert builders.leftovers(storage, table, [builders.FIRST]) == set()


def test_four_processes_commit_to_one_table_and_lose_nothing(tmp_path: Path) -> None:
    """Half of them replace what they have looked for: without the lock they lose commits."""
    schema = tmp_path / "wh" / "db.db" / "t" / "schema"
    schema.mkdir(parents=True)
    (schema / "schema-0").write_bytes(b"{}")
    (schema.parent / "snapshot").mkdir()
    uri, each = sqlite_database(tmp_path / "c.db", ["db.t"]), 25
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.unit.catalog.locked_commits"),
                *(str(tmp_path / "wh"), uri, f"user-{number}", str(each)),
                "checked" if number % 2 else "atomic",
            ],
            cwd=Path(__file__).parents[3],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for process in processes:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    storage, location = LocalStorage(), str(schema.parent)
    found = sorted(snapshot_ids(storage, location))
    assert found == list(range(1, 4 * each + 1))
    users = Counter(read_snapshot(storage, location, one).commit_user for one in found)
    assert users == {f"user-{number}": each for number in range(4)}
    assert run_sql(tmp_path / "c.db", "SELECT * FROM paimon_distributed_locks") == []
