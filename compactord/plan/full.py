"""The full pick: everything into the highest level (CompactStrategy.pickFullCompaction)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence, Set

from compactord.model import SortedRun
from compactord.paimon.data_file import DataFile
from compactord.paimon.options.table_options import CompactionOptions
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
    with_deleted: Collection[str] = (),
    reason: CompactReason = CompactReason.FULL,
) -> Pick | None:
    """All runs, or None when they already are one run on the highest level.

    With `force_rewrite` such a run is picked nevertheless, and without it those of its files that
    have expired records or are named in `with_deleted`, which have deletion vectors; in either case
    without files named in `final`. The pick's reason then is FORCED_REWRITE, EXPIRED_RECORDS if any
    has such, or DELETED_ROWS: each file is rewritten on its own.
    """
    if not runs:
        return None
    max_level = num_levels - 1
    if len(runs) > 1 or runs[0].level != max_level:
        return pick_runs(runs, max_level, reason)
    files = tuple(
        file
        for file in runs[0].files
        if file.file_name not in final
        and (force_rewrite or is_expired(file) or file.file_name in with_deleted)
    )
    if not files:
        return None
    if force_rewrite:
        reason = CompactReason.FORCED_REWRITE
    elif any(map(is_expired, files)):
        reason = CompactReason.EXPIRED_RECORDS
    else:
        reason = CompactReason.DELETED_ROWS
    return Pick(files=files, output_level=max_level, reason=reason)


def last_full_compaction_ms(files: Iterable[DataFile], options: CompactionOptions) -> int | None:
    """An estimate of the last full compaction: the newest file on the *configured* highest level.

    The clock is that of creation times: local wall-clock milliseconds. An upgraded file keeps its
    creation time, so a full compaction that only upgraded looks older than it is; a caller that
    remembers the true time uses the later of both.
    """
    top = options.num_levels - 1
    return max(
        (
            file.creation_time_ms
            for file in files
            if file.level == top and file.creation_time_ms is not None
        ),
        default=None,
    )
