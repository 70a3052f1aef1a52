"""What the options of merge engines mean, and which of them are refused."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from compactord.kernels.aggregators.registry import INSTALL_SKETCHES, rule_reasons
from compactord.paimon.options.merge import ColumnRule, MergeRules, NullKeys, SequenceGroup
from compactord.paimon.options.table_options import parse_options
from compactord.paimon.support import reasons_to_refuse
from tests.unit.paimon.test_support import table

PARTIAL = {"merge-engine": "partial-update"}
SUMS = {"merge-engine": "aggregation"}
COLUMNS = ("INT NOT NULL", "INT", "INT", "STRING", "INT")


def reasons(texts: Mapping[str, str], columns: Sequence[Any] = COLUMNS) -> tuple[str, ...]:
    schema = table(texts, columns=columns)
    options = parse_options(schema)
    rules = rule_reasons(schema, options.merge_rules, options.raw)
    return (*reasons_to_refuse(schema, options), *rules)


def rules(options: Mapping[str, str]) -> MergeRules:
    return parse_options(table(options, columns=COLUMNS)).merge_rules


@pytest.mark.parametrize("name", ["hll_sketch", "theta_sketch"])
def test_sketches_need_a_package(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    options = {**SUMS, "fields.c1.aggregate-function": name}
    assert reasons(options, ("INT NOT NULL", "BYTES")) == (
        f"column c1: aggregate function {name} needs the package datasketches: {INSTALL_SKETCHES}",
    )


def test_the_rules_of_an_aggregation() -> None:
    found = rules(
        {
            **SUMS,
            "sequence.field": "c4",
            "fields.default-aggregate-function": "sum",
            "fields.c3.aggregate-function": "listagg",
            "fields.c3.distinct": "true",
            "fields.c3.list-agg-delimiter": ";",
            "fields.c3.nested-key": "a, b",
            "fields.c3.nested-key-null-strategy": "error",
            "fields.c2.ignore-retract": "true",
            "aggregation.remove-record-on-delete": "true",
        }
    )
    assert found == MergeRules(
        columns=(
            ColumnRule(column="c0", aggregator="primary-key"),
            ColumnRule(column="c1", aggregator="sum"),
            ColumnRule(column="c2", aggregator="sum", ignore_retract=True),
            ColumnRule(
                column="c3",
                aggregator="listagg",
                distinct=True,
                delimiter=";",
                nested_key=("a", "b"),
                null_keys=NullKeys.ERROR,
            ),
            ColumnRule(column="c4", aggregator="last_value"),
        ),
        remove_on_delete=True,
    )


def test_the_rules_of_a_partial_update() -> None:
    found = rules(
        {
            **PARTIAL,
            "fields.c1,c2.sequence-group": "c3,c4",
            "fields.c4.aggregate-function": "sum",
            "fields.c1.aggregate-function": "max",
            "partial-update.remove-record-on-sequence-group": "c2",
        }
    )
    group = SequenceGroup(sequence_fields=("c1", "c2"), columns=("c3", "c4"), removes_record=True)
    sums = ColumnRule(column="c4", aggregator="sum")
    assert found == MergeRules(columns=(sums,), groups=(group,))


GROUP = {**PARTIAL, "fields.c1.sequence-group": "c2"}
REFUSED: dict[str, tuple[Mapping[str, str], str]] = {
    "unknown": ({**SUMS, "fields.c1.aggregate-function": "summ"}, "summ is unknown"),
    "unknown-default": (
        {**SUMS, "fields.default-aggregate-function": "avg"},
        "column c1: aggregate function avg is unknown",
    ),
    "sketch": (
        {**SUMS, "fields.c1.aggregate-function": "hll_sketch"},
        "hll_sketch needs a VARBINARY, not INT",
    ),
    "sum-of-texts": (
        {**SUMS, "fields.c3.aggregate-function": "sum"},
        "aggregate function sum needs a number, not STRING",
    ),
    "boolean": ({**SUMS, "fields.c1.aggregate-function": "bool_or"}, "needs a BOOLEAN, not INT"),
    "text": ({**SUMS, "fields.c1.aggregate-function": "listagg"}, "needs a STRING, not INT"),
    "array": ({**SUMS, "fields.c1.aggregate-function": "collect"}, "needs an ARRAY, not INT"),
    "map": ({**SUMS, "fields.c1.aggregate-function": "merge_map"}, "needs a MAP, not INT"),
    "timed-map": (
        {**SUMS, "fields.c1.aggregate-function": "merge_map_with_keytime"},
        "needs a MAP of ROWs with two fields or more",
    ),
    "nested": ({**SUMS, "fields.c1.aggregate-function": "nested_update"}, "an ARRAY of ROWs"),
    "nested-without-key": (
        {**SUMS, "fields.c1.aggregate-function": "nested_partial_update"},
        "needs a nested-key",
    ),
    "retract-ignored-and-removing": (
        {
            **SUMS,
            "aggregation.remove-record-on-delete": "true",
            "fields.c1.ignore-retract": "true",
        },
        "aggregation.remove-record-on-delete and fields.c1.ignore-retract contradict",
    ),
    "not-a-boolean": ({**SUMS, "fields.c1.ignore-retract": "yes"}, "ignore-retract='yes'"),
    "sequence-field-aggregated": (
        {**SUMS, "sequence.field": "c1", "fields.c1.aggregate-function": "max"},
        "column c1 is a sequence field and has an aggregate function",
    ),
    "snapshots-and-sequence-field": (
        {"sequence.snapshot-ordering": "true", "sequence.field": "c1", "write-only": "true"},
        "sequence.snapshot-ordering and sequence.field contradict",
    ),
    "snapshots-not-write-only": (
        {"sequence.snapshot-ordering": "true"},
        "sequence.snapshot-ordering=true needs write-only=true",
    ),
    "sequence-field-twice": ({"sequence.field": "c1,c1"}, "sequence.field names c1 twice"),
    "ungrouped": (
        {**PARTIAL, "fields.c1.aggregate-function": "sum"},
        "column c1: aggregate function sum needs a sequence group",
    ),
    "blank-in-a-group": ({**GROUP, "fields.c1.sequence-group": "c2, c4"}, "has no column ' c4'"),
    "key-in-a-group": ({**GROUP, "fields.c1.sequence-group": "c0"}, "c0 of the primary key"),
    "two-groups": (
        {**GROUP, "fields.c4.sequence-group": "c2"},
        "column c2 is in two sequence groups",
    ),
    "ignoring-and-removing": (
        {
            **PARTIAL,
            "ignore-delete": "true",
            "partial-update.remove-record-on-delete": "true",
        },
        "ignore-delete and partial-update.remove-record-on-delete contradict",
    ),
    "ignoring-and-removing-by-group": (
        {
            **GROUP,
            "partial-update.ignore-delete": "true",
            "partial-update.remove-record-on-sequence-group": "c1",
        },
        "ignore-delete and partial-update.remove-record-on-sequence-group contradict",
    ),
    "removing-with-groups": (
        {**GROUP, "partial-update.remove-record-on-delete": "true"},
        "fields.c1.sequence-group and partial-update.remove-record-on-delete contradict",
    ),
    "removing-by-another-field": (
        {**GROUP, "partial-update.remove-record-on-sequence-group": "c2"},
        "'c2' is not a field of a sequence group",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_contradictions_are_refused(name: str) -> None:
    options, reason = REFUSED[name]
    assert any(reason in found for found in reasons(options)), reasons(options)


@pytest.mark.parametrize(
    "options",
    [
        GROUP,
        {**GROUP, "fields.c2.aggregate-function": "sum", "ignore-delete": "true"},
        {**PARTIAL, "fields.default-aggregate-function": "last_non_null_value"},
        {"fields.c1.aggregate-function": "avg"},
        {"sequence.snapshot-ordering": "true", "write-only": "true"},
    ],
)
def test_what_does_not_contradict_is_supported(options: Mapping[str, str]) -> None:
    assert reasons(options) == ()
