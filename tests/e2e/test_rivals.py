"""Several processes at work on one table."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests import builders
from tests.e2e import tables
from tests.e2e.command import Commands
from tests.e2e.tables import LOCAL, SLOWLY, of_table
from tests.oracle.differential import LiveTable
from tests.oracle.judge import Judge

pytestmark = pytest.mark.spark


def test_two_commands_at_once_compact_a_table_together(commands: Commands, tmp_path: Path) -> None:
    tables.large_keyed(tmp_path)
    rows = tables.rows_of(tmp_path)
    arguments = ("compact", *of_table(tmp_path), "--json", "--master", "local[1]", *SLOWLY)
    both = [commands.start(*arguments) for _ in range(2)]
    outcomes = [command.outcome() for command in both]
    assert [outcome.code for outcome in outcomes] == [0, 0], [o.err for o in outcomes]
    assert sum(outcome.found["compactions"] for outcome in outcomes) == 2
    assert all(outcome.found["lost_snapshots"] == [] for outcome in outcomes)
    for command in both:
        command.assert_nothing_remains()
    builders.check_chain(LOCAL, tables.ref(tmp_path))
    assert tables.rows_of(tmp_path).equals(rows)
    assert tables.leftovers(tmp_path) == set()
    again = commands.run("compact", *of_table(tmp_path), "--json")
    assert again.found["snapshots"] == []


@pytest.mark.oracle
@pytest.mark.parametrize("is_keyed", [True, False], ids=["primary-key", "append"])
def test_commands_in_a_loop_beside_a_java_writer_lose_nothing(
    commands: Commands, judge: Judge, tmp_path: Path, *, is_keyed: bool
) -> None:
    """On a local path Java's rename may replace our snapshot: then it is told, rows stay."""
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("k", "INT NOT NULL"), ("v", "STRING")),
        primary_key=("k",) if is_keyed else (),
        options={"bucket": "2" if is_keyed else "-1"},
    ).create()
    table.write([[0, "first"]])
    enough = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        commit = 0
        try:
            # So slowly that a command finds, now and then, that nothing is left to do.
            while not enough.wait(0.2):
                commit += 1
                rows = [[(7 * commit + n) % 50, f"{commit}-{n}"] for n in range(20)]
                table.write(rows, ["-D" if is_keyed and n % 5 == 4 else "+I" for n in range(20)])
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    arguments = ("compact", *of_table(tmp_path), "--json", "--master", "local[1]")
    outcomes = [commands.run(*arguments) for _ in range(1 + is_keyed)]
    enough.set()
    thread.join()
    outcomes.append(commands.run(*arguments, "--strategy", "full"))
    assert not failures
    table.check()
    for outcome in outcomes:
        assert outcome.code == 0 or "writers changed it" in outcome.err, outcome.err
        assert "Traceback" not in outcome.err
    published = {id_ for outcome in outcomes for id_ in outcome.found["snapshots"]}
    lost = [why for outcome in outcomes for why in outcome.found["lost_snapshots"]]
    assert published
    kept = {
        id_
        for id_ in published
        if (judge.snapshot(table.path, id_) or {})["commitKind"] == "COMPACT"
    }
    assert len(lost) >= len(published - kept)
    judge.compact(table.path, full=True)
    table.check()
