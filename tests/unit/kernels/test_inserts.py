"""Windows of inserts are folded without rounds where runs are in order, with the same rows.

The same runs are merged as runs with disjoint sequences and by comparing sequence numbers, which
takes rounds.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.errors import SubcompactionError
from compactord.kernels.functions.registry import MERGE_FUNCTIONS, function_named
from compactord.kernels.order import MergeOrder
from compactord.paimon.options.merge import ColumnRule, MergeRules
from compactord.paimon.types import WIDE_TIMESTAMP
from tests.sampling import examples
from tests.unit.kernels.merge_functions import merged_rows
from tests.unit.kernels.model import array_of
from tests.unit.kernels.test_merge_properties import decimals, floats, integers

SELECTING = ("last_value", "last_non_null_value", "first_value", "first_non_null_value")
ORDERED = (*SELECTING, "max", "min")
NUMBERS = (*ORDERED, "sum", "sum", "sum")
# Sums that depend on the order of what is added, and a NaN that every sum changes.
UNEVEN = st.sampled_from([0.1, 1e16, -1e16, 3.0])
(SIGNALING,) = struct.unpack("<d", (0x7FF0000000000001).to_bytes(8, "little"))
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], tuple[str, ...]]] = {
    "tinyint": (pa.int8(), integers(8) | st.integers(-9, 9), (*NUMBERS, "product")),
    "int": (pa.int32(), integers(32) | st.integers(-9, 9), NUMBERS),
    "bigint": (pa.int64(), integers(64) | st.integers(-9, 9), NUMBERS),
    "float": (pa.float32(), floats(32) | st.floats(-1, 1, width=32), NUMBERS),
    "double": (pa.float64(), floats(64) | UNEVEN | st.just(SIGNALING), NUMBERS),
    "small double": (pa.float64(), UNEVEN | st.sampled_from([0.0, -0.0]), NUMBERS),
    "decimal": (pa.decimal128(9, 2), decimals(9, 2), NUMBERS),
    "wide decimal": (pa.decimal128(38, 5), decimals(38, 5), NUMBERS),
    "date": (pa.date32(), integers(32), ORDERED),
    "time": (pa.time32("ms"), st.integers(0, 86_399_999), ORDERED),
    "timestamp": (pa.timestamp("us", tz="UTC"), integers(64), ORDERED),
    "wide timestamp": (WIDE_TIMESTAMP, integers(64), ORDERED),
    "boolean": (pa.bool_(), st.booleans(), (*SELECTING, "bool_and")),
    "string": (pa.string(), st.sampled_from(["", "a", "b"]), (*ORDERED, "listagg")),
    "dictionary": (
        pa.dictionary(pa.int32(), pa.string()),
        st.sampled_from(["", "a", "b"]),
        (*ORDERED, "listagg"),
    ),
    "array": (pa.list_(pa.int32()), st.lists(st.integers(0, 2), max_size=2), SELECTING),
    "row": (
        pa.struct([pa.field("x", pa.int32(), nullable=False)]),
        st.fixed_dictionaries({"x": st.integers(0, 9)}),
        SELECTING,
    ),
}


@st.composite
def tables(draw: st.DrawFn, first: str) -> dict[str, Any]:
    """Tables whose first column is of the type `first`, the others of any."""
    kinds = draw(st.sampled_from([[0], [0, 2], [0, 0, 0, 0, 2, 3]]))
    spread = draw(st.sampled_from([1, 10**15]))
    fields, values, rules = [], [], []
    for name in [first, *draw(st.lists(st.sampled_from(sorted(COLUMNS)), max_size=2))]:
        type_, pool, aggregators = COLUMNS[name]
        column = f"v{len(fields)}"
        is_nullable = draw(st.integers(0, 5)) > 0
        fields.append(pa.field(column, type_, nullable=is_nullable))
        values.append(draw(st.sampled_from([pool, pool | st.none(), pool | st.none() | st.none()])))
        rules.append(ColumnRule(column=column, aggregator=draw(st.sampled_from(aggregators))))
    rows = st.tuples(st.sampled_from(kinds), *values)
    runs = [
        draw(st.dictionaries(st.integers(0, 9), rows, max_size=8))
        for _ in range(draw(st.integers(1, 6)))
    ]
    schema = pa.schema(
        [
            pa.field("_SEQUENCE_NUMBER", pa.int64(), nullable=False),
            pa.field("_VALUE_KIND", pa.int8(), nullable=False),
            pa.field("k", pa.int64(), nullable=False),
            *fields,
        ]
    )
    batches = []
    for number, run in enumerate(runs):
        columns = [
            [10 * number + place for place in range(len(run))],
            [run[key][0] for key in sorted(run)],
            [key * spread for key in sorted(run)],
            *([run[key][place + 1] for key in sorted(run)] for place in range(len(fields))),
        ]
        arrays = [column_of(each, type_) for each, type_ in zip(columns, schema.types, strict=True)]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    engine = draw(st.sampled_from(["partial-update", "aggregation"]))
    key = ColumnRule(column="k", aggregator="primary-key")
    return {
        "batches": batches,
        "engine": engine,
        "rules": MergeRules(
            columns=(key, *rules) if engine == "aggregation" else (),
            remove_on_delete=draw(st.booleans()),
        ),
        "window_rows": draw(st.integers(1, 40)),
    }


def column_of(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Behind an offset, and with values at nulls that do not count."""
    if pa.types.is_dictionary(type_):
        return column_of(values, type_.value_type).dictionary_encode()
    if type_ == WIDE_TIMESTAMP or not values:
        return array_of(values, type_)
    return array_of([values[0], None, None, *values], type_).slice(3)


def merged(case: dict[str, Any], *, disjoint: bool) -> pa.Table | str:
    """The rows, floats as their bits; or the error."""
    found = merged_rows(
        [iter([batch]) for batch in case["batches"]],
        MergeOrder(key_columns=("k",), disjoint_sequences=disjoint),
        function_named(case["engine"], case["rules"], MERGE_FUNCTIONS),
        window_rows=case["window_rows"],
        window_bytes=1 << 20,
    )
    try:
        batches = list(found)
    except SubcompactionError as error:
        return str(error)
    for batch in batches:
        batch.validate()
    rows = pa.Table.from_batches(batches, case["batches"][0].schema).combine_chunks()
    return pa.table([as_bits(column) for column in rows.columns], rows.column_names)


def as_bits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    type_ = column.type
    if pa.types.is_dictionary(type_):
        return column.cast(type_.value_type)
    if pa.types.is_floating(type_):
        return column.combine_chunks().view(f"int{type_.bit_width}")
    return column


@pytest.mark.parametrize("name", COLUMNS)
def test_rows_without_rounds_are_those_of_rounds(name: str) -> None:
    @settings(max_examples=examples(120), deadline=None)
    @given(tables(name))
    def run(case: dict[str, Any]) -> None:
        at_once, in_rounds = merged(case, disjoint=True), merged(case, disjoint=False)
        if isinstance(in_rounds, str) or isinstance(at_once, str):
            assert at_once == in_rounds
        else:
            assert at_once.equals(in_rounds), f"{at_once}\n{in_rounds}"

    run()
