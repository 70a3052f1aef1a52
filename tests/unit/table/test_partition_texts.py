"""Texts of partition values: every text that a folder may have is read back."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactord.paimon.binary_row import Value, encode_row
from compactord.paimon.java_text import cast_text, to_string
from compactord.paimon.types import ArrayType, AtomicType, DataField, TypeRoot
from compactord.table.partition_texts import is_blank, partition_value, unescaped

DAY_NANOS = 86_400 * 10**9


def _type(root: TypeRoot, precision: int | None = None, scale: int | None = None) -> AtomicType:
    return AtomicType(root=root, precision=precision, scale=scale)


STRING = _type(TypeRoot.VARCHAR, 2**31 - 1)
DATE = _type(TypeRoot.DATE)
DECIMAL = _type(TypeRoot.DECIMAL, 5, 2)
MILLIS, MICROS = _type(TypeRoot.TIMESTAMP, 3), _type(TypeRoot.TIMESTAMP, 6)


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (_type(TypeRoot.BOOLEAN), "false", False),
        (_type(TypeRoot.TINYINT), "-128", -128),
        (_type(TypeRoot.INT), "2147483647", 2**31 - 1),
        (_type(TypeRoot.BIGINT), "-9223372036854775808", -(2**63)),
        (_type(TypeRoot.DOUBLE), "1.0E10", 1e10),
        (_type(TypeRoot.FLOAT), "-Infinity", float("-inf")),
        (DECIMAL, "-123.45", Decimal("-123.45")),
        (DECIMAL, "1.5", Decimal("1.50")),
        (STRING, "", ""),
        (_type(TypeRoot.VARBINARY, 9), "ü", "ü".encode()),
        (DATE, "1970-01-02", 1),
        (DATE, "0000-03-01", -719_468),
        (DATE, "19723", 19_723),
        (_type(TypeRoot.TIME, 3), "00:00:01.5", 1500),
        (_type(TypeRoot.TIME, 0), "1500", 1500),
        (MILLIS, "1970-01-02 00:00:00.001", DAY_NANOS + 10**6),
        (MICROS, "1970-01-02T00:00", DAY_NANOS),
        (_type(TypeRoot.TIMESTAMP_LTZ, 6), "1970-01-01T00:00:00.000001", 1000),
    ],
)
def test_a_text_is_read_by_its_columns_type(type_: AtomicType, text: str, value: Value) -> None:
    assert encode_row([partition_value(text, type_)], [type_]) == encode_row([value], [type_])


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        (_type(TypeRoot.BOOLEAN), "True", "true or false"),
        (_type(TypeRoot.TINYINT), "128", "from -128 to 127"),
        (_type(TypeRoot.INT), "abc", "whole number from -2147483648 to 2147483647"),
        (_type(TypeRoot.INT), "1.0", "whole number"),
        (_type(TypeRoot.INT), "99999999999", "whole number"),
        (_type(TypeRoot.INT), "١", "whole number"),
        (_type(TypeRoot.BIGINT), "9" * 5000, "shorter"),
        (_type(TypeRoot.DOUBLE), "one", "0.5"),
        (_type(TypeRoot.FLOAT), "1e39", "range of FLOAT"),
        (DECIMAL, "1000", "3 digits before the point and 2 after"),
        (DECIMAL, "1.505", "2 after"),
        (STRING, "\udcff", "UTF-8"),
        (DATE, "2024-13-01", "a day such as"),
        (DATE, "2023-02-29", "a day such as"),
        (DATE, "20240101000", "a day such as"),
        (DATE, "", "a day such as"),
        (_type(TypeRoot.TIME, 3), "24:00:00", "a time such as"),
        (_type(TypeRoot.TIME, 3), "00:00:00.0001", "a time such as"),
        (_type(TypeRoot.TIME, 3), "86400000", "a time such as"),
        (MILLIS, "2024-01-01 00:00:00.0001", "at most 3 digits"),
        (MILLIS, "2024-01-01", "a moment such as"),
        (MILLIS, "2024-13-01 00:00:00", "a moment such as"),
        (ArrayType(element=DATE), "1", "cannot be given as text"),
    ],
)
def test_a_text_that_the_type_cannot_mean_is_refused_with_what_was_expected(
    type_: AtomicType, text: str, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        partition_value(text, type_)


_VALUES: dict[TypeRoot, tuple[AtomicType, st.SearchStrategy[Value]]] = {
    TypeRoot.BOOLEAN: (_type(TypeRoot.BOOLEAN), st.booleans()),
    TypeRoot.INT: (_type(TypeRoot.INT), st.integers(-(2**31), 2**31 - 1)),
    TypeRoot.DOUBLE: (_type(TypeRoot.DOUBLE), st.floats()),
    TypeRoot.FLOAT: (_type(TypeRoot.FLOAT), st.floats(width=32)),
    TypeRoot.DECIMAL: (DECIMAL, st.decimals(-999, 999, places=2)),
    TypeRoot.VARCHAR: (STRING, st.text(st.characters(codec="utf-8"))),
    # Of other years Java prints four digits, too.
    TypeRoot.DATE: (DATE, st.integers(-719_528, 2_932_896)),
    TypeRoot.TIME: (_type(TypeRoot.TIME, 3), st.integers(0, 86_399_999)),
    TypeRoot.TIMESTAMP: (
        MICROS,
        st.integers(-719_528 * DAY_NANOS // 1000, 2_932_896 * DAY_NANOS // 1000).map(
            lambda micros: micros * 1000
        ),
    ),
}


@given(st.data(), st.sampled_from(sorted(_VALUES, key=lambda root: root.value)))
def test_both_texts_of_a_value_mean_it(data: st.DataObject, root: TypeRoot) -> None:
    type_, values = _VALUES[root]
    value = data.draw(values)
    for text in (to_string(value, type_), cast_text(value, type_)):
        assert text is not None
        assert encode_row([partition_value(text, type_)], [type_]) == encode_row([value], [type_])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a%2Cb", "a,b"), ("%3d%25", "=%"), ("50%", "50%"), ("%zz", "%zz"), ("%252C", "%2C")],
)
def test_what_folders_escape_is_unescaped(text: str, expected: str) -> None:
    assert unescaped(text) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, True), ("", True), (" \t", True), ("x", False), ("one", False), ("\u00a0", False)],
)
def test_blank_text_lies_in_the_folder_of_null(value: str | None, expected: bool) -> None:
    field = DataField(id=0, name="p", type=STRING)
    assert is_blank(encode_row([value], [STRING]), field) is expected


def test_bytes_that_are_no_text_are_not_blank() -> None:
    bytes_ = _type(TypeRoot.VARBINARY, 9)
    assert not is_blank(encode_row([b"\xff"], [bytes_]), DataField(id=0, name="p", type=bytes_))
