"""Several processes at work on one table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import builders
from tests.e2e import tables
from tests.e2e.command import Commands
from tests.e2e.tables import LOCAL, SLOWLY, of_table

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
