"""All records of a key in their order: what temporary files hold for functions that need them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from compactord.kernels.functions.base import Needs, OrderedRecords


class EveryRecord:
    """No merge engine: of a key there may be several rows, so `keys_repeat` in what reads them."""

    needs = Needs.ALL
    merges_again = True

    def merge(self, records: OrderedRecords) -> Iterator[pa.RecordBatch]:
        return records.all_rows()
