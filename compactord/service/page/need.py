"""What people are told of a table, in the same words by the page, `top`, `why` and `tables`.

Its state in a word, the sentence that says why, and how urgently it needs attention.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from compactord.clock import age_text
from compactord.service.view import TableStatus, TableView


class Need(enum.IntEnum):
    """The most urgent first. `DUE`: a compaction is picked; `AT_TRIGGER`: none is."""

    HALTED = 0
    ERROR = 1
    OVER_STOP = 2
    LATE = 3
    NEAR_STOP = 4
    DUE = 5
    AT_TRIGGER = 6
    NOTHING = 7
    PAUSED = 8
    UNSUPPORTED = 9
    EXCLUDED = 10

    @property
    def word(self) -> str:
        """The table's state: its status, or of an active table what it needs."""
        return "active" if self is Need.NOTHING else self.name.lower().replace("_", " ")


def attempt_text(at_ms: int, now_ms: int) -> str:
    """When a halted table or a quarantined bucket is tried again; 0: its files are damaged."""
    if not at_ms:
        return "when its files change"
    return f"in {age_text(at_ms - now_ms)}" if at_ms > now_ms else "as soon as a slot is free"


def why_text(why: str, action: str, next_try_ms: int, now_ms: int) -> str:
    """Why a table is not compacted, when it is tried again (0: not said), and what to do."""
    again = f"; next attempt {attempt_text(next_try_ms, now_ms)}" if next_try_ms else ""
    todo = f". What to do: {action}" if action else ""
    return f"{why}{again}{todo}"


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
    TableStatus.ERROR.value: Need.ERROR,
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
    if standing.backlog_bytes:
        return Need.DUE
    return Need.AT_TRIGGER if 0 < standing.compaction_trigger <= runs else Need.NOTHING


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
