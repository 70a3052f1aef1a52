"""Keeps a key's first record (mergetree/compact/FirstRowMergeFunction.java)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from compactord.errors import SubcompactionError
from compactord.kernels.functions.base import Needs, OrderedRecords
from compactord.kernels.kinds import VALUE_KIND, is_retract, is_retract_kind


class FirstRow:
    """The `MergeFunction` of `first-row`; raises `SubcompactionError` for deletes."""

    needs = Needs.FIRST
    ignores_deletes = True
    merges_again = True

    def merge(self, records: OrderedRecords) -> Iterator[pa.RecordBatch]:
        if is_retract(records.column(VALUE_KIND)).any():
            for keyed in records.keyed():
                retracts = keyed.used[np.flatnonzero(is_retract_kind(keyed.kinds[keyed.used]))]
                if len(retracts):
                    raise SubcompactionError(
                        f"key {keyed.key_text(int(retracts[0]))}: a table that keeps first rows "
                        "cannot take deletes (-U or -D) by default: set ignore-delete to ignore "
                        "them"
                    )
        return records.rows_at(records.starts)
