"""A merge engine that the product lacks: a class, and a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord.cli.command import main
from compactord.kernels.functions.registry import MERGE_FUNCTIONS
from tests import builders
from tests.builders import DELETE, INSERT, kinds_of, rows_of
from tests.unit.cli.warehouses import LOCAL, configuration
from tests.unit.doors.command import registered
from tests.unit.kernels.merge_functions import FirstRow

# The line of the registry.
FUNCTIONS = {**MERGE_FUNCTIONS, "oldest": lambda _: FirstRow()}
CONFIG = "catalogs: {lake: {warehouse: WH}}"


@pytest.mark.parametrize("ignores", [False, True])
def test_a_table_is_compacted_by_its_engine(
    ignores: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = builders.keyed_table(LOCAL, f"{tmp_path}/wh/db.db/t")
    writer = builders.writer(LOCAL, table)
    writer.write(rows_of([(key, 0) for key in range(8)]), kinds=kinds_of([INSERT, DELETE] * 4))
    for commit in range(1, 4):
        writer.write(rows_of([(key, commit) for key in range(8 + commit)]))
    options = {"merge-engine": "Oldest", "ignore-delete": str(ignores).lower()}
    builders.set_options(LOCAL, table, options)
    command = [
        "compact",
        "--all",
        "--strategy",
        "full",
        "--config",
        configuration(tmp_path, CONFIG),
    ]
    assert main(command, registered()) == 4
    assert "option merge-engine=oldest: expected one of deduplicate, par" in capsys.readouterr().err
    assert main(command, registered(functions=FUNCTIONS)) == 0
    deleted = dict.fromkeys(range(1, 8, 2), 1) if ignores else {}
    expected = dict.fromkeys(range(0, 8, 2), 0) | deleted | {8: 1, 9: 2, 10: 3}
    assert builders.read_keyed(LOCAL, table) == expected
    builders.check_chain(LOCAL, table)
