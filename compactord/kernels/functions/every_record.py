"""Keeps all records of a key in their order, for temporary files of functions that need them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from compactord.kernels.functions.base import Needs, OrderedRecords


class EveryRecord:
    """Not a merge engine: returns several rows per key, so readers need `keys_repeat`."""

    needs = Needs.ALL
    ignores_deletes = False
    merges_again = True

    def merge(self, records: OrderedRecords) -> Iterator[pa.RecordBatch]:
        return records.all_rows()
