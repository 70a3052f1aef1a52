"""The lock of a Hive catalog: what is asked for, how long one waits, who notices a robbery."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from compactord import ids
from compactord.catalog.hive import wire
from compactord.catalog.hive.client import HiveClient
from compactord.catalog.hive.lock import HiveLock
from compactord.catalog.hive.options import Security, hive_options
from compactord.clock import SystemClock
from compactord.commit.publish import Delta, LockedPublisher, StorePublisher
from compactord.errors import CatalogDown, CatalogUnavailable, TransientStorageError
from compactord.paimon.schema import TableRef
from compactord.storage.base import Creation
from tests.builders import VirtualClock
from tests.storages import Call, HookedStorage, MemoryStorage
from tests.unit.catalog.locked_commits import snapshot
from tests.unit.catalog.metastore import Metastore, listening, running

_TABLE = TableRef(database="d", name="t", location="/wh/d.db/t")
_OPTIONS = replace(hive_options({"uri": "h:1"}, {}, {}, is_locked=True), lock_timeout_ms=30_000)
_ABORT, _NOT_ACQUIRED = 3, 4


class Clock(VirtualClock):
    def __init__(self) -> None:
        super().__init__()
        self.slept_ms: list[int] = []

    def sleep(self, seconds: float) -> None:
        self.slept_ms.append(round(seconds * 1000))
        super().sleep(seconds)


def _lock(uri: str, clock: Clock | None = None, *, forget_ms: int = 300_000) -> HiveLock:
    client = HiveClient([_address(uri)], uri, SystemClock(), Security())
    return HiveLock(client, replace(_OPTIONS, forget_ms=forget_ms), clock or Clock())


@pytest.fixture
def metastore() -> Metastore:
    return Metastore()


@pytest.fixture
def uri(metastore: Metastore) -> Iterator[str]:
    with running(metastore) as address:
        yield address


def test_it_is_asked_for_as_java_asks(metastore: Metastore, uri: str) -> None:
    held = _lock(uri).acquire(_TABLE)
    ((name, (request,)),) = metastore.calls
    (component,) = request.components
    assert (name, request.host, bool(request.user)) == ("lock", socket.gethostname(), True)
    asked = (component.type, component.level, component.database, component.table)
    assert asked == (wire.EXCLUSIVE, wire.TABLE_LEVEL, "d", "t")
    assert held.release()
    assert metastore.names() == ["lock", "heartbeat", "unlock"]
    assert metastore.held == set()


@pytest.mark.parametrize(
    ("states", "slept_ms", "error"),
    [
        ([], [], None),
        ([wire.WAITING] * 3, [100, 200, 400], None),
        ([wire.WAITING] * 9, [100, 200, 400, 800, 1600, 3200, 6400, 8000, 8000], None),
        (
            [wire.WAITING] * 99,
            [100, 200, 400, 800, 1600, 3200, 6400, 8000, 8000, 8000],
            "the lock of d.t was held by other writers for 30 s",
        ),
        ([_ABORT], [], "the lock of d.t was refused: ABORT"),
        ([wire.WAITING, _NOT_ACQUIRED], [100], "was refused: NOT_ACQUIRED"),
    ],
)
def test_how_long_it_waits(
    metastore: Metastore, uri: str, states: list[int], slept_ms: list[int], error: str | None
) -> None:
    clock = Clock()
    metastore.states = states
    if error is None:
        assert _lock(uri, clock).acquire(_TABLE).release()
    else:
        with pytest.raises(CatalogUnavailable, match=error):
            _lock(uri, clock).acquire(_TABLE)
    assert clock.slept_ms == slept_ms
    assert metastore.names().count("lock") == 1
    assert metastore.held == set()


def test_a_lock_that_is_forgotten_while_one_waits_is_not_taken(
    metastore: Metastore, uri: str
) -> None:
    class Forgetful(Clock):
        def sleep(self, seconds: float) -> None:
            metastore.held.clear()

    metastore.states = [wire.WAITING]
    with pytest.raises(CatalogUnavailable, match="answered NoSuchLockException"):
        _lock(uri, Forgetful()).acquire(_TABLE)


def test_a_robbed_lock_is_noticed_after_publishing(metastore: Metastore, uri: str) -> None:
    def rob(call: Call) -> None:
        if is_robbed:
            metastore.held.clear()

    storage = HookedStorage(MemoryStorage(), before=rob)
    publisher = LockedPublisher(StorePublisher(storage), _lock(uri))
    is_robbed = False
    owner, delta = ids.this_process(), Delta(base=None)
    assert publisher.publish(_TABLE, snapshot(1, "u", 1), delta, owner=owner) is Creation.CREATED
    is_robbed = True
    with pytest.raises(TransientStorageError, match="lock expired while"):
        publisher.publish(_TABLE, snapshot(2, "u", 2), delta, owner=owner)


def test_it_is_prolonged_while_it_is_held(metastore: Metastore, uri: str) -> None:
    held = _lock(uri, forget_ms=150).acquire(_TABLE)
    waited = threading.Event()
    while metastore.names().count("heartbeat") < 3:
        waited.wait(0.02)
    assert held.release()
    before = len(metastore.calls)
    waited.wait(0.2)
    assert len(metastore.calls) == before


def test_a_metastore_that_is_gone_is_asked_to_give_it_back_for_a_while(
    metastore: Metastore, uri: str
) -> None:
    clock = Clock()
    lock = _lock(uri, clock)
    held = lock.acquire(_TABLE)
    metastore.is_gone = True
    assert not held.release()
    assert 30_000 <= sum(clock.slept_ms) <= 34_000
    with pytest.raises(CatalogDown):
        lock.acquire(_TABLE)


def test_a_request_whose_answer_is_lost_is_not_repeated() -> None:
    asked: list[bytes] = []
    with listening(lambda connection: asked.append(connection.recv(1 << 16))) as uri:
        client = HiveClient([_address(uri), _address(uri)], uri, SystemClock(), Security())
        lock = HiveLock(client, _OPTIONS, Clock())
        with pytest.raises(CatalogDown, match="the connection was closed"):
            lock.acquire(_TABLE)
        assert len(asked) == 1
        with pytest.raises(CatalogDown):
            client.databases()
        assert len(asked) == 3


def _address(uri: str) -> tuple[str, int]:
    host, _, port = uri.removeprefix("thrift://").partition(":")
    return host, int(port)
