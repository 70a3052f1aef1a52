"""Java's writers and compactord on tables of a real Hive metastore."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compactord import ids
from compactord.catalog.access import TableAccess
from compactord.catalog.base import Catalog
from compactord.catalog.hive.lock import HeldHiveLock, HiveLock
from compactord.clock import SystemClock
from compactord.commit.publish import LockedPublisher
from compactord.errors import CatalogUnavailable, TableNotFound
from compactord.paimon.schema import TableRef
from compactord.table.planning import CompactRequest
from compactord.table.session import TableSession
from tests import builders
from tests.oracle.hive_metastore import FORGET_SECONDS, Metastore, hive_metastore
from tests.oracle.judge import Judge
from tests.rounds import expire_partitions, mark_done


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metastore]:
    with hive_metastore(tmp_path_factory.mktemp("hive")) as running:
        options = {"bucket": "-1", "write-only": "true"}
        running.tell("createTable", "locked", java=running.java_options(), options=options)
        yield running


def test_java_and_compactord_commit_under_one_lock_and_lose_nothing(
    metastore: Metastore, judge: Judge
) -> None:
    catalog, contest = metastore.catalog(), metastore.contest(commits=20)
    contest.create_table()
    assert [check.found.partition(";")[0] for check in catalog.checks()] == ["taken and released"]
    contest.nothing_is_lost(catalog, judge)


def _compact(catalog: Catalog, name: str) -> TableAccess:
    access = catalog.open(catalog.find_table(name))
    totals = builders.compact(access.storage, access.ref, access=access)
    assert totals.lost_snapshots == []
    return access


def test_tables_of_all_kinds_of_locations_are_compacted_and_others_passed_by(
    metastore: Metastore, judge: Judge, tmp_path: Path
) -> None:
    ways: dict[str, dict[str, str]] = {
        "in_sd": {},
        "in_properties": {"location_in_properties": "true"},
    }
    tables = {
        "plain": ("in_sd", {"metastore.partitioned-table": "true"}),
        "outside": ("in_sd", {"path": f"file:{tmp_path}/elsewhere"}),
        "property": ("in_properties", {}),
        "foreign": ("in_sd", {"type": "format-table", "file.format": "parquet"}),
    }
    java = {way: metastore.java_options(**more) for way, more in ways.items()}
    for name, (way, options) in tables.items():
        given = {"bucket": "-1", "write-only": "true", **options}
        metastore.tell("createTable", name, java=java[way], options=given)
    for name in ("plain", "outside", "property"):
        way, _ = tables[name]
        catalog = metastore.catalog(**ways[way])
        assert {f"db.{each}" for each in tables if each != "foreign"} <= {
            table.full_name for table in catalog.list_tables().tables
        }
        metastore.tell("write", name, java=java[way], files=6, p="a b")
        access = _compact(catalog, f"db.{name}")
        assert access.newest_state().state.files.file_count == 1
        metastore.tell("write", name, java=java[way], files=2, p="c")
        rows = [(n, n, p) for p, count in (("a b", 6), ("c", 2)) for n in range(count)]
        assert Counter(judge.read(access.ref.location)) == Counter(rows)
    assert access.ref.location != str(tmp_path / "elsewhere")
    catalog = metastore.catalog()
    assert catalog.find_table("db.outside").location == str(tmp_path / "elsewhere")
    assert metastore.tell("partitions", "plain", java=java["in_sd"]) == 2
    with pytest.raises(TableNotFound, match="not a Paimon table"):
        catalog.find_table("db.foreign")
    before = catalog.find_table("db.plain").identity
    assert before.startswith("db.plain.")
    metastore.tell("drop", "plain", java=java["in_sd"])
    with pytest.raises(TableNotFound, match="does not exist"):
        catalog.find_table("db.plain")


def _lock(metastore: Metastore, **more: str) -> HiveLock:
    catalog = metastore.catalog(**more)
    publisher = catalog.open(catalog.find_table("db.locked")).publisher
    assert isinstance(publisher, LockedPublisher)
    assert isinstance(publisher.lock, HiveLock)
    return publisher.lock


def test_two_clients_of_ours_never_hold_one_lock_and_notice_a_robbery(metastore: Metastore) -> None:
    table = TableRef(database="db", name="locked", location="")
    holders: list[str] = []
    most: list[int] = []

    def take(name: str) -> None:
        lock = _lock(metastore)
        for _ in range(8):
            held = lock.acquire(table)
            holders.append(name)
            most.append(len(holders))
            holders.remove(name)
            assert held.release()

    threads = [threading.Thread(target=take, args=(str(n),)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 24
    ours, other = _lock(metastore), _lock(metastore, lock_acquire_timeout="300 ms")
    held = ours.acquire(table)
    with pytest.raises(
        CatalogUnavailable, match=r"the lock of db.locked was held by other writers for"
    ):
        other.acquire(table)
    # As when the metastore has forgotten it: others get in, and we are told.
    assert isinstance(held, HeldHiveLock)
    other.client.unlock(held.id)
    robber = other.acquire(table)
    assert not held.release()
    assert robber.release()


def test_a_lock_that_is_prolonged_outlives_the_metastores_patience(metastore: Metastore) -> None:
    table = TableRef(database="db", name="patience", location="")
    settings = {"hive.txn.timeout": f"{FORGET_SECONDS} s"}
    lock, careless = _lock(metastore, **settings), _lock(metastore)
    held, forgotten = lock.acquire(table), careless.acquire(replace(table, name="other"))
    time.sleep(FORGET_SECONDS * 1.5)
    metastore.java.call("Metastore", "housekeeping", {})
    assert not forgotten.release()
    assert held.release()


_PAST, _FUTURE = "2023-01-05", "2999-01-01"


def _opened(metastore: Metastore, name: str, **options: str) -> TableSession:
    catalog = metastore.catalog()
    followed = TableSession(
        catalog.open(catalog.find_table(f"db.{name}")),
        CompactRequest(overrides=options),
        clock=SystemClock(),
        owner=ids.this_process(),
    )
    followed.refresh()
    return followed


def test_entries_of_partitions_that_expire_go_as_java_drops_them(
    metastore: Metastore, judge: Judge
) -> None:
    java = metastore.java_options()
    left = {}
    options = {
        "bucket": "-1",
        "write-only": "true",
        "metastore.partitioned-table": "true",
        "partition.expiration-time": "1 d",
        "partition.expiration-check-interval": "0 s",
        "partition.mark-done-action": "done-partition",
    }
    for name in ("ours", "theirs"):
        metastore.tell("createTable", name, java=java, options=options)
        for p in (_PAST, _FUTURE):
            metastore.tell("write", name, java=java, files=2, p=p)
            metastore.tell("markDone", name, java=java, partition=f"p={p}")
        before = metastore.ask("entries", name, java=java)
        assert before.keys() == {_PAST, _FUTURE, f"{_PAST}.done", f"{_FUTURE}.done"}
    assert metastore.ask("expire", "theirs", java=java) == [{"p": _PAST}]
    followed = _opened(metastore, "ours")
    done = expire_partitions(followed, int(time.time() * 1000))
    assert done.items == [f"p={_PAST}"]
    for name in ("ours", "theirs"):
        left[name] = [*metastore.ask("entries", name, java=java)]
        rows = judge.read(metastore.catalog().find_table(f"db.{name}").location)
        assert Counter(rows) == Counter([(n, n, _FUTURE) for n in range(2)])
    assert left["ours"] == left["theirs"] == [_FUTURE, f"{_FUTURE}.done"]


def test_marks_in_the_metastore_are_the_same_to_both(metastore: Metastore) -> None:
    java, days = metastore.java_options(), ("2023-01-05", "2023-01-06")
    options = {
        "bucket": "-1",
        "write-only": "true",
        "metastore.partitioned-table": "true",
        "partition.idle-time-to-done": "1 ms",
        "partition.time-interval": "1 d",
        "partition.mark-done-action": "done-partition,mark-event",
    }
    metastore.tell("createTable", "marks", java=java, options=options)
    for day in days:
        metastore.tell("write", "marks", java=java, files=1, p=day)
    # A mark has a whole second, which is to be after the files'.
    time.sleep(1)
    metastore.tell("markDone", "marks", java=java, partition=f"p={days[0]}")

    def mark() -> list[str]:
        followed, now_ms = _opened(metastore, "marks"), int(time.time() * 1000) + 60_000
        return mark_done(followed.table, now_ms, state=followed.state)

    assert mark() == [f"p={days[1]}"]
    entries = metastore.ask("entries", "marks", java=java)
    theirs, ours = (entries[f"{day}.done"] for day in days)
    assert ours == [text.replace(days[0], days[1]) for text in theirs]
    assert sorted(metastore.ask("done", "marks", java=java)) == [*days]
    metastore.tell("write", "marks", java=java, files=1, p=days[0])
    assert mark() == [f"p={days[0]}"]
    assert metastore.ask("entries", "marks", java=java) == entries
