"""Every command takes what is registered, by a table of which all is a toy's.

Its store, its kind of catalog, the format of its new files and its merge engine; `serve` also runs
a toy kind of maintenance.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from compactord.catalog.registry import CATALOGS
from compactord.cli.command import main
from compactord.clock import WallTime
from compactord.config.model import Recovery
from compactord.formats.registry import FORMATS
from compactord.kernels.functions.registry import MERGE_FUNCTIONS
from compactord.maintenance.kind import (
    AnyKind,
    DueTable,
    MaintenanceRecord,
    OpenedTable,
    UnderWay,
)
from compactord.maintenance.registry import maintenance_kinds
from compactord.paimon.schema import TableRef
from compactord.state.table_state import load_state
from compactord.storage.base import Storage
from compactord.storage.open import STORES
from tests import builders
from tests.unit.cli.warehouses import configuration
from tests.unit.doors.command import registered
from tests.unit.doors.mem_store import KEY, MEM, buckets
from tests.unit.doors.pointer_catalog import POINTERS, Server, servers
from tests.unit.doors.toy_maintenance import CountSnapshots
from tests.unit.formats.arrow_files import ARROW
from tests.unit.kernels.merge_functions import FirstRow

# The lines of the registries.
_TOYS: dict[str, Any] = {
    "stores": replace(STORES, known=(*STORES.known, MEM)),
    "kinds": {**CATALOGS, POINTERS.name: POINTERS},
    "formats": {**FORMATS, ARROW.name: ARROW},
    "functions": {**MERGE_FUNCTIONS, "oldest": lambda _: FirstRow()},
}
_WAREHOUSE = "mem://toys/wh"
_OPTIONS = {"mem.key": KEY, "pointers.server": "toys", "pointers.pin": "1"}
_CONFIG = {
    "service": {"http": {"port": 0, "bind": "127.0.0.1"}},
    "catalogs": {
        "toys": {"metastore": POINTERS.name, "warehouse": _WAREHOUSE, "options": _OPTIONS}
    },
    "defaults": {"options": {"arrow.note": "as asked"}},
    "limits": {"max_commit_delay": "0 s"},
}


@pytest.fixture
def table() -> tuple[Storage, TableRef]:
    """A table that is due, and its store; only new files will have the format of the toy."""
    buckets.clear()
    server = servers["toys"] = Server(_OPTIONS["pointers.pin"])
    storage, path = _TOYS["stores"].open(_WAREHOUSE, _OPTIONS)
    table = builders.keyed_table(storage, f"{path}/db.db/t", buckets=1)
    writer = builders.writer(storage, table)
    for commit in range(6):
        writer.write(builders.rows_of([(key, commit) for key in range(8)]))
    of_toys = {"file.format": ARROW.name, "merge-engine": "oldest", "write-only": "true"}
    builders.set_options(storage, table, of_toys)
    server.locations["db.t"], server.newest["db.t"] = f"{_WAREHOUSE}/db.db/t", 6
    return storage, table


def _run(folder: Path, *words: str, **given: object) -> int:
    """The exit code of a command over the configuration."""
    config = configuration(folder, json.dumps(_CONFIG))
    return main([*words, "--config", config], registered(**{**_TOYS, **given}))


_NAMED = ("--warehouse", _WAREHOUSE, "--metastore", POINTERS.name)
_NAMED += tuple(f"--catalog-option={key}={text}" for key, text in _OPTIONS.items())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("plan --all", "db.t: bucket 0: size_amp, rewrite 6 files"),
        ("inspect --all", "\nsupported\n"),
        ("why db.t", "bucket 0: size_amp, rewrite 6 files"),
        ("tables", "active  db.t"),
        ("verify --all", "6 data files of snapshot 6, 6 footers"),
        ("maintain --all --dry-run", "no changelog would be expired"),
        ("expire --all --dry-run", "no snapshot would be expired"),
        ("orphans --all --dry-run", "nothing left over"),
        ("orphans --all --foreign --dry-run", "nothing left over"),
        ("config check --online", "can be used, and so can its catalogs"),
        ("config show", "defaults.options.arrow.note = as asked"),
        ("doctor", "toys: server"),
    ],
)
def test_a_command_takes_what_is_registered(
    words: str,
    told: str,
    table: tuple[Storage, TableRef],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The doctor tells of the machine, too.
    assert _run(tmp_path, *words.split()) == 0 or words == "doctor"
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("tables", "active  db.t"),
        ("top --once", "\n6 files, "),
        ("config check --online", "can be used, and so can its catalogs"),
    ],
)
def test_a_command_takes_it_of_a_warehouse_without_a_configuration(
    words: str, told: str, table: tuple[Storage, TableRef], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), *_NAMED], registered(**_TOYS)) == 0
    assert told in capsys.readouterr().out


def test_the_schema_of_the_configuration_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"], registered(**_TOYS)) == 0
    section = json.loads(capsys.readouterr().out)["$defs"]["CatalogSection"]
    assert POINTERS.name in section["properties"]["metastore"]["enum"]


@pytest.mark.parametrize("lacking", _TOYS)
def test_what_is_not_registered_is_refused(
    lacking: str, table: tuple[Storage, TableRef], tmp_path: Path
) -> None:
    toys = {name: toy for name, toy in _TOYS.items() if name != lacking}
    config = configuration(tmp_path, json.dumps(_CONFIG))
    assert main(["plan", "--all", "--config", config], registered(**toys)) != 0


def _check(storage: Storage, table: TableRef) -> None:
    """The oldest row of each key is left, in files of the format of the toy."""
    live = builders.live_paths(storage, table, load_state(storage, table))
    assert {path.rpartition(".")[2] for path in live} == {ARROW.name}
    assert builders.read_keyed(storage, table) == dict.fromkeys(range(8), 0)


def test_compact_makes_files_that_verify_reads(
    table: tuple[Storage, TableRef], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(tmp_path, "compact", "--all") == 0
    _check(*table)
    assert _run(tmp_path, "verify", "--all") == 0
    assert "1 data file of snapshot 7, 1 footer" in capsys.readouterr().out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends(CountSnapshots):
    """Has the daemon read its configuration again once the table was compacted, and then stop.

    `made`: for the metrics, for the scheduler, and at each reload that took effect.
    """

    made: list[Recovery] = field(default_factory=list)
    sent: list[signal.Signals] = field(default_factory=list)

    def kinds(self, recovery: Recovery) -> tuple[AnyKind, ...]:
        self.made.append(recovery)
        return (*maintenance_kinds(recovery), self)

    def is_due(
        self, table: DueTable, record: MaintenanceRecord, now_ms: int, wall: WallTime
    ) -> bool:
        return now_ms > record.ended_ms

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> int:
        count = CountSnapshots.run(self, table, under_way)
        number = signal.SIGHUP if len(self.made) < 3 else signal.SIGTERM
        if count > 6 and number not in self.sent:
            self.sent.append(number)
            os.kill(os.getpid(), number)
        return count


def test_serve_compacts_reloads_and_ends(
    table: tuple[Storage, TableRef], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy = _Ends()
    assert _run(tmp_path, "serve", maintenance=toy.kinds) == 0
    assert (len(toy.made), toy.sent) == (3, [signal.SIGHUP, signal.SIGTERM])
    _check(*table)
    assert '"event": "config_loaded"' in capsys.readouterr().out
