"""`compactord orphans`: files that dead runs of ours left in tables, listed and removed."""

from __future__ import annotations

import argparse

from compactord.cli.argument_values import grace_ms
from compactord.cli.choice import Target, choose
from compactord.cli.each_table import Result, note_if_left_alone, over_tables
from compactord.cli.maintenance import open_supported, orphans_json, orphans_text, owner_rule
from compactord.cli.running import stop_on_signals
from compactord.clock import Clock, SystemClock
from compactord.maintenance.orphan_files import find_orphans, remove_orphans


def orphans(args: argparse.Namespace, clock: Clock | None = None) -> int:
    """Run the command; the exit code. `clock` None: the machine's."""
    choice = choose(args, all_of_warehouse=True)
    rule = owner_rule(clock or SystemClock(), grace_ms(args, choice.loaded.config))
    note_if_left_alone(args, choice, "left-over files are looked for")
    take = find_orphans if args.dry_run else remove_orphans

    def work(target: Target) -> Result:
        name = choice.shown_name(target)
        table = open_supported(target)
        depth = len(table.schema.partition_keys)
        found = take(table.storage, table.ref.location, partition_depth=depth, rule=rule)
        verb = "would remove" if args.dry_run else "removed"
        lines = [f"{name}: {verb} {orphans_text(found)}" if found else f"{name}: nothing left over"]
        if args.dry_run:
            lines += [
                f"  {orphan.path}{' (unfinished upload)' if orphan.upload else ''}"
                for orphan in found
            ]
        answer = {"table": target.full_name, "dry_run": args.dry_run}
        return Result(lines=lines, found={**answer, "orphans": orphans_json(found)})

    with stop_on_signals() as stop:
        return over_tables(args, choice, work, passes_over=True, stop=stop)
