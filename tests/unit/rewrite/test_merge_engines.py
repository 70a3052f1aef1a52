"""Engines that make new rows: the same rows whatever a rewrite is cut into."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.errors import SubcompactionError
from compactord.model import FailureKind, KeyRange, Subcompaction
from compactord.paimon.binary_row import encode_row
from compactord.paimon.options.merge import ColumnRule, MergeRules, SequenceGroup
from compactord.paimon.types import from_nanoseconds
from compactord.rewrite.subcompaction import failure_kind, rewrite
from tests.sampling import examples
from tests.unit.rewrite.builders import (
    KIND,
    SEQUENCE,
    Row,
    fields,
    files_left,
    merge_subcompaction,
    output_rows,
    write_run,
)
from tests.unit.rewrite.test_another_merge_function import least_memory

COLUMNS = fields(k="STRING NOT NULL", g="INT", n="BIGINT", t="STRING", s="INT")


def rule(column: str, aggregator: str, **options: Any) -> ColumnRule:
    return ColumnRule(column=column, aggregator=aggregator, **options)


AGGREGATION = MergeRules(
    columns=(
        rule("k", "primary-key"),
        rule("g", "last_value"),
        rule("n", "sum"),
        rule("t", "listagg", ignore_retract=True),
        rule("s", "first_value", ignore_retract=True),
    )
)
GROUPS = MergeRules(
    groups=(SequenceGroup(sequence_fields=("g",), columns=("n", "t"), removes_record=True),),
    columns=(rule("n", "sum"),),
)
ENGINES = {
    "aggregation": ("aggregation", AGGREGATION),
    "partial-update": ("partial-update", MergeRules(remove_on_delete=True)),
    "ignore-delete": ("partial-update", MergeRules(ignore_delete=True)),
    "sequence-groups": ("partial-update", GROUPS),
}

runs = st.lists(
    st.dictionaries(
        st.sampled_from("pqrstu"),
        st.tuples(
            st.none() | st.integers(0, 3),
            st.none() | st.integers(-9, 9),
            st.none() | st.sampled_from(["a", "b", " "]),
            st.none() | st.integers(0, 2),
            st.sampled_from([0, 0, 1, 2, 3]),
        ),
        min_size=1,
    ),
    min_size=1,
    max_size=7,
)


def subcompaction_of(
    folder: Path, engine: str, tables: Sequence[Sequence[Row]], **how: Any
) -> Subcompaction:
    name, rules = ENGINES[engine]
    written = [
        [write_run(folder / f"{number}.parquet", COLUMNS, ["k"], table)]
        for number, table in enumerate(tables)
    ]
    return merge_subcompaction(
        folder, COLUMNS, ["k"], written, merge_engine=name, rules=rules, **how
    )


def rows_of(subcompaction: Subcompaction) -> list[Row]:
    return output_rows(subcompaction, rewrite(subcompaction))


@settings(max_examples=examples(60), deadline=None)
@given(runs=runs, engine=st.sampled_from(list(ENGINES)), drops=st.booleans(), cut=st.booleans())
def test_passes_and_key_ranges_make_the_rows_of_one_merge(runs, engine, drops, cut):
    numbers = iter(range(1000))
    tables = [
        [
            {"k": key, SEQUENCE: next(numbers), KIND: kind, "g": g, "n": n, "t": t, "s": s}
            for key, (g, n, t, s, kind) in sorted(run.items())
        ]
        for run in runs
    ]
    with tempfile.TemporaryDirectory() as name:
        whole = subcompaction_of(Path(name), engine, tables, drop_deletes=drops)
        wanted = rows_of(whole)
        if cut:
            middle = encode_row(["r"], [COLUMNS[0].type])
            ranges = [KeyRange(upper=middle), KeyRange(lower=middle)]
            parts = [replace(whole, source=replace(whole.source, key_range=r)) for r in ranges]
            found = [row for part in parts for row in rows_of(part)]
        else:
            found = rows_of(replace(whole, memory_bytes=least_memory(whole)))
    assert found == wanted
    assert not drops or all(row[KIND] in (0, 2) for row in wanted)


def test_rows_of_a_writers_file_have_the_number_of_its_snapshot(tmp_path):
    """The file of snapshot 9 has rows with smaller numbers than that of snapshot 4."""
    tables = [
        [{"k": "p", SEQUENCE: 7, KIND: 0, "g": 1, "n": 1, "t": "old", "s": 1}],
        [{"k": "p", SEQUENCE: 0, KIND: 0, "g": 2, "n": 2, "t": "new", "s": 2}],
    ]
    subcompaction = subcompaction_of(tmp_path, "partial-update", tables)
    [[[old], [new]]] = subcompaction.source.sections
    stamped = tuple(
        (replace(file, min_sequence_number=id_, max_sequence_number=id_, sequence_number=id_),)
        for file, id_ in ((old, 4), (new, 9))
    )
    source = replace(subcompaction.source, sections=(stamped,))
    [row] = rows_of(replace(subcompaction, source=source))
    assert (row["t"], row[SEQUENCE]) == ("new", 9)


def test_a_value_that_the_rules_forbid_fails_for_good_and_leaves_nothing(tmp_path):
    tables = [
        [{"k": "p", SEQUENCE: n, KIND: 0, "g": 1, "n": number, "t": "", "s": 1}]
        for n, number in enumerate((2**63 - 1, 1))
    ]
    subcompaction = subcompaction_of(tmp_path, "aggregation", tables)
    message = "key k=p, column n: int64 overflow: 9223372036854775807 and 1"
    with pytest.raises(SubcompactionError, match=message) as raised:
        rewrite(subcompaction)
    assert failure_kind(raised.value) is FailureKind.POISON
    assert files_left(subcompaction) == []


@pytest.mark.parametrize(("ignores", "found"), [(False, [1, 2]), (True, [2, 1])])
def test_earlier_elements_are_collected_where_java_puts_them(tmp_path, ignores, found):
    columns = fields(k="INT NOT NULL", g="INT", a={"type": "ARRAY", "element": "INT"})
    written = [
        [write_run(tmp_path / f"{n}.parquet", columns, ["k"], [{"k": 0, SEQUENCE: n} | row])]
        for n, row in enumerate(({"g": 5, "a": [1]}, {"g": 4, "a": [2]}))
    ]
    rules = MergeRules(
        groups=(SequenceGroup(sequence_fields=("g",), columns=("a",)),),
        columns=(rule("a", "collect", ignore_retract=ignores),),
    )
    subcompaction = merge_subcompaction(
        tmp_path, columns, ["k"], written, merge_engine="partial-update", rules=rules
    )
    [row] = rows_of(subcompaction)
    assert row["a"] == found


def test_an_error_shows_a_key_of_nine_digits_as_a_time(tmp_path):
    columns = fields(k="TIMESTAMP(9) NOT NULL", v="TINYINT")
    [key] = from_nanoseconds([253_402_300_799_000_000_001]).to_pylist()
    written = [
        [write_run(tmp_path / f"{n}.parquet", columns, ["k"], [{"k": key, "v": 100, SEQUENCE: n}])]
        for n in range(2)
    ]
    rules = MergeRules(columns=(rule("k", "primary-key"), rule("v", "sum")))
    subcompaction = merge_subcompaction(
        tmp_path, columns, ["k"], written, merge_engine="aggregation", rules=rules
    )
    with pytest.raises(
        SubcompactionError, match=r"key k=9999-12-31T23:59:59\.000000001, column v: int8"
    ):
        rewrite(subcompaction)


def test_a_null_that_a_rule_puts_into_a_required_column_is_an_error(tmp_path):
    columns = fields(k="STRING NOT NULL", v="INT NOT NULL")
    tables = [
        [{"k": "p", SEQUENCE: number, KIND: kind, "v": 1}] for number, kind in enumerate((0, 3))
    ]
    written = [
        [write_run(tmp_path / f"{number}.parquet", columns, ["k"], table)]
        for number, table in enumerate(tables)
    ]
    subcompaction = merge_subcompaction(
        tmp_path,
        columns,
        ["k"],
        written,
        merge_engine="aggregation",
        rules=MergeRules(columns=(rule("k", "primary-key"), rule("v", "last_value"))),
    )
    message = (
        "key k=p, column v: the merged row has null in a NOT NULL column"
        r" \(merging 0.parquet, 1.parquet\)"
    )
    with pytest.raises(SubcompactionError, match=message):
        rewrite(subcompaction)
