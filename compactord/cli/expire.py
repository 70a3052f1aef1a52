"""Snapshots expire as the tables' options say, as the service expires them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from compactord.cli.choice import Target
from compactord.cli.each_table import Result
from compactord.cli.maintenance import MaintenanceRun, Work, looked_back, off_by_rule
from compactord.cli.running import FAILED, OK
from compactord.clock import Clock
from compactord.maintenance.expire import Expired, preview_expiry
from compactord.maintenance.snapshot_expiry import expire_table
from compactord.table.opening import OpenTable
from compactord.table.report import count_text, size_text

# More than any table has: a dry run shows what all rounds together would remove.
_ALL_ROUNDS = 1 << 62
_COUNTS = (
    ("data_files", "data file"),
    ("changelog_files", "changelog file"),
    ("manifests", "manifest file"),
    ("index_files", "index file"),
)
_SUMMED = ("snapshots", "size_bytes", *(name for name, _ in _COUNTS))


def expiry(run: MaintenanceRun) -> Work:
    """Expires the snapshots of one table. Its result has the fields of `Expired`."""

    def work(target: Target) -> Result:
        why_not = off_by_rule(run, target, "expire_snapshots")
        if why_not is not None:
            return _result(run, target, Expired(why_not=why_not))
        followed = looked_back(target, run.clock, run.stop)
        table, why = followed.table, followed.why_keep()
        if why is not None:
            return _result(run, target, Expired(why_not=why))
        if run.is_dry:
            return _previewed(run, target, table)
        done = _all_rounds(table, run.clock, run.stop)
        return replace(_result(run, target, done), code=FAILED if run.stop.is_set() else OK)

    return work


def _previewed(run: MaintenanceRun, target: Target, table: OpenTable) -> Result:
    options = table.options.expire
    # A limit of 0 switches expiry off.
    options = replace(options, limit=_ALL_ROUNDS) if options.limit > 0 else options
    preview = preview_expiry(table, options, run.clock.now_ms())
    return _result(run, target, preview.figures, {"files": list(preview.files)})


def _all_rounds(table: OpenTable, clock: Clock, stop: threading.Event) -> Expired:
    """Rounds of at most `snapshot.expire.limit` snapshots until no more are due."""
    sums: Counter[str] = Counter()
    first, done = 0, Expired()
    while not stop.is_set():
        done = expire_table(table, now_ms=clock.now_ms(), keep_from=None)
        first = first or done.first
        sums.update({name: getattr(done, name) for name in _SUMMED})
        if not done.more:
            break
    return Expired(first=first, end=done.end, more=done.more, why_not=done.why_not, **dict(sums))


def _result(
    run: MaintenanceRun, target: Target, done: Expired, more: Mapping[str, Any] | None = None
) -> Result:
    name = run.choice.shown_name(target)
    verb = "would expire" if run.is_dry else "expired"
    if done.snapshots:
        files = [
            count_text(getattr(done, key), what) for key, what in _COUNTS if getattr(done, key)
        ]
        lines = [
            f"{name}: {verb} {count_text(done.snapshots, 'snapshot')} "
            f"({done.first}..{done.end - 1}): {', '.join([*files, size_text(done.size_bytes)])}"
        ]
    else:
        lines = [f"{name}: no snapshot {verb}"]
    if done.why_not is not None:
        lines.append(f"  {'' if not done.snapshots else 'no more '}because {done.why_not}")
    return Result(lines=lines, found={**asdict(done), **(more or {})})
