"""Which time a partition stands for; `tests/oracle/test_done_partitions.py` asks Java."""

from __future__ import annotations

import datetime

import pytest

from compactord.paimon.java_text import formatter_trouble, partition_time_ms


def _ms(year: int, month: int, day: int, *time: int) -> int:
    moment = datetime.datetime(year, month, day, *time, tzinfo=datetime.timezone.utc)
    return int(moment.timestamp() * 1000)


@pytest.mark.parametrize(
    ("values", "pattern", "formatter", "expected"),
    [
        ("2024-01-05", None, None, _ms(2024, 1, 5)),
        ("2024-1-5 7:8:9", None, None, _ms(2024, 1, 5, 7, 8, 9)),
        ("2024-01-05 07:08:09.1239", None, None, _ms(2024, 1, 5, 7, 8, 9) + 123),
        ("2024-13-00 24:00:60", None, None, _ms(2025, 1, 1, 0, 1)),
        ("2024-00-01", None, None, _ms(2023, 12, 1)),
        ("12024-01-05", None, None, None),
        ("2024-01-05T07:00:00", None, None, None),
        ("19700", None, None, None),
        ("__DEFAULT_PARTITION__", None, None, None),
        ("2024-01-05,7", "$a $b:00:00", None, _ms(2024, 1, 5, 7)),
        ("2024,1,5", "$a-$b-$c", None, _ms(2024, 1, 5)),
        ("$1,7", "$a", None, None),
        ("20240105", None, "yyyyMMdd", _ms(2024, 1, 5)),
        ("202401057", None, "yyyyMMdd", None),
        ("20240105,07", "$a $b", "yyyyMMdd HH", _ms(2024, 1, 5, 7)),
        ("2024/2/31", None, "yyyy/M/d", _ms(2024, 2, 29)),
        ("20241301", None, "yyyyMMdd", None),
        ("20240105 24", None, "yyyyMMdd HH", _ms(2024, 1, 6)),
        ("20240105 25", None, "yyyyMMdd HH", None),
        ("2024-01-05T07", None, "yyyy-MM-dd['T'HH]", _ms(2024, 1, 5, 7)),
        ("2024-01-05", None, "yyyy-MM-dd['T'HH]", _ms(2024, 1, 5)),
        ("202401", None, "yyyyMM", None),
    ],
)
def test_the_time_of_a_partition(
    values: str, pattern: str | None, formatter: str | None, expected: int | None
) -> None:
    spec = dict(zip("abc", values.split(","), strict=False))
    assert partition_time_ms(spec, pattern, formatter) == expected


@pytest.mark.parametrize(
    ("formatter", "trouble"),
    [
        ("yyyy-MM-dd", None),
        ("uuuu'y'MM''dd", None),
        ("dd MMM yyyy", "MMM"),
        ("yy-MM-dd", "yy"),
        ("yyyyMd", "yyyyM"),
        ("HHmmssSSS", "ssSSS"),
        ("yyyy-MM-dd]", "]"),
        ("yyyy-MM-dd #", "#"),
        ("yyyy-MM-dd MM", "a field that occurs twice"),
    ],
)
def test_what_of_a_formatter_is_not_understood(formatter: str, trouble: str | None) -> None:
    found = formatter_trouble(formatter)
    assert found is None if trouble is None else found is not None and found.startswith(trouble)
