"""Unions of 32-bit roaring bitmaps, byte for byte as Java's (FieldRoaringBitmap32Agg.java).

Java calls `runOptimize` on each union.
"""

from __future__ import annotations

from compactord.kernels.aggregators.base import FoldedBytes
from compactord.paimon.roaring import parsed, serialised, union


class RoaringBitmap32(FoldedBytes):
    def united(self, before: bytes, value: bytes) -> bytes:
        return serialised(union(parsed(before), parsed(value)))
