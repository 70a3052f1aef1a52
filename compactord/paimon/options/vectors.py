"""The options of deletion vectors (CoreOptions.java of release 2.0.0)."""

from __future__ import annotations

from dataclasses import dataclass

from compactord.paimon.deletion_vectors import VectorKind
from compactord.paimon.options.texts import OptionTexts

_TARGET_SIZE = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorOptions:
    """Of a table that has deletion vectors.

    `kind` is that of new vectors. An index file of a table without buckets ends with the vector
    that takes it over `target_size`, in bytes. None: one index file has all vectors of a bucket.
    """

    kind: VectorKind
    target_size: int | None


def vector_options(texts: OptionTexts, *, has_buckets: bool) -> VectorOptions | None:
    """None: the table has no deletion vectors. `has_buckets`: also dynamic ones."""
    enabled = texts.read("deletion-vectors.enabled", False)
    is_64 = texts.read("deletion-vectors.bitmap64", False)
    target_size = texts.read("deletion-vector.index-file.target-size", _TARGET_SIZE)
    if not enabled:
        return None
    kind = VectorKind.BITS_64 if is_64 else VectorKind.BITS_32
    return VectorOptions(kind=kind, target_size=None if has_buckets else target_size)
