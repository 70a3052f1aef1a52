"""How a table stands without a running service: its state, and why, as the service would have it.

Only a service knows which tables it has halted and which buckets it has quarantined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compactord.cli.choice import Choice, Target
from compactord.errors import CompactordError
from compactord.paimon.schema import latest_schema
from compactord.paimon.support import reasons_to_refuse
from compactord.service.unserved import state_of
from compactord.service.view import TableStatus
from compactord.state.table_state import TableState, load_state
from compactord.table.opening import OpenTable, describe_table, live_reasons

# The commands say it below what they read themselves.
ASK_A_SERVICE = (
    "what a running service has halted or quarantined is known to it alone: --url http://HOST:9464"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A table as it is listed: `name` has its database, `shown_name` the catalog where needed."""

    catalog: str
    name: str
    shown_name: str
    location: str
    state: str
    why: str
    figures: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {
            "catalog": self.catalog,
            "table": self.name,
            "location": self.location,
            "state": self.state,
            "why": self.why,
            **self.figures,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """`why` is empty for active tables. `table` and `state` are None where they cannot be read."""

    target: Target
    status: TableStatus
    why: str
    table: OpenTable | None = None
    state: TableState | None = None

    def listed(self, choice: Choice) -> Listed:
        return Listed(
            catalog=self.target.catalog_name,
            name=self.target.full_name,
            shown_name=choice.shown_name(self.target),
            location=self.target.ref.location,
            state=self.status.value,
            why=self.why,
            figures=self.figures,
        )

    @property
    def figures(self) -> dict[str, Any]:
        """The table in numbers; those of runs only where there are keys."""
        if self.table is None:
            return {}
        options, schema = self.table.options, self.table.schema
        found: dict[str, Any] = {
            "kind": self.table.kind.value,
            "merge_engine": options.merge_engine.value if schema.primary_keys else "",
            "write_only": options.write_only,
        }
        if self.state is None:
            return found
        files, small = self.state.files, options.compaction.small_file_size
        summaries = files.summaries()
        found |= {
            "snapshot": self.state.snapshot.id if self.state.snapshot else None,
            "bucket_count": len(summaries),
            "files": files.file_count,
            "small_files": files.count_smaller(small),
            "bytes": files.size_bytes,
        }
        if schema.primary_keys:
            found |= {
                "sorted_runs_max": int(summaries.run_count.max(initial=0)),
                "compaction_trigger": options.compaction.compaction_trigger,
                "stop_trigger": options.compaction.stop_trigger,
            }
        return found


def standing(choice: Choice, target: Target) -> Standing:
    """Look at one table; its errors are its state. Reads its newest snapshot's metadata."""
    storage, ref = target.catalog.storage, target.ref
    table: OpenTable | None = None
    state: TableState | None = None
    reasons: list[str] = []
    error = ""
    try:
        schema = latest_schema(storage, ref.location)
        table = describe_table(storage, ref, schema, target.policy.options)
        reasons += reasons_to_refuse(schema, table.options)
        state = load_state(storage, ref)
        reasons += live_reasons(table, state)
    except CompactordError as found:
        error = str(found)
    # Of a table that cannot be read nobody knows whether it is write-only.
    alone = choice.left_alone(target, write_only=table is None or table.options.write_only)
    status, why = state_of(alone, reasons, error)
    return Standing(target=target, status=status, why=why, table=table, state=state)
