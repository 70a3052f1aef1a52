"""Servers of catalogs that do not answer are asked no more, but for a probe now and then."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import pytest

from compactord.catalog.base import Catalog
from compactord.catalog.open import open_catalog
from compactord.catalog.rest.vended import client_of
from compactord.commit.publish import LockedPublisher
from compactord.errors import AccessDenied, CatalogDown, StorageError, TransientStorageError
from compactord.paimon.schema import TableRef
from compactord.storage.base import Storage, Store, StoreLocation
from compactord.storage.calls import (
    FAILURES_MAX,
    PATIENCE_MS,
    PROBE_MS,
    Breaker,
    Breakers,
    call_once,
)
from compactord.storage.open import STORES
from tests import silent_servers
from tests.builders import VirtualClock
from tests.databases import sqlite_database
from tests.storages import Call, MemoryStorage, WatchedStorage
from tests.tools.database_relay import refusal
from tests.unit.catalog import metastore
from tests.unit.catalog.rest_server import Answer, Asked, FakeServer, serving

T = TypeVar("T")
_BUSY, _GONE, _REFUSING, _WELL = "busy", "gone", "refusing", "well"


@dataclass
class _Server:
    """One whose `state` is set; `asked` counts the requests."""

    state: str = _WELL
    asked: int = 0
    catalog: Catalog = field(init=False)


@contextlib.contextmanager
def _rest(_: Path) -> Iterator[_Server]:
    found = _Server()

    def answer(_: Asked) -> Answer | None:
        found.asked += 1
        if found.state == _GONE:
            raise ConnectionError
        return {_BUSY: (503, None), _REFUSING: (403, None)}.get(found.state)

    with serving(FakeServer(fault=answer)) as server:
        found.catalog = open_catalog("lake", metastore="rest", options=server.options)
        yield found


class _Metastore(metastore.Metastore):
    def __init__(self, found: _Server) -> None:
        super().__init__(metastore.table("db", "t", "file:/x"))
        self._found = found

    def answer(self, name: str, arguments: Sequence[Any]) -> Any:
        self._found.asked += 1
        self.is_gone = self._found.state == _GONE
        self.broken = {name} if self._found.state == _REFUSING else set()
        return super().answer(name, arguments)


@contextlib.contextmanager
def _hive(_: Path) -> Iterator[_Server]:
    found = _Server()
    with metastore.running(_Metastore(found)) as uri:
        options = {"uri": uri, "lock.enabled": "true"}
        found.catalog = open_catalog("/wh", metastore="hive", options=options)
        yield found


@contextlib.contextmanager
def _jdbc(folder: Path) -> Iterator[_Server]:
    """A PostgreSQL that refuses every login when it is well."""
    found = _Server()

    def answer(client: socket.socket) -> None:
        found.asked += 1
        client.recv(1 << 16)
        if found.state != _GONE:
            client.sendall(refusal())
        client.close()

    with silent_servers.serving(answer) as port:
        options = {"uri": f"jdbc:postgresql://127.0.0.1:{port}/p?sslmode=disable"}
        options |= {"lock.enabled": "true", "jdbc.user": "u"}
        found.catalog = open_catalog(
            str(folder), metastore="jdbc", options=options, zone=ZoneInfo("UTC")
        )
        yield found


@pytest.mark.parametrize(
    ("running", "trouble", "answer"),
    [
        (_rest, _GONE, _WELL),
        (_rest, _BUSY, _REFUSING),
        (_hive, _GONE, _WELL),
        (_hive, _GONE, _REFUSING),
        (_jdbc, _GONE, _REFUSING),
    ],
)
def test_a_server_that_does_not_answer_is_asked_no_more(
    tmp_path: Path,
    running: Callable[[Path], contextlib.AbstractContextManager[_Server]],
    trouble: str,
    answer: str,
) -> None:
    clock = VirtualClock()
    with running(tmp_path) as server:
        catalog = server.catalog
        reported: list[bool] = []
        (breaker,) = catalog.behind(Breakers(clock.steady_ms, reported.append))
        with contextlib.suppress(AccessDenied):
            catalog.check_access()
        assert reported
        assert all(reported), "a refusal is an answer"
        server.state = trouble
        while not breaker.open_since_ms:
            with pytest.raises(CatalogDown):
                catalog.check_access()
            clock.sleep(PATIENCE_MS / 1000)
        asked, attempts = server.asked, len(reported)
        assert asked <= 12
        for _ in range(3):
            with pytest.raises(CatalogDown, match=r"the server .* has not answered for"):
                catalog.list_tables()
        assert (server.asked, len(reported)) == (asked, attempts)
        clock.sleep(PROBE_MS / 1000)
        with pytest.raises(CatalogDown):
            catalog.list_tables()
        assert (server.asked, reported[attempts:]) == (asked + 1, [False]), "a probe"
        server.state = answer
        clock.sleep(PROBE_MS / 1000)
        with contextlib.suppress(StorageError):
            catalog.check_access()
        assert not breaker.open_since_ms
        assert reported[-1]


def _open(breaker: Breaker) -> None:
    for _ in range(FAILURES_MAX):
        breaker.failed(PATIENCE_MS / 1000)
    assert breaker.open_since_ms


def test_a_commit_that_is_refused_so_was_not_sent() -> None:
    with serving(FakeServer()) as server:
        client = client_of(server.options, server.options, "lake")
        assert client.options["uri"] == server.uri
        client.breaker = Breakers(VirtualClock().steady_ms).of_server(server.uri)
        _open(client.breaker)
        with pytest.raises(CatalogDown, match="has not answered for"):
            client.post("databases", body={})


@pytest.mark.parametrize("kind", ["hive", "jdbc"])
def test_a_lock_is_given_back_to_a_server_that_is_asked_nothing_else(
    tmp_path: Path, kind: str
) -> None:
    known = metastore.table("db", "t", f"file:{tmp_path}/db.db/t")
    with metastore.running(metastore.Metastore(known)) as uri:
        if kind == "jdbc":
            uri = sqlite_database(tmp_path / "c.db")
        options = {"uri": uri, "lock.enabled": "true"}
        catalog = open_catalog(str(tmp_path), metastore=kind, options=options)
        reported: list[bool] = []
        breakers = Breakers(VirtualClock().steady_ms, reported.append)
        (breaker,) = catalog.behind(breakers)
        ref = TableRef(database="db", name="t", location=f"{tmp_path}/db.db/t")
        publisher = catalog.open(ref).publisher
        assert isinstance(publisher, LockedPublisher)
        held = publisher.lock.acquire(ref)
        _open(breaker)
        with pytest.raises(CatalogDown):
            publisher.lock.acquire(ref)
        attempts = len(reported)
        assert held.release()
        assert set(reported[attempts:]) == {True}


class _Guarded(WatchedStorage):
    """A store with a breaker."""

    breaker: Breaker | None = None

    @property
    def spec(self) -> Any:
        return self.inner.spec

    def behind(self, breaker: Breaker) -> Storage:
        found = _Guarded(self.inner)
        found.breaker = breaker
        return found

    def around(self, call: Call, effect: Callable[[], T]) -> T:
        return call_once(self.breaker, call.path, effect, silent=TransientStorageError)


def test_a_listing_of_a_metastore_probes_the_store_of_its_warehouse() -> None:
    clock = VirtualClock()
    breakers, storage = Breakers(clock.steady_ms), _Guarded(MemoryStorage())

    def locate(location: str, options: Mapping[str, str]) -> StoreLocation:
        del options
        return StoreLocation(spec=storage, path=location)

    mem = Store(schemes=("mem",), locate=locate)
    stores = replace(STORES, known=(*STORES.known, mem)).wrapped(breakers.behind)
    with metastore.running(metastore.Metastore()) as uri:
        options = {"uri": uri, "lock.enabled": "false"}
        catalog = open_catalog("mem://b/wh", stores, metastore="hive", options=options)
        (breaker,) = catalog.behind(breakers)
        _open(breaker)
        catalog.list_tables()
        assert breaker.open_since_ms, "not yet"
        clock.sleep(PROBE_MS / 1000)
        catalog.list_tables()
        assert not breaker.open_since_ms
