"""Wording and urgency of a table's state, shared by the page, `top`, `why` and `tables`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from compactord.service.codec import plain
from compactord.service.view import TableStatus, TableView
from compactord.table.status import RunState
from compactord.text import age_text


class Attention(enum.IntEnum):
    """How urgently a table needs attention, the most urgent first.

    `DUE`: the planner picks a compaction. `AT_TRIGGER`: it picks none.
    """

    HALTED = 0
    ERROR = 1
    DEGRADED = 2
    OVER_STOP = 3
    LATE = 4
    NEAR_STOP = 5
    DUE = 6
    AT_TRIGGER = 7
    NOTHING = 8
    PAUSED = 9
    UNSUPPORTED = 10
    EXCLUDED = 11

    @property
    def word(self) -> str:
        """The table's state: its status, or for an active table its most urgent need."""
        return "active" if self is Attention.NOTHING else self.name.lower().replace("_", " ")

    @property
    def alert(self) -> str:
        """The alert whose runbook is about this need; empty without one."""
        return _ALERTS.get(self, "")


_ALERTS: Mapping[Attention, str] = {
    Attention.HALTED: "CompactordTableHalted",
    Attention.ERROR: "CompactordTableNotPolled",
    Attention.DEGRADED: "CompactordBucketsQuarantined",
    Attention.OVER_STOP: "CompactordRunsOverStopTrigger",
    Attention.LATE: "CompactordBacklogOld",
    Attention.NEAR_STOP: "CompactordRunsNearStopTrigger",
    Attention.PAUSED: "CompactordTablePaused",
    Attention.UNSUPPORTED: "CompactordTableHalted",
}
_ON_ERROR = "If it lasts, correct what the error names."


def attempt_text(at_ms: int, now_ms: int) -> str:
    """When the service retries a halted table or a quarantined bucket.

    `at_ms` is 0 if its files are damaged: the service retries when they change.
    """
    if not at_ms:
        return "when its files change"
    return f"in {age_text(at_ms - now_ms)}" if at_ms > now_ms else "as soon as a slot is free"


def why_text(table: TableView, now_ms: int) -> str:
    """Why a table is not compacted, when it is retried and what to do; empty for active tables."""
    halt, again, action = table.halt, "", action_of(table)
    if halt is not None:
        again = attempt_text(halt.next_try_ms, now_ms) if halt.next_try_ms else ""
    elif table.status is TableStatus.DEGRADED and table.quarantined:
        again = attempt_text(table.quarantined[0].until_ms, now_ms)
    again = f"; next attempt {again}" if again else ""
    return f"{table.why}{again}{f'. What to do: {action}' if action else ''}"


def action_of(table: TableView) -> str:
    """Advice for operators about a table's status; empty without any."""
    if table.halt is not None:
        return table.halt.action
    if table.status is TableStatus.ERROR:
        return _ON_ERROR
    is_quarantined = table.status in (TableStatus.DEGRADED, TableStatus.PAUSED)
    return table.quarantined[0].action if is_quarantined and table.quarantined else ""


def freshness_text(table: TableView, now_ms: int) -> str:
    """How long readers have waited for the table's oldest invisible row; empty if none waits."""
    since_ms, bound_ms = table.shape.waiting_since_ms, table.max_freshness_lag_ms
    if not since_ms:
        return ""
    bound = f" (max_freshness_lag {age_text(bound_ms)})" if bound_ms else ""
    return f"rows wait {age_text(now_ms - since_ms)} to be seen by readers{bound}"


def is_stale(table: TableView, now_ms: int) -> bool:
    """Whether readers have waited longer for rows than `max_freshness_lag` allows."""
    since_ms = table.shape.waiting_since_ms
    return bool(since_ms) and 0 < table.max_freshness_lag_ms < now_ms - since_ms


def attention_of(table: TableView, now_ms: int) -> Attention:
    """The most urgent need of a table: every status except active is a need of the same name."""
    found = Attention.__members__.get(table.status.name)
    return measured_need(table, now_ms) if found is None else found


def measured_need(table: TableView, now_ms: int) -> Attention:
    """The most urgent need that a table's numbers show; the more urgent bands of runs come first.

    A table is late if it fails, its work is too old or its readers wait too long.
    """
    if table.run_state is RunState.OVER_STOP:
        return Attention.OVER_STOP
    backlog, max_age_ms = table.backlog, table.max_backlog_age_ms
    if table.consecutive_failures > 0 or is_stale(table, now_ms):
        return Attention.LATE
    if backlog.oldest_ms and 0 < max_age_ms < now_ms - backlog.oldest_ms:
        return Attention.LATE
    if table.run_state is RunState.NEAR_STOP:
        return Attention.NEAR_STOP
    if backlog.size_bytes:
        return Attention.DUE
    return Attention.NOTHING if table.run_state is RunState.IDLE else Attention.AT_TRIGGER


def table_json(table: TableView, now_ms: int) -> dict[str, Any]:
    """The view as `/v1` serves it, with `need` and `note`: its state and reason in words."""
    need, note = attention_of(table, now_ms).name.lower(), why_text(table, now_ms)
    return {**plain(table), "need": need, "note": note}


def more_tables(number: int) -> str:
    """`1 more table is`, `2 more tables are`."""
    return f"{number:,} more {'table is' if number == 1 else 'tables are'}"


def urgency(table: TableView, now_ms: int) -> tuple[int, int, int, str]:
    """A sort key: most urgent need first, then larger backlog, then more runs, then the name."""
    runs = table.shape.sorted_runs_max
    return attention_of(table, now_ms), -table.backlog.size_bytes, -runs, str(table.name)
