from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactord.paimon.binary_row import decode_row
from compactord.paimon.data_file import (
    EMPTY_STATS,
    ColumnBounds,
    ColumnStatsMode,
    StatsMode,
    build_stats,
    parse_stats_mode,
    stats_modes,
    truncate_bytes_up,
    truncate_text_up,
)
from compactord.paimon.options.table_options import parse_options
from compactord.paimon.schema import TableSchema
from compactord.paimon.types import file_fields, parse_field, parse_type

TRUNCATE_16 = "truncate(16)"
KEY = "truncate(128)"
SCHEMA = TableSchema(
    id=0,
    version=3,
    fields=tuple(
        parse_field({"id": index, "name": name, "type": "INT NOT NULL"})
        for index, name in enumerate(("a", "k", "b"))
    ),
    highest_field_id=2,
    partition_keys=(),
    primary_keys=("k",),
    options={},
    comment=None,
    time_ms=0,
)


def modes(
    options: Mapping[str, str], *, level: int = 0, schema: TableSchema = SCHEMA
) -> dict[str, str]:
    parsed = parse_options(replace(schema, options=options))
    fields = schema.fields
    if schema.primary_keys:
        fields = file_fields(schema.fields, schema.primary_keys, thin=parsed.files.thin_mode)
    found = stats_modes(fields, schema, parsed.files, level)
    assert [name for name, _ in found] == [field.name for field in fields]
    return {
        name: mode.mode.value + (f"({mode.length})" if mode.length else "") for name, mode in found
    }


SYSTEM = {"_SEQUENCE_NUMBER": KEY, "_VALUE_KIND": KEY}


def test_system_columns_keep_statistics_whatever_the_table_says() -> None:
    assert modes({}) == {
        "_KEY_k": KEY,
        **SYSTEM,
        "a": TRUNCATE_16,
        "k": TRUNCATE_16,
        "b": TRUNCATE_16,
    }
    none = {"metadata.stats-mode": "NONE"}
    assert modes(none) == {"_KEY_k": KEY, **SYSTEM, "a": "none", "k": "none", "b": "none"}


def test_keys_keep_statistics_in_thin_files() -> None:
    thin = {"data-file.thin-mode": "true", "metadata.stats-mode": "none"}
    assert modes(thin) == {**SYSTEM, "a": "none", "k": KEY, "b": "none"}


def test_levels_have_modes_of_their_own_but_not_for_append_tables() -> None:
    options = {"metadata.stats-mode.per.level": "5:counts"}
    assert modes(options, level=5)["a"] == "counts"
    assert modes(options, level=4)["a"] == TRUNCATE_16
    append = replace(SCHEMA, primary_keys=())
    assert modes(options, level=5, schema=append) == dict.fromkeys("akb", TRUNCATE_16)


def test_a_columns_own_mode_wins_even_for_system_columns_and_is_counted() -> None:
    options = {
        "metadata.stats-keep-first-n-columns": "1",
        "fields.a.stats-mode": "full",
        "fields.b.stats-mode": "counts",
        "fields._KEY_k.stats-mode": "none",
        "fields._VALUE_KIND.stats-mode": "none",
    }
    found = modes(options)
    assert found["_KEY_k"] == "none"
    assert found["_VALUE_KIND"] == "none"
    # Columns with a mode of their own use up the count, also the system columns here.
    assert (found["a"], found["k"], found["b"]) == ("full", "none", "counts")


def test_only_the_first_columns_are_kept() -> None:
    found = modes({"metadata.stats-keep-first-n-columns": "2"})
    assert (found["a"], found["k"], found["b"]) == (TRUNCATE_16, TRUNCATE_16, "none")
    assert modes({"metadata.stats-keep-first-n-columns": "0"})["a"] == "none"


def test_modes_are_read_in_any_case() -> None:
    assert parse_stats_mode("Truncate(007)") == ColumnStatsMode(mode=StatsMode.TRUNCATE, length=7)
    assert parse_stats_mode("FULL") == ColumnStatsMode(mode=StatsMode.FULL)
    with pytest.raises(ValueError, match="'truncate'"):
        parse_stats_mode("truncate")


BOUNDS = (
    ColumnBounds(name="s", type=parse_type("STRING"), minimum="aaaa", maximum="zzzz", null_count=1),
    ColumnBounds(name="l", type=parse_type("INT ARRAY")),
    ColumnBounds(name="n", type=parse_type("INT"), null_count=9),
)


def built(mode: str, *, dense: bool) -> tuple[Any, ...]:
    stats, columns = build_stats(
        BOUNDS, {column.name: parse_stats_mode(mode) for column in BOUNDS}, dense=dense
    )
    kept = [column for column in BOUNDS if columns is None or column.name in columns]
    types = [column.type for column in kept]
    return (
        decode_row(stats.min_values, types),
        decode_row(stats.max_values, types),
        stats.null_counts,
        columns,
    )


def test_dense_statistics_leave_out_what_is_not_known() -> None:
    assert built("full", dense=True) == (("aaaa", None), ("zzzz", None), (1, 9), ("s", "n"))
    assert built("none", dense=True) == ((), (), (), ())
    stats, _ = build_stats(BOUNDS, dict.fromkeys("sln", parse_stats_mode("none")), dense=True)
    assert stats == EMPTY_STATS


def test_other_statistics_hold_every_column() -> None:
    assert built("full", dense=False) == (
        ("aaaa", None, None),
        ("zzzz", None, None),
        (1, None, 9),
        None,
    )
    assert built("counts", dense=False) == ((None,) * 3, (None,) * 3, (1, None, 9), None)
    assert built("none", dense=False) == ((None,) * 3, (None,) * 3, (None,) * 3, None)


def test_bounds_are_shortened_outwards() -> None:
    assert built("truncate(2)", dense=True)[:2] == (("aa", None), ("z{", None))


def test_no_column_is_missing_means_none() -> None:
    modes_ = {"s": parse_stats_mode("full")}
    assert build_stats(BOUNDS[:1], modes_, dense=True)[1] is None


def test_bounds_without_a_short_upper_bound_are_dropped_but_not_the_count() -> None:
    bounds = ColumnBounds(
        name="b", type=parse_type("BYTES"), minimum=b"\0", maximum=b"\xff" * 9, null_count=2
    )
    stats, columns = build_stats([bounds], {"b": parse_stats_mode("truncate(3)")}, dense=True)
    assert (stats.null_counts, columns) == ((2,), None)
    assert decode_row(stats.min_values, [bounds.type]) == (None,)
    assert decode_row(stats.max_values, [bounds.type]) == (None,)


@pytest.mark.parametrize(
    ("text", "length", "upper"),
    [
        ("abcdefg", 3, "abd"),
        ("é" * 22, 3, "éé\u00ea"),
        ("\U0010ffff" * 3, 3, "\U0010ffff" * 3),
        ("\U0010ffff" * 4, 3, None),
        ("ab\U0010ffffzz", 3, "ac"),
        ("abc", 3, "abc"),
        ("", 3, ""),
        ("a\ud7ffx", 2, "a\ue000"),
    ],
)
def test_texts_are_shortened_by_code_points(text: str, length: int, upper: str | None) -> None:
    assert truncate_text_up(text, length) == upper


@pytest.mark.parametrize(
    ("data", "upper"),
    [
        ("01ffff04", "02"),
        ("ffffff01", None),
        ("ffffff", "ffffff"),
        ("0102ff00", "0103"),
        ("010203", "010203"),
        ("01020304", "010204"),
    ],
)
def test_bytes_are_shortened_by_bytes(data: str, upper: str | None) -> None:
    found = truncate_bytes_up(bytes.fromhex(data), 3)
    assert found == (None if upper is None else bytes.fromhex(upper))


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 5))
def test_a_shortened_text_is_never_below(text: str, length: int) -> None:
    upper = truncate_text_up(text, length)
    if upper is None:
        assert text[:length] == "\U0010ffff" * length
    else:
        assert len(upper) <= length
        assert upper.encode() >= text.encode()
        assert text[:length].encode() <= text.encode()


@given(st.binary(), st.integers(1, 5))
def test_shortened_bytes_are_never_below(data: bytes, length: int) -> None:
    upper = truncate_bytes_up(data, length)
    if upper is None:
        assert data[:length] == b"\xff" * length
    else:
        assert len(upper) <= length
        assert upper >= data
