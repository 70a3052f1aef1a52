"""What is told of a table where no service is asked: the state that it would have at a start.

Only a service knows which tables it has halted and which buckets it has quarantined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compactord.config.load import LoadedConfig
from compactord.config.policy import TablePolicy, exclusion, not_write_only, paused
from compactord.config.section import Mode
from compactord.maintenance.holds import Hold
from compactord.model import TableName
from compactord.paimon.schema import TableRef
from compactord.scheduler.compaction import Halt, HaltReason
from compactord.scheduler.halts import halt_of_hold
from compactord.service.view import TableStatus, TableView, status_and_why
from compactord.table.explain import table_info
from compactord.table.opening import OpenTable
from compactord.table.status import TableInfo


def left_alone(
    loaded: LoadedConfig, name: TableName, branch: str, policy: TablePolicy, *, write_only: bool
) -> tuple[TableStatus, str] | None:
    """Why the service does not work on a table that it could; None: it does."""
    excluded = exclusion(loaded, name, branch)
    if excluded is not None:
        return TableStatus.EXCLUDED, excluded
    if policy.only_write_only and not write_only:
        return TableStatus.EXCLUDED, not_write_only(loaded, name)
    if policy.mode is Mode.PAUSED:
        return TableStatus.PAUSED, paused(loaded, name)
    return None


def unread_view(
    name: TableName, ref: TableRef, table: OpenTable | None, loaded: LoadedConfig
) -> TableView:
    """What is known of a table before its files are read; `table` None: not even its schema."""
    info = TableInfo()
    if table is not None:
        fallback = loaded.config.alerts.stop_trigger_fallback
        info = table_info(table, stop_trigger_fallback=fallback)
    return TableView(name=name, location=ref.location, status=TableStatus.ACTIVE, why="", info=info)


def unserved_view(
    read: TableView,
    alone: tuple[TableStatus, str] | None,
    refused: Sequence[str],
    hold: Hold | None = None,
) -> TableView:
    """The table with its status and the reason; `read` has what could be read, and the error.

    `alone` as of `left_alone`; `refused` are reasons to refuse the table, `hold` is that in its
    folder.
    """
    halt = None if hold is None else halt_of_hold(hold, hold.since_ms)
    if refused:
        halt = Halt(reason=HaltReason.UNSUPPORTED_FEATURE, message="; ".join(refused))
    status, why = status_and_why(alone, halt, read.error)
    return replace(read, status=status, why=why, halt=halt)
