from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from compactord import ids
from compactord.cli import arguments
from compactord.cli.argument_values import engine_config
from compactord.cli.command import main
from compactord.cli.running import run_parsed
from compactord.clock import SystemClock
from compactord.config.policy import config_of_warehouse
from compactord.errors import UsageError
from compactord.paimon.schema import TableRef
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.storage.local import LocalStorage
from compactord.table.jobs import CompactTotals
from compactord.table.report import totals_text
from compactord_demo.writer import WriteOnlyWriter, create_table
from tests.unit.state.table_by_day import MINUTE, TableByDay

_STRING = AtomicType(root=TypeRoot.VARCHAR, precision=2**31 - 1)


def _keyed_table(warehouse: Path, *, commits: int, **options: str) -> Path:
    """`d.t` with one bucket and `commits` level-0 files."""
    table = TableRef(database="d", name="t", location=f"{warehouse}/d.db/t")
    fields = [
        DataField(id=0, name="k", type=AtomicType(root=TypeRoot.BIGINT, nullable=False)),
        DataField(id=1, name="v", type=_STRING),
    ]
    storage = LocalStorage()
    create_table(storage, table, fields, primary_keys=["k"], options={"bucket": "1", **options})
    writer = WriteOnlyWriter(storage, table, owner=ids.this_process(), clock=SystemClock())
    for commit in range(commits):
        keys = np.arange(commit, commit + 100)
        writer.write(pa.table({"k": keys, "v": keys.astype(str)}))
    return Path(table.location)


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--table", "d.t", "--option", "num-sorted-run.compaction-triger=3"], "did you mean"),
        (["--table", "d.t", "--strategy", "ful"], "it is one of minor, full; did you mean full?"),
        (["--table", "d.t", "--option", "num-levels=many"], "whole number"),
        (["--table", "d.t", "--option", "num-levels=1"], "num-levels"),
        (["--table", "d.t", "--strategy", "huge"], "minor, full"),
        (["--table", "d.t", "--partition", "day=1"], "not a partition key"),
        (["--table", "d.t", "--partition", "day"], "key=value"),
        (["--table", "d.none"], "does not exist"),
        (["--table", "none.t"], "does not exist"),
        (["--table", "t"], "database.table"),
        (["--table", "d.t", "--spark-conf", "x"], "key=value"),
        (["--table", "d.t", "--memory", "lots"], "--memory"),
        (["--table", "d.t", "--memory", "536870912"], "a size with its unit"),
        (["--table", "d.t", "--append-wait", "10"], "such as 10 s or 10 min"),
        (["--table", "d.t", "--quiet-for", "900"], "such as 900 s or 900 min"),
        (["--table", "d.t", "--orphan-grace", "soon"], "--orphan-grace"),
        (["--table", "d.t", "--task-timeout", "soon"], "--task-timeout"),
        (["--table", "d.t", "--task-timeout", "999 ms"], "1 s or more"),
        (["--table", "d.t", "--orphan-grace", "59 min"], "1 h or more"),
        (["--table", "d.t", "--orphan-grace", "86400000"], "with its unit"),
        (["--table", "d.t", "--quiet-for", "a while"], "--quiet-for"),
        (["--table", "d.t", "--master", ""], "is not a Spark master"),
        (["--table", "d.t", "--master", "local[0]"], "is not a Spark master"),
        (["--table", "d.t", "--spark-conf", "spark.master=local"], "give the master by itself"),
        (["--table", "d.t", "--spark-conf", "executor.memory=1g"], "begin with 'spark.'"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
@pytest.mark.parametrize("command", ["compact", "plan"])
def test_what_cannot_be_meant_ends_with_2_and_touches_nothing(
    command: str,
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = _keyed_table(tmp_path, commits=6)
    before = _files(table)
    assert main([command, "--warehouse", str(tmp_path), *arguments]) == 2
    assert expected in capsys.readouterr().err
    assert _files(table) == before


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (["--spark-conf", "spark.hadoop.fs.s3a.secret.key:s3same"], "***"),
        (["--spark-cnf", "spark.hadoop.fs.s3a.secret.key=s3same"], "did you mean --spark-conf?"),
        (["--spark-cnf=spark.hadoop.fs.s3a.secret.key=s3same"], "did you mean --spark-conf?"),
        (["--master", "sc:head;token=s3same"], "***"),
        (["--master", "SC://head/;x-org=s3same"], "***"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_is_wrong_with_a_secret_argument_is_said_without_the_secret(
    wrong: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _keyed_table(tmp_path, commits=1)
    try:
        code = main(["compact", "--json", "--warehouse", str(tmp_path), "--table", "d.t", *wrong])
    except SystemExit as ended:
        code = ended.code
    found = capsys.readouterr()
    assert code == 2
    assert expected in found.err
    assert "s3same" not in found.err + found.out


@pytest.mark.parametrize(
    ("arguments", "command", "hint"),
    [
        (["compact", "--partitoin", "a=1"], "compactord compact: ", "mean --partition?"),
        (["inspect", "--strategy", "full"], "compactord inspect: ", "arguments: --strategy"),
        (["inspect", "sales.orders"], "compactord inspect: ", "arguments: sales.orders"),
        (["inspect", "--worst", "x"], "compactord inspect: ", "argument --worst: invalid int"),
        (["config"], "compactord config: ", "the following arguments are required: ACTION"),
        (["serve", "--confg", "x"], "compactord serve: ", "mean --config?"),
        (["config", "check", "--sett", "x=1"], "compactord config check: ", "mean --set?"),
        (["top", "--url", "http://h", "--onec"], "compactord top: ", "mean --once?"),
        (["tabels"], "compactord: ", "invalid choice: 'tabels'; did you mean tables?"),
        (["config", "chek"], "compactord config: ", "'chek'; did you mean check?"),
        (["inspec", "--all"], "compactord: ", "did you mean inspect?"),
        (["xyzzy"], "compactord: ", "(choose from 'compact', "),
    ],
)
def test_an_unknown_argument_is_answered_by_its_command(
    arguments: list[str], command: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = ["--warehouse", "/w", "--table", "d.t"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, *(needed if arguments[0] in ("compact", "inspect") else [])])
    found = capsys.readouterr().err
    assert ended.value.code == 2
    assert found.startswith(command)
    assert hint in found
    assert found.count("\n") == 1


def test_one_is_counted_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trigger = "--option", "num-sorted-run.compaction-trigger=1"
    _keyed_table(tmp_path, commits=1)
    where = ["--warehouse", str(tmp_path), "--table", "d.t", *trigger]
    assert main(["inspect", *where]) == main(["plan", *where, "--strategy", "full"]) == 0
    found = capsys.readouterr().out
    assert "compaction-trigger 1 sorted run (*)" in found
    assert "grade 1 file (" in found
    totals = CompactTotals(
        snapshots=[9],
        compactions=1,
        files_in=1,
        files_out=1,
        rows_in=1,
        rows_out=1,
        upgraded_files=1,
        dropped=1,
        seconds=0.261,
        start_seconds=5.14,
    )
    text = "\n".join(totals_text("d.t", totals))
    assert "d.t: 1 compaction in 1 snapshot (9..9), 0.26 s, after 5.1 s for Spark\n" in text
    assert not re.search(r"\b1 \w+s\b(?! for)", text.replace("1 s for", ""))


_NO_WORK = ("snapshots", "files_in", "files_out", "bytes_in", "bytes_out", "rows_in", "rows_out")


def test_a_failure_is_one_json_object_with_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--warehouse", str(tmp_path), "--table", "d.t", "--json"]
    assert main(["compact", *where]) == 2
    found = json.loads(capsys.readouterr().out)
    assert all(not found[key] for key in (*_NO_WORK, "seconds", "start_seconds"))
    assert (found["kind"], str(tmp_path) in found["error"]) == ("TableNotFound", True)
    assert main(["plan", *where]) == 2
    assert set(json.loads(capsys.readouterr().out)) == {"error", "kind"}


@pytest.mark.parametrize(
    "wrong", [["--table"], ["--tabel", "d.t"], ["--strategy"]], ids=lambda wrong: wrong[0]
)
def test_arguments_that_are_not_understood_are_an_object_too(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compact", "--json", "--warehouse", "/w", *wrong])
    assert ended.value.code == 2
    found = capsys.readouterr()
    assert wrong[0] in found.err or "--table" in found.err
    assert json.loads(found.out)["kind"] == "UsageError"


def _in_process(code: str, **streams: Any) -> int:
    """The exit code of a Python of its own: what is tested takes a process down, or its streams."""
    return subprocess.run([sys.executable, "-c", code], **streams).returncode


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_stderr_that_takes_nothing_changes_no_exit_code_and_no_result(tmp_path: Path) -> None:
    _keyed_table(tmp_path, commits=2)
    run = (
        "from compactord.cli.command import main\n"
        "raise SystemExit(main([{}, '--warehouse', {!r}, {}]))"
    )
    with open("/dev/full", "w") as full, (tmp_path / "out").open("w+") as out:
        code = run.format("'plan'", str(tmp_path), "'--table', 'd.none'")
        assert _in_process(code, stderr=full) == 2
        code = run.format("'compact'", str(tmp_path), "'--table', 'd.t', '--json'")
        assert _in_process(code, stderr=full, stdout=out) == 0
        out.seek(0)
        assert json.loads(out.read())["snapshots"] == []


def _partitioned_table(warehouse: Path, values: list[str | None]) -> None:
    """`d.t` with two small files in each of these partitions `p`."""
    table = TableRef(database="d", name="t", location=f"{warehouse}/d.db/t")
    fields = [DataField(id=0, name="p", type=_STRING), DataField(id=1, name="v", type=_STRING)]
    storage = LocalStorage()
    options = {"bucket": "-1", "compaction.min.file-num": "2"}
    create_table(storage, table, fields, partition_keys=["p"], options=options)
    writer = WriteOnlyWriter(storage, table, owner=ids.this_process(), clock=SystemClock())
    for _ in range(2):
        writer.write(pa.table({"p": pa.array(values, pa.string()), "v": ["x"] * len(values)}))


@pytest.mark.parametrize(
    ("asked", "planned"),
    [
        (["p=__DEFAULT_PARTITION__"], ["p=__DEFAULT_PARTITION__"]),
        (["p=a%2Cb"], ["p=a,b"]),
        (["p=a%2cb", "p=c%3Dd"], ["p=a,b", "p=c%3Dd"]),
    ],
    ids=["null", "comma", "equals sign"],
)
def test_partitions_of_any_value_can_be_asked_for(
    asked: list[str], planned: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _partitioned_table(tmp_path, [None, "a,b", "c=d", "e"])
    where = [argument for text in asked for argument in ("--partition", text)]
    assert main(["plan", "--warehouse", str(tmp_path), "--table", "d.t", "--json", *where]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["partition"] for each in found["compactions"]] == planned
    assert found["absent_partitions"] == []


@pytest.mark.parametrize("command", ["compact", "plan"])
def test_a_partition_without_live_files_is_told_and_is_no_failure(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _partitioned_table(tmp_path, ["a"])
    where = ["--warehouse", str(tmp_path), "--table", "d.t", "--partition", "p=b"]
    assert main([command, *where]) == 0
    assert "no live files in partition p=b" in capsys.readouterr().out
    assert main([command, *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["absent_partitions"] == ["p=b"]


@pytest.mark.parametrize("command", ["compact --table d.t", "serve"])
def test_a_java_home_that_leads_nowhere_ends_the_command_at_once(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _keyed_table(tmp_path, commits=6)
    before = _files(tmp_path)
    monkeypatch.setenv("JAVA_HOME", f"{tmp_path}/none")
    assert main([*command.split(), "--warehouse", str(tmp_path)]) == 69
    expected = f"compactord: JAVA_HOME={tmp_path}/none has no Java that runs. Correct or unset"
    assert expected in capsys.readouterr().err
    assert _files(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["compact", "--memory", "512"], "--memory '512': expected a size with its unit, such as"),
        (["compact", "--memory", "1 mb"], "--memory '1 mb': expected 32.0 MiB or more"),
        (["plan", "--append-wait", "10"], "--append-wait '10': expected a duration with its unit"),
        (["plan", "--orphan-grace", "1 min"], "--orphan-grace '1 min': expected 1 h or more"),
        (["orphans", "--orphan-grace", "90"], "--orphan-grace '90': expected a duration with its"),
        (["orphans", "--foreign", "--older-than", "1 s"], "--older-than '1 s': expected 1 h or"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_amounts_are_checked_before_the_warehouse_is_read(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--warehouse", "/none", "--all"]) == 2
    assert expected in capsys.readouterr().err


def test_a_missing_warehouse_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "none")
    assert main(["inspect", "--warehouse", missing, "--table", "d.t"]) == 2
    assert missing in capsys.readouterr().err


def test_nothing_to_do_is_success_and_starts_no_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _keyed_table(tmp_path, commits=2)
    assert main(["compact", "--warehouse", str(tmp_path), "--table", "d.t", "--json"]) == 0
    totals = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert totals["snapshots"] == []
    assert totals["start_seconds"] == 0
    for key in ("files_in", "files_out", "bytes_in", "bytes_out", "rows_in", "rows_out", "seconds"):
        assert totals[key] == 0


def test_a_refused_table_is_named_with_its_reason_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = _keyed_table(tmp_path, commits=6)
    schema = table / "schema" / "schema-0"
    content = json.loads(schema.read_text())
    content["options"]["row-tracking.enabled"] = "true"
    schema.write_text(json.dumps(content))
    before = _files(table)
    common = ["--warehouse", str(tmp_path), "--table", "d.t"]
    assert main(["compact", *common]) == 4
    assert "row-tracking" in capsys.readouterr().err
    assert main(["plan", *common]) == 4
    capsys.readouterr()
    assert main(["inspect", *common, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["supported"] is False
    assert any("row-tracking" in reason for reason in found["reasons"])
    assert _files(table) == before


def test_a_plan_names_its_reason_and_does_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = _keyed_table(tmp_path, commits=6)
    before = _files(table)
    common = ["plan", "--warehouse", str(tmp_path), "--table", "d.t"]
    assert main([*common, "--json"]) == 0
    (planned,) = json.loads(capsys.readouterr().out)["compactions"]
    assert planned["reason"] == "size_amp"
    assert planned["output_level"] == 5
    assert len(planned["files"]) == 6
    assert main(common) == 0
    assert "bucket 0: size_amp, rewrite 6 files" in capsys.readouterr().out
    assert _files(table) == before


def test_inspect_counts_runs_against_the_triggers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _keyed_table(tmp_path, commits=9)
    common = ["inspect", "--warehouse", str(tmp_path), "--table", "d.t"]
    assert main([*common, "--json"]) == 0
    (bucket,) = json.loads(capsys.readouterr().out)["buckets"]
    assert (bucket["sorted_runs"], bucket["stop_trigger"]) == (9, 8)
    assert main(common) == 0
    assert "9 !!" in capsys.readouterr().out


def test_rewriters_are_named_and_what_they_rewrote_rests_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = TableRef(database="d", name="t", location=f"{tmp_path}/d.db/t")
    now_ms = SystemClock().now_ms()
    table = TableByDay(storage=LocalStorage(), table=ref, now_ms=now_ms)
    where = ["--warehouse", str(tmp_path), "--table", "d.t"]

    def said(*arguments: str) -> str:
        assert main([*arguments, *where]) == 0
        return capsys.readouterr().out

    assert json.loads(said("inspect", "--json"))["rewrite"] is None
    assert "rewritten" not in said("inspect")
    table.rewrite(0, ago=3)
    assert json.loads(said("inspect", "--json"))["rewrite"] == {
        "snapshot_id": 2,
        "commit_user": "u",
        "operation": "UPDATE",
        "time_ms": now_ms - 3 * MINUTE,
    }
    assert "note: rewritten by u in snapshot 2 (UPDATE), 20" in said("inspect")
    for quiet, resting in (([], []), (["2 min"], []), (["1 h"], ["day=0"])):
        plan = json.loads(said("plan", "--json", *(("--quiet-for", *quiet) if quiet else ())))
        assert len(plan["compactions"]) == 3 - len(resting)
        assert list(plan["resting"]) == resting
        for why in (*plan["resting"].values(), *plan["notes"]):
            assert re.fullmatch(r"(.* )?skipped: rewritten 3 min( \d+ s)? ago by u", why)


def test_an_interrupted_look_ends_with_3_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def look(args: argparse.Namespace) -> int:
        signal.raise_signal(signal.SIGINT)
        return 0

    args = argparse.Namespace(
        command=look, json=True, verbose=False, figures_of_error=lambda error: {}
    )
    assert run_parsed(args) == 3
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": "interrupted", "kind": "KeyboardInterrupt"}
    assert err == "compactord: interrupted\n"


@pytest.mark.parametrize("place", ["schema/schema-0", "snapshot/snapshot-6", "manifest"])
def test_damaged_metadata_ends_with_3_and_names_the_file(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = _keyed_table(tmp_path, commits=6)
    path = table / place
    if path.is_dir():
        path = max(path.glob("manifest-list-*"), key=lambda p: p.stat().st_mtime_ns)
    path.write_bytes(path.read_bytes()[:-20])
    before = _files(table)
    assert main(["compact", "--warehouse", str(tmp_path), "--table", "d.t"]) == 3
    assert path.name in capsys.readouterr().err
    assert _files(table) == before


def test_engine_arguments_may_refer_to_secrets_that_no_command_line_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3same")
    (tmp_path / "key").write_text("k3y\n")
    parser = argparse.ArgumentParser()
    parser.set_defaults(registries=None)
    arguments.engine(parser)
    given = [
        *("--master", "sc://head/;token=${env:TOKEN}"),
        *("--spark-conf", f"spark.secret=${{file:{tmp_path}/key}}"),
        *("--spark-conf", "spark.theirs=$${spark.secret}"),
    ]
    config = config_of_warehouse("/wh").config
    found = engine_config(parser.parse_args(given), config)
    assert found.spark.master == "sc://head/;token=s3same"
    assert found.spark.settings == {
        "spark.app.name": "compactord",
        "spark.secret": "k3y",
        "spark.theirs": "${spark.secret}",
    }
    with pytest.raises(UsageError, match=r"--spark-conf spark.a has \$\{env:NONE\}: .* to be set"):
        engine_config(parser.parse_args(["--spark-conf", "spark.a=${env:NONE}"]), config)
