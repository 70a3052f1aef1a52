"""The counters of a table: the sum of its events."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

from compactord.commit.changes import Conflict
from compactord.errors import CommitGaveUp
from compactord.model import WorkKind
from compactord.scheduler import events
from compactord.scheduler.status import EndedCompaction, Outcome, TableCounters

_SHOWN = {each.name for each in fields(TableCounters)}


@dataclass(slots=True, kw_only=True)
class Counts:
    """`sums` are named as in `TableCounters`, or as kinds of maintenance name them."""

    compactions: Counter[tuple[WorkKind, Outcome]] = field(default_factory=Counter)
    conflicts: Counter[Conflict] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    compaction_seconds: float = 0.0
    worker_cpu_seconds: float = 0.0

    def count(self, event: events.Event) -> None:
        """Add what the event says."""
        sums = self.sums
        match event:
            case EndedCompaction():
                self._ended(event)
            case events.NotDispatched(kind=kind, outcome=outcome):
                self.compactions[kind, outcome] += 1
            case events.Conflicted(conflict=conflict):
                self.conflicts[conflict] += 1
            case events.Committed(attempts=attempts):
                sums["commits_committed"] += 1
                sums["commit_attempts"] += attempts
                self.conflicts[Conflict.SNAPSHOT_RACE] += attempts - 1
            case events.CommitFailed(error=CommitGaveUp()):
                sums["commits_gave_up"] += 1
            case events.CommitFailed():
                sums["commits_error"] += 1
            case events.SnapshotLost():
                sums["lost_snapshots"] += 1
            case events.WriterCommitLost(outcome=lost):
                sums[f"lost_commits_{lost.value}"] += 1
            case events.Polled(planned=planned) if planned is not None:
                sums["ingested_bytes"] += planned.appended_bytes
            case events.Maintained(round=round_):
                sums.update(round_.counts)
            case _:
                # The others count nothing.
                pass

    def _ended(self, view: EndedCompaction) -> None:
        self.compactions[view.kind, view.outcome] += 1
        self.compaction_seconds += view.seconds
        self.worker_cpu_seconds += view.cpu_seconds
        self.sums["compaction_seconds_count"] += 1
        if view.outcome is not Outcome.COMMITTED:
            self.sums["wasted_bytes"] += view.bytes_out
            return
        self.sums.update(
            input_bytes=view.bytes_in,
            output_bytes=view.bytes_out,
            input_files=view.files_in,
            output_files=view.files_out,
            upgraded_files=view.upgraded_files,
            input_records=view.rows_in,
            output_records=view.rows_out,
        )

    def frozen(self) -> TableCounters:
        """An immutable copy of what is shown of each table."""
        sums: dict[str, Any] = {name: n for name, n in self.sums.items() if name in _SHOWN}
        return TableCounters(
            compactions=dict(self.compactions),
            conflicts=dict(self.conflicts),
            compaction_seconds_sum=self.compaction_seconds,
            worker_cpu_seconds=self.worker_cpu_seconds,
            **sums,
        )
