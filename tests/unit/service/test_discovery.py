from __future__ import annotations

import queue
import threading

import pytest
from structlog.testing import capture_logs

from compactord.catalog.filesystem import FilesystemCatalog
from compactord.config.load import LoadedConfig
from compactord.config.model import ServiceConfig
from compactord.config.problems import Origin, OriginKind
from compactord.errors import AccessDenied, StorageError
from compactord.model import TableName
from compactord.paimon.schema import TableRef
from compactord.service.registry import OVERDUE_MS, Discovery, Listing, list_catalog
from compactord.storage.base import Storage
from compactord_demo.writer import create_table
from tests.builders import FIELDS, VirtualClock, make_branch
from tests.storages import Call, HookedStorage, MemoryStorage


def _loaded(**discovery: str) -> LoadedConfig:
    """As read from c.yaml, all of it in line 3."""
    config = ServiceConfig.model_validate(
        {"catalogs": {"c": {"warehouse": "/wh"}}, "discovery": discovery}
    )
    origin = Origin(kind=OriginKind.FILE, name="c.yaml", line=3)
    origins = {f"discovery.{key}": origin for key in discovery}
    return LoadedConfig(path="c.yaml", config=config, origins=origins, references={}, digest="")


def _warehouse(*tables: str) -> MemoryStorage:
    storage = MemoryStorage()
    for table in tables:
        database, name = table.split(".")
        ref = TableRef(database=database, name=name, location=f"/wh/{database}.db/{name}")
        create_table(storage, ref, FIELDS, options={"bucket": "-1"})
    return storage


def _catalog(storage: Storage) -> FilesystemCatalog:
    return FilesystemCatalog(storage, "/wh")


def _listed(name: str, catalog: FilesystemCatalog, **discovery: str) -> Listing:
    return list_catalog(name, catalog, lambda: _loaded(**discovery), VirtualClock())


def _broken(error: Exception) -> Storage:
    def fail(call: Call) -> None:
        raise error

    return HookedStorage(_warehouse("a.x"), before=fail)


@pytest.mark.parametrize("error", [StorageError("/wh", "no answer"), ValueError("no answer")])
def test_the_trouble_of_one_catalog_is_not_that_of_another(error: Exception) -> None:
    catalogs = {"bad": _catalog(_broken(error)), "good": _catalog(_warehouse("a.x", "b.y"))}
    with capture_logs():
        bad, good = (_listed(name, catalog) for name, catalog in catalogs.items())
    assert sorted(good.found) == [TableName("good", "a", "x"), TableName("good", "b", "y")]
    assert good.error == ""
    assert bad.found == {}
    assert "no answer" in bad.error


@pytest.mark.parametrize(
    ("discovery", "why"),
    [
        ({"excluding_tables": r".*\.tmp_.*"}, r"excluding_tables (c.yaml:3) is .*\.tmp_.*"),
        ({"including_tables": r".*\.[xy]"}, r"including_tables (c.yaml:3) is only .*\.[xy]"),
    ],
)
def test_what_a_pattern_excludes_is_named_with_the_pattern(
    discovery: dict[str, str], why: str
) -> None:
    listing = _listed("c", _catalog(_warehouse("a.x", "a.tmp_1", "b.y")), **discovery)
    assert {name.table for name in listing.found} == {"x", "y"}
    left_out = {str(name): excluded.why for name, excluded in listing.excluded.items()}
    assert left_out == {"c.a.tmp_1": f"discovery.{why}"}
    assert listing.found[TableName("c", "a", "x")].location == "/wh/a.db/x"


def test_a_database_that_cannot_be_listed_is_named_and_the_others_are_found() -> None:
    def fail(call: Call) -> None:
        if call.path == "/wh/a.db":
            raise AccessDenied("/wh/a.db", "list failed")

    storage = HookedStorage(_warehouse("a.x", "b.y"), before=fail)
    listing = _listed("c", _catalog(storage))
    assert list(listing.found) == [TableName("c", "b", "y")]
    assert (listing.is_listed, listing.unreadable) == (True, {"a"})
    assert listing.error == "list failed: /wh/a.db"


def test_a_catalog_that_is_silent_is_told_of_each_minute_and_delays_no_other() -> None:
    answers, asked = threading.Event(), threading.Semaphore(0)

    def wait(call: Call) -> None:
        asked.release()
        assert answers.wait(60)

    silent = HookedStorage(_warehouse("a.x"), before=wait)
    listings: queue.SimpleQueue[Listing] = queue.SimpleQueue()
    clock = VirtualClock()
    discovery = Discovery(
        catalogs={"silent": _catalog(silent), "good": _catalog(_warehouse("a.x"))},
        loaded=_loaded,
        post=listings.put,
        clock=clock,
    )
    for _ in range(3):
        discovery.begin()
        listing = listings.get(timeout=60)
        assert (listing.catalog, listing.is_listed) == ("good", True)
        discovery.ended("good")
        assert list(discovery.overdue(clock.steady_ms())) == []
        clock.sleep(OVERDUE_MS / 3000)
    assert asked.acquire(timeout=60)
    assert not asked.acquire(blocking=False), "it is not asked again meanwhile"
    assert list(discovery.overdue(clock.steady_ms())) == [("silent", 60)]
    clock.sleep(59)
    assert list(discovery.overdue(clock.steady_ms())) == []
    clock.sleep(1)
    assert list(discovery.overdue(clock.steady_ms())) == [("silent", 120)]
    assert not discovery.close(0.01)
    answers.set()
    assert listings.get(timeout=60).catalog == "silent"
    discovery.ended("silent")
    assert list(discovery.overdue(clock.steady_ms())) == []
    assert discovery.close(60)


def _rules(*rules: dict[str, object]) -> LoadedConfig:
    config = ServiceConfig.model_validate(
        {"catalogs": {"c": {"warehouse": "/wh"}}, "rules": list(rules)}
    )
    origin = Origin(kind=OriginKind.FILE, name="c.yaml", line=3)
    origins = {"rules.0.set.branches": origin}
    return LoadedConfig(path="c.yaml", config=config, origins=origins, references={}, digest="")


def _rule(table: str, *branches: str) -> dict[str, object]:
    return {"match": {"table": table}, "set": {"branches": list(branches)}}


def _branched() -> MemoryStorage:
    storage = _warehouse("a.x", "a.y", "b.z")
    for name in ("x", "y"):
        ref = TableRef(database="a", name=name, location=f"/wh/a.db/{name}")
        for branch in ("b1", "b2", "dev", "b$2"):
            make_branch(storage, ref, branch)
    return storage


_ALL_OF_X = ("x", "x$branch_b1", "x$branch_b2", "x$branch_dev")


@pytest.mark.parametrize(
    ("rules", "found", "excluded"),
    [
        ([], {"x", "y", "z"}, {}),
        ([_rule(r"a\.x", "main", "b.*")], {"x", "x$branch_b1", "x$branch_b2", "y", "z"}, {}),
        ([_rule(r"a\.x", ".*")], {"y", "z", *_ALL_OF_X}, {}),
        (
            [_rule(r"a\.y", "dev")],
            {"x", "y$branch_dev", "z"},
            {"y": "rules.0.set.branches (c.yaml:3) does not name main"},
        ),
    ],
)
def test_branches_are_served_that_a_rule_asks_for(
    rules: list[dict[str, object]], found: set[str], excluded: dict[str, str]
) -> None:
    listing = list_catalog("c", _catalog(_branched()), lambda: _rules(*rules), VirtualClock())
    assert {name.table for name in listing.found} == found
    assert {name.table: each.why for name, each in listing.excluded.items()} == excluded
    assert (listing.error, listing.unreadable) == ("", frozenset())
    for name, ref in listing.found.items():
        table, _, branch = name.table.partition("$branch_")
        location = f"/wh/{name.database}.db/{table}"
        assert (ref.location, ref.branch) == (location, branch or "main")


def test_only_tables_whose_rule_asks_for_branches_are_asked_for_them() -> None:
    asked: list[str] = []

    def note(call: Call) -> None:
        if "/branch" in call.path:
            asked.append(call.path)

    storage = HookedStorage(_branched(), before=note)
    rules = _rules(_rule(r"a\.x", "main", "dev"))
    list_catalog("c", _catalog(storage), lambda: rules, VirtualClock())
    assert asked == ["/wh/a.db/x/branch"]


def test_branches_that_cannot_be_listed_leave_their_database_as_it_was() -> None:
    def fail(call: Call) -> None:
        if call.path == "/wh/a.db/x/branch":
            raise AccessDenied("/wh/a.db/x/branch", "list failed")

    storage = HookedStorage(_branched(), before=fail)
    rules = _rules(_rule(".*", ".*"))
    listing = list_catalog("c", _catalog(storage), lambda: rules, VirtualClock())
    assert listing.is_listed
    assert listing.unreadable == {"a"}
    assert "/wh/a.db/x/branch" in listing.error
    assert {"x", "y", "y$branch_b1", "z"} <= {name.table for name in listing.found}
