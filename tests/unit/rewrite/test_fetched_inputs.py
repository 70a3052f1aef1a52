"""Subcompactions on an object store: the same rows as on a disk, with few requests."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path

import pytest

from compactord.errors import StorageError, TransientStorageError
from compactord.model import InputFile, Subcompaction
from compactord.rewrite.subcompaction import rewrite
from compactord.storage.local import LocalStorage
from tests.storages import Fault, FaultyStorage, RequestCounter
from tests.unit.rewrite.builders import (
    KEY_VALUE,
    SEQUENCE,
    concat_subcompaction,
    files_left,
    merge_subcompaction,
    output_rows,
    write_append,
    write_run,
)

RUNS = 4


def large_runs(folder: Path) -> list[list[InputFile]]:
    """Runs of files of more than a megabyte that share keys."""
    seeded = random.Random(3)
    runs = []
    for number in range(RUNS):
        keys = sorted(seeded.sample(range(30_000), 15_000))
        rows = [
            {"k": key, "v": seeded.randbytes(60).hex(), SEQUENCE: number * 15_000 + place}
            for place, key in enumerate(keys)
        ]
        runs.append([write_run(folder / f"{number}.parquet", KEY_VALUE, ["k"], rows)])
    assert min(file.size_bytes for run in runs for file in run) > 1 << 20
    return runs


def requests(counter: RequestCounter) -> Counter[str]:
    return Counter(call.method for call in counter.requests)


@pytest.mark.parametrize("threaded", [True, False])
def test_runs_are_merged_to_the_rows_of_local_files(tmp_path: Path, threaded: bool) -> None:
    runs = large_runs(tmp_path)
    local = merge_subcompaction(tmp_path / "local", KEY_VALUE, ["k"], runs)
    expected = output_rows(local, rewrite(local))
    counter = RequestCounter(LocalStorage())
    remote = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], runs, storage=counter)
    assert output_rows(remote, rewrite(remote, threaded=threaded)) == expected
    # The ends of the files, then all their columns.
    assert requests(counter) == {"read_range": 2 * RUNS, "close_output": 1}


@pytest.mark.parametrize("keeps_encoding", [True, False])
def test_small_files_are_one_request_each(tmp_path: Path, keeps_encoding: bool) -> None:
    rows = [{"k": number, "v": f"text {number}" * 20} for number in range(4_000)]
    files = [write_append(tmp_path / f"{name}.parquet", KEY_VALUE, rows) for name in range(20)]
    counter = RequestCounter(LocalStorage())
    subcompaction = concat_subcompaction(
        tmp_path, KEY_VALUE, files, storage=counter, keeps_encoding=keeps_encoding
    )
    assert output_rows(subcompaction, rewrite(subcompaction)) == rows * 20
    assert requests(counter) == {"read": 20, "close_output": 1}


def failing(subcompaction: Subcompaction) -> None:
    with pytest.raises(StorageError, match=r"\d\.parquet"):
        rewrite(subcompaction, threaded=True)
    assert files_left(subcompaction) == []
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith(("fetch", "decoding", "encoding"))]


@pytest.mark.parametrize("at", [1, RUNS, RUNS + 1, 2 * RUNS])
def test_a_range_that_fails_ends_the_merge_and_its_threads(tmp_path: Path, at: int) -> None:
    fault = Fault(
        at=at, error=TransientStorageError, concerns=lambda call: call.method == "read_range"
    )
    storage = FaultyStorage(RequestCounter(LocalStorage()), fault)
    failing(
        merge_subcompaction(
            tmp_path,
            KEY_VALUE,
            ["k"],
            large_runs(tmp_path),
            storage=storage,
        )
    )
