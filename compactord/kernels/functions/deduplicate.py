"""Keeps a key's last record, even a retract (mergetree/compact/DeduplicateMergeFunction.java)."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from compactord.kernels.functions.base import Needs, OrderedRecords


class Deduplicate:
    """The `MergeFunction` of the merge engine `deduplicate`."""

    needs = Needs.LAST
    ignores_deletes = True
    merges_again = True

    def merge(self, records: OrderedRecords) -> Iterator[pa.RecordBatch]:
        return records.all_rows()
