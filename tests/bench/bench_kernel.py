"""How fast the merge kernel is: one JSON line per case.

    python -m tests.bench.bench_kernel --rows 4000000

`keys_ns` is the merge of runs that hold only what decides (keys, sequence number, kind), `rows_ns`
the merge with seven more columns, both per input row, the median of the repetitions. One thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactord.kernels.functions.base import DEDUPLICATE
from compactord.kernels.order import MergeOrder
from tests.unit.kernels.merge_functions import merged_rows

Int64s = npt.NDArray[np.int64]

RUN_COUNT = 10
BATCH_ROWS = 32_768
# Of all possible keys about 15 % are in each run, so that about half of the rows are overwritten.
KEYS_PER_RUN_SHARE = 0.153
WINDOW_BYTES = 256 << 20


def texts(pattern: str, numbers: Int64s) -> pa.Array:
    return pa.array([pattern % number for number in numbers.tolist()])


def uuids(numbers: Int64s) -> pa.Array:
    high = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return pa.array(
        [
            f"{h:016x}"[:8] + f"-{h & 0xFFFF:04x}-4000-8000-{n:012x}"
            for h, n in zip(high.tolist(), numbers.tolist(), strict=True)
        ]
    )


def three_columns(numbers: Int64s) -> list[pa.Array]:
    return [
        pa.array((numbers // 30_000 % 100).astype(np.int32)),
        texts("region-%03d", numbers // 100 % 300),
        pa.array(numbers % 100),
    ]


CASES: dict[str, Callable[[Int64s], list[pa.Array]]] = {
    "bigint": lambda numbers: [pa.array(numbers)],
    "bigint_wide": lambda numbers: [pa.array(numbers * 6_000_000_007_001 - (1 << 62))],
    "string_14": lambda numbers: [texts("user-%09d", numbers)],
    "string_long_prefix": lambda numbers: [texts("tenant-017-order-%012d", numbers * 7919)],
    "string_any_length": lambda numbers: [texts("user-%d", numbers * 7919 + 17)],
    "string_uuid": lambda numbers: [uuids(numbers)],
    "three_columns": three_columns,
    "two_bigints": lambda numbers: [pa.array(numbers * 6_000_000_007), pa.array(numbers * 31)],
    "decimal_38": lambda numbers: [pa.array(numbers).cast(pa.decimal128(38, 0))],
}


def make_runs(
    case: str, rows: int, *, is_wide: bool, is_overlapping: bool
) -> list[list[pa.RecordBatch]]:
    """Sorted runs of random keys. Overlapping: sequence numbers of the runs are mixed."""
    random = np.random.default_rng(7)
    per_run = max(1, rows // RUN_COUNT)
    key_count = int(per_run / KEYS_PER_RUN_SHARE) + 1
    runs = []
    for run in range(RUN_COUNT):
        numbers = np.flatnonzero(random.random(key_count) < KEYS_PER_RUN_SHARE)
        keys = CASES[case](numbers)
        columns = {f"k{position}": key for position, key in enumerate(keys)}
        count = len(numbers)
        # Unique over all runs: ties are rare and another matter.
        step, first = (RUN_COUNT, run) if is_overlapping else (1, run * rows)
        sequences = random.permutation(count) * step + first
        table = pa.table(columns)
        table = table.append_column("_SEQUENCE_NUMBER", pa.array(sequences)).append_column(
            "_VALUE_KIND", pa.array(np.zeros(count, np.int8))
        )
        if is_wide:
            table = append_values(table, random)
        table = table.sort_by([(name, "ascending") for name in columns])
        runs.append(table.combine_chunks().to_batches(BATCH_ROWS))
    return runs


def append_values(table: pa.Table, random: np.random.Generator) -> pa.Table:
    count = table.num_rows
    numbers = random.integers(0, 1 << 40, count)
    columns = {
        "i": pa.array(numbers.astype(np.int32)),
        "l": pa.array(numbers),
        "d": pa.array(random.random(count)),
        "s": texts("%020d", numbers),
        "c": texts("category-%02d", numbers % 50).dictionary_encode(),
        "ts": pa.array(numbers, pa.timestamp("ms")),
        "b": pa.array(numbers % 3 == 0),
    }
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def measure(
    case: str, rows: int, window_rows: int, repetitions: int, *, is_overlapping: bool
) -> dict[str, Any]:
    key_columns = tuple(f"k{position}" for position in range(len(CASES[case](np.arange(1)))))
    order = MergeOrder(key_columns=key_columns, disjoint_sequences=not is_overlapping)
    line: dict[str, Any] = {
        "bench": "kernel",
        "case": case,
        "sequences": "overlapping" if is_overlapping else "disjoint",
        "window_rows": window_rows,
    }
    for name, is_wide in (("keys_ns", False), ("rows_ns", True)):
        runs = make_runs(case, rows, is_wide=is_wide, is_overlapping=is_overlapping)
        rows_in = sum(batch.num_rows for run in runs for batch in run)
        seconds = []
        for _ in range(repetitions):
            start = time.perf_counter()
            rows_out = sum(
                batch.num_rows
                for batch in merged_rows(
                    [iter(run) for run in runs],
                    order,
                    DEDUPLICATE,
                    window_rows=window_rows,
                    window_bytes=WINDOW_BYTES,
                )
            )
            seconds.append(time.perf_counter() - start)
        line |= {
            "rows_in": rows_in,
            "rows_out": rows_out,
            name: round(statistics.median(seconds) / rows_in * 1e9, 1),
        }
    return line


def lines(
    rows: int, window_rows: int, repetitions: int, cases: list[str]
) -> Iterator[dict[str, Any]]:
    for case in cases:
        for is_overlapping in (False, True):
            yield measure(case, rows, window_rows, repetitions, is_overlapping=is_overlapping)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--window-rows", type=int, default=400_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--case", action="append", choices=sorted(CASES))
    arguments = parser.parse_args()
    for line in lines(
        arguments.rows, arguments.window_rows, arguments.repetitions, arguments.case or [*CASES]
    ):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
