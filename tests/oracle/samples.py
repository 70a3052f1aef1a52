"""Values of every column type, extreme ones among them, in the form that the judge reads back."""

from __future__ import annotations

from typing import Any

from tests.oracle.judge_jvm import TypeName, Value

YEAR_1, YEAR_9999 = -62_135_596_800_000, 253_402_300_799_000
LONG = "long " * 40
VERY_LONG = "very long " * 500
LAST = "\U0010ffff"

_TEXTS = ["", "a", "ab", "a\x00", "z", "é", "\uffff", "\U0001f600", "Zürich 北京"]
_SECONDS = [f"{YEAR_1}:0", f"{YEAR_9999}:0", "-1000:0", "0:0", "1000:0", "1700000000000:0"]
_MILLIS = [*_SECONDS, "-1:0", "-999:0", "1700000000123:0"]
_MICROS = [*_MILLIS, "-1:999000", "-1001:1000", "1700000000123:456000"]
LAST_NANOSECOND = f"{YEAR_9999 + 999}:999999"
# Nanoseconds in 64 bits end in 1677 and 2262, and a day of INT96 begins at midnight.
_NANOS = [
    *("-9223372036854:0", "9223372036854:775807", "-1:999999", "-2:1", "0:0", "0:1", "999:5"),
    *(f"{YEAR_1}:0", f"{YEAR_1 - 1}:999999", LAST_NANOSECOND, "-86400000:1", "86400000:0"),
]
_FLOATS: list[Value] = ["NaN", "-0.0", 0.0, "Infinity", "-Infinity", 1.5, -1.5]

# Each type with values that are different keys in Java.
ATOMIC: dict[str, tuple[str, list[Value]]] = {
    "boolean": ("BOOLEAN", [False, True]),
    "tinyint": ("TINYINT", [-128, -1, 0, 1, 127]),
    "smallint": ("SMALLINT", [-(2**15), -1, 0, 1, 2**15 - 1]),
    "int": ("INT", [-(2**31), -1, 0, 1, 2**31 - 1]),
    "bigint": ("BIGINT", [-(2**63), -1, 0, 1, 2**53 + 1, 2**63 - 1]),
    "float": ("FLOAT", [*_FLOATS, 2.0**-149, 3.4028234663852886e38]),
    "double": ("DOUBLE", [*_FLOATS, 5e-324, 1.7976931348623157e308]),
    "decimal-9": ("DECIMAL(9, 2)", ["-9999999.99", "-0.01", "0.00", "1.50", "9999999.99"]),
    "decimal-18": (
        "DECIMAL(18, 3)",
        ["-999999999999999.999", "-0.001", "0.000", "999999999999999.999"],
    ),
    "decimal-19": ("DECIMAL(19, 0)", ["-9999999999999999999", "-1", "0", "9999999999999999999"]),
    "decimal-38": (
        "DECIMAL(38, 10)",
        [f"-{'9' * 28}.{'9' * 10}", "-0.0000000001", "0.0000000000", f"{'9' * 28}.{'9' * 10}"],
    ),
    "char": ("CHAR(3)", ["", "a", "abc", "a c", "é", "\U0001f600z"]),
    "varchar": ("VARCHAR(9)", _TEXTS),
    "string": ("STRING", [*_TEXTS, LONG, VERY_LONG, f"{VERY_LONG}!", LAST * 200]),
    "binary": ("BINARY(2)", ["x:0000", "x:00ff", "x:7f80", "x:ff00", "x:ffff"]),
    "bytes": ("BYTES", ["x:", "x:00", "x:0000", "x:7f", "x:80", "x:ff", "x:" + "ff" * 300]),
    "varbinary": ("VARBINARY(5000)", ["x:", "x:0102030405060708", "x:" + "0a" * 5000]),
    "date": ("DATE", [-719_162, 2_932_896, -1, 0, 1, -(2**31), 2**31 - 1]),
    "time-0": ("TIME(0)", [0, 1000, 86_399_000]),
    "time-3": ("TIME(3)", [0, 1, 43_200_001, 86_399_999]),
    "timestamp-0": ("TIMESTAMP(0)", _SECONDS),
    "timestamp-3": ("TIMESTAMP(3)", _MILLIS),
    "timestamp-6": ("TIMESTAMP(6)", _MICROS),
    "timestamp-9": ("TIMESTAMP(9)", _NANOS),
    "local-timestamp-0": ("TIMESTAMP(0) WITH LOCAL TIME ZONE", _SECONDS),
    "local-timestamp-3": ("TIMESTAMP(3) WITH LOCAL TIME ZONE", _MILLIS),
    "local-timestamp-6": ("TIMESTAMP(6) WITH LOCAL TIME ZONE", _MICROS),
    "local-timestamp-9": ("TIMESTAMP(9) WITH LOCAL TIME ZONE", _NANOS),
}


def _row(*fields: tuple[str, Any]) -> TypeName:
    return {"type": "ROW", "fields": [{"name": name, "type": type_} for name, type_ in fields]}


def _array(element: Any) -> TypeName:
    return {"type": "ARRAY", "element": element}


def _map(key: Any, value: Any) -> TypeName:
    return {"type": "MAP", "key": key, "value": value}


NESTED: dict[str, tuple[TypeName, list[Value]]] = {
    "array": (_array("INT"), [[], [1, None, -(2**31)], [None]]),
    "array-not-null": (_array("STRING NOT NULL"), [[], ["", LONG, "\U0001f600"]]),
    "array-of-arrays": (_array(_array("BIGINT")), [[], [[], None, [1, None]]]),
    "array-of-rows": (
        _array(_row(("a", "INT"), ("b", "STRING"))),
        [[], [[1, ""], None, [None, None]]],
    ),
    "array-of-times": (_array("TIMESTAMP(6)"), [["-1:999000", None], [f"{YEAR_9999}:0"]]),
    "array-of-nanoseconds": (_array("TIMESTAMP(9)"), [[LAST_NANOSECOND, None, "-1:999999"], []]),
    "array-of-decimals": (_array("DECIMAL(20, 2)"), [["-0.01", None, f"{'9' * 18}.99"]]),
    "map": (_map("STRING NOT NULL", "BIGINT"), [[], [["", None], ["k", 2**63 - 1]]]),
    "map-of-ints": (_map("INT NOT NULL", _array("DOUBLE")), [[], [[1, [1.5, None, "NaN"]]]]),
    "map-of-nanoseconds": (
        _map("TIMESTAMP(9) NOT NULL", "TIMESTAMP(8) WITH LOCAL TIME ZONE"),
        [[], [[f"{YEAR_1}:0", LAST_NANOSECOND], ["0:1", None]]],
    ),
    "row": (
        _row(("a", "INT"), ("b", _array("STRING")), ("c", _row(("d", "DATE")))),
        [[1, ["x", None], [19000]], [None, None, None], [2, [], [None]]],
    ),
    "row-of-required": (
        _row(
            ("a", "TIMESTAMP(9) NOT NULL"),
            ("b", "DECIMAL(20, 2) NOT NULL"),
            ("c", _row(("d", "STRING NOT NULL"), ("e", "TIMESTAMP(9) NOT NULL"))),
        ),
        [["-1:999999", "1.00", ["", LAST_NANOSECOND]], ["0:0", "-1.00", None]],
    ),
    "row-of-decimals": (
        _row(("a", "DECIMAL(38, 2)"), ("b", "TIME(3)"), ("c", "BYTES"), ("d", "TINYINT")),
        [["1.00", 0, "x:", -128], [None, None, None, None]],
    ),
}

EVERY_TYPE: dict[str, tuple[TypeName, list[Value]]] = {**ATOMIC, **NESTED}


def not_null(type_: str) -> str:
    return f"{type_} NOT NULL"
