from __future__ import annotations

import decimal
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.kernels.keys import BatchKeys, slice_range
from tests.sampling import examples
from tests.unit.kernels import model

KEY = ["a", "b"]


def batch(rows: list[tuple[int, str]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "a": pa.array([row[0] for row in rows], pa.int32()),
            "b": pa.array([row[1] for row in rows], pa.string()),
        }
    )


ROWS = st.tuples(st.integers(-2, 2), st.text("ab\0é", max_size=2))


@settings(max_examples=examples(300))
@given(
    st.lists(ROWS, unique=True),
    st.none() | ROWS,
    st.none() | ROWS,
    st.integers(0, 3),
)
def test_a_range_holds_its_lower_and_not_its_upper_bound(
    rows: list[tuple[int, str]],
    lower: tuple[int, str] | None,
    upper: tuple[int, str] | None,
    offset: int,
) -> None:
    rows.sort(key=model.key_order)
    sliced = slice_range(
        batch([(9, "padding")] * offset + rows).slice(offset),
        KEY,
        None if lower is None else batch([lower]),
        None if upper is None else batch([upper]),
    )
    assert list(zip(sliced["a"].to_pylist(), sliced["b"].to_pylist(), strict=True)) == [
        row
        for row in rows
        if (lower is None or model.key_order(row) >= model.key_order(lower))
        and (upper is None or model.key_order(row) < model.key_order(upper))
    ]


def test_ranges_that_meet_share_no_row_and_lose_none() -> None:
    whole = batch([(number, "x") for number in range(10)])
    cut = batch([(4, "x")])
    low, high = slice_range(whole, KEY, None, cut), slice_range(whole, KEY, cut, None)
    assert low["a"].to_pylist() + high["a"].to_pylist() == whole["a"].to_pylist()


@pytest.mark.parametrize(
    ("type_", "ascending"),
    [
        (pa.float64(), [-math.inf, -1.5, -0.0, 0.0, 1e-300, math.inf, math.nan]),
        (pa.float32(), [-math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan]),
        (pa.decimal128(38, 1), [*map(decimal.Decimal, ("-9e36", "-0.1", "0", "0.1", "9e36"))]),
        (pa.string(), ["", "\0", "a", "a\0", "aa", "é", "￿", "\U0001f600"]),
        (pa.binary(), [b"", b"\0", b"\x7f", b"\x80", b"\xff", b"\xff\0"]),
        (pa.int8(), [-128, -1, 0, 127]),
        (pa.int64(), [-(1 << 63), -1, 0, (1 << 63) - 1]),
        (pa.bool_(), [False, True]),
        (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "c"]),
    ],
    ids=str,
)
def test_keys_compare_as_paimon_compares_values(type_: pa.DataType, ascending: list[Any]) -> None:
    keys = BatchKeys(pa.RecordBatch.from_pydict({"k": pa.array(ascending, type_)}), ["k"])
    found = [keys[row] for row in range(len(ascending))]
    assert found == sorted(found)
    assert len(set(found)) == len(found)


def test_all_nans_are_one_key() -> None:
    nans = pa.array([math.nan, model.nan_with_payload(), -math.nan])
    keys = BatchKeys(pa.RecordBatch.from_pydict({"k": nans}), ["k"])
    assert keys[0] == keys[1] == keys[2]
