"""A catalog or a store that fails stops its own tables; those of another are compacted on time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from compactord.catalog.base import Catalog
from compactord.catalog.filesystem import FilesystemCatalog
from compactord.clock import SystemClock
from compactord.config.catalog_section import CatalogSection
from compactord.engine.inline import InlineEngine
from compactord.errors import AccessDenied, ObjectNotFound, StorageError, TransientStorageError
from compactord.paimon.snapshot import CommitKind, read_snapshot, snapshot_ids
from compactord.paimon.table import TableRef
from compactord.service.daemon import Daemon
from compactord.service.metrics import Metrics
from compactord.storage.breaker import Breakers
from tests import builders
from tests.builders import FIRST
from tests.storages import Call, HookedStorage, MemoryStorage
from tests.unit.config.files import load

T = TypeVar("T")
# More than there are threads for tables.
SICK_TABLES = 20
# Some intervals; a machine that does other things as well takes its time.
SECONDS_MAX = 20
CONFIG = """\
catalogs: {sick: {warehouse: /sick}, well: {warehouse: /well}}
discovery: {catalog_list_interval: 1 s}
defaults: {discovery_interval: 1 s}
retry: {backoff: {min: 500 ms, max: 2 s}}
shutdown: {grace: 2 s, commit_reserve: 1 s}
"""
HANGS = "hangs"
KINDS: dict[str, type[StorageError] | str] = {
    "silence": HANGS,
    "throttled": TransientStorageError,
    "refused": AccessDenied,
    "false 404": ObjectNotFound,
}


@dataclass
class Sick:
    """What a store's calls do, once it is `ill`; those that hang do so until it is `well`."""

    kind: type[StorageError] | str
    ill: threading.Event = field(default_factory=threading.Event)
    well: threading.Event = field(default_factory=threading.Event)

    def before(self, call: Call) -> None:
        if not self.ill.is_set() or self.well.is_set():
            return
        if isinstance(self.kind, str):
            self.well.wait()
        else:
            raise self.kind(call.path, f"{call.method} failed (as the test asked)")


class Store(HookedStorage):
    """Calls do not wait for each other."""

    def _watch(self, method: str, path: str, effect: Callable[[], T]) -> T:
        return self.around(Call(0, method, path), effect)


class Beside:
    """A daemon with a catalog that falls ill and one that stays well."""

    def __init__(self, folder: Path, kind: type[StorageError] | str) -> None:
        self.sick, self._inner = Sick(kind), MemoryStorage()
        self._well = MemoryStorage()
        stores = {"/sick": Store(self._inner, before=self.sick.before), "/well": self._well}
        self.ill_tables = [
            builders.keyed_table(self._inner, f"/sick/db.db/t{n}", buckets=1)
            for n in range(SICK_TABLES)
        ]
        self.table = builders.keyed_table(self._well, "/well/db.db/t", buckets=1)
        loaded = load(folder, CONFIG, whole=True)
        clock = SystemClock()

        def open_catalog(section: CatalogSection) -> Catalog:
            return FilesystemCatalog(stores[section.warehouse], section.warehouse)

        self.daemon = Daemon(
            loaded,
            clock=clock,
            zone=clock.time_zone,
            owner=FIRST,
            open_catalog=open_catalog,
            start_engine=InlineEngine,
            reload=lambda: loaded,
            apply_logs=lambda _: None,
            metrics=Metrics(),
            breakers=Breakers(clock.steady_ms),
            instance="here",
        )
        self._thread = threading.Thread(target=self.daemon.run)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.sick.well.set()
        self.daemon.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()

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
    # Each of its tables has had a turn, and may hold a thread.
    time.sleep(2)
    beside.write()
    _within(lambda: beside.is_compacted(beside.table), "the healthy table is compacted")
    beside.write(beside.ill_tables[0])
    beside.sick.well.set()
    _within(lambda: beside.is_compacted(beside.ill_tables[0]), "work goes on", 120)
