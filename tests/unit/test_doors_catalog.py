"""A catalog that decides itself which snapshot is first, without a change of the product."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from compactord.catalog.base import Catalog, TableList
from compactord.catalog.open import open_catalog
from compactord.clock import SystemClock
from compactord.commit.publish import SnapshotPublisher
from compactord.config.catalog_section import CatalogSection
from compactord.engine.inline import InlineEngine
from compactord.errors import TableNotFound, TransientStorageError
from compactord.ids import Owner
from compactord.paimon import paths
from compactord.paimon.snapshot import Snapshot, snapshot_ids, snapshot_json
from compactord.paimon.table import TableRef
from compactord.service.daemon import Daemon
from compactord.service.metrics import Metrics
from compactord.storage.base import Creation, Storage
from compactord.storage.breaker import Breakers
from tests import builders
from tests.builders import FIRST
from tests.storages import Call, HookedStorage, MemoryStorage
from tests.unit.config.files import load


class Pointers:
    """Publishes: the newest snapshot of each table is what a dict says, changed under a lock.

    `before` is called with the lock not yet taken, `after` when the pointer has been moved.
    """

    excludes_writers = True
    settle_ms = 0

    def __init__(self, storage: Storage) -> None:
        self.newest: dict[TableRef, int] = {}
        self.asked: list[int] = []
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self._storage = storage
        self._lock = threading.Lock()

    def publish(self, table: TableRef, snapshot: Snapshot, *, owner: Owner) -> Creation:
        self.asked.append(snapshot.id)
        self.before()
        with self._lock:
            if snapshot.id != self.newest[table] + 1:
                return Creation.EXISTS
            path = paths.snapshot_path(table.location, snapshot.id)
            self._storage.overwrite(path, snapshot_json(snapshot))
            self.newest[table] = snapshot.id
        self.after()
        return Creation.CREATED


class Names:
    """A catalog: tables lie where a dict says. Its store must not be asked who is first."""

    def __init__(self) -> None:
        self.inner = MemoryStorage()
        self.storage = HookedStorage(self.inner, before=self._refuse)
        self.pointers = Pointers(self.storage)
        self.publisher: SnapshotPublisher = self.pointers
        self.warehouse = "names"
        self.tables: dict[str, TableRef] = {}

    def _refuse(self, call: Call) -> None:
        assert call.method != "create_if_absent", "the catalog says who is first"

    def check_access(self) -> None: ...

    def list_tables(self) -> TableList:
        return TableList(tables=tuple(self.tables.values()), unreadable={})

    def find_table(self, name: str) -> TableRef:
        if name not in self.tables:
            raise TableNotFound(name)
        return self.tables[name]


class Filled(Names):
    """With a table of six snapshots that is due, and a writer that may add some."""

    def __init__(self) -> None:
        super().__init__()
        table = builders.keyed_table(self.inner, "/somewhere/4711")
        self.tables["db.t"] = table
        self._writer = builders.writer(self.inner, table)
        self.rows = builders.fill_keyed(self._writer, commits=6)
        self.pointers.newest[table] = 6

    def write(self) -> None:
        """Another writer's commit; the catalog knows of it."""
        self._writer.write(builders.rows_of([(1000, 1)]))
        self.rows[1000] = 1
        self.pointers.newest[self.tables["db.t"]] += 1

    def check(self) -> None:
        table = self.tables["db.t"]
        assert builders.read_keyed(self.inner, table) == self.rows
        builders.check_chain(self.inner, table)
        assert builders.leftovers(self.inner, table, [FIRST]) == set()
        assert self.pointers.newest[table] == max(snapshot_ids(self.inner, table.location))


def _once(action: Callable[[], None]) -> Callable[[], None]:
    left = [action]
    return lambda: left.pop()() if left else None


def _no_answer() -> None:
    raise TransientStorageError("the catalog", "no answer")


@pytest.mark.parametrize(
    ("arrange", "asked", "published"),
    [
        pytest.param(lambda _: None, [7], [7], id="ours is first"),
        pytest.param(
            lambda catalog: setattr(catalog.pointers, "before", _once(catalog.write)),
            [7, 8],
            [8],
            id="another is first",
        ),
        pytest.param(
            lambda catalog: setattr(catalog.pointers, "before", _once(_no_answer)),
            [7, 7],
            [7],
            id="no answer, nothing done",
        ),
        pytest.param(
            lambda catalog: setattr(catalog.pointers, "after", _once(_no_answer)),
            [7],
            [7],
            id="no answer, done",
        ),
    ],
)
def test_a_catalog_says_whose_snapshot_is_first(
    arrange: Callable[[Filled], None], asked: list[int], published: list[int]
) -> None:
    catalog = Filled()
    arrange(catalog)
    totals = builders.compact(
        catalog.storage, catalog.find_table("db.t"), publisher=catalog.publisher
    )
    assert (totals.snapshots, totals.failures, totals.lost_snapshots) == (published, [], [])
    assert catalog.pointers.asked == asked
    catalog.check()


class _Told(Metrics):
    """Calls `then` once a second, when the loop has run."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Callable[[], None] = lambda: None

    def loop_ran(self, loop: str, seconds: float) -> None:
        super().loop_ran(loop, seconds)
        self.then()


def test_the_service_lists_a_catalog_and_publishes_through_it(tmp_path: Path) -> None:
    catalog, metrics, clock = Filled(), _Told(), SystemClock()
    loaded = load(tmp_path)
    daemon = Daemon(
        loaded,
        clock=clock,
        zone=clock.time_zone,
        owner=FIRST,
        open_catalog=lambda _: catalog,
        start_engine=InlineEngine,
        reload=lambda: loaded,
        apply_logs=lambda _: None,
        metrics=metrics,
        breakers=Breakers(clock.steady_ms),
        instance="here",
    )
    metrics.then = lambda: daemon.stop() if catalog.pointers.asked else None
    assert daemon.run() == 0
    assert catalog.pointers.newest[catalog.find_table("db.t")] > 6
    catalog.check()


def test_a_catalog_whose_database_is_down_does_not_stop_the_others(tmp_path: Path) -> None:
    catalog, metrics, clock = Filled(), _Told(), SystemClock()
    (tmp_path / "wh").mkdir()
    loaded = load(
        tmp_path,
        f"""\
        catalogs:
          away:
            warehouse: {tmp_path}/wh
            metastore: jdbc
            options: {{uri: "jdbc:sqlite:{tmp_path}/none.db"}}
          lake: {{warehouse: names}}
        """,
        whole=True,
    )

    def open_one(section: CatalogSection) -> Catalog:
        if section.metastore == "filesystem":
            return catalog
        return open_catalog(section.warehouse, metastore="jdbc", options=section.options)

    daemon = Daemon(
        loaded,
        clock=clock,
        zone=clock.time_zone,
        owner=FIRST,
        open_catalog=open_one,
        start_engine=InlineEngine,
        reload=lambda: loaded,
        apply_logs=lambda _: None,
        metrics=metrics,
        breakers=Breakers(clock.steady_ms),
        instance="here",
    )
    metrics.then = lambda: daemon.stop() if catalog.pointers.asked else None
    assert daemon.run() == 0
    catalog.check()
    errors = {one.name: one.error for one in daemon.view().catalogs}
    assert "unable to open database file" in errors["away"]
    assert errors["lake"] == ""
