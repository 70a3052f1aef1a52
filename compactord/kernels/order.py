"""The order of the records of a key as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOrder:
    """Which columns are the key, and in which order the records of a key are.

    `disjoint_sequences`: all sequence numbers of a run are below those of the next run. Then the
    order of runs decides and no sequence number is compared. Otherwise runs must be in the order in
    which Java merges them (mergetree/compact/IntervalPartition.java), which decides full ties.

    `ignore_delete`: if a key has two or more records, its retracts are ignored, and a key with
    retracts only is dropped. A key's only record is kept unchanged, even a retract
    (mergetree/compact/ReducerMergeFunctionWrapper.java).
    """

    key_columns: tuple[str, ...]
    sequence_fields: tuple[str, ...] = ()
    sequence_descending: bool = False
    disjoint_sequences: bool = False
    ignore_delete: bool = False
