from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from compactord.paimon.types import (
    WIDE_TIMESTAMP,
    arrow_type,
    from_nanoseconds,
    from_parts,
    nanoseconds_of,
    parse_type,
    parts_of,
    text_of,
)

MS = 10**6
DIGITS = range(1, 39)
# Of all that Java's Timestamp can hold.
LOWEST, HIGHEST = -(1 << 63) * MS, (1 << 63) * MS - 1
INSTANTS = st.integers(LOWEST, HIGHEST) | st.sampled_from([LOWEST, HIGHEST, -1, 0, 1, -MS, MS - 1])


def test_a_value_is_shown_as_its_time() -> None:
    values = {
        253_402_300_799_999_999_999: "9999-12-31T23:59:59.999999999",
        -1: "1969-12-31T23:59:59.999999999",
        -62_135_596_800 * 10**9: "0001-01-01T00:00:00.000000000",
    }
    assert [text_of(scalar) for scalar in from_nanoseconds(list(values))] == list(values.values())


@given(st.lists(st.none() | INSTANTS), st.integers(0, 3))
def test_values_come_back_also_from_a_slice(values: list[int | None], start: int) -> None:
    column = from_nanoseconds(values)
    column.validate(full=True)
    assert column.type == WIDE_TIMESTAMP
    assert column.null_count == values.count(None)
    part = column.slice(start)
    millis, nanos = parts_of(part)
    for value, scalar, milli, nano in zip(values[start:], part, millis, nanos, strict=True):
        assert (nanoseconds_of(scalar) if scalar.is_valid else None) == value
        if value is not None:
            assert (int(milli), int(nano)) == divmod(value, MS)
    nulls = np.asarray(part.is_null())
    assert from_parts(millis, nanos, nulls).equals(part)


@given(st.lists(INSTANTS, min_size=1))
def test_arrow_orders_values_as_they_are(values: list[int]) -> None:
    column = from_nanoseconds(values)
    assert [values[i] for i in pc.sort_indices(column).to_pylist()] == sorted(values)
    found = pc.min_max(column)
    assert nanoseconds_of(found["min"]) == min(values)
    assert nanoseconds_of(found["max"]) == max(values)
    assert pc.equal(column, from_nanoseconds([values[0]])[0]).to_pylist() == [
        value == values[0] for value in values
    ]


def test_no_decimal_of_a_table_has_this_type() -> None:
    all_types = {arrow_type(parse_type(f"DECIMAL({p}, {s})")) for p in DIGITS for s in range(p + 1)}
    assert len(all_types) == sum(p + 1 for p in DIGITS)
    assert WIDE_TIMESTAMP not in all_types
