"""What a merge tells of its keys, against the definition in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.errors import SubcompactionError
from compactord.kernels.functions.base import DEDUPLICATE, EVERY_RECORD
from compactord.kernels.lookup import changelog_rows
from compactord.kernels.merge import LEVEL, Levels, merge_runs
from compactord.kernels.order import MergeOrder
from compactord.paimon.options.merge import ChangelogRule
from tests.sampling import examples
from tests.unit.kernels.merge_functions import batches_of, merged_rows

TOP = 5
NAN = float("nan")
SCHEMA = pa.schema(
    [
        pa.field("_SEQUENCE_NUMBER", pa.int64(), nullable=False),
        pa.field("_VALUE_KIND", pa.int8(), nullable=False),
        pa.field("k", pa.int64(), nullable=False),
        pa.field("v", pa.string()),
        pa.field("w", pa.float64()),
        pa.field(LEVEL, pa.int16(), nullable=False),
    ]
)


class Row(NamedTuple):
    sequence: int
    kind: int
    key: int
    text: str | None
    number: float | None
    level: int

    def told(self, kind: int) -> tuple[Any, ...]:
        return (self.sequence, kind, self.key, self.text, repr(self.number))

    def values(self, compared: Sequence[str]) -> tuple[Any, ...]:
        values = {"k": self.key, "v": self.text, "w": repr(self.number)}
        return tuple(values[name] for name in compared)


def _definition(
    runs: Sequence[Sequence[Row]], rule: ChangelogRule, *, ignore_delete: bool
) -> list[tuple[Any, ...]]:
    """FullChangelogMergeFunctionWrapper, for deduplicate."""
    told: list[tuple[Any, ...]] = []
    for key in sorted({row.key for run in runs for row in run}):
        records = sorted(row for run in runs for row in run if row.key == key)
        before = next((row for row in records if row.level == TOP), None)
        left = records
        if ignore_delete and len(records) > 1:
            left = [row for row in records if row.kind in (0, 2)]
        if not left or records == [before]:
            continue
        after, is_add = left[-1], left[-1].kind in (0, 2)
        if before is None:
            told += [after.told(0)] if is_add else []
        elif not is_add:
            told += [before.told(3)] if rule.deletes else []
        elif rule.compared is None or before.values(rule.compared) != after.values(rule.compared):
            told += [before.told(1)] if rule.updates_before else []
            told.append(after.told(2))
    return told


def _told(batches: Sequence[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [
        (row["_SEQUENCE_NUMBER"], row["_VALUE_KIND"], row["k"], row["v"], repr(row["w"]))
        for batch in batches
        for row in batch.to_pylist()
    ]


def _changelog(
    runs: Sequence[Sequence[Row]],
    rule: ChangelogRule,
    order: MergeOrder,
    *,
    window_rows: int,
    passes: int,
) -> list[tuple[Any, ...]]:
    opened = [iter(batches_of(run, SCHEMA, 3)) for run in runs]
    how = {"window_rows": window_rows, "window_bytes": 1 << 20}
    kept = MergeOrder(key_columns=("k",))
    for _ in range(passes):
        repeat = {"keys_repeat": True}
        merged = merged_rows(opened[:2], kept, EVERY_RECORD, **how, **repeat)
        opened = [iter(list(merged)), *opened[2:]]
    keys = merge_runs(
        opened, order, DEDUPLICATE, levels=Levels(before=TOP), **how, keys_repeat=passes > 0
    )
    found = []
    for each in keys:
        assert each.rows.num_rows == len(each.change_kinds)
        assert LEVEL not in each.rows.schema.names
        found += list(changelog_rows(each, rule))
    assert all(batch.schema.names == SCHEMA.names[:-1] for batch in found)
    return _told(found)


@st.composite
def _runs(draw: st.DrawFn) -> list[list[Row]]:
    """Level-0 runs, and one of the highest level at a random place; sequences do not tie."""
    count = draw(st.integers(1, 4))
    numbers = iter(draw(st.permutations(range(count * 8))))
    top = draw(st.integers(0, count))
    runs = []
    for run in range(count):
        keys = sorted(draw(st.sets(st.integers(0, 9), max_size=8, min_size=1)))
        level = TOP if run == top else 0
        runs.append(
            [
                Row(
                    next(numbers),
                    0 if level else draw(st.integers(0, 3)),
                    key,
                    draw(st.sampled_from([None, "a", "b"])),
                    draw(st.sampled_from([None, 0.0, -0.0, 1.5, NAN])),
                    level,
                )
                for key in keys
            ]
        )
    return runs


@settings(max_examples=examples(400), deadline=None)
@given(
    runs=_runs(),
    compared=st.sampled_from([None, ("k", "v", "w"), ("v",), ()]),
    updates_before=st.booleans(),
    deletes=st.booleans(),
    ignore_delete=st.booleans(),
    window_rows=st.sampled_from([1, 3, 100]),
    passes=st.integers(0, 1),
)
def test_changes_are_those_of_the_definition(
    runs, *, compared, updates_before, deletes, ignore_delete, window_rows, passes
):
    rule = ChangelogRule(compared=compared, updates_before=updates_before, deletes=deletes)
    order = MergeOrder(key_columns=("k",), ignore_delete=ignore_delete)
    found = _changelog(
        runs, rule, order, window_rows=window_rows, passes=passes if len(runs) > 1 else 0
    )
    assert found == _definition(runs, rule, ignore_delete=ignore_delete)


NESTED: list[tuple[pa.DataType, Any, Any, bool]] = [
    (pa.list_(pa.int32()), [1, 2], [1, 2], False),
    (pa.list_(pa.int32()), [1, 2], [2, 1], True),
    (pa.struct([("a", pa.float64())]), {"a": NAN}, {"a": NAN}, False),
    (pa.struct([("a", pa.float64())]), {"a": 0.0}, {"a": -0.0}, True),
    (pa.struct([("a", pa.int8())]), None, {"a": None}, True),
    (pa.map_(pa.string(), pa.int8()), [("a", 1), ("b", 2)], [("b", 2), ("a", 1)], False),
    (pa.decimal128(38, 2), None, None, False),
    (pa.dictionary(pa.int32(), pa.string()), "a", "a", False),
]


@pytest.mark.parametrize(("type_", "before", "after", "changed"), NESTED)
def test_values_are_equal_where_java_finds_them_equal(type_, before, after, changed):
    schema = pa.schema([*list(SCHEMA)[:3], pa.field("v", type_), SCHEMA.field(LEVEL)])

    def run(value: Any, sequence: int, level: int) -> Any:
        columns = [[sequence], [0], [1], [value], [level]]
        arrays = [pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)]
        return iter([pa.RecordBatch.from_arrays(arrays, schema=schema)])

    [keys] = merge_runs(
        [run(before, 0, TOP), run(after, 1, 0)],
        MergeOrder(key_columns=("k",)),
        DEDUPLICATE,
        levels=Levels(before=TOP),
        window_rows=10,
        window_bytes=1 << 20,
    )
    told = list(changelog_rows(keys, ChangelogRule(compared=("v",))))
    assert sum(batch.num_rows for batch in told) == (2 if changed else 0)


def test_two_records_on_the_highest_level_are_an_error():
    runs = [[Row(number, 0, 1, "a", None, TOP)] for number in range(2)]
    with pytest.raises(SubcompactionError, match="two records on the highest level"):
        _changelog(
            runs,
            ChangelogRule(compared=None),
            MergeOrder(key_columns=("k",)),
            window_rows=10,
            passes=0,
        )
