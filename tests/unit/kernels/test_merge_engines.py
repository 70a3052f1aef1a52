"""Partial updates and aggregations of a few records, each case one that Java was seen to decide."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from compactord.errors import SubcompactionError
from compactord.kernels.functions.registry import MERGE_FUNCTIONS, function_named
from compactord.kernels.order import MergeOrder
from compactord.paimon.options.merge import ColumnRule, MergeRules, NullKeys, SequenceGroup
from tests.unit.kernels.merge_functions import merged_rows

KINDS = {"+I": 0, "-U": 1, "+U": 2, "-D": 3}
Record = tuple[str, Any]


def merged(
    engine: str,
    rules: MergeRules,
    types: dict[str, pa.DataType],
    *records: Record,
    by_run: bool = False,
) -> Any:
    """(kind, sequence number, values) of the row that records of one key become."""
    schema = pa.schema(
        [
            pa.field("_SEQUENCE_NUMBER", pa.int64(), nullable=False),
            pa.field("_VALUE_KIND", pa.int8(), nullable=False),
            pa.field("k", pa.int32(), nullable=False),
            *(pa.field(name, type_) for name, type_ in types.items()),
        ]
    )
    runs = []
    for number, (kind, values) in enumerate(records):
        cells = [[number], [KINDS[kind]], [7], *([value] for value in values)]
        arrays = [pa.array(cell, type_) for cell, type_ in zip(cells, schema.types, strict=True)]
        runs.append(iter([pa.RecordBatch.from_arrays(arrays, schema=schema)]))
    if engine == "aggregation":
        key = ColumnRule(column="k", aggregator="primary-key")
        rules = MergeRules(columns=(key, *rules.columns), remove_on_delete=rules.remove_on_delete)
    found = merged_rows(
        runs,
        MergeOrder(key_columns=("k",), disjoint_sequences=by_run),
        function_named(engine, rules, MERGE_FUNCTIONS),
        window_rows=100,
        window_bytes=1 << 20,
    )
    [row] = [row for batch in found for row in batch.to_pylist()]
    kind = next(name for name, number in KINDS.items() if number == row["_VALUE_KIND"])
    assert row["k"] == 7
    return kind, row["_SEQUENCE_NUMBER"], tuple(row[name] for name in types)


FOUR = dict.fromkeys(("a", "b", "g1", "g2"), pa.int32())
NONE = MergeRules()
TWO_GROUPS = (
    SequenceGroup(sequence_fields=("g1",), columns=("a",)),
    SequenceGroup(sequence_fields=("g2",), columns=("b",)),
)
REMOVES = MergeRules(remove_on_delete=True)
GROUPS = MergeRules(groups=TWO_GROUPS)
SUM = MergeRules(groups=TWO_GROUPS, columns=(ColumnRule(column="a", aggregator="sum"),))
GROUP_REMOVES = MergeRules(
    groups=(
        SequenceGroup(sequence_fields=("g1",), columns=("a",), removes_record=True),
        TWO_GROUPS[1],
    )
)
WIDE_GROUP = MergeRules(groups=(SequenceGroup(sequence_fields=("g1", "g2"), columns=("a", "b")),))
PARTIAL_UPDATES: dict[str, tuple[MergeRules, list[Record], Any]] = {
    "values-that-are-not-null": (
        NONE,
        [("+I", (1, 2, 3, 4)), ("+I", (None, 20, None, None))],
        ("+I", 1, (1, 20, 3, 4)),
    ),
    "values-of-an-ignored-delete-show-through": (
        MergeRules(ignore_delete=True),
        [("-D", (5, 6, 7, 8)), ("+I", (None, 20, None, None))],
        ("+I", 1, (5, 20, 7, 8)),
    ),
    "only-ignored-deletes": (
        MergeRules(ignore_delete=True),
        [("-D", (5, 6, 7, 8)), ("-D", (1, 1, 1, 1))],
        ("-D", 0, (5, 6, 7, 8)),
    ),
    "a-delete-removes": (
        REMOVES,
        [("+I", (1, 2, 3, 4)), ("-D", (9, None, None, None))],
        ("-D", 1, (9, None, None, None)),
    ),
    "a-row-goes-on-from-its-delete": (
        REMOVES,
        [("+I", (1, 2, 3, 4)), ("-D", (9, 8, None, None)), ("+I", (None, 20, None, None))],
        ("+I", 2, (9, 20, None, None)),
    ),
    "an-update-before-does-not-remove": (
        REMOVES,
        [("+I", (1, 2, 3, 4)), ("-U", (9, 8, None, None))],
        ("+I", 1, (1, 2, 3, 4)),
    ),
    "groups-have-orders-of-their-own": (
        GROUPS,
        [("+I", (1, 2, 1, 1)), ("+I", (None, 20, 2, 0))],
        ("+I", 1, (None, 2, 2, 1)),
    ),
    "a-null-sequence-is-skipped": (
        GROUPS,
        [("+I", (1, 2, 1, 1)), ("+I", (9, 20, None, 2))],
        ("+I", 1, (1, 20, 1, 2)),
    ),
    "an-equal-sequence-is-newer": (
        GROUPS,
        [("+I", (1, 2, 1, 1)), ("+I", (9, 20, 1, 1))],
        ("+I", 1, (9, 20, 1, 1)),
    ),
    "a-retract-empties-its-group": (
        GROUPS,
        [("+I", (1, 2, 1, 1)), ("-D", (1, 2, 2, 0))],
        ("+I", 1, (None, 2, 2, 1)),
    ),
    "a-sum-in-a-group": (
        SUM,
        [("+I", (1, 2, 1, 1)), ("+I", (10, 20, 2, 2))],
        ("+I", 1, (11, 20, 2, 2)),
    ),
    "an-older-record-is-summed-up-too": (
        SUM,
        [("+I", (1, 2, 5, 5)), ("+I", (10, 20, 2, 2))],
        ("+I", 1, (11, 2, 5, 5)),
    ),
    "an-older-retract-is-subtracted": (
        SUM,
        [("+I", (10, 2, 5, 5)), ("-U", (3, None, 1, None))],
        ("+I", 1, (7, 2, 5, 5)),
    ),
    "a-first-retract-retracts-its-own-copy": (
        SUM,
        [("-U", (3, 7, 1, 1)), ("+I", (4, 8, 2, 2))],
        ("+I", 1, (4, 8, 2, 2)),
    ),
    "a-delete-of-the-newest-sequence-removes": (
        GROUP_REMOVES,
        [("+I", (1, 2, 1, 1)), ("-D", (1, 2, 2, 0))],
        ("-D", 1, (1, 2, 2, 0)),
    ),
    "a-delete-of-an-older-sequence-does-not": (
        GROUP_REMOVES,
        [("+I", (1, 2, 5, 5)), ("-D", (1, 2, 2, 6))],
        ("+I", 1, (1, None, 5, 6)),
    ),
    "nulls-are-first-in-a-sequence-of-several-fields": (
        WIDE_GROUP,
        [("+I", (1, 2, 1, 5)), ("+I", (9, 9, 1, None))],
        ("+I", 1, (1, 2, 1, 5)),
    ),
    "a-single-record-stays-as-it-is": (GROUPS, [("-U", (1, 2, 1, 1))], ("-U", 0, (1, 2, 1, 1))),
}


@pytest.mark.parametrize("by_run", [True, False])
@pytest.mark.parametrize("name", PARTIAL_UPDATES)
def test_a_partial_update(name: str, by_run: bool) -> None:
    rules, records, wanted = PARTIAL_UPDATES[name]
    assert merged("partial-update", rules, FOUR, *records, by_run=by_run) == wanted


def test_a_sequence_of_two_words_is_compared_in_full() -> None:
    """A null elsewhere in the window must not be taken for one among the compared records."""
    wide = pa.decimal128(38, 0)
    types = {"a": pa.int32(), "g": wide}
    rules = MergeRules(groups=(SequenceGroup(sequence_fields=("g",), columns=("a",)),))
    low, high = dec("-1", wide), dec("9" * 38, wide)
    schema = pa.schema(
        [
            pa.field("_SEQUENCE_NUMBER", pa.int64(), nullable=False),
            pa.field("_VALUE_KIND", pa.int8(), nullable=False),
            pa.field("k", pa.int32(), nullable=False),
            *(pa.field(name, type_) for name, type_ in types.items()),
        ]
    )
    runs = [
        [(0, 1, 1, low), (1, 2, 5, None)],
        [(2, 1, 2, high)],
    ]
    batches = [
        pa.RecordBatch.from_pylist(
            [
                {"_SEQUENCE_NUMBER": n, "_VALUE_KIND": 0, "k": k, "a": a, "g": g}
                for n, k, a, g in run
            ],
            schema=schema,
        )
        for run in runs
    ]
    found = merged_rows(
        [iter([batch]) for batch in batches],
        MergeOrder(key_columns=("k",)),
        function_named("partial-update", rules, MERGE_FUNCTIONS),
        window_rows=100,
        window_bytes=1 << 20,
    )
    assert [row["a"] for batch in found for row in batch.to_pylist()] == [2, 5]


def test_a_delete_without_an_option_is_an_error_that_names_the_key() -> None:
    records = [("+I", (1, 2, 3, 4)), ("-D", (1, 2, 3, 4))]
    with pytest.raises(SubcompactionError, match=r"key k=7: a partial update cannot take deletes"):
        merged("partial-update", NONE, FOUR, *records, by_run=True)


def rule(aggregator: str, **options: Any) -> MergeRules:
    removes = options.pop("remove_on_delete", False)
    column = ColumnRule(column="v", aggregator=aggregator, **options)
    return MergeRules(columns=(column,), remove_on_delete=removes)


DECIMAL = pa.decimal128(3, 1)
WIDE = pa.decimal128(20, 1)


NUMBERS = pa.list_(pa.int32())
MAP = pa.map_(pa.string(), pa.int32())
TIMED = pa.map_(pa.string(), pa.struct({"v": pa.int32(), "t": pa.string()}))
TABLES = pa.list_(pa.struct({"a": pa.int32(), "b": pa.int32()}))


def ab(a: int | None, b: int | None) -> dict[str, int | None]:
    return {"a": a, "b": b}


def dec(text: str, type_: pa.DataType = DECIMAL) -> Any:
    return pa.scalar(text).cast(type_).as_py()


AGGREGATIONS: dict[str, tuple[MergeRules, pa.DataType, list[tuple[str, Any]], Any]] = {
    "sum": (rule("sum"), pa.int64(), [("+I", 1), ("+I", None), ("+U", 5)], ("+I", 2, 6)),
    "sum-retracts": (rule("sum"), pa.int8(), [("+I", 9), ("-U", 5), ("-D", 3)], ("+I", 2, 1)),
    "only-retracts": (rule("sum"), pa.int32(), [("-D", 5), ("-D", 7)], ("+I", 1, -12)),
    "sum-of-decimals-beyond-the-precision": (
        rule("sum"),
        pa.decimal128(18, 1),
        [("+I", dec("9.9", pa.decimal128(18, 1))), ("+I", dec("0.1", pa.decimal128(18, 1)))],
        ("+I", 1, dec("10.0", pa.decimal128(18, 1))),
    ),
    "sum-of-wide-decimals": (
        rule("sum"),
        WIDE,
        [("+I", dec("9" * 19 + ".9", WIDE)), ("+I", dec("0.1", WIDE)), ("+I", dec("2.5", WIDE))],
        ("+I", 2, dec("2.5", WIDE)),
    ),
    "product-rounds-half-up": (
        rule("product"),
        DECIMAL,
        [("+I", dec("1.5")), ("+I", dec("1.5"))],
        ("+I", 1, dec("2.3")),
    ),
    "product-divides-towards-zero": (
        rule("product"),
        pa.int32(),
        [("+I", -7), ("-D", 2)],
        ("+I", 1, -3),
    ),
    "max": (rule("max"), pa.string(), [("+I", "b"), ("+I", None), ("+I", "a")], ("+I", 2, "b")),
    "min": (rule("min"), pa.float64(), [("+I", 0.5), ("+I", -2.0)], ("+I", 1, -2.0)),
    "ignored-retract": (
        rule("max", ignore_retract=True),
        pa.int32(),
        [("+I", 1), ("-D", 9)],
        ("+I", 1, 1),
    ),
    "last-value-null": (rule("last_value"), pa.int32(), [("+I", 1), ("+I", None)], ("+I", 1, None)),
    "last-non-null": (
        rule("last_non_null_value"),
        pa.int32(),
        [("+I", 1), ("+I", 2), ("-U", 2), ("+I", None)],
        ("+I", 3, None),
    ),
    "first-null": (rule("first_value"), pa.int32(), [("+I", None), ("+I", 1)], ("+I", 1, None)),
    "first-non-null": (
        rule("first_non_null_value"),
        pa.int32(),
        [("+I", None), ("+I", 1), ("+I", 2)],
        ("+I", 2, 1),
    ),
    "bool-and": (rule("bool_and"), pa.bool_(), [("+I", True), ("+I", False)], ("+I", 1, False)),
    "bool-or": (
        rule("bool_or"),
        pa.bool_(),
        [("+I", None), ("+I", True), ("+I", False)],
        ("+I", 2, True),
    ),
    "listagg": (
        rule("listagg", delimiter=";"),
        pa.string(),
        [("+I", "a"), ("+I", " "), ("+I", "a")],
        ("+I", 2, "a;a"),
    ),
    "listagg-distinct": (
        rule("listagg", distinct=True),
        pa.string(),
        [("+I", "b,b"), ("+I", "a,b,,a")],
        ("+I", 1, "b,b,a"),
    ),
    "collect": (
        rule("collect"),
        NUMBERS,
        [("+I", [1, None]), ("+I", None), ("+I", [1, 2]), ("-D", [1, 9])],
        ("+I", 3, [None, 1, 2]),
    ),
    "collect-distinct": (
        rule("collect", distinct=True),
        NUMBERS,
        [("+I", [5, 3]), ("+I", [3, None, 1, None])],
        ("+I", 1, [5, 3, None, 1]),
    ),
    "collect-distinct-arrays-of-which-those-with-nulls-never-equal": (
        rule("collect", distinct=True),
        pa.list_(NUMBERS),
        [("+I", [[1], [1, None]]), ("+I", [[1], [1, None]])],
        ("+I", 1, [[1], [1, None], [1, None]]),
    ),
    "collect-nothing": (rule("collect"), NUMBERS, [("-D", [1]), ("-D", [2])], ("+I", 1, None)),
    "merge-map": (
        rule("merge_map"),
        MAP,
        [("+I", [("a", 1), ("b", 2)]), ("+I", [("a", None), ("c", 3)]), ("-D", [("b", 0)])],
        ("+I", 2, [("a", None), ("c", 3)]),
    ),
    "merge-map-with-keytime": (
        rule("merge_map_with_keytime"),
        TIMED,
        [
            ("+I", [("a", {"v": 1, "t": "2"}), ("b", {"v": 1, "t": None}), ("c", None)]),
            ("+I", [("a", {"v": 2, "t": "1"}), ("b", {"v": 2, "t": "0"}), ("c", None)]),
            ("+I", [("a", {"v": 3, "t": "2"}), ("c", {"v": 3, "t": ""}), ("b", None)]),
        ],
        ("+I", 2, [("a", {"v": 1, "t": "2"}), ("c", {"v": 3, "t": ""})]),
    ),
    "nested-update": (
        rule("nested_update", count_limit=3),
        TABLES,
        [("+I", [ab(1, 1), None]), ("+I", [ab(1, 1), ab(2, 2), ab(3, 3)]), ("-D", [ab(2, 2)])],
        ("+I", 2, [ab(1, 1), ab(1, 1)]),
    ),
    "nested-update-by-key": (
        rule("nested_update", nested_key=("a",), nested_sequence=("b",), count_limit=2),
        TABLES,
        [("+I", [ab(1, 5), ab(2, None)]), ("+I", [ab(1, 4), ab(2, 0), ab(3, 1)])],
        ("+I", 1, [ab(1, 5), ab(2, 0)]),
    ),
    "nested-update-without-null-keys": (
        rule("nested_update", nested_key=("a",), null_keys=NullKeys.IGNORE),
        TABLES,
        [("+I", [ab(None, 5), ab(2, 1)]), ("+I", [ab(None, 4)]), ("-D", [ab(2, 7)])],
        ("+I", 2, []),
    ),
    "nested-partial-update": (
        rule("nested_partial_update", nested_key=("a",)),
        TABLES,
        [("+I", [ab(1, 5), ab(None, 1)]), ("+I", [ab(1, None), ab(None, 2), ab(3, None)])],
        ("+I", 1, [ab(1, 5), ab(None, 2), ab(3, None)]),
    ),
    "a-blank-single-record-stays": (rule("listagg"), pa.string(), [("+I", " ")], ("+I", 0, " ")),
    "remove-on-delete": (
        rule("sum", remove_on_delete=True),
        pa.int32(),
        [("+I", 1), ("-D", 5)],
        ("-D", 1, 5),
    ),
    "adding-to-what-was-deleted": (
        rule("sum", remove_on_delete=True),
        pa.int32(),
        [("+I", 1), ("-D", 5), ("+I", 2)],
        ("+I", 2, 7),
    ),
}


@pytest.mark.parametrize("by_run", [True, False])
@pytest.mark.parametrize("name", AGGREGATIONS)
def test_an_aggregation(name: str, by_run: bool) -> None:
    rules, type_, cells, (kind, sequence, value) = AGGREGATIONS[name]
    records = [(kind, (v,)) for kind, v in cells]
    found = merged("aggregation", rules, {"v": type_}, *records, by_run=by_run)
    assert found == (kind, sequence, (value,))


@pytest.mark.parametrize("by_run", [True, False])
@pytest.mark.parametrize(
    ("rules", "type_", "cells", "message"),
    [
        (rule("sum"), pa.int8(), [("+I", 127), ("+I", 1)], "int8 overflow: 127 and 1"),
        (rule("sum"), pa.int64(), [("+I", 2**63 - 1), ("+I", 1)], "int64 overflow"),
        (rule("sum"), pa.int64(), [("-D", -(2**63)), ("+I", 1)], "int64 overflow"),
        (rule("product"), pa.int64(), [("+I", 2**32), ("+I", 2**31)], "int64 overflow"),
        (rule("product"), pa.int32(), [("+I", 5), ("-D", 0)], "division by zero"),
        (rule("product"), DECIMAL, [("+I", dec("1.0")), ("-D", dec("3.0"))], "no exact decimal"),
        (
            rule("nested_update", nested_key=("a",), null_keys=NullKeys.ERROR),
            TABLES,
            [("+I", [ab(1, 1)]), ("+I", [ab(None, 1)])],
            "a null in the nested key",
        ),
        (rule("max"), pa.int32(), [("+I", 5), ("-D", 5)], "max cannot take back a value"),
        (
            rule("max"),
            pa.bool_(),
            [("+I", True), ("+I", True)],
            "values of type bool have no order",
        ),
    ],
)
def test_what_java_refuses_is_an_error_that_names_key_and_column(
    rules: MergeRules, type_: pa.DataType, cells: list[tuple[str, Any]], message: str, by_run: bool
) -> None:
    records = [(kind, (v,)) for kind, v in cells]
    with pytest.raises(SubcompactionError, match=f"key k=7, column v: .*{message}"):
        merged("aggregation", rules, {"v": type_}, *records, by_run=by_run)
