"""A file format is defined in one module of the tests and used without a change of the product."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from compactord.catalog.access import table_in_folder
from compactord.cli.command import main
from compactord.errors import UnsupportedTable
from compactord.formats.registry import FORMATS
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import snapshot_ids
from compactord.paimon.types import DataField, parse_type
from compactord.plan.table import Strategy
from compactord.state.table_state import load_state
from compactord.storage.base import Storage
from compactord.table.opening import OpenTable, describe_table, open_table
from compactord_demo.writer import create_table
from tests import builders
from tests.builders import FIRST
from tests.storages import MemoryStorage
from tests.unit.cli.warehouses import LOCAL, configuration
from tests.unit.doors.command import registered
from tests.unit.formats.arrow_files import ARROW

# The line of the registry.
BOTH = {**FORMATS, ARROW.name: ARROW}
LAKE = "catalogs: {lake: {warehouse: WH}}"
LOCATION = "/w/db.db/t"


def filled(options: Mapping[str, str]) -> tuple[MemoryStorage, TableRef, dict[int, int]]:
    """A table that asks for these options since its files of Parquet were written."""
    storage = MemoryStorage()
    table = builders.keyed_table(storage, LOCATION)
    rows = builders.fill_keyed(builders.writer(storage, table), commits=6)
    builders.set_options(storage, table, options)
    return storage, table, rows


def described(options: Mapping[str, str]) -> OpenTable:
    storage = MemoryStorage()
    table = builders.keyed_table(storage, LOCATION, options=options)
    access = table_in_folder(storage, table)
    return describe_table(access, access.newest_schema(), {}, registered(formats=BOTH))


def ends(storage: Storage, table: TableRef) -> set[str]:
    """How names of live files end."""
    live = builders.live_paths(storage, table, load_state(storage, table))
    return {path.rpartition("/")[2].partition(".")[2] for path in live}


def test_a_table_is_compacted_into_files_of_its_format(tmp_path: Path) -> None:
    table = builders.keyed_table(LOCAL, f"{tmp_path}/wh/db.db/t")
    rows = builders.fill_keyed(builders.writer(LOCAL, table), commits=6)
    of_the_table = {"file.format": "Arrow", "file.suffix.include.compression": "true"}
    builders.set_options(LOCAL, table, {**of_the_table, "file.compression": "lz4"})
    config = f"{LAKE}\ndefaults: {{options: {{arrow.note: as asked}}}}"
    command = ["compact", "--all", "--config", configuration(tmp_path, config)]
    assert main(command, registered(formats=BOTH)) == 0
    assert snapshot_ids(LOCAL, table.root) == (*range(1, 8),)
    assert ends(LOCAL, table) == {"lz4.arrow"}
    assert builders.read_keyed(LOCAL, table) == rows
    for path in builders.live_paths(LOCAL, table, load_state(LOCAL, table)):
        with pa.ipc.open_file(LOCAL.read(path)) as stored:
            assert stored.schema.metadata == {b"note": b"as asked"}
    builders.check_chain(LOCAL, table)
    assert builders.leftovers(LOCAL, table, [FIRST]) == set()


def test_a_run_may_ask_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = builders.keyed_table(LOCAL, f"{tmp_path}/wh/db.db/t")
    rows = builders.fill_keyed(builders.writer(LOCAL, table), commits=6)
    lake = configuration(tmp_path, LAKE)
    asked = ["compact", "--all", "--config", lake, "--option", "file.format=arrow", "--option"]
    for option, formats, error in (
        ("arrow.batch-size=0", BOTH, "option arrow.batch-size='0': expected a number above"),
        ("arrow.batch-size=1 mb", FORMATS, "unknown option 'arrow.batch-size'"),
        ("arrow.bloom.x=on", BOTH, "arrow.bloom.x=on: new files would have no bloom filters"),
    ):
        assert main([*asked, option], registered(formats=formats)) == 2
        assert error in capsys.readouterr().err
    assert main([*asked, "arrow.batch-size=1 mb"], registered(formats=BOTH)) == 0
    wrong = f"{LAKE}\ndefaults: {{options: {{arrow.batch-size: many}}}}"
    check = ["config", "check", "--config", configuration(tmp_path, wrong)]
    assert main(check, registered(formats=BOTH)) == 2
    assert "arrow.batch-size is many: expected a size" in capsys.readouterr().err
    assert ends(LOCAL, table) == {"arrow"}
    assert builders.read_keyed(LOCAL, table) == rows


def test_files_of_several_formats_are_merged_into_that_of_their_level() -> None:
    storage, table, rows = filled({"file.format.per.level": "5:arrow"})
    builders.compact(storage, table, formats=BOTH)
    assert ends(storage, table) == {"arrow"}, "all was merged into the highest level"
    builders.set_options(storage, table, {"file.format.per.level": "0:arrow"})
    forced = {"compaction.force-rewrite-all-files": "true"}
    builders.compact(storage, table, formats=BOTH, strategy=Strategy.FULL, overrides=forced)
    assert ends(storage, table) == {"parquet"}
    assert builders.read_keyed(storage, table) == rows


def test_tables_without_keys_have_one_format_on_all_levels() -> None:
    storage = MemoryStorage()
    table = builders.append_table(storage, LOCATION)
    target = builders.writer(storage, table)
    for commit in range(6):
        target.write(builders.rows_of([(commit, commit)]))
    expected = builders.read_appended(storage, table)
    builders.set_options(
        storage, table, {"file.format": "arrow", "file.format.per.level": "0:parquet"}
    )
    builders.compact(storage, table, formats=BOTH)
    assert ends(storage, table) == {"arrow"}
    assert builders.read_appended(storage, table) == expected


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"file.format": "csv"},
            "option file.format=csv: only parquet, orc, avro, arrow files are written",
        ),
        (
            {"file.format.per.level": "0:arrow,1:csv"},
            "option file.format.per.level=1:csv: only parquet, orc, avro, arrow files are written",
        ),
        ({"file.compression": "snappy"}, "arrow files of compression snappy cannot be written"),
        (
            {"file.compression.per.level": "3:gzip"},
            "arrow files of compression gzip cannot be written",
        ),
        ({"arrow.bloom.x": "on"}, "option arrow.bloom.x=on: new files would have no bloom filters"),
        ({"arrow.batch-size": "many"}, "option arrow.batch-size='many': expected a size such as"),
    ],
)
def test_it_says_itself_what_it_refuses(options: Mapping[str, str], reason: str) -> None:
    [found] = described({"file.format": "arrow"} | options).refusals
    assert found.startswith(reason)


def test_it_says_itself_which_columns_it_cannot_hold() -> None:
    storage = MemoryStorage()
    table = TableRef(database="db", name="t", location=LOCATION)
    columns = [DataField(id=0, name="v", type=parse_type("INT MULTISET"))]
    create_table(storage, table, columns, options={"bucket": "-1", "file.format": "arrow"})
    with pytest.raises(
        UnsupportedTable, match="MULTISET<INT>, which is not supported in arrow files"
    ):
        open_table(table_in_folder(storage, table), {}, registered(formats=BOTH))


def test_its_options_are_known_and_named_where_they_do_nothing() -> None:
    assert described({"file.format": "arrow", "arrow.note": "x"}).warnings == ()
    assert described({"file.format": "arrow", "arrow.shape": "x"}).warnings == (
        "option arrow.shape=x: not applied to new files",
    )


def test_where_nobody_registers_it_new_and_old_files_of_it_are_refused() -> None:
    storage, table, _ = filled({})
    builders.compact(storage, table, formats=BOTH, overrides={"file.format": "arrow"})
    builders.writer(storage, table).write(builders.rows_of([(1, 1)]))
    with pytest.raises(UnsupportedTable, match="it has files of format arrow"):
        builders.compact(storage, table, strategy=Strategy.FULL)
    builders.set_options(storage, table, {"file.format": "arrow"})
    with pytest.raises(UnsupportedTable, match="=arrow: only parquet, orc, avro files are written"):
        builders.compact(storage, table)
