"""Layers of changes above a large immutable base, newest last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compactord.paimon.data_file import BucketId, FileIdentity, ManifestEntry
from compactord.state.bucket_summaries import BucketSummary

# A layer is merged into the one below unless that one is this many times larger.
_LAYER_RATIO = 2


@dataclass(frozen=True, slots=True)
class Patch:
    """The changes of one bucket since the layer below; `summary` describes the bucket afterwards.

    `removed` maps to the file's row in the base, None if a lower layer had added it.
    """

    removed: Mapping[FileIdentity, int | None]
    added: Mapping[FileIdentity, ManifestEntry]
    summary: BucketSummary

    @property
    def change_count(self) -> int:
        return len(self.removed) + len(self.added)


Layer = dict[BucketId, Patch]


def merged_layers(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Newest layers merged until each is more than twice as large as the next."""
    merged = list(layers)
    while len(merged) > 1 and len(merged[-2]) <= _LAYER_RATIO * len(merged[-1]):
        upper = merged.pop()
        merged[-1] = _merge(merged[-1], upper)
    return tuple(merged)


def _merge(lower: Layer, upper: Layer) -> Layer:
    merged = dict(lower)
    for bucket, patch in upper.items():
        below = lower.get(bucket)
        if below is not None:
            added = {i: e for i, e in below.added.items() if i not in patch.removed}
            removed = {i: row for i, row in patch.removed.items() if i not in below.added}
            patch = Patch(
                removed={**below.removed, **removed},
                added={**added, **patch.added},
                summary=patch.summary,
            )
        merged[bucket] = patch
    return merged
