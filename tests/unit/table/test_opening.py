"""Whose fault it is: what a run asks for is its own error, what a table says is a refusal."""

from __future__ import annotations

import pytest

from compactord.catalog.access import table_in_folder
from compactord.errors import FormatError, UnsupportedTable, UsageError
from compactord.paimon.schema import latest_schema
from compactord.table.opening import describe_table, open_table
from tests.builders import keyed_table
from tests.storages import MemoryStorage

LOCATION = "/w/db.db/t"

UNWRITABLE = [
    ("file.format", "csv"),
    ("file.compression", "brotli"),
    ("manifest.compression", "foo"),
    ("file.compression.per.level", "0:lzo"),
    ("fields.nope.stats-mode", "full"),
    ("query-auth.enabled", "true"),
]


@pytest.mark.parametrize(("key", "value"), UNWRITABLE)
def test_options_of_a_run_that_no_table_can_be_written_with_are_its_error(key, value):
    storage = MemoryStorage()
    table = keyed_table(storage, LOCATION)
    named = "foo|brotli|lzo" if "compression" in key else key
    with pytest.raises(UsageError, match=rf"^this run: .*({named})"):
        open_table(table_in_folder(storage, table), {key: value})
    assert open_table(table_in_folder(storage, table), {}).warnings == ()


@pytest.mark.parametrize(("key", "value"), UNWRITABLE)
def test_the_same_options_of_a_table_are_a_refusal(key, value):
    storage = MemoryStorage()
    table = keyed_table(storage, LOCATION, options={key: value})
    with pytest.raises(UnsupportedTable):
        open_table(table_in_folder(storage, table), {})
    with pytest.raises(UnsupportedTable):
        open_table(table_in_folder(storage, table), {"num-levels": "3"})


def test_a_table_whose_options_cannot_be_read_can_still_be_looked_at():
    storage = MemoryStorage()
    table = keyed_table(storage, LOCATION, options={"changelog-producer": "foo", "bucket": "abc"})
    with pytest.raises(UnsupportedTable) as caught:
        open_table(table_in_folder(storage, table), {})
    assert [reason.partition(":")[0] for reason in caught.value.reasons] == [
        "option bucket='abc'",
        "option changelog-producer='foo'",
    ]
    schema = latest_schema(storage, LOCATION)
    opened = describe_table(table_in_folder(storage, table), schema, {})
    assert opened.options.unreadable.keys() == {
        "bucket",
        "changelog-producer",
    }


def test_keys_and_partitions_that_are_no_rows_are_named_by_where_they_are():
    storage = MemoryStorage()
    table = open_table(table_in_folder(storage, keyed_table(storage, LOCATION)), {})
    assert table.partition_text(b"junk") == "0x6a756e6b", "what people are shown"
    for read in (table.key_of, table.partition_path):
        with pytest.raises(FormatError, match=rf"not a row .*: {LOCATION}/manifest$"):
            read(b"\x00")
