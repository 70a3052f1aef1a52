"""Why compactions are picked."""

from __future__ import annotations

import enum


class CompactReason(enum.Enum):
    """Why a compaction was picked, and what that means: the closed list for plans, logs, metrics.

    The first text is the value.
    """

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> CompactReason:
        reason = object.__new__(cls)
        reason._value_ = value
        reason.meaning = meaning
        return reason

    EARLY_FULL_INTERVAL = "full_interval", "the last full compaction is older than the table allows"
    EARLY_FULL_TOTAL_SIZE = "total_size", "the bucket is small enough to be kept in one run"
    EARLY_FULL_INCREMENTAL_SIZE = (
        "incremental_size",
        "enough data arrived since the last full compaction",
    )
    SIZE_AMPLIFICATION = "size_amp", "newer runs are large compared with the oldest one"
    SIZE_RATIO = "size_ratio", "neighbouring runs are of similar size"
    RUN_COUNT = "file_num", "more sorted runs than the compaction trigger allows"
    FORCED_LEVEL_0 = "force_l0", "the table's options, or readers, require an empty level 0"
    DELTA_COMMITS = (
        "delta_commits",
        "the table allows no more commits since the last full compaction",
    )
    FRESHNESS_LAG = (
        "freshness_lag",
        "readers have waited for its rows for half of max_freshness_lag",
    )
    LOOKUP_BEGINS = (
        "lookup_begins",
        "levels above 0 are from before the table looked keys up, or marked rows as deleted",
    )
    FULL = "full", "a full compaction was requested"
    FORCED_REWRITE = "force_rewrite", "every file is to be rewritten"
    EXPIRED_RECORDS = "expired_records", "files on the highest level have records that have expired"
    DELETED_ROWS = "deleted_rows", "files have rows that were deleted since"
    APPEND_SMALL_FILES = "append_pack", "enough small files to make a larger one"
    APPEND_WAITED = "append_wait", "small files have waited long enough"
    APPEND_FULL = "append_full", "every file below the target size"

    @property
    def is_full(self) -> bool:
        """Whether the compaction is a full one, for compaction.optimization-interval."""
        return self in (
            CompactReason.EARLY_FULL_INTERVAL,
            CompactReason.EARLY_FULL_TOTAL_SIZE,
            CompactReason.EARLY_FULL_INCREMENTAL_SIZE,
            CompactReason.SIZE_AMPLIFICATION,
            CompactReason.DELTA_COMMITS,
            CompactReason.FRESHNESS_LAG,
            CompactReason.FULL,
        )
