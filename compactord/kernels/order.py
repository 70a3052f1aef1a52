"""The order of the records of a key as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOrder:
    """Which columns are the key, and in which order the records of a key are.

    `disjoint_sequences`: each run's sequence numbers are all below the next run's. Then the run
    decides and no sequence number is compared. Without it runs stand in the order in which Java
    merges them (mergetree/compact/IntervalPartition.java), which settles full ties.

    `ignore_delete`: of two or more records of a key the retracts are passed over, and a key whose
    records all are retracts vanishes; a key's only record stays what it is
    (mergetree/compact/ReducerMergeFunctionWrapper.java).
    """

    key_columns: tuple[str, ...]
    sequence_fields: tuple[str, ...] = ()
    sequence_descending: bool = False
    disjoint_sequences: bool = False
    ignore_delete: bool = False
