from __future__ import annotations

import pytest

from compactord.model import KeyRange
from compactord.paimon.binary_row import decode_row
from compactord.rewrite.split import cut_ranges
from compactord.storage.local import LocalStorage
from tests.unit.rewrite.builders import SEQUENCE, fields, merge_subcompaction, write_run

NUMBER = fields(k="BIGINT NOT NULL")


def ranges(tmp_path, columns, key, runs, count):
    files = [
        [write_run(tmp_path / f"{n}.parquet", columns, key, run, row_group_size=group)]
        for n, (run, group) in enumerate(runs)
    ]
    source = merge_subcompaction(tmp_path, columns, key, files).source
    return cut_ranges(source, count, columns, LocalStorage())


def cuts(found, columns):
    types = [field.type for field in columns]
    assert found[0].lower is None
    assert found[-1].upper is None
    assert [r.upper for r in found[:-1]] == [r.lower for r in found[1:]]
    return [decode_row(r.lower, types) for r in found[1:]]


def numbers(low, high, step=1):
    return [{"k": k, SEQUENCE: k} for k in range(low, high, step)]


def test_one_subcompaction_is_everything_and_reads_nothing(tmp_path):
    source = merge_subcompaction(tmp_path, NUMBER, ["k"], []).source
    assert cut_ranges(source, 1, NUMBER, LocalStorage()) == (KeyRange(),)


@pytest.mark.parametrize("group", [250, 1000])
def test_numbers_are_cut_evenly_inside_row_groups(tmp_path, group):
    found = ranges(tmp_path, NUMBER, ["k"], [(numbers(0, 1000), group)], 4)
    assert cuts(found, NUMBER) == [(250,), (500,), (750,)]


def test_cuts_follow_the_rows_not_the_keys(tmp_path):
    dense = (numbers(0, 1000), 100)
    sparse = (numbers(0, 1_000_000, 10_000), 10)
    found = ranges(tmp_path, NUMBER, ["k"], [dense, sparse], 2)
    ((cut,),) = cuts(found, NUMBER)
    assert 500 < cut < 650


def test_negative_and_extreme_numbers(tmp_path):
    rows = [{"k": k, SEQUENCE: 0} for k in (-(2**63), -5, 0, 7, 2**63 - 1)]
    found = ranges(tmp_path, NUMBER, ["k"], [(rows, 1)], 3)
    decoded = cuts(found, NUMBER)
    assert decoded == sorted(decoded)
    assert len(decoded) == 2


def test_texts_are_cut_at_quantiles_of_the_largest_run(tmp_path):
    columns = fields(k="STRING NOT NULL")
    rows = [{"k": f"user-{k:05}", SEQUENCE: k} for k in range(1000)]
    small = [{"k": f"a-{k}", SEQUENCE: 1} for k in range(10)]
    found = ranges(tmp_path, columns, ["k"], [(small, 1), (rows, 100)], 4)
    assert cuts(found, columns) == [("user-00249",), ("user-00499",), ("user-00749",)]


def test_a_key_with_one_first_value_is_cut_by_its_other_columns(tmp_path):
    columns = fields(a="STRING NOT NULL", b="INT NOT NULL")
    rows = [{"a": "same", "b": b, SEQUENCE: b} for b in range(100)]
    found = ranges(tmp_path, columns, ["a", "b"], [(rows, 10)], 2)
    assert cuts(found, columns) == [("same", 50)]


@pytest.mark.parametrize("type_", ["BIGINT NOT NULL", "STRING NOT NULL"])
def test_fewer_keys_than_subcompactions_give_fewer_ranges(tmp_path, type_):
    columns = fields(k=type_)
    value = 5 if "BIGINT" in type_ else "x"
    found = ranges(tmp_path, columns, ["k"], [([{"k": value, SEQUENCE: 0}], 1)], 8)
    assert found == (KeyRange(),)


def test_timestamps_are_cut_in_their_unit(tmp_path):
    columns = fields(k="TIMESTAMP(6) NOT NULL")
    rows = [{"k": k * 1000, SEQUENCE: k} for k in range(100)]
    found = ranges(tmp_path, columns, ["k"], [(rows, 10)], 2)
    ((cut,),) = cuts(found, columns)
    assert 49_000_000 <= cut <= 51_000_000
