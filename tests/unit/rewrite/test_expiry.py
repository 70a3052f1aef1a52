"""Expired records by the type of their time."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from compactord.paimon.options.table_options import RecordExpire
from compactord.paimon.types import DataField, parse_type
from compactord.rewrite.reader import expiry, oldest_second

NOW_MS = 1_700_000_000_999
LIMIT_S = 1_700_000_000 - 100


@pytest.mark.parametrize(
    ("type_", "last_expired", "first_kept"),
    [
        (pa.int32(), LIMIT_S - 1, LIMIT_S),
        (pa.int64(), LIMIT_S - 1, LIMIT_S),
        (pa.int64(), LIMIT_S * 1000 - 1, LIMIT_S * 1000),
        (pa.timestamp("ms"), LIMIT_S * 1000 - 1, LIMIT_S * 1000),
        (pa.timestamp("us", "UTC"), LIMIT_S * 1_000_000 - 1, LIMIT_S * 1_000_000),
    ],
)
def test_the_second_decides_and_null_never_expires(type_, last_expired, first_kept):
    times = pa.array([last_expired, None, first_kept]).cast(type_)
    batch = pa.record_batch({"k": pa.array([1, 2, 3]), "t": times})
    rule = expiry(RecordExpire(field="t", seconds=100), NOW_MS)
    assert rule is not None
    [kept] = rule.alive(iter([batch, batch.slice(0, 1)]))
    assert kept.column("k").to_pylist() == [2, 3]


def test_batches_without_expired_records_are_handed_on_as_they_are():
    batch = pa.record_batch({"t": pa.array([LIMIT_S], pa.int32())})
    rule = expiry(RecordExpire(field="t", seconds=100), NOW_MS)
    assert rule is not None
    assert next(rule.alive(iter([batch]))) is batch
    assert expiry(None, NOW_MS) is None


@pytest.mark.parametrize(
    ("value", "stored", "latest", "second"),
    [
        (7, "INT", "INT", 7),
        (7, "INT", "BIGINT", 7),
        (1_999_999_999_999, "BIGINT", "BIGINT", 1_999_999_999),
        # Nanoseconds, the form of statistics; milliseconds are cut off toward zero.
        (-1_500_000_000, "TIMESTAMP(3)", "TIMESTAMP(6)", -1),
        (253_402_300_799_999_999_999, "TIMESTAMP(9)", "TIMESTAMP(9)", 253_402_300_799),
        # A local time, two hours ahead of UTC.
        (0, "TIMESTAMP(3)", "TIMESTAMP_LTZ(3)", -7200),
        (-62_135_596_800_000_000_000, "TIMESTAMP(6)", "TIMESTAMP(9)", -62_135_596_800),
        ("12", "STRING", "INT", 12),
        ("x", "STRING", "INT", None),
        (None, "INT", "INT", None),
    ],
)
def test_the_oldest_time_of_a_file_is_cast_to_the_latest_type(value, stored, latest, second):
    before, after = (
        DataField(id=1, name=n, type=parse_type(t)) for n, t in (("a", stored), ("b", latest))
    )
    assert (
        oldest_second(value, before, after, datetime.timezone(datetime.timedelta(hours=2)))
        == second
    )
