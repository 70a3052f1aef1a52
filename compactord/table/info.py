"""What a table is, in words and numbers, also of one that cannot be worked on."""

from __future__ import annotations

from compactord.catalog.access import TableAccess
from compactord.errors import CompactordError
from compactord.plan.table import TableKind
from compactord.state.rewrites import Rewrite
from compactord.table.opening import OpenTable, describe_table
from compactord.table.request import CompactRequest
from compactord.table.status import TableInfo, measured_stop_trigger

_DYNAMIC, _POSTPONED = -1, -2


def table_info(
    table: OpenTable, *, stop_trigger_fallback: int, rewrite: Rewrite | None = None
) -> TableInfo:
    """What the table's schema and options say; triggers are 0 where there are no sorted runs."""
    options = table.options
    has_runs = table.kind is TableKind.PRIMARY_KEY
    trigger, stop_trigger = 0, 0
    if has_runs:
        trigger = options.compaction.compaction_trigger
        stop_trigger = measured_stop_trigger(options.compaction, stop_trigger_fallback)
    return TableInfo(
        kind=table.kind.value,
        bucket_mode=_bucket_mode(table),
        merge_engine=options.merge_engine if has_runs else "none",
        changelog_producer=options.changelog_producer.value,
        write_only=options.write_only,
        compaction_trigger=trigger,
        stop_trigger=stop_trigger,
        warnings=table.warnings,
        rewrite=rewrite,
        readers_wait=options.compaction.waiting_level is not None,
        maintenance=options.maintenance,
    )


def described_info(access: TableAccess, request: CompactRequest) -> TableInfo | None:
    """The same of a table that may be refused; None where its schema cannot be read."""
    try:
        table = describe_table(access, access.newest_schema(), request.overrides)
    except CompactordError:
        return None
    return table_info(table, stop_trigger_fallback=request.stop_trigger_fallback)


def _bucket_mode(table: OpenTable) -> str:
    """Of these modes `postponed` is refused."""
    if table.kind is TableKind.APPEND_UNAWARE:
        return "unaware"
    return {_DYNAMIC: "dynamic", _POSTPONED: "postponed"}.get(table.options.bucket, "fixed")
