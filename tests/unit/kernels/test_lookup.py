"""Merges that look up what keys have above, against the definition in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.errors import SubcompactionError
from compactord.kernels.functions.base import DEDUPLICATE, EVERY_RECORD, FirstRow, MergeFunction
from compactord.kernels.functions.folding import Aggregation
from compactord.kernels.keys import Found
from compactord.kernels.lookup import changelog_rows
from compactord.kernels.merge import LEVEL, Levels, merge_runs
from compactord.kernels.order import MergeOrder
from compactord.paimon.options.merge import ChangelogRule, ColumnRule, MergeRules
from tests.sampling import examples
from tests.unit.kernels.merge_functions import batches_of, merged_rows

SCHEMA = pa.schema(
    [
        pa.field("_SEQUENCE_NUMBER", pa.int64(), nullable=False),
        pa.field("_VALUE_KIND", pa.int8(), nullable=False),
        pa.field("k", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field(LEVEL, pa.int16(), nullable=False),
    ]
)
ALL = ChangelogRule(compared=None)
SUM = MergeRules(
    columns=(
        ColumnRule(column="k", aggregator="primary-key"),
        ColumnRule(column="v", aggregator="sum"),
    )
)
FUNCTIONS: dict[str, MergeFunction] = {
    "deduplicate": DEDUPLICATE,
    "sum": Aggregation(SUM),
    "first-row": FirstRow(),
}


class Row(NamedTuple):
    """A record; `told` is what a reader sees of it."""

    sequence: int
    kind: int
    key: int
    value: int
    level: int

    @property
    def is_add(self) -> bool:
        return self.kind in (0, 2)

    def told(self, kind: int | None = None) -> tuple[int, int, int, int]:
        return (self.sequence, self.kind if kind is None else kind, self.key, self.value)


def _merged(engine: str, records: Sequence[Row], *, ignore_delete: bool) -> Row | None:
    """The merge function of the engine, not the reducer: one record is merged, too."""
    if ignore_delete:
        records = [row for row in records if row.is_add]
    if not records:
        return None
    if engine == "deduplicate":
        return records[-1]
    if engine == "first-row":
        return records[0]
    total = sum(row.value if row.is_add else -row.value for row in records)
    return records[-1]._replace(kind=0, value=total)


def _definition(
    engine: str, runs: Sequence[Sequence[Row]], above: Sequence[Row], *, ignore_delete: bool
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The rows and the changelog of LookupChangelogMergeFunctionWrapper, or that of first rows."""
    rows, told = [], []
    has_level_0 = any(row.level == 0 for run in runs for row in run)
    for key in sorted({row.key for run in runs for row in run}):
        records = sorted(row for run in runs for row in run if row.key == key)
        states = [r for r in records if r.level and (r.is_add or not ignore_delete)]
        high = min(states, key=lambda row: row.level, default=None)
        if not has_level_0 and engine != "first-row":
            if high is None:
                continue
            state = _merged(engine, [high], ignore_delete=False) if len(records) > 1 else high
            assert state is not None
            rows.append(state.told())
            continue
        if has_level_0 and high is None:
            high = next((row for row in above if row.key == key), None)
            if high is not None and engine == "first-row":
                continue
            if high is not None:
                # Equal ones stay before it.
                later = next(
                    (n for n, row in enumerate(records) if row.sequence > high.sequence),
                    len(records),
                )
                records = [*records[:later], high, *records[later:]]
        counting = [r for r in records if not r.level or r is high or engine == "first-row"]
        if len(records) == 1 and not has_level_0:
            after: Row | None = records[0]
        else:
            after = _merged(engine, counting, ignore_delete=ignore_delete)
        if after is None:
            continue
        rows.append(after.told())
        if all(row.level for row in records):
            continue
        if engine == "first-row":
            told += [] if high else [after.told()]
        elif high is None or not high.is_add:
            told += [after.told(0)] if after.is_add else []
        elif after.is_add:
            told += [high.told(1), after.told(2)]
        else:
            told += [high.told(3)]
    return rows, told


def _told(batches: Sequence[pa.RecordBatch]) -> list[tuple[int, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def _looked_up(
    engine: str,
    runs: Sequence[Sequence[Row]],
    above: Sequence[Row],
    *,
    ignore_delete: bool,
    window_rows: int,
    passes: int,
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    by_key = {row.key: row for row in above}
    asked: list[int] = []

    def find(keys: pa.RecordBatch) -> Found:
        wanted = keys.column("k").to_pylist()
        asked.extend(wanted)
        places = [place for place, key in enumerate(wanted) if key in by_key]
        rows = [by_key[wanted[place]] for place in places]
        batches = [batch.drop_columns([LEVEL]) for batch in batches_of(rows, SCHEMA, 2)]
        return Found(np.array(places, np.int64), batches)

    opened = [iter(batches_of(run, SCHEMA, 3)) for run in runs]
    how = {"window_rows": window_rows, "window_bytes": 1 << 20}
    for _ in range(passes):
        kept = MergeOrder(key_columns=("k",))
        merged = merged_rows(opened[:2], kept, EVERY_RECORD, **how, keys_repeat=True)
        opened = [iter(list(merged)), *opened[2:]]
    has_level_0 = any(row.level == 0 for run in runs for row in run)
    keys = list(
        merge_runs(
            opened,
            MergeOrder(key_columns=("k",), ignore_delete=ignore_delete),
            FUNCTIONS[engine],
            levels=Levels(looks_up=True, find=find if has_level_0 else None),
            **how,
            keys_repeat=passes > 0,
        )
    )
    assert asked == sorted(set(asked))
    told = [batch for each in keys for batch in changelog_rows(each, ALL)] if has_level_0 else []
    return _told([each.rows for each in keys]), _told(told)


@st.composite
def _histories(draw: st.DrawFn) -> tuple[str, list[list[Row]], list[Row], bool]:
    """Runs of a merge, rows above, and whether deletes are ignored; sequences of runs differ."""
    engine = draw(st.sampled_from(list(FUNCTIONS)))
    ignore_delete = engine != "sum" and draw(st.booleans())
    levels = draw(
        st.sampled_from([[0], [0, 0], [0, 0, 3], [0, 2, 3], [2, 3], [0, 0, 0, 1, 2], [1, 2, 3]])
    )
    numbers = iter(draw(st.permutations(range(len(levels) * 6))))
    kinds = [0, 2] if engine == "first-row" and not ignore_delete else [0, 1, 2, 3]

    def run(level: int, *, ties: bool = False) -> list[Row]:
        keys = sorted(draw(st.sets(st.integers(0, 7), min_size=1, max_size=6)))
        return [
            Row(
                draw(st.integers(0, 30)) if ties else next(numbers),
                draw(st.sampled_from(kinds if level == 0 else [0, 0, 3]))
                if engine != "first-row" or level == 0
                else 0,
                key,
                draw(st.integers(-9, 9)),
                level,
            )
            for key in keys
        ]

    runs = [run(level) for level in levels]
    above = run(5, ties=True) if draw(st.booleans()) else []
    return engine, runs, above, ignore_delete


@settings(max_examples=examples(600), deadline=None)
@given(_histories(), st.sampled_from([1, 3, 100]), st.integers(0, 1))
def test_merges_are_those_of_the_definition(history, window_rows, passes):
    engine, runs, above, ignore_delete = history
    found = _looked_up(
        engine,
        runs,
        above,
        ignore_delete=ignore_delete,
        window_rows=window_rows,
        passes=passes if len(runs) > 1 else 0,
    )
    assert found == _definition(engine, runs, above, ignore_delete=ignore_delete)


@pytest.mark.parametrize(
    ("engine", "runs", "why"),
    [
        ("deduplicate", [[Row(0, 0, 1, 1, 3)], [Row(1, 0, 1, 1, 3)]], "two records on one level"),
        ("first-row", [[Row(0, 3, 1, 1, 0)]], "cannot take deletes"),
    ],
)
def test_what_cannot_be_is_an_error(engine: str, runs: Any, why: str) -> None:
    with pytest.raises(SubcompactionError, match=why):
        _looked_up(engine, runs, [], ignore_delete=False, window_rows=10, passes=0)
