"""Subcompactions on an object store: the same rows as on a disk, with few requests."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from compactord.errors import StorageError, TransientStorageError
from compactord.formats.layout import keyed_layout
from compactord.model import InputFile, Subcompaction
from compactord.rewrite.reader import Input, InputReader
from compactord.rewrite.subcompaction import rewrite
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from tests.storages import Fault, FaultyStorage, RequestCounter
from tests.unit.rewrite.builders import (
    KEY_VALUE,
    SEQUENCE,
    concat_subcompaction,
    files_left,
    merge_subcompaction,
    output_rows,
    without_rows,
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


class FourAtOnce(RequestCounter):
    """Lets ranges be read in fours."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.others = threading.Barrier(4, timeout=20)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        self.others.wait()
        return super().read_range(path, start, size)


@pytest.mark.parametrize("merges", [True, False])
def test_vectors_are_read_at_once(tmp_path: Path, *, merges: bool) -> None:
    rows = [{"k": number, "v": f"text {number}", SEQUENCE: number} for number in range(4_000)]
    names = [f"{number}.parquet" for number in range(8)]
    if merges:
        files = [write_run(tmp_path / name, KEY_VALUE, ["k"], rows) for name in names]
    else:
        plain = [{"k": each["k"], "v": each["v"]} for each in rows]
        files = [write_append(tmp_path / name, KEY_VALUE, plain) for name in names]
    files = [without_rows(file, range(3_000)) for file in files]

    counter = FourAtOnce(LocalStorage())
    if merges:
        runs = [[file] for file in files]
        subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], runs, storage=counter)
    else:
        subcompaction = concat_subcompaction(tmp_path, KEY_VALUE, files, storage=counter)
    result = rewrite(subcompaction)
    assert sum(file.row_count for file in result.after) == (1_000 if merges else 8_000)
    assert requests(counter) == {"read": 8, "read_range": 8, "close_output": 1}


class VectorFirst(RequestCounter):
    """Lets pages be read once a vector is."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.begun, self.paths = threading.Event(), set[str]()

    def read_range(self, path: str, start: int, size: int) -> bytes:
        if path.endswith(".index"):
            self.begun.set()
        elif path in self.paths:
            assert self.begun.wait(20), "the vector is read after the pages"
        self.paths.add(path)
        return super().read_range(path, start, size)


def test_a_vector_is_read_while_keys_are_looked_up(tmp_path: Path) -> None:
    [[file], *_] = large_runs(tmp_path)
    layout = keyed_layout(KEY_VALUE, ["k"], thin=False)
    with contextlib.closing(InputReader(VectorFirst(LocalStorage()), layout)) as reader:
        finder = Input(reader, without_rows(file, range(7_500))).finder(1_000)
        with contextlib.closing(finder):
            found = finder.find(pa.record_batch([pa.array(range(30_000), pa.int64())], names=["k"]))
    assert len(found.places) == 7_500


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
