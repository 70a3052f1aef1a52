"""Functions that need all records of a key are given them in the order of the model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.errors import SubcompactionError
from compactord.kernels.functions.base import EVERY_RECORD
from compactord.kernels.functions.registry import MERGE_FUNCTIONS, function_named
from compactord.kernels.order import MergeOrder
from compactord.paimon.options.merge import NO_RULES, ColumnRule, MergeRules
from tests.sampling import examples
from tests.unit.kernels import model
from tests.unit.kernels.merge_functions import FirstRow, Joined, merged_rows
from tests.unit.kernels.model import Record


@st.composite
def merges(draw: st.DrawFn, *, ties: bool) -> dict[str, Any]:
    """Runs with a user sequence field and numbers that tie, or with unique numbers."""
    unique = draw(st.permutations(range(60)))
    runs = []
    for run in range(draw(st.integers(1, 7))):
        keys = sorted(draw(st.sets(st.integers(0, 7), max_size=8)))
        runs.append(
            [
                Record(
                    (key,),
                    draw(st.integers(0, 1)) if ties else unique[8 * run + place],
                    draw(st.sampled_from([0, 3])),
                    (draw(st.none() | st.integers(0, 1)),),
                    f"{run}/{key}",
                )
                for place, key in enumerate(keys)
            ]
        )
    is_disjoint = draw(st.booleans())
    if is_disjoint:
        runs = [[record._replace(sequence=n) for record in run] for n, run in enumerate(runs)]
    order = MergeOrder(
        key_columns=("k0",),
        sequence_fields=draw(st.sampled_from([(), ("s0",)])),
        sequence_descending=draw(st.booleans()),
        disjoint_sequences=is_disjoint,
        ignore_delete=draw(st.booleans()),
    )
    return {"runs": runs, "order": order, "window_rows": draw(st.integers(1, 30))}


def expected(case: dict[str, Any]) -> list[list[Record]]:
    order, runs = case["order"], case["runs"]
    if not order.sequence_fields:
        runs = [[record._replace(user_sequence=()) for record in run] for run in runs]
    return model.ordered(
        runs,
        descending=order.sequence_descending,
        ignore_delete=order.ignore_delete,
        disjoint=order.disjoint_sequences,
    )


def batches(run: list[Record]) -> Iterator[pa.RecordBatch]:
    return iter(model.batches_of(run, [pa.int64()], sequence_types=[pa.int64()]))


def merged(case: dict[str, Any], function: Any) -> list[str]:
    found = merged_rows(
        [batches(run) for run in case["runs"]],
        case["order"],
        function,
        window_rows=case["window_rows"],
        window_bytes=1 << 20,
    )
    return [value for batch in found for value in batch.column("value").to_pylist()]


def joined(group: list[Record]) -> str:
    values = [record.value for record in group]
    return values[0] if len(values) == 1 else f"[{','.join(values)}]"


@settings(max_examples=examples(400), deadline=None)
@given(merges(ties=True))
def test_a_function_has_all_records_in_order_and_full_ties_as_the_loser_tree(case):
    groups = expected(case)
    assert merged(case, Joined("value")) == [joined(group) for group in groups]
    assert merged(case, FirstRow()) == [group[0].value for group in groups]


@settings(max_examples=examples(300), deadline=None)
@given(merges(ties=False), st.integers(1, 3), st.integers(1, 3))
def test_runs_that_hold_every_record_are_merged_as_those_they_are_made_of(case, fan_in, rows):
    """Whatever batches they come in: a key's records may be in several."""
    order, runs = case["order"], [list(batches(run)) for run in case["runs"]]
    kept = MergeOrder(
        key_columns=order.key_columns,
        sequence_fields=order.sequence_fields,
        sequence_descending=order.sequence_descending,
        disjoint_sequences=order.disjoint_sequences,
    )
    sizes = {"window_rows": case["window_rows"], "window_bytes": 1 << 20, "keys_repeat": True}
    fewer = []
    for first in range(0, len(runs), fan_in):
        group = [iter(run) for run in runs[first : first + fan_in]]
        found = list(merged_rows(group, kept, EVERY_RECORD, **sizes))
        assert sum(batch.num_rows for batch in found) == sum(
            len(run) for run in case["runs"][first : first + fan_in]
        )
        fewer.append(
            iter([b.slice(start, rows) for b in found for start in range(0, b.num_rows, rows)])
        )
    texts = [
        value
        for batch in merged_rows(fewer, order, Joined("value"), **sizes)
        for value in batch.column("value").to_pylist()
    ]
    assert texts == [joined(group) for group in expected(case)]


def test_runs_that_hold_every_record_are_still_to_be_in_order():
    run = [Record((2,), 0), Record((2,), 1), Record((1,), 2)]
    found = model.batches_of(run, [pa.int64()], cuts=[2])
    how = {"window_rows": 9, "window_bytes": 1 << 20, "keys_repeat": True}
    with pytest.raises(SubcompactionError, match="not sorted"):
        list(merged_rows([iter(found)], MergeOrder(key_columns=("k0",)), EVERY_RECORD, **how))


def test_a_name_that_nobody_registered_is_an_error():
    with pytest.raises(SubcompactionError, match="merge engine sum is not supported"):
        function_named("sum", NO_RULES, MERGE_FUNCTIONS)


def test_a_package_that_a_worker_lacks_is_named_before_it_reads(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketches", None)
    rules = MergeRules(columns=(ColumnRule(column="v", aggregator="hll_sketch"),))
    with pytest.raises(
        SubcompactionError, match=r"column v: .* hll_sketch needs the package datasketches"
    ):
        function_named("aggregation", rules, MERGE_FUNCTIONS)
