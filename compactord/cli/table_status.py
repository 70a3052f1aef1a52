"""A table's status for `tables` and `why`; without a service as one would have it at a start.

Only a service knows which tables it has halted and which buckets it has quarantined.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from compactord.cli.choice import Choice, Target
from compactord.clock import Clock
from compactord.errors import CompactordError, UnsupportedTable
from compactord.maintenance.holds import stored_hold
from compactord.service.view import TableView, unread_view, unserved_view
from compactord.state.table_state import TableState
from compactord.table.opening import OpenTable, describe_table, live_reasons
from compactord.table.planning import with_waiting_rows
from compactord.table.status import TableShape

# The commands say it below what they read themselves.
ASK_A_SERVICE = (
    "what a running service has halted or quarantined is known to it alone: --url http://HOST:9464"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A table as it is listed: `shown_name` has the catalog where needed, `why` is for people."""

    table: TableView
    shown_name: str
    why: str

    @property
    def figures(self) -> dict[str, Any]:
        """The table in numbers; those of runs only where there are keys."""
        info, shape = self.table.info, self.table.shape
        if not info.kind:
            return {}
        has_runs = info.compaction_trigger > 0
        found: dict[str, Any] = {
            "kind": info.kind,
            "merge_engine": info.merge_engine if has_runs else "",
            "write_only": info.write_only,
        }
        if self.table.is_read:
            found |= {
                "snapshot": shape.snapshot_id or None,
                "bucket_count": shape.buckets,
                "files": shape.files,
                "small_files": shape.small_files,
                "bytes": shape.size_bytes,
            }
        if self.table.is_read and info.readers_wait:
            found["waiting_since_ms"] = shape.waiting_since_ms or None
        if self.table.is_read and has_runs:
            found |= {
                "sorted_runs_max": shape.sorted_runs_max,
                "compaction_trigger": info.compaction_trigger,
                "stop_trigger": info.stop_trigger,
            }
        return found

    def as_json(self) -> dict[str, Any]:
        name = self.table.name
        return {
            "catalog": name.catalog,
            "table": f"{name.database}.{name.table}",
            "location": self.table.location,
            "state": self.table.status.value,
            "why": self.why,
            **self.figures,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTable:
    """A table that was read. `table` and `state` are None where they cannot be."""

    target: Target
    view: TableView
    table: OpenTable | None = None
    state: TableState | None = None

    def listed(self, choice: Choice) -> Listed:
        return Listed(table=self.view, shown_name=choice.shown_name(self.target), why=self.view.why)


def read_table(choice: Choice, target: Target, clock: Clock) -> ReadTable:
    """Read one table; its errors are its status. Reads its newest snapshot's metadata."""
    table: OpenTable | None = None
    state: TableState | None = None
    refused: list[str] = []
    error, hold = "", None
    try:
        access = target.open()
        schema, overrides = access.newest_schema(), target.policy.options
        table = describe_table(access, schema, overrides, target.registries)
        refused += table.refusals
        state = with_waiting_rows(table, access.newest_state().state, clock)
        refused += live_reasons(table, state)
        hold = stored_hold(access.storage, access.ref.location)
    except UnsupportedTable as unsupported:
        refused += unsupported.reasons
    except CompactordError as failure:
        error = str(failure)
    view = replace(unread_view(target.name, target.ref, table, choice.loaded), error=error)
    if table is not None and state is not None:
        lag_ms = target.policy.max_freshness_lag_ms or 0
        view = replace(view, shape=_shape(table, state), max_freshness_lag_ms=lag_ms)
        view = replace(view, first_poll_ms=clock.now_ms())
    # Of a table that cannot be read nobody knows whether it is write-only.
    alone = choice.left_alone(target, write_only=table is None or table.options.write_only)
    return ReadTable(
        target=target,
        view=unserved_view(view, alone, refused, hold),
        table=table,
        state=state,
    )


def _shape(table: OpenTable, state: TableState) -> TableShape:
    """The numbers that are told without planning."""
    files = state.files
    summaries = files.summaries()
    return TableShape(
        snapshot_id=state.snapshot.id if state.snapshot else 0,
        buckets=len(summaries),
        files=files.file_count,
        small_files=files.count_smaller(table.options.compaction.small_file_size),
        size_bytes=files.size_bytes,
        sorted_runs_max=int(summaries.run_count.max(initial=0)) if table.key_of else 0,
        waiting_since_ms=state.waiting.oldest_ms if state.waiting else 0,
    )
