"""Which tables are served, beyond what whole services show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timezone
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from compactord.catalog.access import table_in_folder
from compactord.clock import WallTime
from compactord.config.load import LoadedConfig, leaves
from compactord.config.model import Limits, Retry, ServiceConfig
from compactord.config.problems import Origin, OriginKind, dotted
from compactord.errors import TableNotFound
from compactord.model import CompactReason, PickRule, TableName, WorkKind
from compactord.paimon.data_file import BucketId
from compactord.paimon.schema import TableRef
from compactord.scheduler.effects import Forget
from compactord.scheduler.scheduler import Scheduler
from compactord.service.jobs import TableSpec
from compactord.service.logs import LoggingObserver
from compactord.service.metrics import Metrics
from compactord.service.registry import Listing, TableRegistry
from compactord.service.settings import Timetable
from compactord.service.view import excluded_view
from compactord.table.backlog import PendingCompaction
from compactord.table.jobs import CycleResult
from compactord.table.status import TableInfo
from tests.builders import VirtualClock
from tests.storages import MemoryStorage
from tests.views import planned

DUE = PendingCompaction(
    bucket=BucketId(b"", 0),
    partition="",
    kind=WorkKind.MINOR,
    reason=CompactReason.SIZE_RATIO,
    tasks=1,
    files=5,
    size_bytes=10,
    files_saved=4,
    sorted_runs=5,
    is_near_stop=False,
    since_ms=1_000,
)


def _loaded(**sections: Any) -> LoadedConfig:
    """As read from c.yaml, all of its rules in line 7."""
    config = ServiceConfig.model_validate({"catalogs": {"c": {"warehouse": "/wh"}}, **sections})
    origin = Origin(kind=OriginKind.FILE, name="c.yaml", line=7)
    origins = {dotted(path): origin for path, _ in leaves(config) if path[0] == "rules"}
    return LoadedConfig(path="c.yaml", config=config, origins=origins, references={}, digest="")


def _name(table: str) -> TableName:
    database, name = table.split(".")
    return TableName("c", database, name)


def _ref(table: str) -> TableRef:
    database, name = table.split(".")
    return TableRef(database=database, name=name, location=f"/wh/{database}.db/{name}")


def _listing(
    *tables: str,
    unreadable: frozenset[str] = frozenset(),
    error: str = "",
    is_listed: bool = True,
    excluded: tuple[str, ...] = (),
) -> Listing:
    found = {_name(table): _ref(table) for table in tables}
    return Listing(
        catalog="c",
        open=partial(table_in_folder, MemoryStorage()),
        found=found,
        is_listed=is_listed,
        unreadable=unreadable,
        excluded={
            _name(table): excluded_view(_name(table), _ref(table).location, "a pattern")
            for table in excluded
        },
        seconds=0.0,
        error=error,
    )


def _registry(
    clock: VirtualClock,
    loaded: LoadedConfig | None = None,
    specs: dict[TableName, TableSpec] | None = None,
) -> tuple[TableRegistry, Scheduler]:
    events: list[Callable[[], None]] = []
    scheduler = Scheduler(
        retry=Retry(),
        wall=WallTime(timezone.utc),
        observers=[LoggingObserver(Metrics())],
        jobs_max=2,
        limits=Limits(),
        kinds=(),
    )
    timetable = Timetable(events.append)
    loaded = loaded or _loaded()
    specs = {} if specs is None else specs
    return TableRegistry(loaded, scheduler, specs, timetable=timetable, clock=clock), scheduler


def test_a_table_that_was_made_again_begins_anew_once_the_old_one_has_left() -> None:
    clock, specs = VirtualClock(), dict[TableName, TableSpec]()
    registry, scheduler = _registry(clock, specs=specs)
    name, known = _name("a.x"), _listing("a.x", "a.y")
    registry.listed(known)
    scheduler.tables[name].failures = 3
    for changes in ({"identity": "another"}, {"location": "/elsewhere"}):
        old, spec = scheduler.tables[name], specs[name]
        (job, *_) = (each for each in scheduler.decide(clock.steady_ms()) if each.name == name)
        again = replace(old.ref, **changes)
        found = replace(known, found={**known.found, name: again})
        registry.listed(found)
        assert registry.to_list_again() == set(), "its job has not ended"
        assert scheduler.tables[name] is old
        assert old.is_leaving
        assert specs[name] is spec, "of which this job is"
        scheduler.job_ended(job, CycleResult(error=TableNotFound("gone")), 0.1, clock.steady_ms())
        assert Forget(name=name) in scheduler.decide(clock.steady_ms())
        assert registry.to_list_again() == {"c"}
        assert registry.to_list_again() == set()
        registry.listed(found)
        made = scheduler.tables[name]
        assert (made.ref, made.failures, specs[name].ref) == (again, 0, again)
    assert not scheduler.tables[_name("a.y")].is_leaving


def test_an_empty_catalog_is_logged_once() -> None:
    registry, _ = _registry(VirtualClock())
    listings = [
        _listing(is_listed=False, error="no answer"),
        _listing(),
        _listing(),
        _listing("a.x"),
        _listing(),
    ]
    logged = []
    for listing in listings:
        with capture_logs() as events:
            registry.listed(listing)
        logged.append([each["event"] for each in events if each["event"] == "catalog_empty"])
    assert logged == [[], ["catalog_empty"], [], [], []]


def test_tables_of_a_database_that_cannot_be_listed_are_not_taken_for_dropped() -> None:
    registry, scheduler = _registry(VirtualClock())
    registry.listed(_listing("a.x", "b.y", "b.z"))
    registry.listed(_listing("b.y", unreadable=frozenset({"a"})))
    leaving = {str(name): scheduled.is_leaving for name, scheduled in scheduler.tables.items()}
    assert leaving == {"c.a.x": False, "c.b.y": False, "c.b.z": True}


def test_each_table_is_planned_by_the_pick_of_its_rule() -> None:
    specs: dict[TableName, TableSpec] = {}
    rule = {"match": {"table": "a\\.old"}, "set": {"pick": "2.0"}}
    registry, _ = _registry(VirtualClock(), _loaded(rules=[rule]), specs)
    registry.listed(_listing("a.x", "a.old"))
    picks = {str(name): spec.request.pick for name, spec in specs.items()}
    assert picks == {"c.a.x": PickRule.RELEASE_2_1, "c.a.old": PickRule.RELEASE_2_0}


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


def test_a_quiet_table_is_polled_less_and_less_until_it_changes() -> None:
    often = {"discovery_interval": "10 s", "max_quiet_interval": "45 s"}
    registry, scheduler = _registry(VirtualClock(), _loaded(defaults=often))
    registry.listed(_listing("a.x"))
    scheduled, seen = scheduler.tables[_name("a.x")], []
    # Snapshots, and whether something is due on them: that is tried at each poll.
    for snapshot_id, is_due in [(7, 0), *[(7, 0)] * 4, (7, 1), (7, 0), (8, 0), (8, 0)]:
        scheduled.planned = planned(snapshot_id)
        scheduled.offered = {DUE.bucket: DUE} if is_due else {}
        registry.polled(scheduled)
        seen.append(scheduled.interval_ms // 1000)
    assert seen == [10, 20, 40, 45, 45, 10, 20, 10, 20]
    registry.apply(_loaded())
    assert scheduled.interval_ms == scheduled.planned.discovery_interval_ms


def test_a_table_whose_readers_wait_for_compactions_is_polled_as_often_as_ever() -> None:
    often = {"discovery_interval": "10 s", "max_quiet_interval": "45 s"}
    registry, scheduler = _registry(VirtualClock(), _loaded(defaults=often))
    registry.listed(_listing("a.x"))
    scheduled, seen = scheduler.tables[_name("a.x")], []
    for readers_wait in (True, True, True, False, False):
        found = planned(7)
        info = replace(found.info, readers_wait=readers_wait)
        scheduled.planned = replace(found, info=info)
        registry.polled(scheduled)
        seen.append(scheduled.interval_ms // 1000)
    assert seen == [10, 10, 10, 45, 45]


def test_excluded_tables_are_known_until_a_listing_lacks_them_and_logged_once() -> None:
    registry, _ = _registry(VirtualClock())
    with capture_logs() as logs:
        registry.listed(_listing("a.x", excluded=("a.tmp", "b.tmp")))
        registry.listed(_listing("a.x", excluded=("b.tmp",)))
        registry.listed(_listing("a.x", unreadable=frozenset({"b"})))
        registry.listed(_listing(is_listed=False, error="no such host"))
    assert list(registry.excluded) == [_name("b.tmp")]
    told = [(log["table"], log["reason"]) for log in logs if log["event"] == "table_excluded"]
    assert told == [("tmp", "a pattern"), ("tmp", "a pattern")]
    registry.listed(_listing("a.x"))
    assert registry.excluded == {}


def test_a_pattern_that_matches_no_table_is_told_once_and_again_when_it_begins_anew() -> None:
    rules = [{"match": {"table": r"a\.x"}, "set": {"priority": 9}}]
    registry, _ = _registry(VirtualClock(), _loaded(rules=rules))
    text = r"rules.0.match.table (c.yaml:7) is a\.x"
    told = []
    for listing in (
        # What could not be listed may match.
        _listing(is_listed=False, error="no such host"),
        _listing(unreadable=frozenset({"a"})),
        _listing("b.y"),
        _listing("b.y"),
        _listing("b.y", excluded=("a.x",)),
        _listing("a.x", "b.y"),
        _listing("b.y"),
        _listing(is_listed=False, error="no such host"),
    ):
        with capture_logs() as logs:
            registry.listed(listing)
        logged = [log["pattern"] for log in logs if log["event"] == "pattern_matches_nothing"]
        told.append((list(registry.unmatched.values()), logged))
    known = ([text], [])
    assert told == [
        ([], []),
        ([], []),
        ([text], [text]),
        known,
        ([], []),
        ([], []),
        ([text], [text]),
        known,
    ]
    registry.apply(_loaded())
    assert registry.unmatched == {}


def test_a_pattern_is_judged_though_another_catalog_was_never_listed() -> None:
    rules = [{"match": {"table": r"shop\.orders"}, "set": {"priority": 9}}]
    catalogs = {"c": {"warehouse": "/wh"}, "down": {"warehouse": "/down"}}
    registry, _ = _registry(VirtualClock(), _loaded(catalogs=catalogs, rules=rules))
    where = r"rules.0.match.table (c.yaml:7) is shop\.orders"
    near = "; did you mean shop.ordr?"
    told = []
    for step in (
        lambda: registry.listed(_listing("shop.ordr")),
        lambda: registry.overdue("down", 60),
        lambda: registry.overdue("down", 120),
        lambda: registry.listed(replace(_listing(), catalog="down")),
    ):
        with capture_logs() as logs:
            step()
        logged = [log["pattern"] for log in logs if log["event"] == "pattern_matches_nothing"]
        told.append((list(registry.unmatched.values()), logged))
    base, partly = f"{where}{near}", f"{where}; not listed: catalog down{near}"
    assert told == [([], []), ([partly], [partly]), ([partly], []), ([base], [base])]


_DOWN = "unreachable: no such host"


@pytest.mark.parametrize(
    ("sections", "shown"),
    [
        ({"rules": [r"a\.x", r"b\.y|c\.z", r"d\..*", r"e\.(f|g)"]}, ["a.x", "b.y", "c.z"]),
        ({"discovery": {"including_tables": r"a\.x"}, "rules": [r"b\.y"]}, ["a.x"]),
        ({"discovery": {"excluding_tables": r"a\..*"}, "rules": [r"a\.x"]}, []),
        ({"rules": []}, []),
    ],
)
def test_tables_that_the_configuration_names_are_shown_though_their_catalog_was_never_listed(
    sections: dict[str, Any], shown: list[str]
) -> None:
    rules = [{"match": {"table": each}, "set": {"priority": 9}} for each in sections.pop("rules")]
    registry, scheduler = _registry(VirtualClock(), _loaded(rules=rules, **sections))
    assert registry.unserved == {}, "it has not been asked yet"
    registry.listed(_listing(is_listed=False, error="no such host"))
    assert {name: (each.status.value, each.why) for name, each in registry.unserved.items()} == {
        _name(table): ("error", _DOWN) for table in shown
    }
    registry.listed(_listing("a.x"))
    assert (registry.unserved, list(scheduler.tables)) == ({}, [_name("a.x")])
    registry.listed(_listing(is_listed=False, error="no such host"))
    assert registry.unserved == {}, "its tables are known"


_UNDECIDED = {"rules": [{"match": {"table": "a.x"}, "set": {"only_write_only": False}}]}
_PAUSED = {"rules": [{"match": {"table": "a.x"}, "set": {"mode": "paused"}}]}
_NOT_WRITE_ONLY = "not write-only, so its writers compact it themselves; defaults.only_write_only"


@pytest.mark.parametrize(
    ("sections", "write_only", "is_excluded", "why"),
    [
        ({}, True, False, ""),
        ({}, False, True, f"{_NOT_WRITE_ONLY} (default)"),
        (_UNDECIDED, False, False, ""),
        (_PAUSED, True, False, "by rules.0.set.mode (c.yaml:7)"),
        # That its writers compact it is known of a table whatever its rules say.
        (_PAUSED, False, True, f"{_NOT_WRITE_ONLY} (default)"),
    ],
)
def test_a_table_is_left_alone_for_a_reason_that_names_the_key(
    sections: dict[str, Any], write_only: bool, is_excluded: bool, why: str
) -> None:
    registry, scheduler = _registry(VirtualClock(), _loaded(**sections))
    with capture_logs() as logs:
        registry.listed(_listing("a.x"))
        scheduled = scheduler.tables[_name("a.x")]
        assert not scheduled.is_excluded, "nobody has read it yet"
        scheduled.info = TableInfo(kind="primary-key", write_only=write_only)
        registry.polled(scheduled)
        registry.polled(scheduled)
    assert (scheduled.is_excluded, scheduled.unmanaged_reason) == (is_excluded, why)
    assert [log["reason"] for log in logs if "reason" in log][-1:] == ([why] if why else [])
    with capture_logs() as logs:
        registry.apply(_loaded(defaults={"only_write_only": False}))
    assert (scheduled.is_excluded, scheduled.unmanaged_reason) == (False, "")
    assert [log["event"] for log in logs] == (["table_resumed"] if why else [])
