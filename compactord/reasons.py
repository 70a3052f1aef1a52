"""Why compactions are picked."""

from __future__ import annotations

import enum


class CompactReason(enum.Enum):
    """Why a compaction was picked: the closed list for plans, logs and metrics."""

    EARLY_FULL_INTERVAL = "full_interval"
    EARLY_FULL_TOTAL_SIZE = "total_size"
    EARLY_FULL_INCREMENTAL_SIZE = "incremental_size"
    SIZE_AMPLIFICATION = "size_amp"
    SIZE_RATIO = "size_ratio"
    RUN_COUNT = "file_num"
    FORCED_LEVEL_0 = "force_l0"
    DELTA_COMMITS = "delta_commits"
    FRESHNESS_LAG = "freshness_lag"
    LOOKUP_BEGINS = "lookup_begins"
    FULL = "full"
    FORCED_REWRITE = "force_rewrite"
    EXPIRED_RECORDS = "expired_records"
    DELETED_ROWS = "deleted_rows"
    APPEND_SMALL_FILES = "append_pack"
    APPEND_WAITED = "append_wait"
    APPEND_FULL = "append_full"

    @property
    def is_full(self) -> bool:
        """Whether the compaction is a full one, for compaction.optimization-interval."""
        return self in _FULL or self.name.startswith("EARLY_FULL")


_FULL = (
    CompactReason.FULL,
    CompactReason.DELTA_COMMITS,
    CompactReason.FRESHNESS_LAG,
    CompactReason.SIZE_AMPLIFICATION,
)
