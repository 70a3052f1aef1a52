"""Subcompactions that read a range of the keys: together they see every row once."""

from __future__ import annotations

import datetime
import itertools
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compactord.model import InputFile, KeyRange
from compactord.paimon.binary_row import encode_row
from compactord.paimon.types import file_schema
from compactord.rewrite.subcompaction import rewrite
from tests.unit.rewrite.builders import (
    SEQUENCE,
    fields,
    input_file,
    merge_subcompaction,
    output_rows,
    write_parquet,
    write_run,
)

DAY = datetime.datetime(2020, 1, 1)  # noqa: DTZ001 - TIMESTAMP has no zone


def keys_in_subcompactions(
    folder: Path, type_: str, file: InputFile, cuts: list[Any]
) -> tuple[list[Any], int]:
    """The keys of all subcompactions, one after the other, and the bytes that were read."""
    columns = fields(k=type_)
    edges = [None, *(encode_row([cut], [columns[0].type]) for cut in cuts), None]
    found, size = [], 0
    for number, (lower, upper) in enumerate(itertools.pairwise(edges)):
        bounds = KeyRange(lower=lower, upper=upper)
        subcompaction = merge_subcompaction(
            folder / str(number), columns, ["k"], [[file]], key_range=bounds
        )
        result = rewrite(subcompaction)
        found += [row["k"] for row in output_rows(subcompaction, result)]
        size += result.stats.input_bytes
    return found, size


CASES: dict[str, tuple[str, list[Any], list[Any]]] = {
    "number": ("INT NOT NULL", list(range(-10, 10)), [-10, -5, 0, 7]),
    "text": ("STRING NOT NULL", ["", "a", "a\0", "b", "é", "\U0001f600"], ["", "a\0", "é"]),
    "bytes": ("BYTES NOT NULL", [b"", b"\0", b"a", b"\x80", b"\xff"], [b"\0", b"\x80"]),
    "boolean": ("BOOLEAN NOT NULL", [False, True], [True]),
    "decimal": (
        "DECIMAL(5, 2) NOT NULL",
        [Decimal(25 * n).scaleb(-2) for n in range(-8, 8)],
        [Decimal("-1.25"), Decimal("0.00")],
    ),
    "wide decimal": (
        "DECIMAL(38, 2) NOT NULL",
        [Decimal(n * 10**25 + 1).scaleb(-2) for n in range(-8, 8)],
        [Decimal(-(10**25) + 1).scaleb(-2), Decimal("0.01")],
    ),
    "float": ("DOUBLE NOT NULL", [-5.0, -1.0, -0.0, 0.0, 1.0, float("nan")], [-0.0, 0.0, 5.0]),
    "not a number": ("FLOAT NOT NULL", [1.0, float("nan")], [float("nan")]),
}


@pytest.mark.parametrize("group", [1, 2, 3, 100])
@pytest.mark.parametrize("case", CASES)
def test_ranges_that_end_on_keys_and_borders_of_row_groups(tmp_path, case, group):
    type_, keys, cuts = CASES[case]
    rows = [{"k": key, SEQUENCE: n} for n, key in enumerate(keys)]
    path = tmp_path / "a.parquet"
    file = write_run(path, fields(k=type_), ["k"], rows, row_group_size=group)
    found, size = keys_in_subcompactions(tmp_path, type_, file, cuts)
    assert list(map(repr, found)) == list(map(repr, keys))
    assert size == file.size_bytes


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_times_are_compared_in_one_unit(tmp_path, unit):
    columns = fields(k="TIMESTAMP(3) NOT NULL")
    keys = [DAY + datetime.timedelta(milliseconds=n) for n in range(20)]
    rows = [{"k": key, "_KEY_k": key, SEQUENCE: n, "_VALUE_KIND": 0} for n, key in enumerate(keys)]
    schema = file_schema(columns, ["k"], thin=False)
    for name in ("k", "_KEY_k"):
        at = schema.get_field_index(name)
        schema = schema.set(at, schema.field(at).with_type(pa.timestamp(unit)))
    path = tmp_path / "a.parquet"
    write_parquet(path, pa.Table.from_pylist(rows, schema=schema), row_group_size=3)
    epoch = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - TIMESTAMP has no zone
    cut = (keys[10] - epoch) // datetime.timedelta(milliseconds=1) * 1_000_000
    found, _ = keys_in_subcompactions(
        tmp_path, "TIMESTAMP(3) NOT NULL", input_file(path, 20, 0, 19), [cut]
    )
    assert found == keys


@pytest.mark.parametrize("options", [{}, {"row_group_size": 7000}, {"write_statistics": False}])
def test_a_range_of_several_batches(tmp_path, options):
    columns = fields(k="BIGINT NOT NULL")
    rows = [{"k": n, SEQUENCE: n} for n in range(80_000)]
    file = write_run(tmp_path / "a.parquet", columns, ["k"], rows, **options)
    found, size = keys_in_subcompactions(tmp_path, "BIGINT NOT NULL", file, [100, 32_768, 79_999])
    assert found == list(range(80_000))
    assert size == file.size_bytes
