"""The kernel keeps the record that Java's merge reader gives last, ties included."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from compactord.kernels.functions.base import DEDUPLICATE
from compactord.kernels.order import MergeOrder
from tests.oracle.judge import Judge
from tests.unit.kernels.merge_functions import merged_rows

CASES = 600


def random_case(number: int) -> dict[str, Any]:
    random_ = random.Random(number)
    density = random_.choice([0.2, 0.5, 0.9, 1.0])
    sequences = random_.choice([1, 1, 2, 4])
    users = random_.choice([1, 2])
    keys = random_.choice([3, 8, 25])
    readers = [
        [
            [key, random_.choice([None, *range(users)]), random_.randrange(sequences)]
            for key in range(keys)
            if random_.random() < density
        ]
        for _ in range(random_.randint(1, 12))
    ]
    return {
        "readers": readers,
        "user_sequence": random_.random() < 0.4,
        "descending": random_.random() < 0.5,
    }


def batches(reader: list[list[Any]], run: int) -> list[pa.RecordBatch]:
    schema = pa.schema(
        [
            ("key", pa.int64()),
            ("user", pa.int64()),
            ("_SEQUENCE_NUMBER", pa.int64()),
            ("_VALUE_KIND", pa.int8()),
            ("run", pa.int64()),
        ]
    )
    columns = list(zip(*reader, strict=True)) or [(), (), ()]
    count = len(reader)
    return [
        pa.RecordBatch.from_arrays(
            [pa.array(column, pa.int64()) for column in columns]
            + [pa.array([0] * count, pa.int8()), pa.array([run] * count, pa.int64())],
            schema=schema,
        )
    ]


def winners(case: dict[str, Any], window_rows: int) -> list[tuple[int, int]]:
    order = MergeOrder(
        key_columns=("key",),
        sequence_fields=("user",) if case["user_sequence"] else (),
        sequence_descending=case["descending"],
    )
    merged = merged_rows(
        [iter(batches(reader, run)) for run, reader in enumerate(case["readers"])],
        order,
        DEDUPLICATE,
        window_rows=window_rows,
        window_bytes=1 << 20,
    )
    return [
        (key, run)
        for batch in merged
        for key, run in zip(
            batch.column("key").to_pylist(), batch.column("run").to_pylist(), strict=True
        )
    ]


def test_of_each_key_the_record_that_java_merges_last_is_kept(judge: Judge) -> None:
    cases = [random_case(number) for number in range(CASES)]
    tied = 0
    for number, (case, answer) in enumerate(
        zip(cases, judge.algorithms.merge_order(cases), strict=True)
    ):
        expected = [(key, records[-1][0]) for key, records in answer]
        for window_rows in (1, 7, 1000):
            assert winners(case, window_rows) == expected, f"case {number}: {case}"
        tied += sum(len(records) > 1 for _, records in answer)
    assert tied > CASES
