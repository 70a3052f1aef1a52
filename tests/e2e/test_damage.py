"""Bad input and a bad place: a clear error that names what and where, the table untouched."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import tables
from tests.e2e.command import Commands, Outcome
from tests.e2e.tables import of_table

pytestmark = pytest.mark.spark
ON_TWO_CORES = ("--master", "local[2]")


@contextlib.contextmanager
def _small_disk(folder: Path, size_bytes: int) -> Iterator[None]:
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk: run `make test` as root")
def test_a_full_disk_is_named_and_costs_nothing_but_the_run(
    commands: Commands, tmp_path: Path
) -> None:
    tables.large_keyed(tmp_path / "source", buckets=1)
    rows = tables.rows_of(tmp_path / "source")
    size = sum(path.stat().st_size for path in (tmp_path / "source").rglob("*") if path.is_file())
    warehouse = tmp_path / "small"
    warehouse.mkdir()
    with _small_disk(warehouse, size + 400_000):
        shutil.copytree(tmp_path / "source", warehouse, dirs_exist_ok=True)
        before = tables.digest(warehouse)
        outcome = commands.run("compact", *of_table(warehouse), "--json", *ON_TWO_CORES)
        _assert_no_room(outcome, "No space left")
        assert tables.digest(warehouse) == before
        subprocess.run(["mount", "-o", "remount,size=1g", str(warehouse)], check=True)
        again = commands.run("compact", *of_table(warehouse), "--json", *ON_TWO_CORES)
        assert again.code == 0
        assert tables.rows_of(warehouse).equals(rows)
        assert tables.leftovers(warehouse) == set()


@pytest.mark.skipif(os.geteuid() == 0, reason="root has the test with a small disk")
def test_a_limit_of_file_sizes_is_named_and_costs_nothing_but_the_run(
    commands: Commands, tmp_path: Path
) -> None:
    tables.large_keyed(tmp_path, buckets=1)
    before = tables.digest(tmp_path)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    outcome = commands.run("compact", *of_table(tmp_path), "--json", preexec_fn=limit)
    _assert_no_room(outcome, "File too large")
    assert tables.digest(tmp_path) == before


def _assert_no_room(outcome: Outcome, reason: str) -> None:
    assert outcome.code == 3
    (failure,) = outcome.found["failures"]
    assert reason in failure
    assert "/bucket-0/data-" in failure
    assert "Traceback" not in outcome.err


def _without_capabilities() -> tuple[str, ...]:
    """Before a command: modes count for root, too."""
    if os.geteuid() != 0:
        return ()
    return ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--")


@contextlib.contextmanager
def _mode(folder: Path, mode: int) -> Iterator[None]:
    before = stat.S_IMODE(folder.stat().st_mode)
    folder.chmod(mode)
    try:
        yield
    finally:
        folder.chmod(before)


@pytest.mark.parametrize(
    "place",
    [
        "bucket-0",
        "snapshot",
    ],
)
def test_a_read_only_folder_is_named_and_ends_with_77(
    place: str, commands: Commands, tmp_path: Path
) -> None:
    tables.small_keyed(tmp_path, buckets=1)
    folder = Path(tables.location(tmp_path)) / place
    before = tables.digest(tmp_path)
    with _mode(folder, 0o555):
        outcome = commands.run(
            "compact", *of_table(tmp_path), "--json", before=_without_capabilities()
        )
    assert outcome.code == 77, outcome.err
    assert f"{folder}/" in outcome.err
    assert "Traceback" not in outcome.err
    assert tables.digest(tmp_path) == before


@pytest.mark.parametrize("command", ["compact", "plan", "inspect"])
def test_a_warehouse_that_cannot_be_read_ends_with_77(
    command: str, commands: Commands, tmp_path: Path
) -> None:
    tables.small_keyed(tmp_path, buckets=1)
    database = tmp_path / "db.db"
    with _mode(database, 0o000):
        outcome = commands.run(command, *of_table(tmp_path), before=_without_capabilities())
    assert outcome.code == 77
    assert str(database) in outcome.err
    assert "Traceback" not in outcome.err


def _add_column(folder: Path) -> None:
    schema = json.loads((folder / "schema-0").read_text())
    schema["id"] = 1
    schema["fields"].append({"id": 2, "name": "w", "type": "INT"})
    schema["highestFieldId"] = 2
    (folder / "schema-1").write_text(json.dumps(schema))


def test_a_column_added_under_a_running_merge_costs_nothing(
    commands: Commands, tmp_path: Path
) -> None:
    tables.large_keyed(tmp_path)
    rows = tables.rows_of(tmp_path)
    command = commands.start(
        "compact", *of_table(tmp_path), "--json", *ON_TWO_CORES, *tables.SLOWLY
    )
    command.wait_for_merge(tables.location(tmp_path))
    _add_column(Path(tables.location(tmp_path)) / "schema")
    outcome = command.outcome()
    assert outcome.code == 0, outcome.err
    assert "Traceback" not in outcome.err
    assert tables.rows_of(tmp_path).equals(rows)
    assert tables.leftovers(tmp_path) == set()


def test_a_table_that_is_dropped_under_a_running_merge_is_told_and_stays_dropped(
    commands: Commands, tmp_path: Path
) -> None:
    tables.large_keyed(tmp_path)
    location = Path(tables.location(tmp_path))
    command = commands.start(
        "compact", *of_table(tmp_path), "--json", *ON_TWO_CORES, *tables.SLOWLY
    )
    command.wait_for_merge(str(location))
    location.rename(tmp_path / "dropped")
    outcome = command.outcome()
    assert outcome.code in (2, 3)
    assert str(location) in outcome.err
    assert "Traceback" not in outcome.err
    command.assert_nothing_remains()
    # Empty folders may be there, of a subcompaction that was tried again.
    assert [path for path in location.rglob("*") if path.is_file()] == []
