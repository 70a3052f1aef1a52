"""Which tables are served, beyond what whole services show."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timezone

from compactord.config.model import Retry, ServiceConfig
from compactord.paimon.table import TableRef
from compactord.service.discovery import Listing
from compactord.service.fleet import Fleet
from compactord.service.metrics import Metrics
from compactord.service.performer import TableSpec
from compactord.service.roster import Roster
from compactord.service.timetable import Timetable
from compactord.service.view import TableName
from compactord.service.watch import Watch
from tests.builders import VirtualClock
from tests.storages import MemoryStorage

CONFIG = ServiceConfig.model_validate({"catalogs": {"c": {"warehouse": "/wh"}}})


def _listing(*tables: str, unreadable: frozenset[str] = frozenset()) -> Listing:
    found = {}
    for table in tables:
        database, name = table.split(".")
        ref = TableRef(database=database, name=name, location=f"/wh/{database}.db/{name}")
        found[TableName("c", database, name)] = ref
    return Listing(
        catalog="c",
        storage=MemoryStorage(),
        found=found,
        is_listed=True,
        unreadable=unreadable,
        excluded=0,
        seconds=0.0,
        error="",
    )


def test_tables_of_a_database_that_cannot_be_listed_are_not_taken_for_dropped() -> None:
    events: list[Callable[[], None]] = []
    specs: dict[TableName, TableSpec] = {}
    fleet = Fleet(
        retry=Retry(),
        zone=timezone.utc,
        witness=Watch(Metrics(), VirtualClock()),
        jobs_max=2,
        sweep_interval_ms=1,
        expire_interval_ms=1,
    )
    timetable = Timetable(events.append)
    roster = Roster(CONFIG, fleet, specs, timetable=timetable, clock=VirtualClock())
    roster.listed(_listing("a.x", "b.y", "b.z"))
    roster.listed(_listing("b.y", unreadable=frozenset({"a"})))
    leaving = {str(name): served.is_leaving for name, served in fleet.tables.items()}
    assert leaving == {"c.a.x": False, "c.b.y": False, "c.b.z": True}
