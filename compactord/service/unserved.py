"""What is told of a table where no service is asked: the state that it would have at a start.

Only a service knows which tables it has halted and which buckets it has quarantined.
"""

from __future__ import annotations

from collections.abc import Sequence

from compactord.config import reasons
from compactord.config.choices import Mode
from compactord.config.load import LoadedConfig
from compactord.config.policy import TablePolicy
from compactord.paimon.table import TableRef
from compactord.service.view import TableStatus


def left_alone(
    loaded: LoadedConfig, catalog: str, ref: TableRef, policy: TablePolicy, *, write_only: bool
) -> tuple[TableStatus, str] | None:
    """Why the service does not work on a table that it could; None: it does."""
    excluded = reasons.excluded_by_name(loaded, ref.database, ref.name)
    if excluded is not None:
        return TableStatus.EXCLUDED, excluded
    if policy.only_write_only and not write_only:
        why = reasons.not_write_only(loaded, catalog, ref.database, ref.name)
        return TableStatus.EXCLUDED, why
    if policy.mode is Mode.PAUSED:
        return TableStatus.PAUSED, reasons.paused(loaded, catalog, ref.database, ref.name)
    return None


def state_of(
    alone: tuple[TableStatus, str] | None, refused: Sequence[str], error: str
) -> tuple[TableStatus, str]:
    """The status and its reason, empty for active tables.

    `alone` as of `left_alone`; `refused` are reasons to refuse the table, `error` is why it cannot
    be read, each empty where there is none.
    """
    if alone is not None and alone[0] is TableStatus.EXCLUDED:
        return alone
    if refused:
        return TableStatus.UNSUPPORTED, "; ".join(refused)
    if error:
        return TableStatus.ERROR, error
    return alone or (TableStatus.ACTIVE, "")
