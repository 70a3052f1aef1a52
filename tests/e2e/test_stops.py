"""`compactord compact` told to stop, or killed, in the middle of a merge."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compactord.paimon.snapshot import snapshot_ids
from tests import builders
from tests.e2e import tables
from tests.e2e.command import Command, Commands
from tests.e2e.tables import LOCAL, SLOWLY, of_table
from tests.spark.remote import find_process, is_alive

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    """A warehouse to be copied, and its rows."""
    warehouse = tmp_path_factory.mktemp("template")
    tables.large_keyed(warehouse)
    return warehouse, tables.rows_of(warehouse)


@pytest.fixture
def warehouse(template: tuple[Path, pa.Table], tmp_path: Path) -> Iterator[Path]:
    copy = tmp_path / "warehouse"
    shutil.copytree(template[0], copy)
    yield copy
    shutil.rmtree(copy)


def _merging(commands: Commands, warehouse: Path, **popen: Any) -> Command:
    """A command in the middle of its first merges."""
    where = ("--master", "local[2]", *SLOWLY)
    command = commands.start("compact", *of_table(warehouse), "--json", *where, **popen)
    command.wait_for_merge(tables.location(warehouse))
    return command


def _jvm(command: Command) -> int:
    return find_process("org.apache.spark.api.python.PythonGatewayServer", command.family())


def _workers(command: Command) -> list[int]:
    """Python processes whose parent is Spark's daemon, which is itself below the JVM."""
    family = command.family()
    jvm = _jvm(command)
    return [pid for pid in family if is_alive(pid) and _parent(_parent(pid)) == jvm]


def _parent(pid: int) -> int:
    """Zero for a process that has gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def _handles(command: Command, number: signal.Signals) -> bool:
    """Whether it has a handler; the first signal to end takes it away."""
    status = Path(f"/proc/{command.pid}/status").read_text()
    return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1)


def _to_all(command: Command, number: signal.Signals) -> None:
    os.killpg(command.pid, number)


def _to_the_command(command: Command, number: signal.Signals) -> None:
    os.kill(command.pid, number)


@pytest.mark.parametrize(
    ("send", "number"),
    [
        pytest.param(_to_all, signal.SIGINT, id="ctrl-c"),
        pytest.param(_to_the_command, signal.SIGTERM, id="container-stop"),
        pytest.param(_to_all, signal.SIGTERM, id="systemd-stop"),
    ],
)
def test_a_stopped_command_ends_cleanly_and_leaves_nothing_behind(
    send: Callable[[Command, signal.Signals], None],
    number: signal.Signals,
    commands: Commands,
    warehouse: Path,
    template: tuple[Path, pa.Table],
) -> None:
    before = tables.digest(warehouse)
    command = _merging(commands, warehouse, start_new_session=True)
    assert len(command.family()) >= 3, "a JVM, its daemon and a worker"
    send(command, number)
    outcome = command.outcome()
    assert outcome.code == 3
    assert outcome.found["stopped"] is True
    assert outcome.found["snapshots"] == []
    assert "stopped before everything was done" in outcome.err
    assert "Traceback" not in outcome.err
    command.assert_nothing_remains()
    assert tables.digest(warehouse) == before


def test_a_killed_driver_takes_its_processes_along_and_the_next_run_completes(
    commands: Commands, warehouse: Path, template: tuple[Path, pa.Table]
) -> None:
    command = _merging(commands, warehouse)
    workers = _workers(command)
    for pid in workers:
        # Frozen, they cannot clean up before they are killed, too: nothing but names is left.
        os.kill(pid, signal.SIGSTOP)
    os.kill(command.pid, signal.SIGKILL)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    assert command.outcome().code == -signal.SIGKILL
    command.assert_no_process_remains()
    assert snapshot_ids(LOCAL, tables.location(warehouse)) == tuple(range(1, 7))
    assert tables.rows_of(warehouse).equals(template[1])
    assert tables.leftovers(warehouse)
    assert list(command.scratch.iterdir()), "its temporary files are left, too"
    same_place = {"TMPDIR": str(command.scratch)}
    outcome = commands.start(
        "compact", *of_table(warehouse), "--json", "--master", "local[2]", environment=same_place
    ).outcome()
    assert outcome.code == 0, outcome.err
    command.assert_nothing_remains()
    assert outcome.found["compactions"] == 2
    # They may belong to a snapshot that is still being restored: they wait ten minutes.
    assert outcome.found["orphans_removed"] == 0
    assert tables.leftovers(warehouse)
    builders.sweep_later(LOCAL, tables.location(warehouse))
    assert tables.rows_of(warehouse).equals(template[1])
    assert tables.leftovers(warehouse) == set()


def test_a_command_survives_the_death_of_its_workers(
    commands: Commands, warehouse: Path, template: tuple[Path, pa.Table]
) -> None:
    command = _merging(commands, warehouse)
    workers = _workers(command)
    assert workers
    # One of them may have ended its merge already.
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    outcome = command.outcome()
    assert outcome.code == 0, outcome.err
    assert outcome.found["compactions"] == 2
    assert "compaction_retry" in outcome.err
    command.assert_nothing_remains()
    # The file that the dead worker had begun is its command's, which lived until now.
    assert commands.run("compact", *of_table(warehouse), "--json").found["snapshots"] == []
    builders.sweep_later(LOCAL, tables.location(warehouse))
    assert tables.rows_of(warehouse).equals(template[1])
    assert tables.leftovers(warehouse) == set()


def test_the_death_of_the_jvm_is_told_and_costs_nothing_but_the_run(
    commands: Commands, warehouse: Path
) -> None:
    before = tables.digest(warehouse)
    command = _merging(commands, warehouse)
    os.kill(_jvm(command), signal.SIGKILL)
    outcome = command.outcome()
    assert outcome.code in (3, 69)
    assert "Spark's driver process" in outcome.err
    command.assert_nothing_remains()
    assert tables.digest(warehouse) == before
    assert "Traceback" not in outcome.err


def test_a_stop_before_the_engine_has_started_is_heard(commands: Commands, warehouse: Path) -> None:
    before = tables.digest(warehouse)
    command = commands.start("compact", *of_table(warehouse), "--json")
    command.wait_until(command.family, "Java starts")
    command.process.send_signal(signal.SIGTERM)
    outcome = command.outcome()
    assert outcome.code == 3
    assert outcome.found["stopped"] is True
    command.assert_nothing_remains()
    assert tables.digest(warehouse) == before


def test_a_second_signal_ends_the_command_at_once(
    commands: Commands, warehouse: Path, template: tuple[Path, pa.Table]
) -> None:
    command = _merging(commands, warehouse)
    # Frozen workers do not let go, so the first signal leads to a wait.
    for pid in _workers(command):
        os.kill(pid, signal.SIGSTOP)
    assert _handles(command, signal.SIGTERM)
    command.process.send_signal(signal.SIGTERM)
    command.wait_until(lambda: not _handles(command, signal.SIGTERM), "the first one is heard")
    time.sleep(0.5)
    assert command.process.poll() is None
    command.process.send_signal(signal.SIGTERM)
    assert command.outcome().code == -signal.SIGTERM
    command.assert_no_process_remains()
    assert tables.rows_of(warehouse).equals(template[1])
