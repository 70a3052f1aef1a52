"""Options beyond all bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord.state.table_state import load_state
from tests import builders
from tests.e2e import tables
from tests.e2e.command import Commands
from tests.e2e.tables import LOCAL, of_table

pytestmark = pytest.mark.spark


def test_levels_and_compression_beyond_all_bounds_are_moved_to_the_nearest_that_there_are(
    commands: Commands, tmp_path: Path
) -> None:
    options = {
        "file.compression.zstd-level": "2147483647",
        "num-sorted-run.compaction-trigger": "2147483647",
        "data-file.prefix": "a b.ü%#?-",
    }
    table = builders.keyed_table(LOCAL, tables.location(tmp_path), options=options)
    expected = builders.fill_keyed(builders.writer(LOCAL, table), commits=6)
    outcome = commands.run("compact", *of_table(tmp_path), "--strategy", "full", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.found["snapshots"]
    state = load_state(LOCAL, tables.ref(tmp_path))
    files = [f for bucket in state.files.bucket_ids() for f in state.files.files_in(bucket)]
    assert {file.level for file in files} == {999}
    assert all(file.file_name.startswith(options["data-file.prefix"]) for file in files)
    rows = tables.rows_of(tmp_path)
    assert dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True)) == expected
    assert tables.leftovers(tmp_path) == set()
