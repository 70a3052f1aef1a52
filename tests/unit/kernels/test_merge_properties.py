from __future__ import annotations

import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.kernels.functions.base import DEDUPLICATE
from compactord.kernels.order import MergeOrder
from compactord.paimon.types import WIDE_TIMESTAMP
from tests.sampling import examples
from tests.unit.kernels import model
from tests.unit.kernels.merge_functions import merged_rows
from tests.unit.kernels.model import Record

Values = st.SearchStrategy[Any]


def integers(bits: int) -> Values:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return st.integers(low, high) | st.integers(-2, 2) | st.sampled_from([low, low + 1, high])


def decimals(precision: int, scale: int) -> Values:
    limit = 10**precision - 1
    unscaled = st.integers(-limit, limit) | st.integers(-3, 3) | st.sampled_from([-limit, limit])
    exact = decimal.Context(prec=40)
    return unscaled.map(lambda value: exact.scaleb(decimal.Decimal(value), -scale))


def floats(width: int) -> Values:
    special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), model.nan_with_payload()]
    return st.floats(width=width) | st.sampled_from(special)


# Long common beginnings, texts that begin other texts, zero bytes, more than eight bytes alike.
TEXTS = st.builds(
    lambda prefix, tail: prefix + tail,
    st.sampled_from(["", "p", "tenant-01-order-", "tenant-02-order-"]),
    st.text(st.sampled_from("ab\0é\U0001f600￿"), max_size=12),
)
BYTES = st.builds(
    lambda prefix, tail: prefix + tail,
    st.sampled_from([b"", b"\0", b"prefix-of-many-bytes"]),
    st.binary(max_size=3) | st.lists(st.sampled_from([0, 255]), max_size=12).map(bytes),
)
KEY_TYPES: dict[str, tuple[pa.DataType, Values]] = {
    "boolean": (pa.bool_(), st.booleans()),
    "tinyint": (pa.int8(), integers(8)),
    "smallint": (pa.int16(), integers(16)),
    "int": (pa.int32(), integers(32)),
    "bigint": (pa.int64(), integers(64)),
    "date": (pa.date32(), integers(32)),
    "time": (pa.time32("ms"), st.integers(0, 86_399_999)),
    "timestamp ms": (pa.timestamp("ms"), integers(64)),
    "timestamp us": (pa.timestamp("us"), integers(64)),
    "wide timestamp": (
        WIDE_TIMESTAMP,
        integers(64) | st.sampled_from([0, -1, 10**6, 10**15]).map(lambda n: n * 10**9 + 999_999),
    ),
    "timestamp with zone": (pa.timestamp("us", tz="UTC"), integers(64)),
    "float": (pa.float32(), floats(32)),
    "double": (pa.float64(), floats(64)),
    "decimal of 32 bits": (pa.decimal128(9, 2), decimals(9, 2)),
    "decimal of 64 bits": (pa.decimal128(18, 0), decimals(18, 0)),
    "decimal of 128 bits": (pa.decimal128(38, 5), decimals(38, 5)),
    "string": (pa.string(), TEXTS),
    "large string": (pa.large_string(), TEXTS),
    "binary": (pa.binary(), BYTES),
    "fixed binary": (
        pa.binary(3),
        st.lists(st.sampled_from([0, 7, 255]), min_size=3, max_size=3).map(bytes),
    ),
}


def as_encoded(array: pa.Array, offset: int, *, dictionary: bool) -> pa.Array:
    """The same values behind an offset, and dictionary-encoded with unused and unsorted entries."""
    if dictionary:
        array = array.dictionary_encode()
        noise = pa.array(["zz", "", "unused"], array.dictionary.type)
        entries = pa.concat_arrays([noise, array.dictionary])
        indices = pa.array([index.as_py() + 3 for index in array.indices], pa.int32())
        array = pa.DictionaryArray.from_arrays(indices, entries)
    if not len(array):
        return array
    padding = array.take(pa.array([0] * offset, pa.int64()))
    return pa.concat_arrays([padding, array]).slice(offset)


@st.composite
def merges(draw: st.DrawFn, key_type_names: st.SearchStrategy[tuple[str, ...]]) -> dict[str, Any]:
    names = draw(key_type_names)
    types = [KEY_TYPES[name][0] for name in names]
    pool = st.tuples(*(KEY_TYPES[name][1] for name in names))
    # Keys come from a small pool, so that runs share them.
    keys = draw(st.lists(pool, min_size=1, max_size=25, unique_by=model.key_order))
    keys.sort(key=model.key_order)
    sequence_range = draw(st.sampled_from([0, 1, 3, 1 << 62]))
    is_disjoint = draw(st.booleans())
    runs = []
    for run in range(draw(st.integers(1, 5))):
        chosen = draw(st.lists(st.sampled_from(range(len(keys))), unique=True))
        low = run * 10 if is_disjoint else -sequence_range
        high = low + 9 if is_disjoint else sequence_range
        runs.append(
            [
                Record(
                    keys[index],
                    draw(st.integers(low, high)),
                    draw(st.sampled_from([0, 1, 2, 3])),
                    value=f"{run}/{index}",
                )
                for index in sorted(chosen)
            ]
        )
    dictionaries = [
        pa.types.is_string(type_) and draw(st.booleans(), label="dictionary") for type_ in types
    ]
    offset = draw(st.integers(0, 9))
    batches = [
        model.batches_of(
            run,
            types,
            cuts=draw(st.lists(st.integers(0, len(run)), max_size=6)),
            encode=lambda array, column: as_encoded(array, offset, dictionary=dictionaries[column]),
        )
        for run in runs
    ]
    return {
        "runs": runs,
        "batches": batches,
        "key_columns": tuple(f"k{column}" for column in range(len(types))),
        "disjoint_sequences": is_disjoint,
        "ignore_delete": draw(st.booleans()),
        "window_rows": draw(st.integers(1, 60)),
        "window_bytes": draw(st.sampled_from([1, 200, 1 << 20])),
    }


def check(case: dict[str, Any]) -> None:
    order = MergeOrder(
        key_columns=case["key_columns"],
        disjoint_sequences=case["disjoint_sequences"],
        ignore_delete=case["ignore_delete"],
    )
    merged = list(
        merged_rows(
            [iter(batches) for batches in case["batches"]],
            order,
            DEDUPLICATE,
            window_rows=case["window_rows"],
            window_bytes=case["window_bytes"],
        )
    )
    expected = model.merge(
        case["runs"], ignore_delete=order.ignore_delete, disjoint=order.disjoint_sequences
    )
    assert values(merged, "value") == [record.value for record in expected]
    assert values(merged, "_SEQUENCE_NUMBER") == [record.sequence for record in expected]
    assert values(merged, "_VALUE_KIND") == [record.kind for record in expected]
    for batch in merged:
        batch.validate(full=True)
        assert batch.schema == case["batches"][0][0].schema
    for column, name in enumerate(order.key_columns):
        type_ = merged[0].schema.field(name).type if merged else None
        if type_ is not None and not pa.types.is_temporal(type_) and type_ != WIDE_TIMESTAMP:
            found = [model.sort_key(value) for value in values(merged, name)]
            assert found == [model.sort_key(record.key[column]) for record in expected]


def values(batches: list[pa.RecordBatch], column: str) -> list[Any]:
    return [value for batch in batches for value in batch.column(column).to_pylist()]


@pytest.mark.parametrize("name", KEY_TYPES)
def test_one_key_column_of_any_type_merges_as_the_model(name: str) -> None:
    @settings(max_examples=examples(80), deadline=None)
    @given(merges(st.just((name,))))
    def run(case: dict[str, Any]) -> None:
        check(case)

    run()


@settings(max_examples=examples(400), deadline=None)
@given(merges(st.lists(st.sampled_from(sorted(KEY_TYPES)), min_size=2, max_size=4).map(tuple)))
def test_keys_of_several_columns_merge_as_the_model(case: dict[str, Any]) -> None:
    check(case)


SEQUENCE_TYPES: dict[str, tuple[pa.DataType, Values]] = {
    "int": (pa.int32(), st.integers(-1, 1)),
    "bigint": (pa.int64(), st.sampled_from([-(1 << 63), (1 << 63) - 1, 0])),
    "double": (pa.float64(), st.sampled_from([0.0, -0.0, float("nan"), float("inf"), -1.5])),
    "string": (pa.string(), st.sampled_from(["", "a", "a\0", "b"])),
    "decimal": (
        pa.decimal128(38, 0),
        st.sampled_from([10**37, 10**37 + 1, -(10**37), 0]).map(decimal.Decimal),
    ),
    "timestamp": (pa.timestamp("ms"), st.integers(-1, 1)),
    "boolean": (pa.bool_(), st.booleans()),
}


@st.composite
def sequenced_runs(draw: st.DrawFn) -> tuple[list[list[Record]], list[pa.DataType]]:
    names = draw(st.lists(st.sampled_from(sorted(SEQUENCE_TYPES)), min_size=1, max_size=3))
    fields = st.tuples(*(st.none() | SEQUENCE_TYPES[name][1] for name in names))
    runs = [
        [
            Record(
                (key,),
                draw(st.integers(0, 2)),
                draw(st.sampled_from([0, 3])),
                draw(fields),
                f"{run}/{key}",
            )
            for key in sorted(draw(st.sets(st.integers(0, 8))))
        ]
        for run in range(draw(st.integers(1, 5)))
    ]
    return runs, [SEQUENCE_TYPES[name][0] for name in names]


@settings(max_examples=examples(400), deadline=None)
@given(sequenced_runs(), st.booleans(), st.booleans(), st.booleans(), st.integers(1, 30))
def test_user_sequence_fields_decide_before_sequence_numbers(
    case: tuple[list[list[Record]], list[pa.DataType]],
    descending: bool,
    ignore_delete: bool,
    disjoint: bool,
    window_rows: int,
) -> None:
    runs, types = case
    if disjoint:
        runs = [
            [record._replace(sequence=index) for record in run] for index, run in enumerate(runs)
        ]
    order = MergeOrder(
        key_columns=("k0",),
        sequence_fields=tuple(f"s{column}" for column in range(len(types))),
        sequence_descending=descending,
        disjoint_sequences=disjoint,
        ignore_delete=ignore_delete,
    )
    merged = merged_rows(
        [iter(model.batches_of(run, [pa.int64()], sequence_types=types)) for run in runs],
        order,
        DEDUPLICATE,
        window_rows=window_rows,
        window_bytes=1 << 20,
    )
    expected = model.merge(
        runs, descending=descending, ignore_delete=ignore_delete, disjoint=disjoint
    )
    assert values(list(merged), "value") == [record.value for record in expected]


@settings(max_examples=examples(300), deadline=None)
@given(
    st.integers(1, 12).flatmap(
        lambda run_count: st.lists(
            st.dictionaries(st.integers(0, 40), st.integers(0, 2)),
            min_size=run_count,
            max_size=run_count,
        )
    ),
    st.integers(1, 100),
    st.booleans(),
)
def test_full_ties_are_settled_as_the_loser_tree_does(
    runs_as_maps: list[dict[int, int]], window_rows: int, ignore_delete: bool
) -> None:
    runs = [
        [
            Record(
                (key,),
                sequence,
                kind=3 * ((key + index + sequence) % 3 == 0),
                value=f"{index}/{key}",
            )
            for key, sequence in sorted(run.items())
        ]
        for index, run in enumerate(runs_as_maps)
    ]
    merged = merged_rows(
        [iter(model.batches_of(run, [pa.int64()], cuts=range(len(run)))) for run in runs],
        MergeOrder(key_columns=("k0",), ignore_delete=ignore_delete),
        DEDUPLICATE,
        window_rows=window_rows,
        window_bytes=1 << 20,
    )
    expected = model.merge(runs, ignore_delete=ignore_delete)
    assert values(list(merged), "value") == [record.value for record in expected]
