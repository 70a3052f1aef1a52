from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

from compactord.paimon.options.table_options import ChangelogProducer
from compactord.paimon.options.values import (
    boolean,
    double,
    duration_ms,
    enumeration,
    integer,
    long,
    mapping,
    memory_size,
    name_part,
    one_of,
    zone,
)


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (memory_size, "128 mb", 128 << 20),
        (memory_size, " 5MB ", 5 << 20),
        (memory_size, "7", 7),
        (memory_size, "7 bytes", 7),
        (memory_size, "1kb", 1024),
        (memory_size, "2 Gibibytes", 2 << 30),
        (memory_size, "3t", 3 << 40),
        (duration_ms, "10 s", 10_000),
        (duration_ms, "1 h", 3_600_000),
        (duration_ms, "2days", 172_800_000),
        (duration_ms, "5 m", 300_000),
        (duration_ms, "30", 30),
        (duration_ms, "1999 µs", 1),
        (duration_ms, "1000000 ns", 1),
        (boolean, "TRUE", True),
        (boolean, "false", False),
        (integer, "-5", -5),
        (integer, "+2147483647", 2147483647),
        (long, "-9223372036854775808", -(2**63)),
        (double, " 0.7 ", 0.7),
        (double, ".5f", 0.5),
        (double, "1e2D", 100.0),
        (mapping, "0:avro,5:parquet", {"0": "avro", "5": "parquet"}),
        (mapping, " 0 : lz4 , 1 : zstd ", {"0": "lz4", "1": "zstd"}),
        (mapping, "'''a:b'':c,d',e:f", {"a:b": "c,d", "e": "f"}),
        (mapping, '"a:""x""",b:c', {"a": "x", "b": "c"}),
        (mapping, "a:'it''s'", {"a": "it's"}),
        (mapping, "", {}),
        (enumeration(ChangelogProducer), "Full-Compaction", ChangelogProducer.FULL_COMPACTION),
        (one_of(("SIZE", "QUANTITY")), "size", "SIZE"),
    ],
)
def test_texts_are_read_as_paimon_reads_them(
    read: Callable[[str], Any], text: str, value: Any
) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (memory_size, "1.5 mb", "128 mb"),
        (memory_size, "-1", "128 mb"),
        (memory_size, "", "128 mb"),
        (memory_size, "1 xb", "128 mb"),
        (memory_size, "9000000000 gb", "128 mb"),
        (duration_ms, "1 h 30 min", "10 min"),
        (duration_ms, "h", "10 min"),
        (duration_ms, "9223372036854775807 d", "10 min"),
        (boolean, "yes", "true or false"),
        (boolean, " true", "true or false"),
        (integer, "1_000", "whole number"),
        (integer, " 1", "whole number"),
        (integer, "2147483648", "whole number"),
        (integer, "٣", "whole number"),
        (long, "9223372036854775808", "whole number"),
        (double, "0,7", "0.7"),
        (double, "", "0.7"),
        (mapping, "0", "pairs"),
        (mapping, "0:a:b", "pairs"),
        (mapping, "0:a,0:b", "pairs"),
        (mapping, "'0:a", "closed quotes"),
        (mapping, "0:'a'b", "after each quoted part"),
        (mapping, "'a:b':c", "after each quoted part"),
        (enumeration(ChangelogProducer), "some", "none, input, full-compaction, lookup"),
        (one_of(("SIZE", "QUANTITY")), "", "SIZE, QUANTITY"),
    ],
)
def test_other_texts_say_what_was_expected(
    read: Callable[[str], Any], text: str, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected.replace("(", r"\(")):
        read(text)


@pytest.mark.parametrize("text", ["data-", "a.b-", " x", "ü%#?*", "_", "..", "é" * 90], ids=ascii)
def test_parts_of_file_names_are_taken_as_they_are(text: str) -> None:
    assert name_part(text) == text


@pytest.mark.parametrize(
    "text",
    ["x/y", "/", "../", "a\\b", "a:b", "\0", "a\nb", "\x7f", "\ud800", "", "  ", "é" * 101],
    ids=ascii,
)
def test_what_is_no_part_of_a_file_name_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"^(part of a file's name|text without unpaired surrogates)"
    ):
        name_part(text)


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        *(("Z", 0), ("UTC", 0), ("UT", 0), ("GMT-08:00", -8), ("UTC+8", 8), ("+05:30", 5.5)),
        *(("UT+0530", 5.5), ("-18", -18), ("GMT+00:00:36", 0.01), ("Asia/Shanghai", 8)),
        *(("", None), ("PTS", None), ("GMT-8:00", None), ("+19", None), ("+18:01", None)),
        *(("+08:60", None), ("../UTC", None), ("America", None), ("UTC 8", None)),
    ],
)
def test_zones_are_named_as_java_names_them(text: str, hours: float | None) -> None:
    if hours is None:
        with pytest.raises(ValueError, match="a time zone such as"):
            zone(text)
    else:
        winter = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
        offset = winter.astimezone(zone(text)).utcoffset()
        assert offset is not None
        assert offset.total_seconds() == hours * 3600
