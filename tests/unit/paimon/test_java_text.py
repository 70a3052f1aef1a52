from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from compactord.errors import FormatError
from compactord.paimon.java_text import cast_text, to_string
from compactord.paimon.types import parse_type

SECOND = 1_000_000_000
MOMENT = 1_700_000_000 * SECOND


@pytest.mark.parametrize(
    ("text", "value", "shown"),
    [
        ("BOOLEAN", True, "true"),
        ("BOOLEAN", False, "false"),
        ("TINYINT", -128, "-128"),
        ("BIGINT", 2**63 - 1, "9223372036854775807"),
        ("STRING", "a b", "a b"),
        ("DECIMAL(10, 2)", Decimal("1.50"), "1.50"),
        ("DECIMAL(38, 10)", Decimal("1E-10"), "0.0000000001"),
        ("FLOAT", 1.0, "1.0"),
        ("FLOAT", 0.10000000149011612, "0.1"),
        ("FLOAT", 1e10, "1.0E10"),
        ("FLOAT", 3.4028234663852886e38, "3.4028235E38"),
        ("FLOAT", 1.401298464324817e-45, "1.4E-45"),
        ("DOUBLE", 0.001, "0.001"),
        ("DOUBLE", 0.0009, "9.0E-4"),
        ("DOUBLE", 9999999.0, "9999999.0"),
        ("DOUBLE", 1e7, "1.0E7"),
        ("DOUBLE", 123.456, "123.456"),
        ("DOUBLE", 100.0, "100.0"),
        ("DOUBLE", 5e-324, "4.9E-324"),
        ("DOUBLE", 2e23, "2.0E23"),
        ("DOUBLE", -0.0, "-0.0"),
        ("DOUBLE", float("nan"), "NaN"),
        ("DOUBLE", float("-inf"), "-Infinity"),
        ("DOUBLE", float("inf"), "Infinity"),
    ],
)
def test_plain_values_have_one_text(text: str, value: Any, shown: str) -> None:
    assert to_string(value, parse_type(text)) == shown
    assert cast_text(value, parse_type(text)) == shown


@pytest.mark.parametrize(
    ("text", "value", "internal", "cast"),
    [
        ("DATE", 19000, "19000", "2022-01-08"),
        ("DATE", -1, "-1", "1969-12-31"),
        ("DATE", 11016, "11016", "2000-02-29"),
        ("TIME(0)", 3_600_000, "3600000", "01:00:00"),
        ("TIME(3)", 3_600_000, "3600000", "01:00:00.0"),
        ("TIME(3)", 120, "120", "00:00:00.12"),
        ("TIME(3)", 50, "50", "00:00:00.05"),
        ("TIME(2)", 86_399_999, "86399999", "23:59:59.99"),
        ("TIMESTAMP(3)", MOMENT, "2023-11-14T22:13:20", "2023-11-14 22:13:20.000"),
        ("TIMESTAMP(0)", MOMENT, "2023-11-14T22:13:20", "2023-11-14 22:13:20"),
        ("TIMESTAMP(3)", MOMENT - 20 * SECOND, "2023-11-14T22:13", "2023-11-14 22:13:00.000"),
        (
            "TIMESTAMP(3)",
            MOMENT + 120_000_000,
            "2023-11-14T22:13:20.120",
            "2023-11-14 22:13:20.120",
        ),
        (
            "TIMESTAMP(9)",
            MOMENT + 1000,
            "2023-11-14T22:13:20.000001",
            "2023-11-14 22:13:20.000001000",
        ),
        ("TIMESTAMP(9)", -1, "1969-12-31T23:59:59.999999999", "1969-12-31 23:59:59.999999999"),
        # 10000-01-01: Java's cast prints four digits of the year.
        ("TIMESTAMP(0)", 253_402_300_800 * SECOND, "+10000-01-01T00:00", "0000-01-01 00:00:00"),
    ],
)
def test_moments_differ_between_internal_text_and_cast(
    text: str, value: int, internal: str, cast: str
) -> None:
    assert to_string(value, parse_type(text)) == internal
    assert cast_text(value, parse_type(text)) == cast


def test_years_before_christ_have_a_sign() -> None:
    assert to_string(-62_198_755_200 * SECOND, parse_type("TIMESTAMP(0)")) == "-0001-01-01T00:00"
    with pytest.raises(FormatError, match="year -1"):
        cast_text(-62_198_755_200 * SECOND, parse_type("TIMESTAMP(0)"))


def test_null_has_no_text() -> None:
    assert to_string(None, parse_type("INT")) is None
    assert cast_text(None, parse_type("INT")) is None


def test_bytes_have_a_text_only_when_cast() -> None:
    assert cast_text("é".encode(), parse_type("BYTES")) == "é"
    with pytest.raises(FormatError, match="not UTF-8"):
        cast_text(b"\xff", parse_type("BYTES"))
    with pytest.raises(FormatError, match="BYTES cannot be written as text"):
        to_string(b"a", parse_type("BYTES"))


def test_a_zoned_moment_has_no_text_when_cast_because_it_depends_on_the_machine() -> None:
    zoned = parse_type("TIMESTAMP_LTZ(3)")
    assert to_string(MOMENT, zoned) == "2023-11-14T22:13:20"
    with pytest.raises(FormatError, match="cannot be written as text"):
        cast_text(MOMENT, zoned)
