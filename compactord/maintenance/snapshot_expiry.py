"""Snapshot expiry as a kind of maintenance."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import structlog

from compactord.errors import CompactordError
from compactord.maintenance.copied_files import watched
from compactord.maintenance.expire import Expired, expire_snapshots, preview_snapshots
from compactord.maintenance.kind import (
    Done,
    OpenedTable,
    Round,
    RuledKind,
    ShownTable,
    Told,
    UnderWay,
    because,
)
from compactord.maintenance.later_snapshots import LaterSnapshots
from compactord.text import count_text, size_text

_log = structlog.get_logger()
_COUNTS = (
    ("data_files", "data file"),
    ("changelog_files", "changelog file"),
    ("manifests", "manifest file"),
    ("index_files", "index file"),
)
_SUMMED = ("snapshots", "changelogs", "size_bytes", *(name for name, _ in _COUNTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireSnapshots(RuledKind[Expired]):
    """Due after each plan, `interval_ms` after the last round, in the table's windows."""

    name = "expire"
    choice = "snapshots"
    rule = "expire_snapshots"
    runs_unasked = True
    after_plans = True
    duration_metric = ("expire_duration_seconds", "Time of an expiry of a table's snapshots.")

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> Expired:
        why_keep, values = table.why_keep(), table.table
        if why_keep is not None:
            return Expired(why_not=why_keep)
        return expire_snapshots(
            values,
            values.options.expire,
            now_ms=table.clock.now_ms(),
            keep_from=under_way.reads_from if under_way is not None else None,
            copies=watched(table, self.grace_ms),
            later=table.memory(LaterSnapshots),
        )

    def preview(self, table: OpenedTable) -> Done[Expired]:
        why_keep = table.why_keep()
        if why_keep is not None:
            return Done(why_not=why_keep)
        copies, later = watched(table, self.grace_ms), table.memory(LaterSnapshots)
        return preview_snapshots(table.table, table.clock.now_ms(), copies, later)

    def ended(self, result: Expired | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning("expire_failed", error=str(result))
            return Round(counts={"expire_failures": 1}, has_failed=True)
        if result.why_not is not None:
            _log.warning("expire_stopped", message=result.why_not)
        elif result.snapshots:
            _log.info(
                "expire_finished",
                expired_snapshots=result.snapshots,
                first_snapshot_id=result.first,
                earliest_snapshot_id=result.end,
                data_files=result.data_files,
                manifests=result.manifests,
                size_bytes=result.size_bytes,
                duration_s=round(seconds, 3),
            )
        files = result.data_files + result.changelog_files + result.manifests + result.index_files
        return Round(
            counts={"expired_snapshots": result.snapshots, "expired_files": files},
            more=result.more,
            first_snapshot_id=result.end if result.snapshots else None,
        )

    def told(self, shown: ShownTable, done: Done[Expired], *others: Done[Any]) -> Told:
        return expiry_told(shown, done, "snapshot")


def expiry_told(shown: ShownTable, done: Done[Expired], unit: str) -> Told:
    """That so many of `unit` expired. The data are the fields of `Expired`, of all rounds."""
    figures = _of_all(done)
    count = figures.snapshots + figures.changelogs
    line = f"{shown.name}: no {unit} {shown.expired}"
    if count:
        files = [count_text(n, what) for key, what in _COUNTS if (n := getattr(figures, key))]
        line = (
            f"{shown.name}: {shown.expired} {count_text(count, unit)} "
            f"({figures.first}..{figures.end - 1}): "
            f"{', '.join([*files, size_text(figures.size_bytes)])}"
        )
    found = asdict(figures)
    if done.files is not None:
        found["files"] = list(done.files)
    return Told(lines=[line, *because(figures.why_not, has_some=count)], found=found)


def _of_all(done: Done[Expired]) -> Expired:
    if not done.rounds:
        return Expired(why_not=done.why_not)
    sums = {name: sum(getattr(each, name) for each in done.rounds) for name in _SUMMED}
    first = next((each.first for each in done.rounds if each.first), 0)
    # A later round that was kept from beginning has none.
    end = next((each.end for each in reversed(done.rounds) if each.end), 0)
    of_all: dict[str, Any] = {**sums, "first": first, "end": end}
    return replace(done.rounds[-1], **of_all)
