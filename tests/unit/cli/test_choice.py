"""Which tables commands take, by which settings; passed-over ones are told with the reason."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compactord.cli.command import main
from tests.unit.cli.warehouses import RULES, answered, append, configuration, keyed, said


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tests work on copies of it."""
    warehouse = tmp_path_factory.mktemp("choice") / "wh"
    keyed(warehouse, "sales.busy", commits=6)
    keyed(warehouse, "sales.lazy", commits=6)
    keyed(warehouse, "sales.held", commits=6)
    keyed(warehouse, "sales.self", commits=6, write__only="false")
    keyed(warehouse, "tmp.x", commits=6)
    return warehouse


@pytest.fixture
def config(warehouse: Path, tmp_path: Path) -> str:
    shutil.copytree(warehouse, tmp_path / "wh")
    return configuration(tmp_path, RULES)


def _outcomes(found: dict[str, object]) -> dict[str, str]:
    tables = found["tables"]
    assert isinstance(tables, list)
    return {each["table"]: each["outcome"] for each in tables}


def test_a_rule_overrides_the_options_of_a_table_for_commands_too(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lazy = ("plan", "--table", "sales.lazy")
    assert len(answered(capsys, *lazy, "--warehouse", f"{tmp_path}/wh")["compactions"]) == 1
    assert answered(capsys, *lazy, "--config", config)["compactions"] == []
    again = ("--option", "num-sorted-run.compaction-trigger=3")
    assert len(answered(capsys, *lazy, "--config", config, *again)["compactions"]) == 1
    (bucket,) = answered(capsys, "inspect", *lazy[1:], "--config", config)["buckets"]
    assert bucket["compaction_trigger"] == 9


def test_all_tables_of_a_configuration_are_those_that_serve_works_on(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answered(capsys, "plan", "--all", "--config", config)
    assert _outcomes(found) == {
        "sales.busy": "done",
        "sales.held": "passed_over",
        "sales.lazy": "done",
        "sales.self": "passed_over",
        "tmp.x": "passed_over",
    }
    assert found["summary"] == {"done": 2, "passed over": 3}
    text = said(capsys, "plan", "--all", "--config", config)
    assert "sales.busy: bucket 0: size_amp, rewrite 6 files" in text
    assert f"sales.held: passed over, paused: by rules.1.set.mode ({config}:9)" in text
    assert "sales.self: passed over, excluded: not write-only" in text
    assert f"discovery.excluding_tables ({config}:4) is tmp\\..*" in text
    assert "5 tables: 2 done, 3 passed over" in text


@pytest.mark.parametrize(
    ("choice", "tables"),
    [
        (["--database", "tmp"], ["tmp.x"]),
        (["--tables", r"sales\.[bl].*"], ["sales.busy", "sales.lazy"]),
        (["--tables", ".*"], ["sales.busy", "sales.held", "sales.lazy", "sales.self", "tmp.x"]),
        (["--all"], ["sales.busy", "sales.held", "sales.lazy", "sales.self", "tmp.x"]),
    ],
    ids=["database", "pattern", "every name", "all"],
)
def test_several_tables_are_taken_one_after_the_other(
    choice: list[str], tables: list[str], config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answered(capsys, "inspect", "--config", config, *choice)
    assert list(_outcomes(found)) == tables


@pytest.mark.parametrize("place", ["--warehouse", "--config"])
@pytest.mark.parametrize(
    "command",
    ["compact", "plan", "inspect", "maintain", "expire", "orphans", "verify", "catalog register"],
)
def test_a_command_that_works_on_tables_needs_a_selection(
    command: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), place, "/nowhere"])
    assert ended.value.code == 2
    assert "--table --database --tables --all is required" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sales.held", "sales.self", "tmp.x"])
def test_a_table_that_is_named_is_taken_though_serve_leaves_it(
    name: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answered(capsys, "plan", "--config", config, "--table", name)
    assert [each["reason"] for each in found["compactions"]] == ["size_amp"]
    trigger = ("--option", "num-sorted-run.compaction-trigger=9")
    text = said(capsys, "compact", "--config", config, "--table", name, *trigger)
    assert f"note: {name}: it is compacted because it was named; serve does not manage it: " in text
    assert f"{name}: nothing to do" in text


def test_what_fails_does_not_keep_the_others_from_their_turn(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path / "wh", "sales.agg", row__tracking_enabled="true")
    schema = tmp_path / "wh/sales.db/busy/schema/schema-0"
    schema.write_text("{")
    found = answered(capsys, "plan", "--config", config, "--database", "sales", code=3)
    outcomes = _outcomes(found)
    assert (outcomes["sales.agg"], outcomes["sales.busy"]) == ("refused", "failed")
    assert outcomes["sales.lazy"] == "done"
    (refused,) = (each for each in found["tables"] if each["table"] == "sales.agg")
    assert "row-tracking" in refused["error"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--warehouse", "WH", "--table", "sales.busy", "--catalog", "lake"], "need --config"),
        (["--config", "FILE", "--all", "--catalog", "lak"], "one of lake; did you mean lake?"),
        (["--config", "FILE", "--tables", "("], "expected a regular expression"),
        (["--config", "FILE", "--tables", "none.*"], "--tables none.* matches no table"),
        (["--config", "FILE", "--database", "none"], "database none matches no table"),
        (["--config", "FILE", "--database", "sale"], "; did you mean sales?"),
        (["--config", "FILE", "--tables", "busy"], "; did you mean sales.busy?"),
        (["--config", "FILE", "--tables", "Sales.busy"], "; did you mean sales.busy"),
        (["--config", "FILE", "--table", "lake.sales.bussy"], "; did you mean sales.busy"),
        (["--config", "FILE", "--table", "pond.sales.busy"], "database pond of warehouse"),
        (["--config", "FILE", "--all", "--set", "limits.slots=1"], "limits.slots"),
        (
            [
                "--config",
                "FILE",
                "--set",
                "catalogs.b={warehouse: /b}",
                "--table",
                "lak.sales.busy",
            ],
            "by --catalog: lake, b; did you mean lake?",
        ),
        (["--config", "none.yaml", "--table", "sales.busy"], "none.yaml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("command", ["compact", "plan", "inspect"])
def test_a_choice_that_means_nothing_ends_with_2(
    command: str,
    arguments: list[str],
    expected: str,
    *,
    config: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"WH": f"{tmp_path}/wh", "FILE": config}
    given = [places.get(argument, argument) for argument in arguments]
    assert expected in said(capsys, command, *given, code=2)


def test_of_several_catalogs_one_must_be_named_with_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path / "wh", "d.t", commits=6)
    keyed(tmp_path / "wh" / "b", "d.t", commits=2)
    path = configuration(tmp_path, "catalogs: {a: {warehouse: WH}, b: {warehouse: WH/b}}")
    text = said(capsys, "plan", "--config", path, "--table", "d.t", code=2)
    assert "give one of them by --catalog: a, b" in text
    for choice in (["--catalog", "b", "--table", "d.t"], ["--table", "b.d.t"]):
        assert said(capsys, "plan", "--config", path, *choice) == "b.d.t: nothing to do\n"
    assert said(capsys, "why", "b.d.t", "--config", path).startswith("b.d.t ")
    text = said(capsys, "plan", "--config", path, "--catalog", "a", "--table", "b.d.t", code=2)
    assert "database b of warehouse" in text
    alone = ["--warehouse", f"{tmp_path}/wh", "--table", "warehouse.d.t"]
    assert "bucket 0: size_amp" in said(capsys, "plan", *alone)
    text = said(capsys, "plan", "--all", "--config", path)
    assert "a.d.t: bucket 0: size_amp" in text
    assert "b.d.t: nothing to do" in text


def test_a_run_waits_for_append_files_as_the_configuration_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append(tmp_path / "wh", "d.t", commits=2)
    path = configuration(tmp_path, "catalogs: {lake: {warehouse: WH}}")
    table = ("--table", "d.t")
    assert answered(capsys, "plan", "--warehouse", f"{tmp_path}/wh", *table)["compactions"] == []
    (found,) = answered(capsys, "plan", "--config", path, *table)["compactions"]
    assert found["reason"] == "append_wait"
    wait = ("--set", "defaults.append_wait=null")
    assert answered(capsys, "plan", "--config", path, *wait, *table)["compactions"] == []


def test_no_pyspark_is_imported_to_look(config: str) -> None:
    commands = [
        ["plan", "--database", "sales"],
        ["inspect", "--database", "sales"],
        ["tables"],
        ["why", "sales.busy"],
        ["expire", "--all", "--dry-run"],
        ["orphans", "--all"],
        ["maintain", "--all"],
        ["doctor"],
    ]
    look = (
        "import sys\nfrom compactord.cli.command import main\n"
        f"for command in {commands!r}:\n"
        f"    assert main([*command, '--config', {config!r}]) == 0, command\n"
        "    assert not {'pyspark', 'py4j'} & set(sys.modules), command"
    )
    run = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
