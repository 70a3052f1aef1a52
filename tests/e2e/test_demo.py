"""`compactord-demo` as a process: on a pipe, on a terminal, interrupted, with a dying daemon."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import termios
import urllib.error
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest

from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import snapshot_ids
from compactord.state.table_state import load_state
from compactord_demo.daemon import TAIL_LINES
from compactord_demo.jobs import SNAPSHOTS_KEPT
from tests import builders
from tests.e2e.command import SECONDS_MAX, Command, Commands, read_terminal
from tests.e2e.tables import LOCAL
from tests.spark.remote import find_process, is_alive

pytestmark = pytest.mark.spark

_TABLES = ("sales.orders", "logs.clicks")
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_ADDRESS = re.compile(r"compactord serve compacts them: (http://127\.0\.0\.1:\d+/)")
_COUNTS = re.compile(r"(\d+) runs, (\d+) in level 0, (\d+) files")


def _location(warehouse: Path, name: str) -> str:
    return f"{warehouse}/{name.replace('.', '.db/')}"


def _ref(warehouse: Path, name: str) -> TableRef:
    database, _, table = name.partition(".")
    return TableRef(database=database, name=table, location=_location(warehouse, name))


def _is_compacted(warehouse: Path, name: str) -> bool:
    """Whether one of the snapshots that are there now was made by the daemon."""
    for path in Path(_location(warehouse, name)).glob("snapshot/snapshot-*"):
        with contextlib.suppress(FileNotFoundError):  # it has just expired
            if '"COMPACT"' in path.read_text():
                return True
    return False


def _started(commands: Commands, warehouse: Path, *, seconds: int) -> Command:
    where = ("--warehouse", str(warehouse))
    return commands.start(*where, "--seconds", str(seconds), program="compactord-demo")


def _serving(commands: Commands, warehouse: Path) -> Command:
    """In the middle of the show: the daemon has compacted."""
    command = _started(commands, warehouse, seconds=60)
    command.wait_until(lambda: _is_compacted(warehouse, "sales.orders"), "a compaction")
    command.family()
    return command


def _daemon(command: Command) -> int:
    return find_process("serve", command.family())


def _is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has reached each of its threads."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def _assert_whole(warehouse: Path, name: str) -> None:
    """The snapshots that are left have no hole, and the newest one has all of its files."""
    table = _ref(warehouse, name)
    ids = snapshot_ids(LOCAL, table.location)
    assert ids == tuple(range(ids[0], ids[-1] + 1))
    state = load_state(LOCAL, table)
    named = {
        file.file_name
        for bucket in state.files.bucket_ids()
        for file in state.files.files_in(bucket)
    }
    assert named <= {path.name for path in Path(table.location).rglob("data-*")}


def _answers(url: str) -> bool:
    with (
        contextlib.suppress(urllib.error.HTTPError),
        _OPENER.open(url, timeout=SECONDS_MAX) as answer,
    ):
        return bool(answer.status == 200)
    return False


def _assert_ended(command: Command) -> None:
    """A Spark that was still starting may leave its folder, which the next start removes."""
    command.assert_no_process_remains()
    left = [path.name for path in command.scratch.iterdir()]
    assert all(name.startswith("compactord-spark-") for name in left), left


def _line(out: str, title: str) -> str:
    (line,) = (line for line in out.splitlines() if line.startswith(title))
    return line


def test_a_pipe_gets_lines_and_a_summary_and_the_rows_are_those_ingested(
    commands: Commands, tmp_path: Path
) -> None:
    command = _started(commands, tmp_path, seconds=10)
    command.wait_until(lambda: _is_compacted(tmp_path, "sales.orders"), "a compaction")
    outcome = command.outcome()
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    command.assert_nothing_remains()
    assert "\x1b" not in outcome.out
    assert _ADDRESS.search(outcome.out)
    # The jobs wait for the service.
    assert outcome.out.index("Spark is starting…; 0 commits") < outcome.out.index("ingestion for ")
    assert _COUNTS.search(outcome.out), outcome.out
    # Whether a line is told between a rise and a fall is a matter of the machine's speed.
    times = re.match(r"compacted +(\d+) times, (\d+) commits", _line(outcome.out, "compacted"))
    assert times is not None, outcome.out
    assert int(times[1]) >= int(times[2]) >= 1
    assert _line(outcome.out, "rows").count("those ingested") == 2
    said = _line(outcome.out, "Rows equal: yes; sales.orders from ")
    assert said == outcome.out.splitlines()[-1]
    assert said.endswith(f"; next: compactord tables --warehouse {tmp_path}")
    for name in _TABLES:
        ids = snapshot_ids(LOCAL, _location(tmp_path, name))
        assert ids[0] > 1, "snapshots expired"
        assert len(ids) <= SNAPSHOTS_KEPT
        assert f"{ids[-1]} made, {ids[0] - 1} expired, {len(ids)} kept" in outcome.out
        _assert_whole(tmp_path, name)
        planned = commands.run("plan", "--warehouse", str(tmp_path), "--table", name, "--json")
        assert planned.found["compactions"] == []


def test_a_terminal_gets_frames_in_place_and_then_the_summary(commands: Commands) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    command = commands.start(
        "--seconds",
        "3",
        stdout=theirs,
        stderr=theirs,
        program="compactord-demo",
        environment={"TERM": "xterm-256color"},
    )
    os.close(theirs)
    said = read_terminal(ours)
    assert command.process.wait(SECONDS_MAX) == 0, said
    _assert_ended(command)
    assert _ADDRESS.search(said)
    last = said[said.rindex("the daemon ends") :]
    frame, summary = last.split("\x1b[?25h", 1)
    assert "compactord top" in frame
    assert "sales.orders  runs" in frame
    assert "logs.clicks   files" in frame
    assert "logs.clicks   runs" not in frame, "append tables have none"
    assert summary.count("those ingested") == 2
    assert '"event"' not in said, "the daemon's log is not for the terminal"


def test_the_page_answers_at_the_address_that_is_printed(
    commands: Commands, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    with said.open("w") as stream:
        command = commands.start("--seconds", "60", program="compactord-demo", stdout=stream)
    command.wait_until(lambda: _ADDRESS.search(said.read_text()), "the address")
    (url,) = _ADDRESS.findall(said.read_text())
    with _OPENER.open(url, timeout=SECONDS_MAX) as answer:
        assert b"compactord" in answer.read()
    # A Spark that is starting would have eight seconds to end.
    command.wait_until(lambda: _answers(f"{url}startupz"), "the daemon has started")
    command.family()
    command.process.send_signal(signal.SIGINT)
    assert command.outcome().code == 3
    command.assert_nothing_remains()


def test_an_interrupt_ends_the_jobs_and_the_daemon(commands: Commands, tmp_path: Path) -> None:
    command = _serving(commands, tmp_path)
    command.process.send_signal(signal.SIGINT)
    outcome = command.outcome()
    assert outcome.code == 3
    assert outcome.out.endswith("stopped\n")
    assert outcome.err == ""
    command.assert_nothing_remains()
    for name in _TABLES:
        _assert_whole(tmp_path, name)


def test_a_daemon_that_dies_is_told_with_the_end_of_its_log(
    commands: Commands, tmp_path: Path
) -> None:
    command = _serving(commands, tmp_path)
    daemon = _daemon(command)
    (log,) = command.scratch.glob("compactord-daemon-*/daemon.log")
    # What it logs last depends on the machine's speed, so it is stopped before its log is read.
    os.kill(daemon, signal.SIGSTOP)
    command.wait_until(lambda: _is_stopped(daemon), "the daemon stops")
    lines = log.read_text().splitlines()[-TAIL_LINES:]
    os.kill(daemon, signal.SIGKILL)
    outcome = command.outcome()
    assert outcome.code == 3
    told = "".join(f"  | {line}\n" for line in lines)
    assert outcome.err.startswith(f"compactord: the daemon ended with exit code -9\n{told}")
    command.assert_no_process_remains()


def test_a_demo_that_is_killed_takes_its_daemon_along(commands: Commands, tmp_path: Path) -> None:
    command = _serving(commands, tmp_path)
    assert is_alive(_daemon(command))
    command.process.kill()
    command.outcome()
    command.assert_no_process_remains()


def test_rows_that_nobody_ingested_are_told(commands: Commands, tmp_path: Path) -> None:
    command = _started(commands, tmp_path, seconds=3)
    location = _location(tmp_path, "logs.clicks")
    command.wait_until(lambda: Path(location, "snapshot", "snapshot-1").exists(), "a commit")
    stranger = builders.writer(LOCAL, _ref(tmp_path, "logs.clicks"))
    stranger.write(pa.table({"region": ["asia"], "user": [7], "url": ["/"]}))
    outcome = command.outcome()
    assert outcome.code == 3
    told = re.search(r"DIFFERENT: ([\d,]+), not ([\d,]+) ingested", outcome.out)
    assert told, outcome.err
    found, expected = (int(text.replace(",", "")) for text in told.groups())
    assert found == expected + 1
    assert _line(outcome.out, "rows").count("those ingested") == 1
    assert _line(outcome.out, "Rows equal: no, logs.clicks differ")
    _assert_ended(command)


@pytest.mark.parametrize("command", [("compactord-demo",), ("compactord", "top")])
def test_a_reader_that_goes_away_ends_it_quietly(
    command: tuple[str, ...], commands: Commands, tmp_path: Path
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program, *how = command
    where = ("--warehouse", str(tmp_path))
    started = commands.start(*how, *where, program=program, stdout=writer)
    os.close(writer)
    outcome = started.outcome()
    assert (outcome.code, outcome.err) == (3, "")
    started.assert_nothing_remains()


def test_a_backlog_that_is_kept_is_due_and_its_rows_are_those_ingested(
    commands: Commands, tmp_path: Path
) -> None:
    where = ("--warehouse", str(tmp_path))
    outcome = commands.run(*where, "--seconds", "3", "--keep-backlog", program="compactord-demo")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("those ingested") == 2
    for table, reasons in (
        ("sales.orders", {"size_amp", "size_ratio", "file_num"}),
        ("logs.clicks", {"append_pack"}),
    ):
        planned = commands.run("plan", *where, "--table", table, "--json")
        compactions = planned.found["compactions"]
        assert {compaction["reason"] for compaction in compactions} <= reasons
        assert len(compactions) == 2, table
