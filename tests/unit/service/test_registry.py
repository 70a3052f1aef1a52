"""Which tables are served, beyond what whole services show."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timezone

from compactord.clock import WallTime
from compactord.commit.publish import StorePublisher
from compactord.config.model import Retry, ServiceConfig
from compactord.model import TableName
from compactord.paimon.table import TableRef
from compactord.scheduler.at_engine import TimeLimit
from compactord.scheduler.scheduler import Scheduler
from compactord.service.discovery import Listing
from compactord.service.effects_runner import TableSpec
from compactord.service.metrics import Metrics
from compactord.service.observer import LoggingObserver
from compactord.service.registry import TableRegistry
from compactord.service.timetable import Timetable
from tests.builders import VirtualClock
from tests.storages import MemoryStorage

CONFIG = ServiceConfig.model_validate({"catalogs": {"c": {"warehouse": "/wh"}}})


def _listing(
    *tables: str, unreadable: frozenset[str] = frozenset(), error: str = "", is_listed: bool = True
) -> Listing:
    found = {}
    for table in tables:
        database, name = table.split(".")
        ref = TableRef(database=database, name=name, location=f"/wh/{database}.db/{name}")
        found[TableName("c", database, name)] = ref
    storage = MemoryStorage()
    return Listing(
        catalog="c",
        storage=storage,
        publisher=StorePublisher(storage),
        found=found,
        is_listed=is_listed,
        unreadable=unreadable,
        excluded=0,
        seconds=0.0,
        error=error,
    )


def _registry(clock: VirtualClock) -> tuple[TableRegistry, Scheduler]:
    events: list[Callable[[], None]] = []
    specs: dict[TableName, TableSpec] = {}
    scheduler = Scheduler(
        retry=Retry(),
        wall=WallTime(timezone.utc),
        observer=LoggingObserver(Metrics()),
        jobs_max=2,
        max_commit_delay_ms=0,
        time_limit=TimeLimit(least_ms=1_000, bytes_per_s=1),
        sweep_interval_ms=1,
        expire_interval_ms=1,
    )
    timetable = Timetable(events.append)
    return TableRegistry(CONFIG, scheduler, specs, timetable=timetable, clock=clock), scheduler


def test_tables_of_a_database_that_cannot_be_listed_are_not_taken_for_dropped() -> None:
    registry, scheduler = _registry(VirtualClock())
    registry.listed(_listing("a.x", "b.y", "b.z"))
    registry.listed(_listing("b.y", unreadable=frozenset({"a"})))
    leaving = {str(name): scheduled.is_leaving for name, scheduled in scheduler.tables.items()}
    assert leaving == {"c.a.x": False, "c.b.y": False, "c.b.z": True}


def test_a_catalog_that_cannot_be_listed_keeps_its_tables_and_says_why() -> None:
    clock = VirtualClock()
    registry, scheduler = _registry(clock)
    listed_ms = clock.now_ms()
    registry.listed(_listing("a.x"))
    clock.sleep(60)
    for _ in range(2):
        registry.listed(_listing(error="no such host", is_listed=False))
    assert [scheduled.is_leaving for scheduled in scheduler.tables.values()] == [False]
    catalog = registry.catalogs["c"]
    assert (catalog.last_success_ms, catalog.failures, catalog.error) == (
        listed_ms,
        2,
        "no such host",
    )
    registry.listed(_listing("a.x"))
    catalog = registry.catalogs["c"]
    assert (catalog.last_success_ms, catalog.failures, catalog.error) == (clock.now_ms(), 2, "")
