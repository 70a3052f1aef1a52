from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from compactord.config.values import TablePattern, duration_ms, duration_text, size_bytes, size_text

_pattern: TypeAdapter[re.Pattern[str]] = TypeAdapter(TablePattern)


@given(st.integers(0, 10**15))
def test_a_duration_reads_back_from_its_text(amount: int) -> None:
    assert duration_ms(duration_text(amount)) == amount


@given(st.integers(0, 1 << 50))
def test_a_size_reads_back_from_its_text(amount: int) -> None:
    assert size_bytes(size_text(amount)) == amount


@pytest.mark.parametrize(
    ("amount_ms", "text"),
    [(0, "0 ms"), (90_000, "90 s"), (86_400_000, "1 d"), (1500, "1500 ms"), (3_600_000, "1 h")],
)
def test_durations_are_shown_in_the_largest_whole_unit(amount_ms: int, text: str) -> None:
    assert duration_text(amount_ms) == text


@pytest.mark.parametrize(
    ("read", "text", "amount"),
    [
        (duration_ms, "0", 0),
        (duration_ms, " 0 ", 0),
        (duration_ms, "0 s", 0),
        (duration_ms, "10s", 10_000),
        (duration_ms, "250 ms", 250),
        (duration_ms, "5 m", 300_000),
        (size_bytes, "0", 0),
        (size_bytes, "512mb", 512 << 20),
        (size_bytes, "7 b", 7),
    ],
)
def test_an_amount_has_a_unit_unless_it_is_0(
    read: Callable[[str], int], text: str, amount: int
) -> None:
    assert read(text) == amount


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (duration_ms, "10", "a duration with its unit, such as 10 s or 10 min"),
        (duration_ms, " 86400000 ", "such as 86400000 s"),
        (duration_ms, "010", "with its unit"),
        (size_bytes, "512", "a size with its unit, such as 512 mb or 512 gb"),
        (size_bytes, "9" * 5000, "99…"),
        (duration_ms, "-1", "a duration such as"),
        (size_bytes, "", "a size such as"),
    ],
    ids=range(7),
)
def test_a_bare_number_is_told_its_units(
    read: Callable[[str], int], text: str, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        read(text)


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        (".*", "db.t", True),
        ("db", "db.t", False),
        ("db\\.t|x", "db.t", True),
        ("db\\.t|x", "xx", False),
        ("(?!tmp).*", "tmp_1", False),
        ("(?i)DB\\..*", "db.t", True),
        ("\\w+\\.\\d+", "db.7", True),
        ("\\d+", "٣", False),
        ("\\w+", "é", False),
        ("[a\\]\\[]+", "][a", True),
        ("[^.]+\\.[^.]+", "a.b", True),
        ("a\\\\p", "a\\p", True),
    ],
)
def test_patterns_match_whole_names_as_java_does(pattern: str, name: str, matches: bool) -> None:
    assert (_pattern.validate_python(pattern).fullmatch(name) is not None) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        "\\p{Alpha}+",
        "\\P{L}",
        "\\Qa.b\\E",
        "a\\z",
        "a\\Z",
        "\\h",
        "[a[b]]",
        "[a-z&&[^b]]",
        "(?<name>a)",
        "(?U)a",
        "(",
        "*",
        "a{2,1}",
        "(" * 5000,
        "",
        5,
    ],
)
def test_patterns_that_only_one_of_both_languages_knows_are_refused(pattern: object) -> None:
    with pytest.raises(ValidationError):
        _pattern.validate_python(pattern)
