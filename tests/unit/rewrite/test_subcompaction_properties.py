from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.rewrite.split import cut_ranges
from compactord.rewrite.subcompaction import rewrite
from compactord.storage.local import LocalStorage
from tests.sampling import examples
from tests.unit.rewrite.builders import KIND, SEQUENCE, fields, merge_subcompaction, write_run

COLUMNS = fields(a="INT NOT NULL", b="STRING NOT NULL", v="DOUBLE", s="STRING")
KEY = ["a", "b"]

keys = st.tuples(st.integers(-3, 3), st.sampled_from(["", "a", "ab", "é", "z"]))
rows = st.tuples(
    st.sampled_from([0, 0, 0, 1, 2, 3]),
    st.none() | st.floats(allow_nan=False),
    st.none() | st.text(max_size=4),
)
runs = st.lists(st.dictionaries(keys, rows, min_size=1, max_size=12), min_size=1, max_size=5)


def model(
    tables: list[list[dict[str, Any]]], *, ignore_delete: bool, drop_deletes: bool
) -> list[tuple[Any, ...]]:
    """One record per key, the way a reader of single rows would do it."""
    records: dict[tuple[int, bytes], list[dict[str, Any]]] = {}
    for table in tables:
        for row in table:
            records.setdefault((row["a"], row["b"].encode()), []).append(row)
    result = []
    for key in sorted(records):
        group = sorted(records[key], key=lambda row: row[SEQUENCE])
        if ignore_delete and len(group) > 1:
            group = [row for row in group if row[KIND] in (0, 2)]
        if group and not (drop_deletes and group[-1][KIND] in (1, 3)):
            result.append(tuple(group[-1][name] for name in ("a", "b", "v", "s", SEQUENCE, KIND)))
    return result


@settings(max_examples=examples(60), deadline=None)
@given(
    runs=runs,
    order=st.randoms(use_true_random=False),
    ignore_delete=st.booleans(),
    drop_deletes=st.booleans(),
    thin=st.booleans(),
    count=st.integers(1, 4),
)
def test_a_rewrite_equals_the_model(runs, order, ignore_delete, *, drop_deletes, thin, count):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sequences = list(range(sum(map(len, runs))))
        if order.random() < 0.5:
            order.shuffle(sequences)
        tables = [
            [
                {"a": a, "b": b, KIND: run[a, b][0], "v": run[a, b][1], "s": run[a, b][2]}
                | {SEQUENCE: sequences.pop(0)}
                for a, b in sorted(run, key=lambda key: (key[0], key[1].encode()))
            ]
            for run in runs
        ]
        files = [
            [write_run(folder / f"{n}.parquet", COLUMNS, KEY, table, thin=order.random() < 0.5)]
            for n, table in enumerate(tables)
        ]
        found = []
        whole = merge_subcompaction(folder, COLUMNS, KEY, files)
        for number, bounds in enumerate(cut_ranges(whole.source, count, COLUMNS, LocalStorage())):
            subcompaction = merge_subcompaction(
                folder / f"p{number}",
                COLUMNS,
                KEY,
                files,
                ignore_delete=ignore_delete,
                drop_deletes=drop_deletes,
                thin_mode=thin,
                key_range=bounds,
            )
            result = rewrite(subcompaction)
            for file in result.after:
                table = pq.ParquetFile(Path(subcompaction.write.folder) / file.file_name).read()
                found += zip(
                    *(table.column(c).to_pylist() for c in ("a", "b", "v", "s", SEQUENCE, KIND)),
                    strict=True,
                )
        assert found == model(tables, ignore_delete=ignore_delete, drop_deletes=drop_deletes)
