"""A merge function is a class and a name: with no more than these a rewrite works."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compactord.errors import SubcompactionError
from compactord.kernels.functions.registry import MERGE_FUNCTIONS
from compactord.model import Subcompaction
from compactord.paimon.options.merge import NO_RULES
from compactord.rewrite.subcompaction import rewrite
from tests.sampling import examples
from tests.unit.kernels.merge_functions import FirstRow, Joined, Sum
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

FUNCTIONS = {
    **MERGE_FUNCTIONS,
    "first": lambda _: FirstRow(),
    "sum": lambda _: Sum("n"),
    "joined": lambda _: Joined("t"),
    "joined again": lambda _: Joined("t", merges_again=True),
}
COLUMNS = fields(k="STRING NOT NULL", n="BIGINT NOT NULL", t="STRING NOT NULL", s="INT")

cells = st.tuples(
    st.integers(-9, 9),
    st.sampled_from("abc"),
    st.none() | st.integers(0, 2),
    st.sampled_from([0, 3]),
)
runs = st.lists(
    st.dictionaries(st.sampled_from("pqrstu"), cells, min_size=1), min_size=1, max_size=7
)


def expected(
    engine: str, tables: Sequence[Sequence[Row]], *, by_field: bool, ignores: bool, drops: bool
) -> list[Row]:
    groups: dict[str, list[Row]] = {}
    for row in (row for table in tables for row in table):
        groups.setdefault(row["k"], []).append(row)
    result = []
    for _, group in sorted(groups.items()):
        if by_field:
            group.sort(key=lambda row: (row["s"] is not None, row["s"] or 0, row[SEQUENCE]))
        else:
            group.sort(key=lambda row: row[SEQUENCE])
        if ignores and len(group) > 1:
            group = [row for row in group if row[KIND] == 0]
        if not group:
            continue
        row = dict(group[0] if engine == "first" else group[-1])
        if engine == "sum":
            row["n"] = sum(each["n"] for each in group)
        if engine == "joined" and len(group) > 1:
            row["t"] = f"[{','.join(each['t'] for each in group)}]"
        if not (drops and row[KIND] == 3):
            result.append(row)
    return result


def least_memory(subcompaction: Subcompaction) -> int:
    """In which two of the subcompaction's runs can be merged at once, and not three."""
    with pytest.raises(SubcompactionError, match="needs at least") as raised:
        rewrite(replace(subcompaction, memory_bytes=1), functions=FUNCTIONS)
    found = re.search(r"at least ([\d,]+) bytes", str(raised.value))
    assert found is not None
    return int(found[1].replace(",", ""))


def written(folder: Path, tables: Sequence[Sequence[Row]]) -> list[list[Any]]:
    return [
        [write_run(folder / f"{number}.parquet", COLUMNS, ["k"], table)]
        for number, table in enumerate(tables)
    ]


@settings(max_examples=examples(60), deadline=None)
@given(
    runs=runs,
    engine=st.sampled_from(["first", "sum", "joined", "deduplicate"]),
    chance=st.randoms(use_true_random=False),
    by_field=st.booleans(),
    ignores=st.booleans(),
    drops=st.booleans(),
    in_passes=st.booleans(),
)
@example(
    runs=[{"p": (n, "abcde"[n], None, 0), "q": (n, "a", 1, 0)} for n in range(5)],
    engine="joined",
    chance=None,
    by_field=False,
    ignores=False,
    drops=False,
    in_passes=True,
)
@example(  # ignored deletes: two of them vanish, so the third is not alone
    runs=[{"p": (0, "a", None, 3)}] * 3,
    engine="joined",
    chance=None,
    by_field=False,
    ignores=True,
    drops=False,
    in_passes=True,
)
def test_a_rewrite_equals_the_model(runs, engine, chance, *, by_field, ignores, drops, in_passes):
    numbers = list(range(sum(map(len, runs))))
    if chance is not None and chance.random() < 0.6:
        chance.shuffle(numbers)
    tables = [
        [
            {"k": key, SEQUENCE: numbers.pop(0), KIND: kind, "n": n, "t": t, "s": s}
            for key, (n, t, s, kind) in sorted(run.items())
        ]
        for run in runs
    ]
    if in_passes and FUNCTIONS[engine](NO_RULES).merges_again:
        ignores = ignores and drops
    with tempfile.TemporaryDirectory() as name:
        subcompaction = merge_subcompaction(
            Path(name),
            COLUMNS,
            ["k"],
            written(Path(name), tables),
            merge_engine=engine,
            sequence_fields=["s"] if by_field else [],
            ignore_delete=ignores,
            drop_deletes=drops,
        )
        if in_passes:
            subcompaction = replace(subcompaction, memory_bytes=least_memory(subcompaction))
        result = rewrite(subcompaction, functions=FUNCTIONS)
        found = output_rows(subcompaction, result)
        rows = expected(engine, tables, by_field=by_field, ignores=ignores, drops=drops)
        assert [{name: row[name] for name in tables[0][0]} for row in found] == rows
        assert result.stats.input_records == sum(map(len, tables))
        assert sum(file.delete_row_count for file in result.after) == sum(
            row[KIND] == 3 for row in rows
        )


@pytest.mark.parametrize(
    ("engine", "text"), [("joined", "[a,b,c,d,e]"), ("joined again", "[[[a,b],[c,d]],e]")]
)
def test_temporary_files_hold_every_record_for_a_function_that_does_not_merge_again(
    tmp_path, engine, text
):
    tables = [
        [{"k": "p", SEQUENCE: n, KIND: 0, "n": 0, "t": t, "s": 0}] for n, t in enumerate("abcde")
    ]
    subcompaction = merge_subcompaction(
        tmp_path, COLUMNS, ["k"], written(tmp_path, tables), merge_engine=engine
    )
    subcompaction = replace(subcompaction, memory_bytes=least_memory(subcompaction))
    (row,) = output_rows(subcompaction, rewrite(subcompaction, functions=FUNCTIONS))
    assert row["t"] == text


def test_results_of_many_windows_follow_each_other(tmp_path):
    """Keys that are few in a run and many in all, and text that files have in a dictionary."""
    tables = [
        [
            {"k": f"{key:05d}", SEQUENCE: 20_000 * run + key, KIND: 0, "n": key, "t": "a", "s": run}
            for key in range(run % 2, 20_000, 1 + run % 2)
        ]
        for run in range(4)
    ]
    subcompaction = merge_subcompaction(
        tmp_path, COLUMNS, ["k"], written(tmp_path, tables), merge_engine="joined"
    )
    subcompaction = replace(subcompaction, memory_bytes=least_memory(subcompaction))
    result = rewrite(subcompaction, functions=FUNCTIONS)
    rows = output_rows(subcompaction, result)
    assert [row["k"] for row in rows] == [f"{key:05d}" for key in range(20_000)]
    assert [row["t"] for row in rows] == ["[a,a]", "[a,a,a,a]"] * 10_000
    assert (
        len(pq.ParquetFile(Path(subcompaction.write.folder) / result.after[0].file_name).read())
        == 20_000
    )


def test_an_engine_without_a_function_is_an_error_and_leaves_nothing(tmp_path):
    tables = [[{"k": "p", SEQUENCE: 0, KIND: 0, "n": 0, "t": "", "s": 0}]] * 2
    subcompaction = merge_subcompaction(
        tmp_path, COLUMNS, ["k"], written(tmp_path, tables), merge_engine="sum"
    )
    with pytest.raises(SubcompactionError, match="merge engine sum is not supported"):
        rewrite(subcompaction)
    assert files_left(subcompaction) == []
