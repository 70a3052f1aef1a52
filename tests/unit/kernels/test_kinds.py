from __future__ import annotations

import pyarrow as pa

from compactord.kernels.columns import drop_retracts
from compactord.kernels.functions.base import DEDUPLICATE
from compactord.kernels.order import MergeOrder
from tests.unit.kernels.merge_functions import merged_rows

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = range(4)


def run(rows: list[tuple[int, int, int]]) -> list[pa.RecordBatch]:
    """Rows of key, sequence number, kind."""
    keys, sequences, kinds = zip(*rows, strict=True)
    return [
        pa.RecordBatch.from_pydict(
            {
                "k": pa.array(keys, pa.int32()),
                "_SEQUENCE_NUMBER": pa.array(sequences, pa.int64()),
                "_VALUE_KIND": pa.array(kinds, pa.int8()),
            }
        )
    ]


def kept(*runs: list[tuple[int, int, int]], ignore_delete: bool) -> list[tuple[int, int, int]]:
    merged = merged_rows(
        [iter(run(rows)) for rows in runs],
        MergeOrder(key_columns=("k",), ignore_delete=ignore_delete),
        DEDUPLICATE,
        window_rows=100,
        window_bytes=1 << 20,
    )
    return [tuple(row.values()) for batch in merged for row in batch.to_pylist()]


def test_only_inserts_and_updates_after_are_left() -> None:
    [batch] = run([(1, 1, INSERT), (2, 2, UPDATE_BEFORE), (3, 3, UPDATE_AFTER), (4, 4, DELETE)])
    assert drop_retracts(batch).column("k").to_pylist() == [1, 3]


def test_a_slice_is_filtered_by_its_own_kinds() -> None:
    [batch] = run([(1, 1, DELETE), (2, 2, DELETE), (3, 3, INSERT), (4, 4, DELETE)])
    assert drop_retracts(batch.slice(1)).column("k").to_pylist() == [3]


def test_a_batch_without_retracts_is_not_copied() -> None:
    [batch] = run([(1, 1, INSERT), (2, 2, UPDATE_AFTER)])
    assert drop_retracts(batch) is batch


def test_the_last_record_wins_whatever_its_kind() -> None:
    assert kept(
        [(1, 1, INSERT), (2, 9, INSERT)],
        [(1, 2, DELETE), (2, 8, UPDATE_BEFORE)],
        ignore_delete=False,
    ) == [(1, 2, DELETE), (2, 9, INSERT)]


def test_ignored_deletes_uncover_the_record_before() -> None:
    older, newer = [(1, 1, UPDATE_AFTER)], [(1, 2, UPDATE_BEFORE)]
    assert kept(older, newer, [(1, 3, DELETE)], ignore_delete=True) == [(1, 1, UPDATE_AFTER)]


def test_a_key_of_several_ignored_deletes_vanishes() -> None:
    assert kept([(1, 1, DELETE), (2, 5, INSERT)], [(1, 2, DELETE)], ignore_delete=True) == [
        (2, 5, INSERT)
    ]


def test_a_lone_delete_is_not_ignored() -> None:
    rows = [(1, 1, DELETE), (2, 2, INSERT)]
    assert kept(rows, [(2, 3, INSERT)], ignore_delete=True) == [(1, 1, DELETE), (2, 3, INSERT)]


def test_nothing_is_left_when_all_records_of_a_window_are_ignored() -> None:
    assert kept([(1, 1, DELETE)], [(1, 2, UPDATE_BEFORE)], ignore_delete=True) == []
