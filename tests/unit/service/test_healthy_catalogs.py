"""A catalog or a store that fails stops its own tables; those of another are compacted on time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from compactord.catalog.base import Catalog
from compactord.catalog.filesystem import FilesystemCatalog
from compactord.catalog.open import open_catalog
from compactord.clock import SystemClock
from compactord.config.model import CatalogSection
from compactord.errors import AccessDenied, ObjectNotFound, StorageError, TransientStorageError
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind, read_snapshot, snapshot_ids
from compactord.service.daemon import Daemon
from compactord.service.metrics import Metrics
from compactord.storage.base import Storage, Store, StoreLocation
from compactord.storage.calls import Breakers
from compactord.storage.open import STORES
from compactord.table.subcompactions import WorkerSpec
from tests import builders
from tests.builders import FIRST
from tests.inline_engine import InlineEngine
from tests.storages import Call, HookedStorage, MemoryStorage
from tests.unit.catalog import metastore
from tests.unit.catalog.rest_server import Answer, Asked, FakeServer, FakeTable, serving
from tests.unit.config.files import load

T = TypeVar("T")
# More than there are threads for tables.
SICK_TABLES = 20
# Some intervals; a machine that does other things as well takes its time.
SECONDS_MAX = 20
# Sweeps, which do not begin, would take the tests' writer for dead and its new files for left over.
CONFIG = """\
catalogs: {sick: {warehouse: /sick}, well: {warehouse: /well}}
discovery: {catalog_list_interval: 1 s}
defaults: {discovery_interval: 1 s}
retry: {backoff: {min: 500 ms, max: 2 s}}
shutdown: {grace: 2 s, commit_reserve: 1 s}
recovery: {interval: 3650 d}
"""
HANGS, REST, HIVE, TOKEN = "hangs", "rest", "hive", "token"
# A server of a catalog hangs, or refuses our token, while its store is well.
SERVERS = (REST, HIVE, TOKEN)
KINDS: dict[str, type[StorageError] | str] = {
    "silence": HANGS,
    "throttled": TransientStorageError,
    "refused": AccessDenied,
    "false 404": ObjectNotFound,
    "a silent REST server": REST,
    "a silent metastore": HIVE,
    "a REST server that refuses the token": TOKEN,
}


@dataclass
class Sick:
    """What a store's calls do, once it is `ill`; those that hang do so until it is `well`."""

    kind: type[StorageError] | str
    ill: threading.Event = field(default_factory=threading.Event)
    well: threading.Event = field(default_factory=threading.Event)

    def before(self, call: Call) -> None:
        if self.kind not in SERVERS:
            self.ask(call.path, call.method)

    @property
    def is_sick(self) -> bool:
        return self.ill.is_set() and not self.well.is_set()

    def answer(self, asked: Asked) -> Answer | None:
        """That of a REST server, which may not answer; None: as ever."""
        if self.kind == TOKEN:
            return (401, None) if self.is_sick else None
        self.ask(asked.raw_path, asked.method)
        return None

    def ask(self, path: str, what: str) -> None:
        if not self.is_sick:
            return
        if isinstance(self.kind, str):
            self.well.wait()
        else:
            raise self.kind(path, f"{what} failed (as the test asked)")


class ParallelStore(HookedStorage):
    """Calls do not wait for each other."""

    def _watch(self, method: str, path: str, effect: Callable[[], T]) -> T:
        return self.around(Call(0, method, path), effect)


class Metastore(metastore.Metastore):
    """Hangs while it is ill."""

    def __init__(self, sick: Sick) -> None:
        super().__init__()
        self._sick = sick

    def answer(self, name: str, arguments: Sequence[Any]) -> Any:
        self._sick.ask("metastore", name)
        return super().answer(name, arguments)


class Beside:
    """A daemon with a catalog that falls ill and one that stays well."""

    def __init__(self, folder: Path, kind: type[StorageError] | str) -> None:
        self.sick, self._inner = Sick(kind), MemoryStorage()
        self._well = MemoryStorage()
        stores = {"/sick": ParallelStore(self._inner, before=self.sick.before), "/well": self._well}
        self.ill_tables = [
            builders.keyed_table(self._inner, f"/sick/db.db/t{n}", buckets=1)
            for n in range(SICK_TABLES)
        ]
        self.table = builders.keyed_table(self._well, "/well/db.db/t", buckets=1)
        loaded = load(folder, CONFIG, whole=True)
        clock = SystemClock()

        self._servers = contextlib.ExitStack()
        served = self._served(stores["/sick"])

        def open_one(section: CatalogSection) -> Catalog:
            if section.warehouse == "/sick" and served is not None:
                return served
            return FilesystemCatalog(stores[section.warehouse], section.warehouse)

        self.daemon = Daemon(
            loaded,
            clock=clock,
            worker=WorkerSpec(owner=FIRST, memory_bytes=64 << 20, zone=clock.time_zone),
            open_catalog=open_one,
            start_engine=InlineEngine,
            reload=lambda: loaded,
            apply_logs=lambda _: None,
            metrics=Metrics(),
            breakers=Breakers(clock.steady_ms),
            instance="here",
        )
        self._thread = threading.Thread(target=self.daemon.run)

    def _served(self, storage: Storage) -> Catalog | None:
        """The catalog of a server that falls ill, if that is what does."""
        mem = Store(
            schemes=("mem",),
            locate=lambda location, _: StoreLocation(spec=storage, path=location[6:]),
        )
        stores = replace(STORES, known=(*STORES.known, mem))
        if self.sick.kind in (REST, TOKEN):
            server = FakeServer(storage=self._inner)
            server.fault = self.sick.answer
            for number, ref in enumerate(self.ill_tables):
                shown = f"mem://{ref.location}"
                table = FakeTable(path=ref.location, shown=shown, id=f"{number}")
                server.tables[f"db.t{number}"] = table
            self._servers.enter_context(serving(server))
            return open_catalog("lake", stores, metastore=REST, options=server.options)
        if self.sick.kind == HIVE:
            running = Metastore(self.sick)
            for number, ref in enumerate(self.ill_tables):
                location = f"mem://{ref.location}"
                running.tables.append(metastore.table("db", f"t{number}", location))
            uri = self._servers.enter_context(metastore.running(running))
            options = {"uri": uri, "lock.enabled": "true"}
            return open_catalog("mem:///sick", stores, metastore=HIVE, options=options)
        return None

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.sick.well.set()
        self.daemon.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._servers.close()

    def write(self, *tables: TableRef) -> None:
        for table in tables or [self.table]:
            storage = self._well if table is self.table else self._inner
            builders.fill_keyed(builders.writer(storage, table), commits=6, keys=10)

    def is_compacted(self, table: TableRef) -> bool:
        storage = self._well if table is self.table else self._inner
        newest = max(snapshot_ids(storage, table.location), default=0)
        if not newest:
            return False
        snapshot = read_snapshot(storage, table.location, newest)
        return snapshot.commit_kind is CommitKind.COMPACT

    def are_known(self) -> bool:
        read = [table for table in self.daemon.view().tables if table.info.kind]
        return len(read) == SICK_TABLES + 1


@pytest.fixture
def beside(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Beside]:
    found = Beside(tmp_path, request.param)
    yield found
    found.end()


def _within(condition: Callable[[], bool], what: str, seconds_max: float = SECONDS_MAX) -> None:
    ends_s = time.monotonic() + seconds_max
    while not condition():
        assert time.monotonic() < ends_s, f"{what}: not within {seconds_max} s"
        time.sleep(0.05)


@pytest.mark.parametrize("beside", KINDS.values(), ids=KINDS, indirect=True)
def test_a_catalog_that_fails_from_the_start_holds_up_no_other(beside: Beside) -> None:
    beside.sick.ill.set()
    beside.write()
    beside.start()
    _within(lambda: beside.is_compacted(beside.table), "the healthy table is compacted")


@pytest.mark.parametrize("beside", KINDS.values(), ids=KINDS, indirect=True)
def test_a_store_that_fails_under_many_tables_holds_up_no_other(beside: Beside) -> None:
    beside.start()
    _within(beside.are_known, "all tables are known")
    beside.sick.ill.set()
    beside.write(*beside.ill_tables)
    # Each of its tables has had a turn, and may hold a thread.
    time.sleep(2)
    beside.write()
    _within(lambda: beside.is_compacted(beside.table), "the healthy table is compacted")
    beside.sick.well.set()
    _within(lambda: beside.is_compacted(beside.ill_tables[0]), "work goes on", 120)
