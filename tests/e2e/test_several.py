"""`compact` of several tables by the rules of a configuration: one engine, summary, exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord.state.table_state import load_state
from tests.e2e.command import Commands
from tests.unit.cli.warehouses import LOCAL, append, configuration, keyed

pytestmark = pytest.mark.spark


def test_one_pass_over_all_tables_of_a_configuration(commands: Commands, tmp_path: Path) -> None:
    warehouse = tmp_path / "wh"
    tables = {
        "d.a": keyed(warehouse, "d.a", commits=6),
        "d.b": append(warehouse, "d.b", commits=6),
        "d.held": keyed(warehouse, "d.held", commits=6),
        "d.lazy": keyed(warehouse, "d.lazy", commits=6),
    }
    keyed(warehouse, "d.agg", row__tracking_enabled="true")
    config = configuration(
        tmp_path,
        """\
        catalogs: {lake: {warehouse: WH}}
        spark: {master: "local[2]"}
        rules:
        - match: {table: "d\\\\.held"}
          set: {mode: paused}
        - match: {table: "d\\\\.lazy"}
          set: {options: {num-sorted-run.compaction-trigger: 9}}
        """,
    )
    command = commands.start("compact", "--all", "--config", config, "--json")
    outcome = command.outcome()
    command.assert_nothing_remains()
    assert outcome.code == 4, outcome.err
    found = {each["table"]: each for each in outcome.found["tables"]}
    assert {name: each["outcome"] for name, each in found.items()} == {
        "d.a": "done",
        "d.agg": "refused",
        "d.b": "done",
        "d.held": "passed_over",
        "d.lazy": "done",
    }
    assert outcome.found["summary"] == {"done": 3, "refused": 1, "passed over": 1}
    # The engine of the first table is that of the second.
    assert found["d.a"]["start_seconds"] > 1 > found["d.b"]["start_seconds"]
    counts = {name: load_state(LOCAL, ref).files.file_count for name, ref in tables.items()}
    assert counts == {"d.a": 1, "d.b": 1, "d.held": 6, "d.lazy": 6}
    again = commands.run("compact", "--config", config, "--tables", r"d\.[ab]")
    assert (again.code, "2 tables: 2 done" in again.out) == (0, True), again.err
