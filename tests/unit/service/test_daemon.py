"""What the loop itself owes to others, on a clock that stands still."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from compactord.catalog.base import Catalog, TableList
from compactord.catalog.filesystem import FilesystemCatalog
from compactord.catalog.open import open_catalog
from compactord.config.model import CatalogSection
from compactord.engine.base import Engine
from compactord.errors import EngineUnavailable
from compactord.model import Subcompaction, SubcompactionOutcome
from compactord.paimon.schema import TableRef
from compactord.service import probes
from compactord.service.daemon import Daemon
from compactord.service.metrics import Metrics
from compactord.service.view import ServiceView
from compactord.storage.base import Storage
from compactord.storage.calls import Breakers, RetryPolicy
from compactord.storage.fsspec import FsspecStorage, Opened
from compactord.storage.local import LocalStorage
from compactord.table.subcompactions import WorkerSpec
from compactord_demo.writer import create_table
from tests.builders import FIELDS, FIRST, NOW_MS, VirtualClock, fill_keyed, keyed_table, writer
from tests.fsspec_files import Exclusive, fsspec_at
from tests.inline_engine import InlineEngine
from tests.storages import HookedStorage
from tests.unit.catalog.rest_server import Asked, FakeServer, FakeTable, serving
from tests.unit.config.files import load


def _wait(event: threading.Event) -> None:
    assert event.wait(60)


class _Told(Metrics):
    """Calls `then` after each view that the loop makes because a second has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Callable[[], None] = lambda: None

    def loop_ran(self, loop: str, seconds: float) -> None:
        super().loop_ran(loop, seconds)
        self.then()


def _daemon(
    folder: Path,
    metrics: Metrics,
    *,
    clock: VirtualClock | None = None,
    start_engine: Callable[[], Engine] = InlineEngine,
    config: str = "",
    open_catalog: Callable[[CatalogSection], Catalog] | None = None,
    breakers: Breakers | None = None,
) -> Daemon:
    loaded = load(folder, config, whole=config.startswith("catalogs:"))
    clock = clock or VirtualClock()
    return Daemon(
        loaded,
        clock=clock,
        worker=WorkerSpec(owner=FIRST, memory_bytes=64 << 20, zone=clock.time_zone),
        open_catalog=open_catalog or (lambda _: FilesystemCatalog(LocalStorage(), str(folder))),
        start_engine=start_engine,
        reload=lambda: loaded,
        apply_logs=lambda _: None,
        metrics=metrics,
        breakers=breakers or Breakers(clock.steady_ms),
        instance="here",
    )


def test_readers_are_told_of_a_stop_at_once_and_not_with_the_next_second(tmp_path: Path) -> None:
    metrics = _Told()
    daemon = _daemon(tmp_path, metrics)
    metrics.then = daemon.stop
    assert daemon.run() == 0
    assert daemon.view().is_draining
    failed = probes.readiness(daemon.view(), NOW_MS).failed
    assert "draining" in [check.check for check in failed]


def test_a_start_that_is_given_up_says_what_it_waited_for(tmp_path: Path) -> None:
    metrics, clock, too_late = _Told(), VirtualClock(), threading.Event()

    def start_engine() -> Engine:
        assert too_late.wait(180)
        time.sleep(0.5)
        raise EngineUnavailable("nobody asks any more")

    def wait_too_long() -> None:
        clock.sleep(400)
        too_late.set()

    metrics.then = wait_too_long
    daemon = _daemon(tmp_path, metrics, clock=clock, start_engine=start_engine)
    with capture_logs() as events:
        assert daemon.run() == 69
    (failed,) = (event for event in events if event["event"] == "startup_failed")
    assert "Spark has not answered yet" in failed["error"]


def test_a_table_that_was_made_again_waits_for_no_later_listing(tmp_path: Path) -> None:
    keyed_table(LocalStorage(), f"{tmp_path}/db.db/t")
    metrics, clock = _Told(), VirtualClock()

    class Again(FilesystemCatalog):
        identity = "the first"

        def list_tables(self) -> TableList:
            found = super().list_tables()
            tables = tuple(replace(ref, identity=self.identity) for ref in found.tables)
            return replace(found, tables=tables)

    catalog, gives_up_s = Again(LocalStorage(), str(tmp_path)), time.monotonic() + 60

    def next_step() -> None:
        time.sleep(0.01)
        clock.sleep(1)
        added = [event for event in events if event["event"] == "table_added"]
        if len(added) == 1 and catalog.identity == "the first":
            catalog.identity = "the second"
            daemon.reload()
        if len(added) == 2 or time.monotonic() > gives_up_s:
            daemon.stop()

    metrics.then = next_step
    config = "discovery: {catalog_list_interval: 1 h}\n"
    daemon = _daemon(tmp_path, metrics, clock=clock, config=config, open_catalog=lambda _: catalog)
    with capture_logs() as events:
        daemon.run()
    names = [event["event"] for event in events if event["event"].startswith("table_")]
    assert names == ["table_added", "table_removed", "table_added"]


def test_a_silent_catalog_delays_neither_the_start_nor_the_other_catalogs(tmp_path: Path) -> None:
    ref = TableRef(database="db", name="t", location=f"{tmp_path}/good/db.db/t")
    options = {"bucket": "1", "write-only": "true"}
    create_table(LocalStorage(), ref, FIELDS, primary_keys=["k"], options=options)
    answers = threading.Event()

    def open_catalog(section: CatalogSection) -> Catalog:
        storage: Storage = LocalStorage()
        if section.warehouse.endswith("silent"):
            storage = HookedStorage(storage, before=lambda call: _wait(answers))
        return FilesystemCatalog(storage, section.warehouse)

    metrics, clock = _Told(), VirtualClock()
    names = ("silent", "good")
    config = "".join(f"  {name}: {{warehouse: {tmp_path}/{name}}}\n" for name in names)
    daemon = _daemon(
        tmp_path, metrics, clock=clock, config=f"catalogs:\n{config}", open_catalog=open_catalog
    )
    served: list[ServiceView] = []
    deadline_s = time.monotonic() + 30

    def watch() -> None:
        time.sleep(0.01)
        clock.sleep(1)
        if daemon.view().is_draining:
            return
        served.append(daemon.view())
        polled = any(table.first_poll_ms for table in served[-1].tables)
        if (polled and clock.monotonic_s() > 70) or time.monotonic() > deadline_s:
            daemon.stop()

    metrics.then = watch
    with capture_logs() as events:
        assert daemon.run() == 0
    view = served[-1]
    assert probes.startup(view).is_well
    assert {each.name: each.last_success_ms > 0 for each in view.catalogs} == {
        "silent": False,
        "good": True,
    }
    ready = probes.readiness(view, view.now_ms)
    assert (ready.is_well, [each.check for each in ready.warnings]) == (True, ["catalog silent"])
    assert "has not answered for 1 min" in ready.warnings[0].message
    told = [event["catalog"] for event in events if event["event"] == "discovery_failed"]
    assert set(told) == {"silent"}
    assert daemon.has_stragglers, "its thread cannot be ended"
    answers.set()


class _Sometimes(Exclusive):
    """Gets no answer while it is told so."""

    is_silent = True

    def isdir(self, path: str) -> bool:
        if self.is_silent:
            raise TimeoutError("no answer")
        return bool(super().isdir(path))


_Silence = Callable[[bool], None]


@contextlib.contextmanager
def _store(folder: Path, breakers: Breakers) -> Iterator[tuple[Catalog, _Silence]]:
    """A catalog whose store is silent, and how that is changed."""
    files = _Sometimes(skip_instance_cache=True)
    spec, root = fsspec_at(f"exclusive://{folder}/wh", {})
    storage = FsspecStorage(spec, Opened(files), RetryPolicy(clock=VirtualClock()))
    guarded = breakers.behind(storage, spec.root)
    yield FilesystemCatalog(guarded, root), partial(setattr, files, "is_silent")


@contextlib.contextmanager
def _server(folder: Path, breakers: Breakers) -> Iterator[tuple[Catalog, _Silence]]:
    """As `_store`, of a server."""
    del breakers
    state = {"is_silent": True}

    def fault(_: Asked) -> None:
        if state["is_silent"]:
            raise ConnectionError

    server = FakeServer(fault=fault)
    server.tables["db.t"] = FakeTable(path=f"{folder}/wh/db.db/t", id="x")
    with serving(server):
        catalog = open_catalog(
            "lake", metastore="rest", options=server.options, allow_schemes=["file"]
        )
        yield catalog, partial(state.__setitem__, "is_silent")


@pytest.mark.parametrize("what", [_store, _server])
def test_a_quiet_table_is_polled_less_and_less(
    tmp_path: Path,
    what: Callable[[Path, Breakers], contextlib.AbstractContextManager[tuple[Catalog, _Silence]]],
) -> None:
    keyed_table(LocalStorage(), f"{tmp_path}/wh/db.db/t", buckets=1)
    metrics, clock, found = _Told(), VirtualClock(), set[int]()
    with what(tmp_path, Breakers(clock.steady_ms)) as (catalog, set_silent):
        set_silent(False)
        rarely = "defaults: {discovery_interval: 1 s, max_quiet_interval: 3 s}\n"
        daemon = _daemon(
            tmp_path, metrics, clock=clock, config=rarely, open_catalog=lambda _: catalog
        )
        deadline_s = time.monotonic() + 180

        def watch() -> None:
            time.sleep(0.02)
            clock.sleep(1)
            found.update(table.discovery_interval_ms for table in daemon.view().tables)
            if max(found, default=0) >= 3_000 or time.monotonic() > deadline_s:
                daemon.stop()

        metrics.then = watch
        assert daemon.run() == 0
    assert found == {1_000, 2_000, 3_000}


@pytest.mark.parametrize("what", [_store, _server])
def test_what_does_not_answer_is_shown_probed_and_served_again(
    tmp_path: Path,
    what: Callable[[Path, Breakers], contextlib.AbstractContextManager[tuple[Catalog, _Silence]]],
) -> None:
    ref = TableRef(database="db", name="t", location=f"{tmp_path}/wh/db.db/t")
    options = {"bucket": "1", "write-only": "true"}
    create_table(LocalStorage(), ref, FIELDS, primary_keys=["k"], options=options)
    metrics, clock, stack = _Told(), VirtualClock(), contextlib.ExitStack()
    breakers = Breakers(clock.steady_ms)
    catalog, set_silent = stack.enter_context(what(tmp_path, breakers))
    daemon = _daemon(
        tmp_path,
        metrics,
        clock=clock,
        config="discovery: {catalog_list_interval: 1 s}\n",
        open_catalog=lambda _: catalog,
        breakers=breakers,
    )
    silent: list[ServiceView] = []
    served: list[ServiceView] = []
    deadline_s = time.monotonic() + 60

    def watch() -> None:
        time.sleep(0.02)
        clock.sleep(1)
        view = daemon.view()
        if view.catalogs[0].store_silent_since_ms:
            silent.append(view)
            # A probe finds out that it still does not answer, the next one that it does.
            set_silent(len(silent) < 50)
        if any(table.first_poll_ms for table in view.tables):
            served.append(view)
        if served or time.monotonic() > deadline_s:
            daemon.stop()

    metrics.then = watch
    with stack, capture_logs() as events:
        assert daemon.run() == 0
    assert served[0].catalogs[0].store_silent_since_ms == 0
    told = [event["event"] for event in events if event["event"].startswith("store_")]
    assert told == ["store_unresponsive", "store_answers"]
    assert "compactord_store_breaker_open" in b"".join(metrics.expose(silent[0])[0]).decode()
    assert "has not answered for" in silent[-1].catalogs[0].error


class _Frozen(InlineEngine):
    """Once it has work neither its worker nor its driver answers, until it is `thawed`."""

    def __init__(self) -> None:
        super().__init__()
        self.has_work, self.thawed = threading.Event(), threading.Event()

    def submit(self, subcompaction: Subcompaction) -> None:
        self.has_work.set()

    def next_outcome(self, timeout_s: float | None) -> SubcompactionOutcome | None:
        time.sleep(0.02)
        return None

    def why_failed(self) -> str | None:
        if self.has_work.is_set():
            assert self.thawed.wait(180)
        return None


def test_it_does_not_live_while_every_slot_is_lost_and_the_engine_is_started_again(
    tmp_path: Path,
) -> None:
    storage = LocalStorage()
    table = keyed_table(storage, f"{tmp_path}/db.db/t", buckets=1, options={"write-only": "true"})
    fill_keyed(writer(storage, table), commits=6)
    frozen, clock, metrics = _Frozen(), VirtualClock(), _Told()
    engines = [frozen]
    daemon = _daemon(
        tmp_path,
        metrics,
        clock=clock,
        start_engine=lambda: engines.pop() if engines else InlineEngine(),
    )
    # By seconds since the slot was lost: whether the service lives.
    lives: list[tuple[float, bool]] = []
    lost_s: list[float] = []
    ended: list[bool] = []

    def watch() -> None:
        clock.sleep(5 if frozen.has_work.is_set() else 1)
        time.sleep(0.005)
        view = daemon.view()
        health = probes.liveness(view, view.reading_ms(clock.steady_ms()))
        if view.engine.lost_slots:
            lost_s.append(clock.monotonic_s())
            lives.append((lost_s[-1] - lost_s[0], health.is_well))
            if not health.is_well:
                assert [failed.check for failed in health.failed] == ["loop slots"]
                frozen.thawed.set()
        elif lost_s and view.engine.is_up:
            ended.append(health.is_well)
            daemon.stop()

    metrics.then = watch
    assert daemon.run() == 0
    first_failure_s = next(seconds for seconds, is_well in lives if not is_well)
    assert 290 <= first_failure_s <= 320
    assert all(is_well for seconds, is_well in lives if seconds < first_failure_s)
    assert ended[0], "it has another engine"
    assert daemon.view().engine.restarts == 1


_RULES = """\
    discovery: {excluding_tables: 'db\\.tmp'}
    rules:
    - match: {table: 'db\\.dynamic'}
      set: {only_write_only: false}
    - match: {table: 'db\\.paused'}
      set: {mode: paused}
    - match: {table: 'paused'}
      set: {mode: paused}
    """


def test_every_table_of_a_warehouse_is_listed_with_its_state_and_why(tmp_path: Path) -> None:
    options = {"bucket": "1"}
    write_only = {**options, "write-only": "true"}
    tables = {
        "served": write_only,
        "beside": options,
        "dynamic": options,
        "paused": write_only,
        "tmp": write_only,
        "refused": {**write_only, "row-tracking.enabled": "true"},
    }
    for name, given in tables.items():
        ref = TableRef(database="db", name=name, location=f"{tmp_path}/db.db/{name}")
        create_table(LocalStorage(), ref, FIELDS, primary_keys=["k"], options=given)
    metrics, clock = _Told(), VirtualClock()
    daemon = _daemon(tmp_path, metrics, clock=clock, config=_RULES)
    deadline_s = time.monotonic() + 180

    def stop_once_read() -> None:
        time.sleep(0.02)
        clock.sleep(1)
        read = [table for table in daemon.view().tables if table.info.kind]
        if len(read) == len(tables) - 1 or time.monotonic() > deadline_s:
            daemon.stop()

    metrics.then = stop_once_read
    with capture_logs() as events:
        assert daemon.run() == 0
    view = daemon.view()
    path = tmp_path / "compactord.yaml"
    found = {table.name.table: (table.status.value, table.why) for table in view.tables}
    assert found == {
        "served": ("active", ""),
        "beside": (
            "excluded",
            "not write-only, so its writers compact it themselves; "
            "defaults.only_write_only (default)",
        ),
        "dynamic": ("active", ""),
        "paused": ("paused", f"by rules.1.set.mode ({path}:7)"),
        "tmp": ("excluded", f"discovery.excluding_tables ({path}:2) is db\\.tmp"),
        "refused": ("unsupported", found["refused"][1]),
    }
    assert "row-tracking" in found["refused"][1]
    unmatched = f"rules.2.match.table ({path}:8) is paused; did you mean db.paused?"
    assert view.unmatched_patterns == (unmatched,)
    counts = {status.value: count for (_, status), count in view.tables_by_status.items()}
    assert counts == {"active": 2, "paused": 1, "excluded": 2, "unsupported": 1}
    told = {
        event["table"]: event["reason"]
        for event in events
        if event["event"] in ("table_excluded", "table_paused")
    }
    assert told == {name: found[name][1] for name in ("beside", "paused", "tmp")}
    kinds = {table.name.table: (table.info.kind, table.info.write_only) for table in view.tables}
    assert kinds["refused"] == ("primary-key", True)
    assert kinds["dynamic"] == ("primary-key", False)
