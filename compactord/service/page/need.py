"""What people are told of a table, in the same words by the page, `top`, `why` and `tables`.

Its state in a word, the sentence that says why, and how urgently it needs attention.
"""

from __future__ import annotations

import enum

from compactord.clock import age_text
from compactord.service.view import TableView


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


def why_text(table: TableView, now_ms: int) -> str:
    """Why a table is not compacted, when it is tried again, and what to do; empty if it is."""
    halt = table.halt
    if halt is None:
        return table.why
    again = f"; next attempt {attempt_text(halt.next_try_ms, now_ms)}" if halt.next_try_ms else ""
    return f"{table.why}{again}{f'. What to do: {halt.action}' if halt.action else ''}"


def freshness_text(table: TableView, now_ms: int) -> str:
    """How long the table's rows have waited for readers to see them; empty if none wait."""
    since_ms, bound_ms = table.shape.waiting_since_ms, table.max_freshness_lag_ms
    if not since_ms:
        return ""
    bound = f" (max_freshness_lag {age_text(bound_ms)})" if bound_ms else ""
    return f"rows wait {age_text(now_ms - since_ms)} to be seen by readers{bound}"


def is_stale(table: TableView, now_ms: int) -> bool:
    """Whether rows have waited longer for readers to see them than the table allows."""
    since_ms = table.shape.waiting_since_ms
    return bool(since_ms) and 0 < table.max_freshness_lag_ms < now_ms - since_ms


def is_failing(table: TableView) -> bool:
    """Whether the table or buckets of it failed lately."""
    return table.consecutive_failures > 0 or table.quarantined_count > 0


def need_of(table: TableView, now_ms: int) -> Need:
    """The bands of runs are those of `RunState`; late: failures, old work, readers that wait."""
    # Statuses but for active have needs of their own, by the same names.
    if (found := Need.__members__.get(table.status.name)) is not None:
        return found
    runs, stop = table.shape.sorted_runs_max, table.info.stop_trigger
    if stop and runs > stop:
        return Need.OVER_STOP
    backlog, max_age_ms = table.backlog, table.max_backlog_age_ms
    if is_failing(table) or is_stale(table, now_ms):
        return Need.LATE
    if backlog.oldest_ms and 0 < max_age_ms < now_ms - backlog.oldest_ms:
        return Need.LATE
    if stop and runs >= stop - 1:
        return Need.NEAR_STOP
    if backlog.size_bytes:
        return Need.DUE
    return Need.AT_TRIGGER if 0 < table.info.compaction_trigger <= runs else Need.NOTHING


def urgency(table: TableView, now_ms: int) -> tuple[int, int, int, str]:
    """A sort key: most urgent need first, then larger backlog, then more runs, then the name."""
    runs = table.shape.sorted_runs_max
    return need_of(table, now_ms), -table.backlog.size_bytes, -runs, str(table.name)
