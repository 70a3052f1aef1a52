"""`compactord tables`: every table has a state, and a reason that a person can act on."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord.service.view import TableStatus
from tests.builders import make_branch
from tests.unit.cli.warehouses import (
    LOCAL,
    RULES,
    answered,
    append,
    configuration,
    keyed,
    said,
)


@pytest.fixture
def config(tmp_path: Path) -> str:
    warehouse = tmp_path / "wh"
    keyed(warehouse, "sales.busy", commits=9)
    keyed(warehouse, "sales.held", commits=6)
    keyed(warehouse, "sales.self", commits=3, write__only="false")
    keyed(warehouse, "tmp.x", commits=2)
    keyed(warehouse, "sales.agg", row__tracking_enabled="true")
    append(warehouse, "logs.raw", commits=3)
    damaged = keyed(warehouse, "sales.torn", commits=1)
    (Path(damaged.location) / "snapshot" / "snapshot-1").write_text("{")
    return configuration(tmp_path, RULES)


def test_every_table_has_its_state_and_the_reason_for_it(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answered(capsys, "tables", "--config", config, code=3)
    states = {each["table"]: (each["state"], each["why"]) for each in found["tables"]}
    expected = {
        "sales.busy": ("active", ""),
        "logs.raw": ("active", ""),
        "sales.held": ("paused", f"by rules.1.set.mode ({config}:9)"),
        "sales.self": (
            "excluded",
            "not write-only, so its writers compact it themselves; "
            "defaults.only_write_only (default)",
        ),
        "tmp.x": ("excluded", f"discovery.excluding_tables ({config}:4) is tmp\\..*"),
        "sales.agg": (
            "unsupported",
            "option row-tracking.enabled=true: every row's id must be carried over",
        ),
    }
    torn = states.pop("sales.torn")
    assert states == expected
    assert (torn[0], "snapshot-1" in torn[1]) == ("error", True)
    assert found["states"] == {
        "active": 2,
        "paused": 1,
        "excluded": 2,
        "unsupported": 1,
        "error": 1,
    }
    # A service alone knows halts and quarantined buckets; all other states occur here.
    assert {status.value for status in TableStatus} - set(found["states"]) == {"halted", "degraded"}


def test_runs_stand_against_the_triggers_that_the_rules_set(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answered(capsys, "tables", "--config", config, "--tables", r"sales\.busy|logs\.raw")
    raw, busy = found["tables"]
    assert (busy["kind"], busy["merge_engine"]) == ("primary-key", "deduplicate")
    runs = ("sorted_runs_max", "compaction_trigger", "stop_trigger")
    assert [busy[key] for key in runs] == [9, 5, 8]
    assert (raw["kind"], raw["small_files"], "sorted_runs_max" in raw) == (
        "append-unaware",
        3,
        False,
    )
    trigger = "defaults.options.num-sorted-run.compaction-trigger=10"
    text = said(capsys, "tables", "--config", config, "--set", trigger, code=3)
    assert "9 of 10, 13" in text
    text = said(capsys, "tables", "--config", config, code=3)
    assert "9 !! of 5, 8" in text
    assert "6 * of 5, 8" in text
    assert "3 small" in text
    assert "7 tables: 2 active, 1 error, 2 excluded, 1 paused, 1 unsupported" in text
    assert "what it has halted or quarantined: --url http://HOST:9464" in text


def test_a_warehouse_without_a_configuration_is_listed_as_serve_would_see_it(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answered(capsys, "tables", "--warehouse", f"{tmp_path}/wh", code=3)
    states = {each["table"]: each["state"] for each in found["tables"]}
    assert (states["tmp.x"], states["sales.held"], states["sales.self"]) == (
        "active",
        "active",
        "excluded",
    )


@pytest.mark.parametrize(
    ("command", "choice"),
    [
        ("tables", ()),
        ("maintain", ("--all",)),
        ("plan", ("--tables", "sales.*")),
        ("compact", ("--database", "sales")),
    ],
)
def test_an_empty_warehouse_has_no_tables_yet(
    command: str, choice: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = (command, "--warehouse", str(tmp_path), *choice)
    assert said(capsys, *where) == "no tables yet\n"
    keyed(tmp_path, "logs.clicks")
    if choice not in ((), ("--all",)):
        assert "matches no table" in said(capsys, *where, code=2)


def test_a_warehouse_that_is_not_there_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "does not exist" in said(capsys, "tables", "--warehouse", f"{tmp_path}/no", code=2)


@pytest.mark.parametrize("folder", ["sales.db", "sales.db/busy"])
@pytest.mark.parametrize(
    ("command", "expected", "code"),
    [
        ("tables", "; its warehouse is WH", 2),
        ("expire --all --dry-run", "; its warehouse is WH", 2),
        ("plan --table sales.busy", "; its warehouse is WH", 2),
        ("top --once", "; its warehouse is WH", 2),
        ("config check --online", "expected WH (", 2),
        ("serve", "expected WH (", 2),
        ("doctor", "give the warehouse WH", 3),
    ],
)
def test_a_folder_within_the_warehouse_is_refused_with_the_warehouse(
    command: str,
    expected: str,
    code: int,
    folder: str,
    *,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    keyed(tmp_path, "sales.busy", commits=1)
    text = said(capsys, *command.split(), "--warehouse", f"{tmp_path}/{folder}", code=code)
    assert expected.replace("WH", str(tmp_path)) in text


def test_top_has_the_same_states_and_reasons(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--warehouse", f"{tmp_path}/wh")
    listed = answered(capsys, "tables", *where, code=3)["tables"]
    shown = answered(capsys, "top", *where, "--once")["tables"]
    states = {
        "{database}.{table}".format(**each["name"]): (each["status"], each["note"])
        for each in shown
    }
    assert states == {each["table"]: (each["state"], each["why"]) for each in listed}


def test_why_names_a_rule_that_looks_like_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path / "wh", "sales.orders")
    rule = 'rules:\n- {match: {table: "sales\\\\.ordrs"}, set: {mode: paused}}\n'
    config = configuration(tmp_path, "catalogs:\n  lake: {warehouse: WH}\n" + rule)
    told = said(capsys, "why", "sales.orders", "--config", config)
    assert f"a rule looks similar: rules.0.match.table ({config}:4) is sales\\.ordrs\n" in told


def test_branches_are_listed_as_the_rules_say_and_taken_when_they_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = keyed(tmp_path / "wh", "sales.busy", commits=6)
    keyed(tmp_path / "wh", "sales.other", commits=1)
    for branch in ("b", "old"):
        make_branch(LOCAL, table, branch, 6)
    rule = 'rules:\n- {match: {table: "sales\\\\.busy"}, set: {branches: [main, b]}}\n'
    config = configuration(tmp_path, "catalogs:\n  lake: {warehouse: WH}\n" + rule)
    found = answered(capsys, "tables", "--config", config)
    states = {each["table"]: each["state"] for each in found["tables"]}
    branch = "sales.busy$branch_b"
    assert states == dict.fromkeys(("sales.busy", branch, "sales.other"), "active")
    (old,) = answered(capsys, "tables", "--config", config, "--table", "sales.busy$branch_old")[
        "tables"
    ]
    assert old["state"] == "excluded"
    assert f"rules.0.set.branches ({config}:4) does not name old" in old["why"]
    only = answered(capsys, "tables", "--config", config, "--tables", r".*\$branch_.*")
    assert [each["table"] for each in only["tables"]] == [branch]
    for place in (("--config", config), ("--warehouse", f"{tmp_path}/wh")):
        shown = answered(capsys, "inspect", *place, "--table", branch)
        assert (shown["table"], shown["location"]) == (branch, table.location)
        plan = answered(capsys, "plan", *place, "--table", branch)
        assert len(plan["compactions"]) == 1
        assert answered(capsys, "expire", *place, "--table", branch)["snapshots"] == 0
        assert answered(capsys, "verify", *place, "--table", branch, "--pages", "all")["whole"]
