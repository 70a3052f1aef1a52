"""A merge engine that the registry lacks: a class, and a line."""

from __future__ import annotations

import pytest

from compactord.errors import UnsupportedTable
from compactord.kernels.functions.registry import MERGE_FUNCTIONS
from compactord.plan.table import Strategy
from tests import builders
from tests.builders import DELETE, INSERT, kinds_of, rows_of
from tests.storages import MemoryStorage
from tests.unit.kernels.merge_functions import FirstRow

# The registry without it, and with its line.
OTHERS = {name: of for name, of in MERGE_FUNCTIONS.items() if name != "first-row"}
FUNCTIONS = {**OTHERS, "first-row": lambda _: FirstRow()}
ENGINE = {"merge-engine": "first-row"}


@pytest.mark.parametrize("ignores", [False, True])
def test_a_table_is_compacted_by_its_engine(ignores: bool) -> None:
    storage = MemoryStorage()
    table = builders.keyed_table(storage, "/w/db.db/t")
    writer = builders.writer(storage, table)
    writer.write(rows_of([(key, 0) for key in range(8)]), kinds=kinds_of([INSERT, DELETE] * 4))
    for commit in range(1, 4):
        writer.write(rows_of([(key, commit) for key in range(8 + commit)]))
    builders.set_options(storage, table, {**ENGINE, "ignore-delete": str(ignores).lower()})
    with pytest.raises(UnsupportedTable, match="option merge-engine=first-row is not supported"):
        builders.compact(storage, table, functions=OTHERS)
    builders.compact(storage, table, strategy=Strategy.FULL, functions=FUNCTIONS)
    deleted = dict.fromkeys(range(1, 8, 2), 1) if ignores else {}
    expected = dict.fromkeys(range(0, 8, 2), 0) | deleted | {8: 1, 9: 2, 10: 3}
    assert builders.read_keyed(storage, table) == expected
    builders.check_chain(storage, table)
