"""The full pick: everything into the highest level (CompactStrategy.pickFullCompaction)."""

from __future__ import annotations

from collections.abc import Sequence, Set

from compactord.model import CompactReason, SortedRun
from compactord.plan.universal import Pick, pick_runs


def pick_full(
    runs: Sequence[SortedRun],
    num_levels: int,
    *,
    force_rewrite: bool,
    settled: Set[str] = frozenset(),
    reason: CompactReason = CompactReason.FULL,
) -> Pick | None:
    """All runs, or None when they already are one run on the highest level.

    With `force_rewrite` such a run is picked nevertheless, except for files named in `settled`;
    the pick's reason then is FORCED_REWRITE: each file is rewritten on its own.
    """
    if not runs:
        return None
    max_level = num_levels - 1
    if len(runs) > 1 or runs[0].level != max_level:
        return pick_runs(runs, max_level, reason)
    if not force_rewrite:
        return None
    files = tuple(file for file in runs[0].files if file.file_name not in settled)
    if not files:
        return None
    return Pick(files=files, output_level=max_level, reason=CompactReason.FORCED_REWRITE)
