"""A subcompaction that tells what it changes above the highest level, in files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from compactord.errors import CompactordError
from compactord.model import (
    CHANGELOG,
    DATA,
    ChangelogSpec,
    InputFile,
    MergeSpec,
    Subcompaction,
    SubcompactionResult,
)
from compactord.paimon.data_file import FileSource
from compactord.paimon.options.merge import ChangelogRule
from compactord.rewrite.subcompaction import rewrite
from tests.unit.rewrite.builders import (
    KEY_VALUE,
    KIND,
    SEQUENCE,
    files_left,
    merge_subcompaction,
    write_run,
)

KEYS = 300


def _runs(tmp_path: Path, count: int) -> list[list[InputFile]]:
    """One run on the highest level, and younger ones on level 0 that change or delete some keys."""
    runs = []
    for run in range(count):
        level = 5 if run == 0 else 0
        rows = [
            {"k": key, "v": f"{run}-{key}", SEQUENCE: run * KEYS + key, KIND: _kind(run, key)}
            for key in range(0, KEYS, 1 if run == 0 else 2 + run % 5)
            if run or key % 3
        ]
        file = write_run(tmp_path / f"{run}.parquet", KEY_VALUE, ["k"], rows)
        runs.append([replace(file, level=level)])
    return runs


def _kind(run: int, key: int) -> int:
    return 3 if run and (run + key) % 4 == 0 else 0


def _expected(count: int) -> list[tuple[int, int, str]]:
    """Kind, key and value of each change."""
    told: list[tuple[int, int, str]] = []
    for key in range(KEYS):
        runs = [r for r in range(1, count) if key % (2 + r % 5) == 0]
        if not runs:
            continue
        before = f"0-{key}" if key % 3 else None
        after = None if _kind(runs[-1], key) == 3 else f"{runs[-1]}-{key}"
        if before is not None:
            told.append((3 if after is None else 1, key, before))
        if after is not None:
            told.append((0 if before is None else 2, key, after))
    return told


def _telling(
    tmp_path: Path, runs: Sequence[Sequence[InputFile]], **how: Any
) -> tuple[Subcompaction, SubcompactionResult]:
    subcompaction = _subcompaction(tmp_path, runs, **how)
    return subcompaction, rewrite(subcompaction, threaded=False)


def _subcompaction(
    tmp_path: Path,
    runs: Sequence[Sequence[InputFile]],
    *,
    keeps_inputs: bool = False,
    **how: Any,
) -> Subcompaction:
    made = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], runs, drop_deletes=True, **how)
    assert isinstance(made.source, MergeSpec)
    write = replace(made.write, file_prefix="changelog-")
    told = ChangelogSpec(before_level=5, write=write, rule=ChangelogRule(compared=None))
    source = replace(made.source, changelog=told, keeps_inputs=keeps_inputs)
    return replace(made, source=source)


def _rows(
    subcompaction: Subcompaction, result: SubcompactionResult, kind: str
) -> list[tuple[int, int, str]]:
    folder = Path(subcompaction.write.folder)
    return [
        (row[KIND], row["k"], row["v"])
        for output in result.outputs
        if output.kind == kind
        for row in pq.ParquetFile(folder / output.file.file_name).read().to_pylist()
    ]


@pytest.mark.parametrize(("count", "memory_bytes"), [(2, 64 << 20), (9, 64 << 20), (41, 2_200_000)])
def test_changes_are_told_also_in_several_passes(tmp_path, count, memory_bytes):
    runs = _runs(tmp_path, count)
    subcompaction, result = _telling(tmp_path, runs, memory_bytes=memory_bytes)
    told = _rows(subcompaction, result, CHANGELOG)
    assert told == _expected(count)
    plain = merge_subcompaction(tmp_path / "plain", KEY_VALUE, ["k"], runs, drop_deletes=True)
    assert _rows(subcompaction, result, DATA) == _rows(plain, rewrite(plain, threaded=False), DATA)
    [file] = [output.file for output in result.outputs if output.kind == CHANGELOG]
    assert file.file_name.startswith("changelog-")
    assert file.file_source == FileSource.APPEND
    assert file.row_count == len(told)
    assert file.delete_row_count == sum(kind in (1, 3) for kind, *_ in told)


def test_an_input_that_stays_is_told_and_not_written_again(tmp_path):
    run = [replace(each, level=0) for each in _runs(tmp_path, 1)[0]]
    subcompaction, result = _telling(tmp_path, [run], keeps_inputs=True)
    assert [output.kind for output in result.outputs] == [CHANGELOG]
    assert _rows(subcompaction, result, CHANGELOG) == [
        (0, key, f"0-{key}") for key in range(KEYS) if key % 3
    ]


def test_nothing_changed_makes_no_file(tmp_path):
    subcompaction, result = _telling(tmp_path, _runs(tmp_path, 1))
    assert [output.kind for output in result.outputs] == [DATA]
    assert len(files_left(subcompaction)) == 1


def test_a_failure_leaves_neither_rows_nor_changes(tmp_path):
    runs = _runs(tmp_path, 3)
    broken = Path(runs[2][0].path)
    broken.write_bytes(broken.read_bytes()[:-1])
    subcompaction = _subcompaction(tmp_path, runs)
    with pytest.raises(CompactordError):
        rewrite(subcompaction, threaded=False)
    assert files_left(subcompaction) == []
