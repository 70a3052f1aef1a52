"""The full pick: everything into the highest level (CompactStrategy.pickFullCompaction)."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from compactord.model import SortedRun
from compactord.paimon.data_file import DataFile
from compactord.plan.sections import never_expired
from compactord.plan.universal import Pick, pick_runs
from compactord.reasons import CompactReason


def pick_full(
    runs: Sequence[SortedRun],
    num_levels: int,
    *,
    force_rewrite: bool,
    final: Set[str] = frozenset(),
    is_expired: Callable[[DataFile], bool] = never_expired,
    reason: CompactReason = CompactReason.FULL,
) -> Pick | None:
    """All runs, or None when they already are one run on the highest level.

    With `force_rewrite` such a run is picked nevertheless, and without it those of its files that
    have expired records; in either case without files named in `final`. The pick's reason then is
    FORCED_REWRITE or EXPIRED_RECORDS: each file is rewritten on its own.
    """
    if not runs:
        return None
    max_level = num_levels - 1
    if len(runs) > 1 or runs[0].level != max_level:
        return pick_runs(runs, max_level, reason)
    files = tuple(
        file
        for file in runs[0].files
        if file.file_name not in final and (force_rewrite or is_expired(file))
    )
    if not files:
        return None
    reason = CompactReason.FORCED_REWRITE if force_rewrite else CompactReason.EXPIRED_RECORDS
    return Pick(files=files, output_level=max_level, reason=reason)
