"""A catalog of another kind: one module (`pointer_catalog.py`) and one line, nothing else."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from compactord.catalog.base import Catalog
from compactord.catalog.registry import CATALOGS
from compactord.cli.command import main
from compactord.cli.doctor import catalog_checks
from compactord.cli.registries import Registries
from compactord.cli.serve import load_usable, open_configured
from compactord.config.load import LoadedConfig, load_config, show_text
from compactord.config.problems import ConfigInvalid
from compactord.errors import TransientStorageError
from compactord.paimon.schema import TableRef
from compactord.storage.base import Store, StoreLocation
from compactord.storage.open import STORES, Stores
from compactord_demo.writer import create_table
from tests import builders
from tests.builders import FIRST, VirtualClock
from tests.storages import Call, HookedStorage, MemoryStorage
from tests.unit.cli.warehouses import configuration
from tests.unit.doors.command import registered
from tests.unit.doors.pointer_catalog import POINTERS, Server, servers

# The line of the registry.
KINDS = {**CATALOGS, POINTERS.name: POINTERS}
_PIN = "hunter2"


class Lake:
    """The server `s`, and two tables that are due, each in a store of its own."""

    def __init__(self) -> None:
        self.server = servers["s"] = Server(_PIN)
        self.stores = {name: MemoryStorage() for name in ("one", "two")}
        self.rows: dict[str, dict[int, int]] = {}
        self.refs: dict[str, TableRef] = {}
        for store, name in (("one", "t"), ("two", "u")):
            self.add(store, f"db.{name}", f"/somewhere/{len(self.rows)}")
            self.server.newest[f"db.{name}"] = 6

    def add(self, store: str, name: str, path: str) -> None:
        database, _, table = name.partition(".")
        ref = TableRef(database=database, name=table, location=path)
        options = {"bucket": "2", "write-only": "true"}
        create_table(self.stores[store], ref, builders.FIELDS, primary_keys=["k"], options=options)
        self.server.locations[name] = f"mem://{store}{path}"
        self.refs[name] = ref
        self.rows[name] = builders.fill_keyed(builders.writer(self.stores[store], ref), commits=6)

    @property
    def registries(self) -> Registries:
        """With its kind of catalog."""
        return registered(stores=self.known, kinds=KINDS)

    @property
    def known(self) -> Stores:
        """The stores that there are, these two included."""

        def locate(location: str, options: Mapping[str, str]) -> StoreLocation:
            name, slash, path = location.removeprefix("mem://").partition("/")
            return StoreLocation(spec=self.stores[name].spec, path=slash + path)

        ours = Store(schemes=("mem",), locate=locate)
        stores = replace(STORES, known=(*STORES.known, ours))
        return stores.wrapped(lambda storage, _: HookedStorage(storage, before=self._refuse))

    def _refuse(self, call: Call) -> None:
        is_first = call.method == "create_if_absent" and "/.compactord-probe" not in call.path
        assert not is_first, "the catalog says who is first"

    def write(self) -> None:
        """Another writer's commit to db.t; the server knows of it."""
        writer = builders.writer(self.stores["one"], self.refs["db.t"])
        writer.write(builders.rows_of([(1000, 1)]))
        self.rows["db.t"][1000] = 1
        self.server.newest["db.t"] += 1

    def check(self, *names: str) -> None:
        for name in names or self.server.newest:
            storage, ref = self.store_of(name), self.refs[name]
            assert builders.read_keyed(storage, ref) == self.rows[name]
            builders.check_chain(storage, ref)
            assert builders.leftovers(storage, ref, [FIRST]) == set()

    def store_of(self, name: str) -> MemoryStorage:
        return self.stores[self.server.locations[name].split("/")[2]]

    def loaded(self, folder: Path, options: str = "") -> LoadedConfig:
        return load_usable(self.config(folder, options), (), self.registries)

    def config(self, folder: Path, options: str = "") -> str:
        given = options or f"{{pointers.server: s, pointers.pin: {_PIN}}}"
        section = f"{{metastore: pointers, warehouse: 'mem://one/wh', options: {given}}}"
        return configuration(folder, f"catalogs: {{p: {section}}}")

    def catalog(self, loaded: LoadedConfig) -> Catalog:
        return open_configured(loaded.config, "p", self.registries)


@pytest.fixture
def lake() -> Lake:
    return Lake()


def _compact(lake: Lake, folder: Path, *arguments: str) -> int:
    return main(["compact", "--all", "--config", lake.config(folder), *arguments], lake.registries)


def test_compact_takes_its_tables_from_it_and_publishes_through_it(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _compact(lake, tmp_path, "--json") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["summary"] == {"done": 2}
    assert lake.server.asked == [("db.t", 7), ("db.u", 7)]
    assert lake.server.newest == {"db.t": 7, "db.u": 7}
    assert set(lake.server.schemas_asked) == {"db.t", "db.u"}
    lake.check()


def test_a_table_that_is_not_safe_is_refused_alone(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The server keeps no pointer of it.
    lake.add("two", "db.unsafe", "/unsafe")
    assert _compact(lake, tmp_path) == 4
    said = capsys.readouterr()
    assert "db.unsafe: REFUSED: table db.unsafe is refused: without a lock" in said.err
    assert "3 tables: 2 done, 1 refused" in said.out
    lake.check()


def test_its_options_are_taken_and_others_refused_in_its_words(lake: Lake, tmp_path: Path) -> None:
    found = {}
    for options in (
        "{pointers.server: none}",
        "{pointers.servr: s}",
        "{uri: x, pointers.server: s}",
    ):
        with pytest.raises(ConfigInvalid) as caught:
            lake.loaded(tmp_path, options)
        (problem,) = caught.value.problems
        found[problem.key.removeprefix("catalogs.p.options.")] = problem.expected
    assert found == {
        "pointers.server": "a server that runs",
        "pointers.servr": "a catalog option of Paimon; did you mean pointers.server?",
        "uri": "no such option, unless metastore is jdbc or hive or rest",
    }
    with pytest.raises(
        ConfigInvalid, match="expected filesystem or jdbc or hive or rest, the metastores"
    ):
        load_usable(lake.config(tmp_path), (), Registries(stores=lake.known))


def test_its_warehouse_may_be_a_name(lake: Lake, tmp_path: Path) -> None:
    for named, location in ((False, "mem://one/wh"), (True, None)):
        known = Registries(kinds={POINTERS.name: replace(POINTERS, names_warehouse=named)})
        section = load_config(lake.config(tmp_path), environ={}, known=known).config.catalogs["p"]
        found = section.kind.location_of(section.warehouse, lake.known)
        assert found == location


def test_its_secrets_are_shown_nowhere_and_read_again(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = lake.loaded(tmp_path)
    shown = "\n".join(show_text(loaded))
    assert "catalogs.p.options.pointers.pin = ***" in shown
    assert _PIN not in shown + repr(loaded)
    monkeypatch.setenv("SERVER", "s")
    monkeypatch.setenv("PIN", _PIN)
    options = "{pointers.server: '${env:SERVER}', pointers.pin: '${env:PIN}'}"
    assert list(lake.loaded(tmp_path, options).late) == ["catalogs.p.options.pointers.server"]


def test_the_doctor_asks_it(lake: Lake, tmp_path: Path) -> None:
    loaded = lake.loaded(tmp_path)
    catalogs, clock = {"p": lake.catalog(loaded)}, VirtualClock()
    checks = catalog_checks(catalogs, clock, loaded.config)
    found = {check.name: check.found for check in checks}
    assert found["p: server"] == "it runs"
    lake.server.pin = "another"
    (check,) = catalog_checks(catalogs, clock, loaded.config)
    assert (check.name, check.advice) == ("p: catalog", "correct pointers.pin")


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
            lambda lake: setattr(lake.server, "before", _once(lake.write)),
            [7, 8],
            [8],
            id="another is first",
        ),
        pytest.param(
            lambda lake: setattr(lake.server, "before", _once(_no_answer)),
            [7, 7],
            [7],
            id="no answer, nothing done",
        ),
        pytest.param(
            lambda lake: setattr(lake.server, "after", _once(_no_answer)),
            [7],
            [7],
            id="no answer, done",
        ),
    ],
)
def test_it_says_whose_snapshot_is_first(
    lake: Lake,
    tmp_path: Path,
    arrange: Callable[[Lake], None],
    asked: list[int],
    published: list[int],
) -> None:
    catalog = lake.catalog(lake.loaded(tmp_path))
    arrange(lake)
    table = catalog.open(catalog.find_table("db.t"))
    totals = builders.compact(table.storage, table.ref, publisher=table.publisher)
    assert (totals.snapshots, totals.failures, totals.lost_snapshots) == (published, [], [])
    assert lake.server.asked == [("db.t", each) for each in asked]
    lake.check("db.t")


def test_a_catalog_whose_database_is_down_does_not_stop_the_others(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wh").mkdir()
    text = f"""\
    service: {{http: {{port: 0, bind: 127.0.0.1}}}}
    catalogs:
      away:
        warehouse: {tmp_path}/wh
        metastore: jdbc
        options: {{uri: "jdbc:sqlite:{tmp_path}/none.db"}}
      p:
        warehouse: mem://one/wh
        metastore: pointers
        options: {{pointers.server: s, pointers.pin: {_PIN}}}
    """
    stop = _once(lambda: os.kill(os.getpid(), signal.SIGTERM))
    lake.server.after = lambda: stop() if min(lake.server.newest.values()) > 6 else None
    assert main(["serve", "--config", configuration(tmp_path, text)], lake.registries) == 0
    lake.check()
    events = map(json.loads, capsys.readouterr().out.splitlines())
    (told,) = (each for each in events if each["event"] == "catalog_unavailable")
    assert told["catalog"] == "away"
    assert "unable to open database file" in told["error"]
