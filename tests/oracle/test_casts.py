"""Every cast of schema evolution, judged by Java value by value."""

from __future__ import annotations

import zoneinfo

import pytest

from compactord.paimon.types import AtomicType, TypeRoot, parse_type, type_text
from compactord.rewrite.casting.rules import cast, why_not_castable
from compactord.rewrite.casting.values import CastError
from tests.oracle.arrow_values import arrow_values, json_values
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import Value
from tests.oracle.samples import ATOMIC

# Texts that some cast takes, and texts next to them that it does not.
_NUMBER_TEXTS = [
    *[
        "0",
        "-0",
        "+7",
        "1.5",
        "-1.999",
        ".",
        "-.",
        "+",
        "-",
        "1.",
        ".5",
        " 12",
        "12 ",
        "1e3",
        "1E-3",
    ],
    *["127", "128", "-128", "-129", "32768", "2147483647", "2147483648", "-2147483648", "00012"],
    *["9223372036854775807", "9223372036854775808", "-9223372036854775808", "99999999999999999999"],
    *["NaN", "nan", "Infinity", "-Infinity", "inf", "1.5f", "1.5d", "0x1p3", "0x1.8p-2", "1e400"],
    *["1e-400", "3.4028235e38", "3.4028236e38", "1.17549435e-38", "0.1", "16777217", "1_000"],
    *["0.500000029802322387695312501", "0.50000002980232238769531249", "0.333", "2e-3", "1e23"],
    *["123456789012345678901234567890.5", "1E38", "1E-38", "-0.005", "0.005", "9999999.995"],
]
_CLOCK_TEXTS = [
    *["2024-02-29", "2023-02-29", "2024-2-9", "2024-02-30", "2024-04-31", "2024-13-01", "2024"],
    *[
        "2024-02",
        "0000-01-01",
        "0001-01-01",
        "9999-12-31",
        "10000-01-01",
        "+10000-01-01",
        "-1-01-01",
    ],
    *["2024-01-01 10:11:12", "2024-01-01 10:11:12.5", "2024-01-01 1:2:3", "2024-01-01T10:11:12"],
    *["2024-01-01 10:11:12.123456789", "2024-01-01 10:11:12.1234567891", "2024-01-01 24:00:00"],
    *["2024-01-01 24:00:01", "2024-01-01 10:60:00", "2024-01-01 10:11:60", "2024-01-01 10:11"],
    *["2024-02-31 00:00:00", "2024-1-1 ", " 2024-01-01", "1969-12-31 23:59:59.999", "2024-01-011"],
    *["2024-03-31 02:30:00", "2024-10-27 02:30:00", "10:11:12", "10:11:12.5", "10:11:12.1235"],
    *["10:11:12.9999", "10:11", "10", "25:00:00", "10:61:61", "10:11:12+08:00", "10:11:12-8"],
    *["10:11:12+08", "10:11:12+08:30", "1:2:3", " 1 : 2 : 3 ", "10:11:12.x5", "a:b:c", "10:11:12."],
    *[
        "1700000000",
        "1700000000123",
        "1700000000123456",
        "１２",
        "2024-01-01 10:11:12.",
        "2024-01-",
    ],
]
_WORD_TEXTS = ["t", "TRUE", "Yes", "y", "f", "False", "no", "N", "2", "on", "null", "tRuE "]
_TEXT_POOL = [*_NUMBER_TEXTS, *_CLOCK_TEXTS, *_WORD_TEXTS]

SOURCES: dict[str, tuple[str, list[Value]]] = {
    **ATOMIC,
    # Without days of years that Java prints as garbage.
    "date": ("DATE", [-719_162, 2_932_896, -1, 0, 1, 19_782, 19_813]),
    "string": ("STRING", [*ATOMIC["string"][1], *_TEXT_POOL]),
    "varchar-30": ("VARCHAR(30)", [text for text in _TEXT_POOL if len(text) <= 30]),
    "char-12": ("CHAR(12)", [text.ljust(12) for text in _TEXT_POOL if len(text) <= 12]),
    "int-more": ("INT", [2, 10, 300, 65_536, 1_700_000_000, 70_000]),
    "bigint-more": (
        "BIGINT",
        [3_000_000_000, 2**24 + 1, 2**62 + 2**38 + 1, 86_400, -1_700_000_000],
    ),
    "float-more": (
        "FLOAT",
        [0.1, 1e10, 3e38, 2.5, -2.5, 127.9, 1e7, 1e-3, 0.001953125, 16777216.0],
    ),
    "double-more": (
        "DOUBLE",
        [
            *[3.99e10, 1.005, 1e10, 2.5, -0.5, 9.3e18, -9.3e18, 2.0**63, -(2.0**63), 1e23, 2e-3],
            *[1e-5, 9007199254740992.0, 2.2250738585072014e-308, 123456789.98765433],
            3.4028235677973366e38,
        ],
    ),
    "decimal-more": (
        "DECIMAL(10, 4)",
        ["12.3500", "12.9900", "-12.9950", "123.4500", "999999.9999"],
    ),
    "decimal-wide": (
        "DECIMAL(30, 12)",
        ["0.100000000000", "16777217.000000000000", "-1.500000000000"],
    ),
    "binary-4": ("BINARY(4)", ["x:41420000", "x:c3a90000", "x:ff000000"]),
    "bytes-more": ("BYTES", ["x:4142", "x:c3a9", "x:414243444546"]),
    "time-more": ("TIME(3)", [3_723_004, 3_723_100, 3_723_120, 3_723_000]),
    "timestamp-2": ("TIMESTAMP(2)", ["1230:0", "-1230:0", "0:0"]),
    "timestamp-more": (
        "TIMESTAMP(6)",
        ["1234:567000", "-1235:433000", "1999:0", "1711852200000:0", "1729996200000:0", "500:0"],
    ),
    "local-timestamp-more": (
        "TIMESTAMP(6) WITH LOCAL TIME ZONE",
        ["1234:567000", "-1235:433000", "1711846800000:0", "1729989000000:1000", "-86400000:0"],
    ),
}
TARGETS = [
    *["BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(9, 2)"],
    *["DECIMAL(5, 2)", "DECIMAL(4, 1)", "DECIMAL(3, 1)", "DECIMAL(18, 0)", "DECIMAL(38, 10)"],
    *["DECIMAL(20, 15)", "CHAR(5)", "CHAR(40)", "VARCHAR(3)", "VARCHAR(50)", "STRING"],
    *["STRING NOT NULL", "BINARY(3)", "BINARY(9)", "VARBINARY(2)", "BYTES", "DATE", "TIME(0)"],
    *["TIME(3)", "TIMESTAMP(0)", "TIMESTAMP(2)", "TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP(9)"],
    *["TIMESTAMP(0) WITH LOCAL TIME ZONE", "TIMESTAMP(3) WITH LOCAL TIME ZONE"],
    *["TIMESTAMP(6) WITH LOCAL TIME ZONE", "TIMESTAMP(9) WITH LOCAL TIME ZONE"],
]
ZONES = ("UTC", "Europe/Berlin", "America/St_Johns")


def atomic(text: str) -> AtomicType:
    parsed = parse_type(text)
    assert isinstance(parsed, AtomicType)
    return parsed


def ours(source: AtomicType, target: AtomicType, value: Value, zone: str) -> list[Value] | str:
    """[result], or the text of the error."""
    try:
        array = cast(arrow_values([value], source), source, target, zoneinfo.ZoneInfo(zone))
        return json_values(array, target)
    except CastError as error:
        return str(error)


def difference(
    source: AtomicType, target: AtomicType, value: Value, zone: str, java: list[Value] | str
) -> str | None:
    mine = ours(source, target, value, zone)
    if isinstance(java, list) and isinstance(mine, list):
        if mine == java or _is_before_1970(source, target, value):
            return None
    elif isinstance(java, str) == isinstance(mine, str) or _is_too_far(target, java):
        return None
    types = f"{type_text(source)} -> {type_text(target)}"
    return f"{types} in {zone}: {value!r} gives {mine!r}, in Java {java!r}"


def _is_before_1970(source: AtomicType, target: AtomicType, value: Value) -> bool:
    """Release 2.0.0 gives the wrong day, which later releases mend."""
    return (
        target.root is TypeRoot.DATE
        and source.root is TypeRoot.TIMESTAMP
        and str(value).startswith("-")
    )


def _is_too_far(target: AtomicType, java: list[Value] | str) -> bool:
    """Moments that Java's cast returns and its writer of files then refuses."""
    if target.root not in (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ) or isinstance(java, str):
        return False
    # Milliseconds, which only microseconds cannot hold.
    return (target.precision or 0) in (4, 5, 6) and abs(int(java[0].split(":")[0])) >= 2**63 // 1000


@pytest.mark.parametrize("name", SOURCES)
def test_casts_give_javas_values(judge: Judge, name: str) -> None:
    source_text, pool = SOURCES[name]
    source = atomic(source_text)
    local = "LOCAL" in source_text
    found = []
    for zone in ZONES:
        targets = [t for t in TARGETS if zone == "UTC" or local or "LOCAL" in t]
        cases = [(source_text, target, pool) for target in targets]
        for target_text, answers in zip(
            targets, judge.algorithms.casts(cases, zone=zone), strict=True
        ):
            target = atomic(target_text)
            if source == target:
                continue
            if answers is None or source == target:
                assert why_not_castable(source, target) is not None, (source_text, target_text)
                continue
            assert why_not_castable(source, target) is None, (source_text, target_text)
            found += [
                text
                for value, java in zip(pool, answers, strict=True)
                if (text := difference(source, target, value, zone, java)) is not None
            ]
    assert not found, "\n".join(found[:40])
