"""What `compactord` commands do and say as processes."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
from pathlib import Path
from typing import Any

import pytest

from compactord.paimon.snapshot import snapshot_ids
from compactord.state.table_state import load_state
from tests import builders
from tests.e2e import tables
from tests.e2e.command import SECONDS_MAX, Commands, Outcome, read_terminal
from tests.e2e.tables import LOCAL, of_table
from tests.events import untold

pytestmark = pytest.mark.spark
ON_TWO_CORES = ("--master", "local[2]")
JSON_KEYS = {
    "snapshots",
    "files_in",
    "files_out",
    "bytes_in",
    "bytes_out",
    "rows_in",
    "rows_out",
    "seconds",
    "start_seconds",
}


def _planned(commands: Commands, warehouse: Path, *arguments: str) -> list[dict[str, Any]]:
    outcome = commands.run("plan", *of_table(warehouse), "--json", *arguments)
    assert outcome.code == 0, outcome.err
    compactions: list[dict[str, Any]] = outcome.found["compactions"]
    return compactions


def _sizes(warehouse: Path) -> list[int]:
    state = load_state(LOCAL, tables.ref(warehouse))
    return [
        file.file_size
        for bucket in state.files.bucket_ids()
        for file in state.files.files_in(bucket)
    ]


def test_compact_does_all_that_was_planned_and_says_what_it_did(
    commands: Commands, tmp_path: Path
) -> None:
    expected = tables.small_keyed(tmp_path)
    sizes = _sizes(tmp_path)
    rows = load_state(LOCAL, tables.ref(tmp_path)).snapshot
    assert rows is not None
    planned = _planned(commands, tmp_path)
    command = commands.start("compact", *of_table(tmp_path), "--json", *ON_TWO_CORES)
    outcome = command.outcome()
    command.assert_nothing_remains()
    assert outcome.code == 0, outcome.err
    found = outcome.found
    assert found.keys() >= JSON_KEYS
    assert found["snapshots"] == list(snapshot_ids(LOCAL, tables.location(tmp_path))[6:])
    assert found["compactions"] == len(planned) == 2
    assert found["files_in"] == sum(len(compaction["files"]) for compaction in planned)
    assert found["rows_in"] == rows.total_record_count
    assert found["bytes_in"] == sum(sizes)
    assert found["files_out"] == 2
    assert found["bytes_out"] == sum(_sizes(tmp_path))
    assert found["rows_out"] == len(expected)
    assert 0 < found["seconds"] < 60
    assert 0 < found["start_seconds"] < 60
    assert len(outcome.out.splitlines()) == 1
    assert "db.t: 2 compactions" in outcome.err
    assert builders.read_keyed(LOCAL, tables.ref(tmp_path)) == expected
    builders.check_chain(LOCAL, tables.ref(tmp_path))
    assert tables.leftovers(tmp_path) == set()
    assert _planned(commands, tmp_path) == []
    again = commands.run("compact", *of_table(tmp_path), "--json")
    assert (again.code, again.found["snapshots"]) == (0, [])


def test_progress_is_shown_on_a_terminal_and_erased_at_the_end(
    commands: Commands, tmp_path: Path
) -> None:
    # Whatever characters its name has, a folder is a folder.
    warehouse = tmp_path / "a b%20'ü#$?*[x]"
    expected = tables.small_keyed(warehouse)
    ours, theirs = pty.openpty()
    command = commands.start(
        "compact", *of_table(warehouse), *ON_TWO_CORES, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said = read_terminal(ours)
    assert command.process.wait(SECONDS_MAX) == 0
    assert "\r\x1b[Kstarting Spark (local[2]) …" in said
    assert "\r\x1b[K1 of 2 compactions" in said or "\r\x1b[K2 of 2 compactions" in said
    *_, last_progress, end = said.split("\r\x1b[K")
    assert (
        last_progress.endswith(("snapshot", "snapshots")) or "2 of 2 compactions" in last_progress
    )
    assert end.startswith("db.t: 2 compactions in")
    assert "{" not in said, "events are for people here"
    assert builders.read_keyed(LOCAL, tables.ref(warehouse)) == expected
    assert tables.leftovers(warehouse) == set()


def test_verbose_says_each_step_and_the_end_says_both_times(
    commands: Commands, tmp_path: Path
) -> None:
    tables.small_keyed(tmp_path)
    outcome = commands.run("compact", "-v", *of_table(tmp_path), *ON_TWO_CORES)
    events = [json.loads(line) for line in outcome.err.splitlines()]
    names = [event["event"] for event in events]
    steps = [name for name in dict.fromkeys(names) if not name.startswith("spark_")]
    assert steps == ["compaction_planned", "compaction_finished", "commit_succeeded"]
    assert names.index("spark_starting") < names.index("spark_started")
    assert names.index("spark_started") < names.index("compaction_finished")
    planned = next(event for event in events if event["event"] == "compaction_planned")
    assert (planned["catalog"], planned["database"], planned["table"]) == ("warehouse", "db", "t")
    assert list(untold(events)) == []
    assert re.search(r"\(\S+\), \d+\.\d\d s, after \d+\.\d s for Spark\n", outcome.out)


@pytest.mark.parametrize("command", ["compact", "plan", "inspect"])
def test_help_has_examples(command: str, commands: Commands) -> None:
    outcome = commands.run(command, "--help")
    assert outcome.code == 0
    assert "examples:" in outcome.out
    assert f"  compactord {command}" in outcome.out


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_ends_the_command_quietly(
    unbuffered: str, commands: Commands, tmp_path: Path
) -> None:
    tables.small_keyed(tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    outcome = _said_into(commands, tmp_path, writer, unbuffered=unbuffered)
    assert outcome.code == 3
    assert outcome.err == ""


def test_help_that_nobody_reads_ends_quietly(commands: Commands) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    buffered = {"PYTHONUNBUFFERED": ""}
    command = commands.start("compact", "--help", stdout=writer, environment=buffered)
    os.close(writer)
    outcome = command.outcome()
    assert (outcome.code, outcome.err) == (3, "")


def test_output_that_cannot_be_written_is_told(commands: Commands, tmp_path: Path) -> None:
    tables.small_keyed(tmp_path)
    outcome = _said_into(commands, tmp_path, os.open("/dev/full", os.O_WRONLY))
    assert outcome.code == 3
    assert "No space left on device" in outcome.err
    assert outcome.err.startswith("compactord: ")


def _said_into(
    commands: Commands, warehouse: Path, output: int, *, unbuffered: str = ""
) -> Outcome:
    """How `plan` ends with this file as its standard output."""
    environment = {"PYTHONUNBUFFERED": unbuffered}
    command = commands.start("plan", *of_table(warehouse), stdout=output, environment=environment)
    os.close(output)
    return command.outcome()


def test_temporary_files_may_lie_in_a_deep_folder(commands: Commands, tmp_path: Path) -> None:
    tables.small_keyed(tmp_path)
    # With Spark's own folder in it, a few characters too long for the name of a socket.
    ours = "compactord-spark-12345678901234.0"
    folder = commands.scratch / ("d" * (62 - len(f"{commands.scratch}//{ours}")))
    folder.mkdir()
    outcome = commands.start(
        "compact", *of_table(tmp_path), *ON_TWO_CORES, environment={"TMPDIR": str(folder)}
    ).outcome()
    assert outcome.code == 0, outcome.err


def test_an_engine_that_cannot_start_is_told_once_and_ends_with_69(
    commands: Commands, tmp_path: Path
) -> None:
    tables.small_keyed(tmp_path)
    before = tables.digest(tmp_path)
    tiny = ("--spark-conf", "spark.driver.memory=100m")
    outcome = commands.run("compact", *of_table(tmp_path), "--json", *tiny)
    assert outcome.code == 69
    assert outcome.found["kind"] == "EngineUnavailable"
    assert "must be at least" in outcome.found["error"]
    assert outcome.found["snapshots"] == []
    assert outcome.found["files_in"] == 0
    assert tables.digest(tmp_path) == before
    assert "compaction_failed" not in outcome.err


def test_what_a_terminal_cannot_show_is_shown_otherwise(commands: Commands, tmp_path: Path) -> None:
    tables.small_keyed(tmp_path / "ü")
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    outcome = commands.start("inspect", *of_table(tmp_path / "ü"), environment=ascii_only).outcome()
    assert outcome.code == 0, outcome.err
    assert "\\xfc" in outcome.out


def test_a_full_folder_for_temporary_files_is_named_and_ends_with_69(
    commands: Commands, tmp_path: Path
) -> None:
    tables.small_keyed(tmp_path)
    before = tables.digest(tmp_path)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    command = commands.start("compact", *of_table(tmp_path), preexec_fn=limit)
    outcome = command.outcome()
    assert outcome.code == 69
    assert str(command.scratch) in outcome.err
    assert "Traceback" not in outcome.err
    command.assert_nothing_remains()
    assert tables.digest(tmp_path) == before
