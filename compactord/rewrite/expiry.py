"""Leaves out expired records (io/RecordLevelExpire.java).

Records expire before they are merged, so an expired newest record of a key uncovers an older one
whose time has not passed, as in Java. Readers show expired records until they are compacted.
"""

from __future__ import annotations

import datetime
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from compactord.formats.layout import one_row
from compactord.kernels.columns import Bools, Int64s
from compactord.paimon.binary_row import Value
from compactord.paimon.options.table_options import RecordExpire
from compactord.paimon.types import DataField
from compactord.rewrite.casting.moments import moments_of
from compactord.rewrite.casting.rules import cast
from compactord.rewrite.casting.values import CastError, nulls_of, numbers_of

# BIGINT counts milliseconds from here on, else seconds.
_FIRST_MILLIS = 1_000_000_000_000


def seconds_of(times: pa.Array) -> Int64s:
    """Seconds since the epoch of a time column, milliseconds cut off; undefined where null."""
    if not pa.types.is_integer(times.type):
        millis = moments_of(times).millis
        result: Int64s = (millis - np.fmod(millis, 1000)) // 1000
        return result
    numbers = numbers_of(times).astype(np.int64)
    if pa.types.is_int32(times.type):
        return numbers
    return np.where(numbers >= _FIRST_MILLIS, numbers // 1000, numbers)


def oldest_second(
    value: Value, stored: DataField, column: DataField, zone: datetime.tzinfo
) -> int | None:
    """The second of a file's smallest time, which has the type of the file's schema.

    `zone` as for the casts of rows. None if it is not known or cannot be cast.
    """
    if value is None:
        return None
    [array] = one_row([value], [stored]).columns
    try:
        array = cast(array, stored.type, column.type, zone)
    except CastError:
        return None
    if array.null_count:
        return None
    return int(seconds_of(array)[0])


@dataclass(frozen=True, slots=True)
class Expiry:
    """Records before `limit_s` (seconds since the epoch) in `column` have expired."""

    column: str
    limit_s: int

    def alive(
        self, batches: Generator[pa.RecordBatch, None, None]
    ) -> Generator[pa.RecordBatch, None, None]:
        """The records that have not expired; those without a time never do."""
        for batch in batches:
            kept = self.is_alive(batch)
            if kept.all():
                yield batch
            elif kept.any():
                yield batch.filter(pa.array(kept))

    def is_alive(self, batch: pa.RecordBatch) -> Bools:
        """One bool per record."""
        times = batch.column(self.column)
        alive: Bools = nulls_of(times) | (seconds_of(times) >= self.limit_s)
        return alive


def expiry(expire: RecordExpire | None, now_ms: int) -> Expiry | None:
    """What has expired at a moment; None if nothing ever does."""
    if expire is None:
        return None
    return Expiry(expire.field, now_ms // 1000 - expire.seconds)
