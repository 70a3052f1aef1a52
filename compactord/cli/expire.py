"""`compactord expire`: snapshots expire as the tables' options say, as the service expires them."""

from __future__ import annotations

import argparse
import threading
from collections import Counter
from dataclasses import asdict, replace
from typing import Any

from compactord.cli.choice import Choice, Target, choose
from compactord.cli.each_table import Result, note_if_left_alone, over_tables
from compactord.cli.maintenance import looked_back
from compactord.cli.running import FAILED, OK, stop_on_signals
from compactord.clock import Clock, SystemClock
from compactord.config.choices import SnapshotExpiry
from compactord.config.reasons import setting_origin
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


def expire(args: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    choice = choose(args, all_of_warehouse=True)
    clock = SystemClock(choice.zone)
    verb = "would be expired" if args.dry_run else "expired"
    note_if_left_alone(args, choice, f"snapshots are {verb}")
    with stop_on_signals() as stop:

        def work(target: Target) -> Result:
            if target.policy.expire_snapshots is SnapshotExpiry.OFF:
                key = setting_origin(choice.loaded, *target.name, "expire_snapshots")
                return _result(args, choice, target, Expired(why_not=f"{key} is off"))
            followed = looked_back(target, clock, stop)
            table, why = followed.table, followed.why_keep()
            if why is not None:
                return _result(args, choice, target, Expired(why_not=why))
            if args.dry_run:
                return _previewed(args, choice, target, table, clock)
            done = _all_rounds(table, clock, stop)
            result = _result(args, choice, target, done)
            return replace(result, code=FAILED if stop.is_set() else OK)

        return over_tables(args, choice, work, passes_over=True, stop=stop)


def _previewed(
    args: argparse.Namespace, choice: Choice, target: Target, table: OpenTable, clock: Clock
) -> Result:
    options = table.options.expire
    # A limit of 0 switches expiry off.
    options = replace(options, limit=_ALL_ROUNDS) if options.limit > 0 else options
    preview = preview_expiry(table, options, clock.now_ms())
    return _result(args, choice, target, preview.figures, {"files": list(preview.files)})


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
    args: argparse.Namespace,
    choice: Choice,
    target: Target,
    done: Expired,
    more: dict[str, Any] | None = None,
) -> Result:
    name = choice.shown_name(target)
    verb = "would expire" if args.dry_run else "expired"
    if done.snapshots:
        files = [
            count_text(getattr(done, key), what) for key, what in _COUNTS if getattr(done, key)
        ]
        lines = [
            f"{name}: {verb} {count_text(done.snapshots, 'snapshot')} "
            f"({done.first}..{done.end - 1}): {', '.join([*files, size_text(done.size_bytes)])}"
        ]
    else:
        lines = [f"{name}: no snapshot {'would expire' if args.dry_run else 'expired'}"]
    if done.why_not is not None:
        lines.append(f"  {'' if not done.snapshots else 'no more '}because {done.why_not}")
    found = {"table": target.full_name, "dry_run": args.dry_run, **asdict(done), **(more or {})}
    return Result(lines=lines, found=found)
