from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.errors import SubcompactionError
from compactord.kernels.merge import windows
from tests.sampling import examples

WIDE = 1 << 40


def batch(keys: list[int], text: str = "") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"k": pa.array(keys, pa.int64()), "v": pa.array([text] * len(keys), pa.string())}
    )


class CountingRun:
    """A run that knows how many of its rows were asked for."""

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self.rows_read = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        part = next(self._batches)
        self.rows_read += part.num_rows
        return part


@st.composite
def run_lists(draw: st.DrawFn) -> list[list[list[int]]]:
    """Runs of batches of keys: dense, sparse, far ahead of each other, or one inside the other."""
    runs = []
    for _ in range(draw(st.integers(1, 6))):
        offset = draw(st.sampled_from([0, 0, 50, 1000]))
        step = draw(st.sampled_from([1, 1, 7, 100]))
        keys = [offset + step * position for position in range(draw(st.integers(0, 60)))]
        cuts = sorted(draw(st.lists(st.integers(0, len(keys)), max_size=12)))
        edges = [0, *cuts, len(keys)]
        runs.append([keys[a:b] for a, b in itertools.pairwise(edges)])
    return runs


@settings(max_examples=examples(300), deadline=None)
@given(run_lists(), st.integers(1, 80))
def test_buffered_rows_stay_within_the_stated_bound(
    runs: list[list[list[int]]], window_rows: int
) -> None:
    sources = [CountingRun([batch(keys) for keys in run]) for run in runs]
    largest = max((len(keys) for run in runs for keys in run), default=0)
    handed_out = 0
    for window in windows(sources, ["k"], window_rows=window_rows, window_bytes=WIDE):
        buffered = sum(source.rows_read for source in sources) - handed_out
        assert buffered <= window_rows + (len(runs) + 1) * largest
        handed_out += sum(part.num_rows for parts in window for part in parts)
    assert handed_out == sum(len(keys) for run in runs for keys in run)


@settings(max_examples=examples(300), deadline=None)
@given(run_lists(), st.integers(1, 80), st.sampled_from([1, 100, WIDE]))
def test_windows_are_disjoint_ranges_of_keys_in_order_and_hold_every_row_once(
    runs: list[list[list[int]]], window_rows: int, window_bytes: int
) -> None:
    cut = list(
        windows(
            [iter([batch(keys) for keys in run]) for run in runs],
            ["k"],
            window_rows=window_rows,
            window_bytes=window_bytes,
        )
    )
    for position, run in enumerate(runs):
        parts = [part for window in cut for part in window[position]]
        found = [key for part in parts for key in part["k"].to_pylist()]
        assert found == [key for keys in run for key in keys]
    highest = -1
    for window in cut:
        keys = [key for parts in window for part in parts for key in part["k"].to_pylist()]
        assert keys
        assert min(keys) > highest
        highest = max(keys)


def test_a_batch_larger_than_a_window_is_cut() -> None:
    large = batch(list(range(1000)), "x" * 100)
    by_rows = list(windows([iter([large])], ["k"], window_rows=100, window_bytes=WIDE))
    by_bytes = list(windows([iter([large])], ["k"], window_rows=1000, window_bytes=20_000))
    assert max(part.num_rows for [parts] in by_rows for part in parts) <= 100
    assert max(part.nbytes for [parts] in by_bytes for part in parts) <= 20_000


def test_bytes_close_a_window_before_rows_do() -> None:
    run = [batch([key], "x" * 10_000) for key in range(100)]
    cut = list(windows([iter(run)], ["k"], window_rows=1000, window_bytes=50_000))
    assert all(sum(part.nbytes for part in parts) <= 60_100 for [parts] in cut)


@pytest.mark.parametrize(
    ("batches", "found"),
    [
        ([[1, 2], [2, 3]], "not sorted"),
        ([[5, 6], [1, 2]], "not sorted"),
        ([[3, 2, 1]], "not sorted"),
    ],
)
def test_a_run_out_of_order_is_an_error(batches: list[list[int]], found: str) -> None:
    run = iter([batch(keys) for keys in batches])
    with pytest.raises(SubcompactionError, match=f"run 0 is {found}"):
        list(windows([run], ["k"], window_rows=10, window_bytes=WIDE))


def test_a_null_key_is_an_error() -> None:
    keys = pa.RecordBatch.from_pydict({"k": pa.array([1, None], pa.int64())})
    with pytest.raises(SubcompactionError, match="key column k holds 1 nulls"):
        list(windows([iter([keys])], ["k"], window_rows=10, window_bytes=WIDE))


def test_a_dictionary_larger_than_a_window_does_not_cut_batches_into_rows() -> None:
    texts = pa.array([f"{number % 500:0100d}" for number in range(5000)]).dictionary_encode()
    keys = pa.RecordBatch.from_pydict({"k": pa.array(range(5000), pa.int64()), "v": texts})
    assert keys.column("v").dictionary.nbytes > 50_000
    cut = list(windows([iter([keys])], ["k"], window_rows=5000, window_bytes=50_000))
    assert max(part.num_rows for [parts] in cut for part in parts) > 1000


@settings(max_examples=examples(200), deadline=None)
@given(run_lists(), st.integers(0, 40), st.integers(1000, 20_000))
def test_a_window_is_at_most_twice_the_bytes_asked_for(
    runs: list[list[list[int]]], text_bytes: int, window_bytes: int
) -> None:
    sources = [iter([batch(keys, "x" * text_bytes) for keys in run]) for run in runs]
    for window in windows(sources, ["k"], window_rows=10_000, window_bytes=window_bytes):
        assert sum(part.nbytes for parts in window for part in parts) <= 2 * window_bytes
