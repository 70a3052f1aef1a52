"""Files beside a data file, which the output itself names: one format and one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord import ids
from compactord.cli.command import main
from compactord.clock import SystemClock
from compactord.formats.registry import FORMATS
from compactord.paimon.data_file import DataFile
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import snapshot_ids
from compactord.state.table_state import load_state
from tests import builders
from tests.unit.cli.warehouses import LOCAL, configuration
from tests.unit.doors.command import registered
from tests.unit.doors.counted_files import COUNTED, CountedOutput

# The line of the registry.
BOTH = {**FORMATS, COUNTED.name: COUNTED}
_KEPT = {
    "snapshot.num-retained.min": "1",
    "snapshot.num-retained.max": "1",
    "snapshot.time-retained": "1 ms",
}


@pytest.fixture
def table(tmp_path: Path) -> TableRef:
    """A table that is due, whose new files have companions."""
    table = builders.keyed_table(LOCAL, f"{tmp_path}/wh/db.db/t", buckets=1)
    builders.fill_keyed(builders.writer(LOCAL, table, clock=SystemClock()), commits=6)
    builders.set_options(LOCAL, table, {"file.format": COUNTED.name, **_KEPT})
    return table


def _run(folder: Path, *words: str) -> int:
    lake = f"catalogs: {{lake: {{warehouse: {folder}/wh}}}}\nlimits: {{max_commit_delay: 0 s}}\n"
    return main(
        [*words, "--all", "--config", configuration(folder, lake)], registered(formats=BOTH)
    )


def _file(table: TableRef) -> DataFile:
    files = load_state(LOCAL, table).files
    (bucket,) = files.bucket_ids()
    (file,) = files.files_in(bucket)
    return file


def _there(table: TableRef) -> set[str]:
    return {child.name for child in LOCAL.list(f"{table.location}/bucket-0")}


def _check(table: TableRef, rows: dict[int, int]) -> None:
    """The newest snapshot's rows, and no file of this process that no snapshot leads to."""
    assert builders.read_keyed(LOCAL, table) == rows
    assert builders.leftovers(LOCAL, table, [ids.this_process()]) == set()


def test_it_is_listed_checked_and_expired_with_its_file(
    table: TableRef, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = builders.read_keyed(LOCAL, table)
    assert _run(tmp_path, "compact") == 0
    _check(table, rows)
    first = _file(table)
    assert first.extra_files == (f"{first.file_name}.count",)
    assert LOCAL.read(f"{table.location}/bucket-0/{first.extra_files[0]}") == b"%d" % len(rows)
    assert _run(tmp_path, "verify") == 0
    builders.set_options(LOCAL, table, {"file.format": "parquet"})
    builders.writer(LOCAL, table, clock=SystemClock()).write(builders.rows_of([(0, 99)]))
    builders.set_options(LOCAL, table, {"file.format": COUNTED.name})
    assert _run(tmp_path, "compact", "--strategy", "full") == 0
    assert _run(tmp_path, "expire") == 0
    second = _file(table)
    assert _there(table) == {second.file_name, *second.extra_files}
    _check(table, rows | {0: 99})
    LOCAL.delete(f"{table.location}/bucket-0/{second.extra_files[0]}")
    capsys.readouterr()
    assert _run(tmp_path, "verify") != 0
    assert second.extra_files[0] in capsys.readouterr().out


def test_without_it_its_file_is_not_published(table: TableRef, tmp_path: Path) -> None:
    rows = builders.read_keyed(LOCAL, table)
    CountedOutput.lost = 1
    assert _run(tmp_path, "compact") == 0
    assert CountedOutput.lost == 0
    assert len(snapshot_ids(LOCAL, table.root)) == 7
    _check(table, rows)


def test_it_is_removed_with_its_file_after_a_failure(table: TableRef, tmp_path: Path) -> None:
    rows = builders.read_keyed(LOCAL, table)
    # One file is complete when the next cannot be opened.
    of_two = {"target-file-size": "1 b", "arrow.batch-size": "1 b"}
    builders.set_options(LOCAL, table, of_two)
    CountedOutput.last = 2
    before = _there(table)
    assert _run(tmp_path, "compact") == 3
    assert CountedOutput.last == 1
    CountedOutput.last = 0
    assert _there(table) == before
    _check(table, rows)
