"""Functions that return records as they are: the last one of a key, or all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from compactord.kernels.functions.base import Needs, OrderedRecords


@dataclass(frozen=True)
class Unchanged:
    """A `MergeFunction` that returns the records that it `needs`."""

    needs: Needs
    ignores_deletes: bool
    merges_again = True

    def merge(self, records: OrderedRecords) -> Iterator[pa.RecordBatch]:
        return records.all_rows()


# The merge engine `deduplicate` keeps a key's last record, even a retract
# (mergetree/compact/DeduplicateMergeFunction.java).
DEDUPLICATE = Unchanged(Needs.LAST, ignores_deletes=True)
# Not a merge engine, for temporary files of functions that need all records: there are several rows
# of a key, in their order, so readers need `keys_repeat`.
EVERY_RECORD = Unchanged(Needs.ALL, ignores_deletes=False)
