"""The kinds of rows (types/RowKind.java), and which of them are retracts.

Files store kinds as int8: +I 0, -U 1, +U 2, -D 3; -U and -D are retracts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactord.kernels.columns import Bools, fixed_values

VALUE_KIND = "_VALUE_KIND"
SEQUENCE_NUMBER = "_SEQUENCE_NUMBER"
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = range(4)


def is_retract(kinds: pa.Array) -> Bools:
    """One bool per row: True for -U and -D."""
    return is_retract_kind(fixed_values(kinds, np.int8))


def is_retract_kind(kinds: npt.NDArray[Any]) -> Bools:
    """As `is_retract`, for kinds in numpy."""
    retracts: Bools = (kinds & 1).astype(np.bool_)
    return retracts


def drop_retracts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The +I and +U rows, which the highest level keeps (mergetree/DropDeleteReader.java).

    Returns the same batch when there are no others.
    """
    retracts = is_retract(batch.column(VALUE_KIND))
    return batch.filter(pa.array(~retracts)) if retracts.any() else batch
