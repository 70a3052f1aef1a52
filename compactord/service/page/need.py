"""How urgently a table needs attention: the order in which tables are shown."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from compactord.service.view import TableStatus, TableView


class Need(enum.IntEnum):
    """The most urgent first."""

    HALTED = 0
    OVER_STOP = 1
    LATE = 2
    NEAR_STOP = 3
    DUE = 4
    NOTHING = 5
    PAUSED = 6
    UNSUPPORTED = 7
    EXCLUDED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the need depends on. Triggers 0: the table has no sorted runs; ages in milliseconds."""

    status: str
    sorted_runs: int
    compaction_trigger: int
    stop_trigger: int
    backlog_bytes: int
    backlog_age_ms: int
    max_backlog_age_ms: int
    is_failing: bool


_BY_STATUS = {
    TableStatus.HALTED.value: Need.HALTED,
    TableStatus.ERROR.value: Need.HALTED,
    TableStatus.PAUSED.value: Need.PAUSED,
    TableStatus.UNSUPPORTED.value: Need.UNSUPPORTED,
    TableStatus.EXCLUDED.value: Need.EXCLUDED,
}


def need_of(standing: Standing) -> Need:
    """The bands of runs are those of `RunState`; failures and an old backlog count as late."""
    if (found := _BY_STATUS.get(standing.status)) is not None:
        return found
    runs, stop = standing.sorted_runs, standing.stop_trigger
    if stop and runs > stop:
        return Need.OVER_STOP
    is_old = 0 < standing.max_backlog_age_ms < standing.backlog_age_ms
    if standing.is_failing or is_old:
        return Need.LATE
    if stop and runs >= stop - 1:
        return Need.NEAR_STOP
    trigger = standing.compaction_trigger
    return Need.DUE if standing.backlog_bytes or 0 < trigger <= runs else Need.NOTHING


def urgency(standing: Standing, name: str) -> tuple[int, int, int, str]:
    """A sort key: most urgent need first, then larger backlog, then more runs, then the name."""
    return need_of(standing), -standing.backlog_bytes, -standing.sorted_runs, name


def standing_of(table: TableView, now_ms: int) -> Standing:
    oldest = table.backlog.oldest_ms
    return Standing(
        status=table.status.value,
        sorted_runs=table.shape.sorted_runs_max,
        compaction_trigger=table.info.compaction_trigger,
        stop_trigger=table.info.stop_trigger,
        backlog_bytes=table.backlog.size_bytes,
        backlog_age_ms=max(0, now_ms - oldest) if oldest else 0,
        max_backlog_age_ms=table.max_backlog_age_ms,
        is_failing=table.consecutive_failures > 0 or table.quarantined_count > 0,
    )
