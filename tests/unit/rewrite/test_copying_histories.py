"""Random runs of which merges copy pages: the rows are those of decoding, and the newest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.model import InputFile, Subcompaction
from compactord.paimon.options.merge import MergeRules
from compactord.paimon.types import file_schema
from tests.unit.formats.parquet.small_files import (
    AS_WE_WRITE,
    assert_same_as_by_decoding,
    rows_of,
)
from tests.unit.formats.parquet.stored_pages import assert_healthy, bodies
from tests.unit.rewrite.builders import (
    KIND,
    SEQUENCE,
    input_file,
    merge_subcompaction,
    output_paths,
    write_parquet,
)
from tests.unit.rewrite.large_files import COLUMNS, N

# Keys are below it.
KEYS = 1 << 20
RECORD = (SEQUENCE, KIND, "n")
KEY_COLUMNS = ["k"], ["k", "n"]
WORDS = pa.array(["red", "green", None, "blue", "é" * 40])


def keys_of_run(chance: np.random.Generator, *, is_large: bool) -> np.ndarray[Any, Any]:
    """Many keys of a part of all, or some clusters of few."""
    if is_large:
        low = int(chance.integers(0, KEYS // 2)) if chance.random() < 0.5 else 0
        count = int(chance.integers(3 * N, 6 * N))
        return np.unique(chance.integers(low, KEYS, count))
    clusters = [
        start + chance.integers(0, int(chance.integers(1, 20_000)), int(chance.integers(1, 500)))
        for start in chance.integers(-10, KEYS, int(chance.choice([1, 1, 1, 2])))
    ]
    return np.unique(np.concatenate(clusters))


def kinds_of_run(chance: np.random.Generator, rows: int) -> np.ndarray[Any, Any]:
    """Inserts only, with some deletes and updates side by side, or of any kind."""
    kinds = np.zeros(rows, np.int8)
    how = chance.random()
    if how < 0.3:
        start = int(chance.integers(0, rows))
        kinds[start : start + int(chance.integers(1, 300))] = chance.choice([2, 3])
    elif how < 0.4 and rows < N:
        kinds[:] = chance.choice([0, 2, 3], rows)
    return kinds


def write(
    path: Path, keys: np.ndarray[Any, Any], step: int, sequence: int, chance: np.random.Generator
) -> InputFile:
    """A key is `k` alone, or so many keys have the same `k` and differ in `n`."""
    rows = len(keys)
    values = {
        SEQUENCE: pa.array(chance.permutation(rows) + sequence),
        KIND: pa.array(kinds_of_run(chance, rows)),
        "k": pa.array(keys // step),
        "n": pa.array(keys if step > 1 else chance.integers(0, 1 << 40, rows)),
        "s": WORDS.take(pa.array(chance.integers(0, len(WORDS), rows))),
        "d": pa.array(chance.random(rows), mask=chance.random(rows) < 0.1),
    }
    schema = file_schema(COLUMNS, KEY_COLUMNS[step > 1], thin=False)
    arrays = [values[field.name.removeprefix("_KEY_")] for field in schema]
    options = {
        "use_dictionary": [KIND, "s"] if chance.random() < 0.5 else [KIND],
        "max_rows_per_page": int(chance.choice([700, 2_000, 9_000, 20_000])),
        "data_page_size": int(chance.choice([5_000, 40_000, 1 << 20])),
        "write_batch_size": int(chance.choice([100, 500])),
        "row_group_size": int(chance.choice([N, 2 * N + 5_000, 1 << 30])),
        "compression_level": 9,
    }
    table = pa.Table.from_arrays(arrays, schema=schema)
    write_parquet(path, table, **AS_WE_WRITE | options)
    return input_file(path, rows, sequence, sequence + rows - 1)


def history(folder: Path, chance: np.random.Generator) -> Subcompaction:
    """One or two large runs and some small ones, in any order of their sequence numbers."""
    sizes = [True] * int(chance.choice([1, 1, 2])) + [False] * int(chance.integers(0, 3))
    numbers = chance.permutation(len(sizes))
    step = int(chance.choice([1, 1, 7, 3_000, 100_000]))
    runs = [
        [
            write(
                folder / f"{place}.parquet",
                keys_of_run(chance, is_large=is_large),
                step,
                int(number) << 20,
                chance,
            )
        ]
        for place, (is_large, number) in enumerate(zip(sizes, numbers, strict=True))
    ]
    size = max(run[0].size_bytes for run in runs)
    return merge_subcompaction(
        folder,
        COLUMNS,
        KEY_COLUMNS[step > 1],
        runs,
        keeps_encoding=True,
        drop_deletes=bool(chance.random() < 0.5),
        target_file_size=int(size * chance.choice([3, 6, 50])),
    )


def newest(subcompaction: Subcompaction) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The newest record of each key: its sequence number, kind and `n`."""
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    key = subcompaction.source.key_columns
    for file in subcompaction.source.files:
        table = pq.read_table(file.path)
        for each, record in zip(tuples(table, key), tuples(table, RECORD), strict=True):
            if each not in found or record > found[each]:
                found[each] = record
    if subcompaction.source.drop_deletes:
        found = {key: record for key, record in found.items() if record[1] in (0, 2)}
    return found


def tuples(table: pa.Table, names: Sequence[str]) -> list[tuple[int, ...]]:
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def pages_copied(subcompaction: Subcompaction, paths: list[Path]) -> int:
    outputs = {body for path in paths for body in bodies(path, "n")}
    inputs = [body for file in subcompaction.source.files for body in bodies(file.path, "n")]
    return sum(body in outputs for body in inputs)


@pytest.mark.parametrize("seeds", [range(start, start + 3) for start in (0, 6, 9, 12, 18)])
def test_rows_are_the_newest_records(tmp_path, seeds):
    copied = 0
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        subcompaction = history(folder, np.random.default_rng(seed))
        result = assert_same_as_by_decoding(subcompaction, threaded=bool(seed % 2))
        paths = output_paths(subcompaction, result)
        for path in paths:
            assert_healthy(path)
        rows = rows_of(subcompaction, result)
        keys, expected = tuples(rows, subcompaction.source.key_columns), newest(subcompaction)
        assert keys == sorted(expected)
        assert tuples(rows, RECORD) == [expected[key] for key in keys]
        copied += pages_copied(subcompaction, paths) > 0
    # Some of them have pages that no other run touches.
    assert copied


@pytest.mark.parametrize("engine", ["first-row", "partial-update"])
def test_of_other_engines(tmp_path, engine):
    copied = 0
    for seed in range(30, 34):
        folder = tmp_path / str(seed)
        folder.mkdir()
        subcompaction = history(folder, np.random.default_rng(seed))
        rules = MergeRules(remove_on_delete=engine == "partial-update")
        source = replace(subcompaction.source, merge_engine=engine, rules=rules, ignore_delete=True)
        subcompaction = replace(subcompaction, source=source)
        result = assert_same_as_by_decoding(subcompaction)
        copied += pages_copied(subcompaction, output_paths(subcompaction, result)) > 0
    assert copied
