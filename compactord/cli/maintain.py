"""`compactord maintain`: the kinds of maintenance, in tables of a choice, as the service does them.

`expire` and `orphans` do one kind each.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from compactord.cli.argument_values import amount_of
from compactord.cli.arguments import MAINTENANCE_KINDS, UNASKED_KINDS
from compactord.cli.choice import Target, choose
from compactord.cli.each_table import Result, note_if_left_alone, over_tables
from compactord.cli.expire import branch_expiry, changelog_expiry, consumer_expiry, expiry
from compactord.cli.maintenance import MaintenanceRun, Work, in_turn
from compactord.cli.orphans import foreign_sweep, ruled_sweep, sweep
from compactord.cli.partitions import marking, partition_expiry
from compactord.cli.running import stop_on_signals
from compactord.cli.tags import tags_upkeep
from compactord.clock import Clock, SystemClock
from compactord.errors import UsageError
from compactord.maintenance.registry import maintenance_kinds
from compactord.storage.pacing import DeletePace
from compactord.table.paced import paced

_KINDS: Mapping[str, Work] = {
    "tags": tags_upkeep,
    "consumers": consumer_expiry,
    "partitions": partition_expiry,
    "snapshots": expiry,
    "changelogs": changelog_expiry,
    "branches": branch_expiry,
    "done": marking,
    "orphans": sweep,
    "foreign": ruled_sweep,
}


def maintain(args: argparse.Namespace, clock: Clock | None = None) -> int:
    """Run the command; the exit code. `clock` None: the machine's."""
    asked = args.only or UNASKED_KINDS
    names = [name for name in MAINTENANCE_KINDS if name in asked]
    return _over(args, "it is maintained", partial(_of_kinds, names), clock)


def expire(args: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    return _over(args, "snapshots expire", expiry)


def orphans(args: argparse.Namespace, clock: Clock | None = None) -> int:
    """Run the command; the exit code, or `UsageError`. `clock` None: the machine's."""
    if not args.foreign and (args.older_than or args.trash or args.external_paths):
        raise UsageError("--older-than, --trash and --external-paths need --foreign")
    work = foreign_sweep if args.foreign else sweep
    return _over(args, "left-over files are looked for", work, clock)


def _over(args: argparse.Namespace, note: str, work: Work, clock: Clock | None = None) -> int:
    choice = choose(args, all_of_warehouse=True)
    if "orphan_grace" in args:
        # What no table could make right is said before the first.
        amount_of(args, "orphan_grace", 0)
    with stop_on_signals() as stop:
        own = clock or SystemClock(choice.zone)
        kinds = maintenance_kinds(choice.loaded.config.recovery)
        run = MaintenanceRun(args=args, choice=choice, clock=own, stop=stop, kinds=kinds)
        note_if_left_alone(args, choice, note)
        pace = DeletePace(own, choice.loaded.config.limits.max_deletes_per_second)

        def named(target: Target) -> Result:
            result = work(run, replace(target, around=partial(paced, pace=pace)))
            found = {"table": target.full_name, "dry_run": args.dry_run, **result.found}
            return Result(lines=result.lines, found=found, code=result.code)

        return over_tables(args, choice, named, passes_over=True, stop=stop)


def _of_kinds(names: Sequence[str], run: MaintenanceRun, target: Target) -> Result:
    """All of these kinds: a kind that fails does not keep the others from their turn."""
    shown = run.choice.shown_name(target)
    works = ((name, f"{shown}: {name}", partial(_KINDS[name], run, target)) for name in names)
    lines, kinds, code = in_turn(run, works, raises_refusal=True)
    return Result(lines=lines, found={"kinds": kinds}, code=code)
