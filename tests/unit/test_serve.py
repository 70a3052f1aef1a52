"""`compactord config`: what it says of a configuration before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compactord.cli.command import main
from tests.unit.cli.warehouses import keyed


def _check(folder: Path, text: str) -> int:
    path = folder / "compactord.yaml"
    path.write_text(text)
    return main(["config", "check", "--config", str(path)])


def test_a_check_finds_what_serve_would_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "catalogs:\n  a: {warehouse: 's3://me:pw@b/wh'}\n  b: {warehouse: 'file:rel'}\n"
    assert _check(tmp_path, f"{text}spark: {{master: sparc://head:7077}}\n") == 2
    found = capsys.readouterr().err
    assert "compactord.yaml:2: catalogs.a.warehouse is s3://***@b/wh: expected a folder" in found
    assert "compactord.yaml:3: catalogs.b.warehouse is file:rel: expected a folder" in found
    assert "compactord.yaml:4: spark.master is sparc://head:7077: expected local" in found


def test_a_check_finds_settings_of_spark_that_have_no_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "catalogs: {a: {warehouse: /wh}}\nspark: {conf: {spark.master: yarn, spark.x: 1}}\n"
    assert _check(tmp_path, text) == 2
    (problem,) = [line for line in capsys.readouterr().err.splitlines() if "spark." in line]
    assert "spark.conf.spark.master is yarn" in problem
    assert "as it has no effect: give the master by itself" in problem


@pytest.mark.parametrize("master", ["local[2]", "spark://head:7077", "sc://head", "null"])
def test_a_check_needs_neither_the_warehouse_nor_spark(tmp_path: Path, master: str) -> None:
    text = f"catalogs: {{lake: {{warehouse: /not/mounted/yet}}}}\nspark: {{master: '{master}'}}\n"
    assert _check(tmp_path, text.replace("'null'", "null")) == 0


def test_a_check_online_finds_what_is_not_there_and_says_where_it_was_configured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "compactord.yaml"
    online = ["config", "check", "--online", "--config", str(path)]
    path.write_text(f"catalogs:\n  a: {{warehouse: {tmp_path}}}\n  b: {{warehouse: /none/wh}}\n")
    assert main(online) == 2
    found = capsys.readouterr().err
    problem = "catalogs.b.warehouse is /none/wh: expected a folder that exists"
    assert (
        f"compactord: {path}:3: {problem}: create it, mount it first, or set create: true\n"
        == found
    )
    path.write_text(f"catalogs: {{a: {{warehouse: {tmp_path}/new, create: true}}}}\n")
    assert main(online) == 0
    assert not (tmp_path / "new").exists(), "only serve makes it"
    assert "can be used, and so can its catalogs" in capsys.readouterr().out


def test_a_check_online_names_patterns_that_match_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path, "sales.orders")
    path = tmp_path / "compactord.yaml"
    rule = r"rules: [{match: {table: sales\.ordrs}, set: {mode: paused}}]"
    path.write_text(f"catalogs: {{a: {{warehouse: {tmp_path}}}}}\n{rule}\n")
    assert main(["config", "check", "--online", "--config", str(path)]) == 0
    told = capsys.readouterr().err
    pattern = rf"rules.0.match.table ({path}:2) is sales\.ordrs; did you mean sales.orders?"
    assert told == f"compactord: warning: a pattern matches no table: {pattern}\n"


def test_a_value_that_came_from_a_reference_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WAREHOUSE", "s3://hidden/wh")
    assert _check(tmp_path, "catalogs: {lake: {warehouse: '${env:WAREHOUSE}'}}\n") == 2
    found = capsys.readouterr().err
    assert "catalogs.lake.warehouse is ${env:WAREHOUSE}: expected" in found
    assert "hidden" not in found


def test_actions_take_their_options_by_their_whole_names_as_commands_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["config", "check", "--conf", str(tmp_path / "compactord.yaml")])
    assert ended.value.code == 2
    with pytest.raises(SystemExit):
        main(["config", "schema", "--help"])
    assert "Print the JSON Schema of the file." in capsys.readouterr().out


def test_a_check_says_its_problems_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "compactord.yaml"
    path.write_text("catalogs: {a: {warehouse: /wh}}\ndefaults: {append_wait: 10, priorty: 1}\n")
    assert main(["config", "check", "--config", str(path), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["usable"], found["kind"]) == (False, "ConfigInvalid")
    assert [(p["line"], p["key"]) for p in found["problems"]] == [
        (2, "defaults.append_wait"),
        (2, "defaults.priorty"),
    ]
    assert "such as 10 s" in found["problems"][0]["expected"]
    assert found["problems"][1]["hint"] == "did you mean priority?"
    path.write_text("catalogs: {a: {warehouse: /wh}}\n")
    assert main(["config", "check", "--config", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []


def test_the_values_in_effect_are_shown_as_json_with_their_origins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "compactord.yaml"
    path.write_text("catalogs: {a: {warehouse: /wh}}\nspark: {conf: {spark.x.password: s3same}}\n")
    arguments = ["config", "show", "--config", str(path), "--json", "--set", "log.level=debug"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    assert found["values"]["defaults"]["append_wait"] == "30 min"
    assert found["origins"]["log.level"] == "--set"
    assert found["origins"]["catalogs.a.warehouse"] == f"{path}:1"
    assert "s3same" not in text


@pytest.mark.parametrize("folder", ["wh", "a b: #c", "${env:HOME}", "[x]"])
def test_a_warehouse_needs_no_file(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warehouse = str(tmp_path / folder)
    arguments = ["config", "show", "--warehouse", warehouse, "--set", "defaults.priority=80"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["path"] == "no file"
    expected = warehouse.replace("${", "$${")
    assert found["values"]["catalogs"]["warehouse"]["warehouse"] in (warehouse, expected)
    assert found["values"]["defaults"]["priority"] == 80
    assert found["origins"]["limits.memory"] == "default"


def test_a_file_and_a_warehouse_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--config", "x.yaml", "--warehouse", "/wh"])
    assert ended.value.code == 2
    assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_a_completion_knows_commands_and_their_options(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    found = capsys.readouterr().out
    option = "--append-wait" if shell != "tcsh" else "append-wait"
    for word in ("inspect", option, "check", "changelogs branches done"):
        assert word in found
