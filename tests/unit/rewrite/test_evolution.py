"""Subcompactions whose files have several schemas."""

from __future__ import annotations

import datetime
import itertools
import random
import zoneinfo
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.errors import FormatError, SubcompactionError
from compactord.model import InputFile, KeyRange, MergeSpec, Subcompaction
from compactord.paimon.binary_row import encode_row
from compactord.paimon.types import DataField, parse_type
from compactord.rewrite.casting.rules import cast
from compactord.rewrite.split import cut_ranges
from compactord.rewrite.subcompaction import rewrite
from compactord.storage.local import LocalStorage
from compactord.storage.ranges import SMALL_FILE
from tests.storages import RequestCounter
from tests.unit.rewrite.builders import (
    SEQUENCE,
    concat_subcompaction,
    fields,
    merge_subcompaction,
    output_paths,
    output_rows,
    write_append,
    write_run,
)


def column(id_: int, name: str, type_: Any) -> DataField:
    return DataField(id=id_, name=name, type=parse_type(type_))


def older(file: InputFile, number: int = 0) -> InputFile:
    return replace(file, older_schema=number)


def appended(tmp_path, old, rows, new, zone: datetime.tzinfo = datetime.timezone.utc) -> list[Any]:
    """Rows of an append file of schema `old`, rewritten with schema `new`."""
    file = older(write_append(tmp_path / "old.parquet", old, rows))
    task = concat_subcompaction(tmp_path, new, [file])
    task = replace(task, older_schemas=(tuple(old),), zone=zone)
    return output_rows(task, rewrite(task))


OLD = fields(k="BIGINT NOT NULL", v="INT", gone="STRING")
NEW = (
    column(3, "added", "STRING"),
    column(1, "w", "BIGINT"),
    column(0, "key", "BIGINT NOT NULL"),
    # Another column than the one that was dropped under this name.
    column(4, "gone", "STRING"),
)


def merge_of_two_schemas(tmp_path, **settings: Any) -> Subcompaction:
    """Keys 0 to 999 in a file of each schema; the file of the newer one has every second key."""
    first = [{"k": k, "v": k, "gone": "x", SEQUENCE: k} for k in range(1000)]
    second = [
        {"key": k, "w": 2**40 + k, "added": f"a{k % 3}", "gone": "y", SEQUENCE: 1000 + k}
        for k in range(0, 1000, 2)
    ]
    files = [
        [older(write_run(tmp_path / "old.parquet", OLD, ["k"], first, row_group_size=100))],
        [write_run(tmp_path / "new.parquet", NEW, ["key"], second, row_group_size=100)],
    ]
    task = merge_subcompaction(tmp_path, NEW, ["key"], files, **settings)
    return replace(task, older_schemas=(OLD,))


def merged_row(k: int) -> dict[str, Any]:
    if k % 2:
        return {"added": None, "w": k, "key": k, "gone": None}
    return {"added": f"a{k % 3}", "w": 2**40 + k, "key": k, "gone": "y"}


@pytest.mark.parametrize("thin_mode", [False, True])
def test_rows_of_two_schemas_are_merged_by_a_renamed_key(tmp_path, thin_mode):
    task = merge_of_two_schemas(tmp_path, thin_mode=thin_mode)
    names = [field.name for field in NEW]
    found = [{name: row[name] for name in names} for row in output_rows(task, rewrite(task))]
    assert found == [merged_row(k) for k in range(1000)]


def test_key_ranges_cut_and_filter_files_by_their_own_key_names(tmp_path):
    task = merge_of_two_schemas(tmp_path)
    assert isinstance(task.source, MergeSpec)
    ranges = cut_ranges(task.source, 3, NEW, LocalStorage(), older=task.older_schemas)
    assert len(ranges) == 3
    found = []
    for number, bounds in enumerate(ranges):
        part = replace(
            task,
            source=replace(task.source, key_range=bounds),
            write=replace(task.write, folder=str(tmp_path / f"part-{number}")),
        )
        found += [row["key"] for row in output_rows(part, rewrite(part))]
    assert found == list(range(1000))


def test_a_fetched_file_is_cut_by_its_own_key_names(tmp_path):
    old, new = fields(k="INT NOT NULL", v="STRING"), fields(key="INT NOT NULL", v="STRING")
    seeded = random.Random(1)
    rows = [{"k": k, "v": seeded.randbytes(60).hex()} for k in range(15_000)]
    file = write_run(tmp_path / "old.parquet", old, ["k"], rows, row_group_size=4_000)
    assert file.size_bytes > SMALL_FILE
    edges = [None, *(encode_row([k], [new[0].type]) for k in (5_000, 9_000)), None]
    found = []
    for number, (lower, upper) in enumerate(itertools.pairwise(edges)):
        task = merge_subcompaction(
            tmp_path / f"part-{number}",
            new,
            ["key"],
            [[older(file)]],
            key_range=KeyRange(lower=lower, upper=upper),
            storage=RequestCounter(LocalStorage()),
        )
        task = replace(task, older_schemas=(old,))
        found += [row["key"] for row in output_rows(task, rewrite(task))]
    assert found == list(range(15_000))


def test_an_output_has_the_latest_columns_ids_and_schema(tmp_path):
    task = merge_of_two_schemas(tmp_path)
    result = rewrite(task)
    [path] = output_paths(task, result)
    schema = pq.read_schema(path)
    assert schema.names[3:] == ["added", "w", "key", "gone"]
    ids = [int(field.metadata[b"PARQUET:field_id"]) for field in schema][3:]
    assert ids == [3, 1, 0, 4]
    assert [file.schema_id for file in result.after] == [task.write.schema_id]


def test_a_value_that_cannot_be_cast_fails_with_file_column_and_value(tmp_path):
    old, new = fields(k="INT", v="STRING"), (column(0, "k", "INT"), column(1, "n", "INT"))
    with pytest.raises(FormatError) as caught:
        appended(tmp_path, old, [{"k": 1, "v": "12"}, {"k": 2, "v": "12x"}], new)
    assert str(tmp_path / "old.parquet") in str(caught.value)
    assert "column n cannot be cast from STRING to INT: '12x' is not a whole number" in str(
        caught.value
    )


def test_null_in_a_column_that_has_become_not_null_fails(tmp_path):
    old, new = fields(k="INT", v="INT"), fields(k="INT", v="INT NOT NULL")
    assert appended(tmp_path, old, [{"k": 1, "v": 1}], new) == [{"k": 1, "v": 1}]
    with pytest.raises(FormatError, match="column v is NOT NULL in the latest schema"):
        appended(tmp_path, old, [{"k": 1, "v": None}], new)


def test_null_in_a_column_that_has_become_not_null_fails_unless_a_newer_row_replaces_it(tmp_path):
    old, new = fields(k="INT NOT NULL", v="INT"), fields(k="INT NOT NULL", v="INT NOT NULL")
    rows = [{"k": 1, "v": None}, {"k": 2, "v": 2}]
    files = [
        [older(write_run(tmp_path / "old.parquet", old, ["k"], rows))],
        [write_run(tmp_path / "new.parquet", new, ["k"], [{"k": 1, "v": 5, SEQUENCE: 9}])],
    ]
    both = replace(merge_subcompaction(tmp_path, new, ["k"], files), older_schemas=(old,))
    assert [row["v"] for row in output_rows(both, rewrite(both))] == [5, 2]
    alone = replace(merge_subcompaction(tmp_path, new, ["k"], files[:1]), older_schemas=(old,))
    with pytest.raises(SubcompactionError, match=r"key k=1, column v: .* NOT NULL .*old\.parquet"):
        rewrite(alone)
    partial = replace(both, source=replace(both.source, merge_engine="partial-update"))
    with pytest.raises(SubcompactionError, match=r"key k=1, column v: a null in a NOT NULL column"):
        rewrite(partial)


def test_a_sum_with_more_digits_than_its_type_becomes_null_in_a_wider_one_that_lacks_them():
    unscaled = pa.py_buffer(np.array([1000, 0, 15, 0], np.int64))
    sums = pa.Array.from_buffers(pa.decimal128(3, 1), 2, [None, unscaled])
    for wanted, found in (("DECIMAL(4, 2)", [None, "1.50"]), ("DECIMAL(5, 2)", ["100.00", "1.50"])):
        types = parse_type("DECIMAL(3, 1)"), parse_type(wanted)
        made = cast(sums, *types, datetime.timezone.utc)
        assert [value and str(value) for value in made.to_pylist()] == found


def _row_type(*inner: tuple[int, str, Any], nullable: bool = True) -> dict[str, Any]:
    return {
        "type": "ROW" if nullable else "ROW NOT NULL",
        "fields": [{"id": id_, "name": name, "type": type_} for id_, name, type_ in inner],
    }


A_INT, B_TEXT = (10, "a", "INT"), (11, "b", "STRING")
NESTED = {
    "field added": (_row_type(A_INT), _row_type(A_INT, B_TEXT), {"a": 1}, {"a": 1, "b": None}),
    "field with a NOT NULL inside added": (
        _row_type(A_INT),
        _row_type(A_INT, (12, "c", _row_type((13, "d", "STRING NOT NULL")))),
        {"a": 1},
        {"a": 1, "c": None},
    ),
    "field dropped": (_row_type(A_INT, B_TEXT), _row_type(B_TEXT), {"a": 1, "b": "x"}, {"b": "x"}),
    "fields moved and renamed": (
        _row_type(A_INT, B_TEXT),
        _row_type((11, "a", "STRING"), (10, "b", "INT")),
        {"a": 1, "b": "x"},
        {"a": "x", "b": 1},
    ),
    "field widened": (_row_type(A_INT), _row_type((10, "a", "BIGINT")), {"a": 1}, {"a": 1}),
    "no field left": (_row_type(A_INT), _row_type((12, "a", "INT")), {"a": 1}, None),
    "row of an array": (
        {"type": "ARRAY", "element": _row_type(A_INT)},
        {"type": "ARRAY", "element": _row_type((10, "n", "STRING"), B_TEXT)},
        [{"a": 1}, None, {"a": None}],
        [{"n": "1", "b": None}, None, {"n": None, "b": None}],
    ),
    "map values": (
        {"type": "MAP", "key": "STRING NOT NULL", "value": "INT"},
        {"type": "MAP", "key": "STRING NOT NULL", "value": "DOUBLE"},
        [("x", 1), ("y", None)],
        [("x", 1.0), ("y", None)],
    ),
    "array to text": (
        {"type": "ARRAY", "element": "DOUBLE"},
        "STRING",
        [1.0, None, 1e10],
        "[1.0, null, 1.0E10]",
    ),
    "map to text": (
        {"type": "MAP", "key": "INT NOT NULL", "value": "DATE"},
        "VARCHAR(16)",
        [(1, datetime.date(2024, 2, 29))],
        "{1 -> 2024-02-29",
    ),
    "row to text": (_row_type(A_INT, B_TEXT), "STRING", {"a": None, "b": "x"}, "{null, x}"),
}


@pytest.mark.parametrize("case", NESTED)
def test_nested_columns_are_converted_field_by_field(tmp_path, case):
    old_type, new_type, before, after = NESTED[case]
    old = (column(0, "k", "INT"), column(1, "v", old_type))
    new = (column(0, "k", "INT"), column(1, "v", new_type))
    rows = [{"k": 1, "v": before}, {"k": 2, "v": None}, {"k": 3, "v": before}]
    found = [row["v"] for row in appended(tmp_path, old, rows, new)]
    assert found == [after, None, after]


def test_a_not_null_field_of_a_row_that_is_null_is_not_looked_at(tmp_path):
    old = (column(0, "v", _row_type((10, "a", "STRING NOT NULL"))),)
    new = (column(0, "v", _row_type((10, "a", "INT NOT NULL"))),)
    rows = [{"v": {"a": "1"}}, {"v": None}]
    assert appended(tmp_path, old, rows, new) == [{"v": {"a": 1}}, {"v": None}]


def test_an_added_row_with_a_not_null_field_is_null(tmp_path):
    new = (column(0, "k", "INT"), column(1, "v", _row_type((10, "a", "BIGINT NOT NULL"))))
    assert appended(tmp_path, new[:1], [{"k": 1}], new) == [{"k": 1, "v": None}]


@pytest.mark.parametrize(
    ("zone", "day"), [("UTC", 27), ("Europe/Berlin", 28), ("America/St_Johns", 27)]
)
def test_days_of_instants_are_those_of_the_time_zone(tmp_path, zone, day):
    moment = datetime.datetime(2024, 10, 27, 23, 30, tzinfo=datetime.timezone.utc)
    [row] = appended(
        tmp_path,
        fields(v="TIMESTAMP_LTZ(3)"),
        [{"v": moment}],
        fields(v="DATE"),
        zoneinfo.ZoneInfo(zone),
    )
    assert row["v"] == datetime.date(2024, 10, day)
