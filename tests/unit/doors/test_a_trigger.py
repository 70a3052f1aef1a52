"""A trigger that the product lacks: a class, and a line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from compactord.cli.command import main
from compactord.model import CompactReason, SortedRun, TableKind
from compactord.paimon.manifest.entry_columns import Mask
from compactord.paimon.options import values
from compactord.paimon.options.table_options import CompactionOptions
from compactord.paimon.snapshot import snapshot_ids
from compactord.plan.picks import Pick
from compactord.plan.table import Strategy, candidates
from compactord.plan.triggers import TRIGGERS, BucketRuns, Trigger, TriggerOption
from compactord.state.base_files import BucketSummaries
from compactord.state.table_state import load_state
from tests import builders
from tests.storages import MemoryStorage
from tests.unit.cli.warehouses import LOCAL, configuration
from tests.unit.doors.command import registered
from tests.unit.plan.builders import compaction_options

_CONFIG = "catalogs: {lake: {warehouse: WH}}\n"


class ManyRows(Trigger):
    """Picks all runs once the bucket has `toy.rows` rows."""

    reason = CompactReason.added("toy_rows", "the bucket has many rows")
    option = TriggerOption(name="toy.rows", parse=values.integer, default=1_000)

    def may_fire(self, buckets: BucketSummaries, options: CompactionOptions) -> Mask | bool:
        return (buckets.run_count > 1) & (buckets.row_count >= self.option.of(options))

    def pick(self, runs: BucketRuns) -> Pick | None:
        is_due = _rows(runs.runs) >= self.option.of(runs.options)
        return runs.pick_all(self.reason) if is_due and len(runs.runs) > 1 else None

    def explain(self, runs: Sequence[SortedRun], options: CompactionOptions) -> str:
        return f"{_rows(runs)} rows, {self.option.of(options)} or more (toy.rows)"


def _rows(runs: Sequence[SortedRun]) -> int:
    return sum(file.row_count for run in runs for file in run.files)


# The line of the registry.
BOTH = (*TRIGGERS, ManyRows())


def test_a_table_is_compacted_once_it_fires(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = builders.keyed_table(LOCAL, f"{tmp_path}/wh/db.db/t", buckets=1)
    rows = builders.fill_keyed(builders.writer(LOCAL, table), commits=2)
    config = ["--config", configuration(tmp_path, _CONFIG)]
    asked, toys = ["--option", "toy.rows=2"], registered(triggers=BOTH)
    assert main(["compact", "--all", *config], toys) == 0
    assert snapshot_ids(LOCAL, table.root) == (1, 2), "the default is not reached"
    assert main(["compact", "--all", *config, *asked], registered()) == 2
    assert main(["compact", "--all", *config, "--option", "toy.rows=x"], toys) == 2
    assert "option toy.rows='x': expected a whole number" in capsys.readouterr().err
    builders.set_options(LOCAL, table, {"toy.rows": "2"})
    assert main(["why", "db.t", "--json", *config], toys) == 0
    why = json.loads(capsys.readouterr().out)
    assert "rows, 2 or more (toy.rows)" in json.dumps(why)
    assert "unknown options" not in json.dumps(why)
    assert main(["compact", "--all", *config], toys) == 0
    assert snapshot_ids(LOCAL, table.root) == (1, 2, 3)
    assert builders.read_keyed(LOCAL, table) == rows
    builders.check_chain(LOCAL, table)


def test_its_buckets_are_candidates() -> None:
    options = compaction_options(of_triggers={"toy.rows": 1})
    summaries = _summaries()
    for triggers, expected in ((TRIGGERS, False), (BOTH, True)):
        found = candidates(
            summaries, TableKind.PRIMARY_KEY, Strategy.MINOR, options, triggers=triggers
        )
        assert found.tolist() == [expected]


def _summaries() -> BucketSummaries:
    """Those of a table with one bucket of two runs."""
    storage = MemoryStorage()
    table = builders.keyed_table(storage, "/wh/db.db/t", buckets=1)
    builders.fill_keyed(builders.writer(storage, table), commits=2)
    return load_state(storage, table).files.summaries()
