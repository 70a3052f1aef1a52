"""The sweep of orphan files as a kind of maintenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from compactord import ids
from compactord.clock import Clock, WallTime
from compactord.errors import CompactordError
from compactord.ids import Owner
from compactord.maintenance.copied_files import watched
from compactord.maintenance.kind import (
    Done,
    DueTable,
    MaintenanceRecord,
    OfferedKind,
    OpenedTable,
    Round,
    ShownTable,
    Told,
    UnderWay,
)
from compactord.maintenance.orphan_files import Orphan, OwnerRule, find_orphans, remove_orphans
from compactord.maintenance.sightings import Sightings
from compactord.text import count_text, size_text

_log = structlog.get_logger()
REMOVED = "removed_files"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOrphans(OfferedKind[Sequence[Orphan]]):
    """Due every `interval_ms`, whether or not the table has changed; see `orphan_files`."""

    name = "sweep"
    choice = "orphans"
    only_if_asked = True

    interval_ms: int
    grace_ms: int

    def is_due(
        self, table: DueTable, record: MaintenanceRecord, now_ms: int, wall: WallTime
    ) -> bool:
        return now_ms - record.ended_ms >= self.interval_ms

    def preview(self, table: OpenedTable) -> Done[Sequence[Orphan]]:
        values, depth = table.table, len(table.table.schema.partition_keys)
        rule = owner_rule(table.clock, self.grace_ms, table.owner)
        found = find_orphans(
            values.storage,
            values.ref.location,
            partition_depth=depth,
            rule=rule,
            why_wait=partial(watched(table, self.grace_ms).why_wait, values, rule.now_ms),
        )
        return Done(rounds=[found])

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> Sequence[Orphan]:
        """The files that were deleted, which dead processes of ours left.

        With `under_way` also what killed workers of this process left: files from so long before
        all of that by both its measures. Without, nothing of this process.
        """
        rule = owner_rule(table.clock, self.grace_ms, table.owner)
        if under_way is not None:
            began_ms = min(under_way.since_ms, rule.now_ms - under_way.for_ms)
            rule = replace(rule, own_before_ms=began_ms - self.grace_ms)
        values, depth = table.table, len(table.table.schema.partition_keys)
        # A command has asked before, but for `compact`, which would read the whole table for it.
        if under_way is not None and (hold := table.why_held()) is not None:
            _log.warning("sweep_skipped", reason=str(hold), files=0)
            return ()

        def aged(found: Sequence[Orphan]) -> Sequence[Orphan]:
            may_look_old = values.storage.capabilities.copies_may_look_old
            if not may_look_old or not table.watches_files:
                return found
            now_ms = table.clock.steady_ms()
            return table.memory(Sightings).aged(found, now_ms=now_ms, grace_ms=self.grace_ms)

        return remove_orphans(
            values.storage,
            values.ref.location,
            partition_depth=depth,
            rule=rule,
            among=aged,
            why_wait=partial(watched(table, self.grace_ms).why_wait, values, rule.now_ms),
        )

    def ended(self, result: Sequence[Orphan] | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning("orphans_kept", error=str(result))
            return Round(has_failed=True)
        if result:
            _log.info("sweep_finished", removed_files=len(result))
        return Round(counts={REMOVED: len(result)})

    def told(self, shown: ShownTable, done: Done[Sequence[Orphan]], *others: Done[Any]) -> Told:
        found = [orphan for round_ in done.rounds for orphan in round_]
        return files_told(shown, found, orphans_text(found))


def owner_rule(clock: Clock, grace_ms: int, myself: Owner | None = None) -> OwnerRule:
    """The rule of `compact`: nothing of this process, nothing of one that may live."""
    return OwnerRule(
        myself=myself or ids.this_process(),
        liveness=ids.liveness,
        now_ms=clock.now_ms(),
        grace_ms=grace_ms,
    )


def files_told(shown: ShownTable, found: Sequence[Orphan], what: str) -> Told:
    """That `what` was removed, or would be: then each with its path."""
    verb = "would remove" if shown.is_dry else "removed"
    lines = [f"{shown.name}: {verb} {what}" if found else f"{shown.name}: nothing left over"]
    if shown.is_dry:
        unfinished = " (unfinished upload)"
        lines += [f"  {each.path}{unfinished if each.upload else ''}" for each in found]
    return Told(lines=lines, found={"orphans": orphans_json(found)})


def orphans_text(orphans: Sequence[Orphan]) -> str:
    """`3 left-over files of earlier runs (1.5 MiB)`."""
    size = sum(orphan.size_bytes for orphan in orphans)
    return f"{count_text(len(orphans), 'left-over file')} of earlier runs ({size_text(size)})"


def orphans_json(orphans: Sequence[Orphan]) -> list[dict[str, Any]]:
    return [{"path": orphan.path, "bytes": orphan.size_bytes} for orphan in orphans]
