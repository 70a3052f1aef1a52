"""`compactord orphans`: files that dead runs of ours left in tables, listed and removed."""

from __future__ import annotations

import argparse

from compactord.cli.arguments import grace_ms
from compactord.cli.choice import Target, choose
from compactord.cli.each_table import Result, note_if_left_alone, over_tables
from compactord.cli.maintenance import open_supported, orphans_json, orphans_text, owner_rule
from compactord.cli.running import stop_on_signals
from compactord.clock import Clock, SystemClock
from compactord.maintenance.orphan_files import find_orphans, remove_orphans

ORPHANS_EXAMPLES = """\
examples:
  compactord orphans --warehouse /data/wh --table sales.orders --dry-run
  compactord orphans --config compactord.yaml --catalog lake

Only files that compactord wrote, by their names, that no snapshot, tag, branch or long-lived
changelog names, and whose process is dead (unchanged for ten minutes) or cannot be checked (for
--orphan-grace). Nothing is removed from a table that lacks snapshots: it may be being restored.
Files of other programs are not looked at. compact and serve do the same by themselves.

exit codes: 0 done, or nothing to do; 2 arguments or configuration; 3 something failed or was
refused; 77 permission denied
"""


def orphans(args: argparse.Namespace, clock: Clock | None = None) -> int:
    """Run the command; the exit code. `clock` None: the machine's."""
    choice = choose(args)
    rule = owner_rule(clock or SystemClock(), grace_ms(args, choice.loaded.config))
    note_if_left_alone(args, choice, "left-over files are looked for")
    take = find_orphans if args.dry_run else remove_orphans

    def work(target: Target) -> Result:
        name = choice.shown_name(target)
        table = open_supported(target.catalog.storage, target.ref, target.policy.options)
        depth = len(table.schema.partition_keys)
        found = take(table.storage, table.ref.location, partition_depth=depth, rule=rule)
        verb = "would remove" if args.dry_run else "removed"
        lines = [f"{name}: {verb} {orphans_text(found)}" if found else f"{name}: nothing left over"]
        if args.dry_run:
            lines += [f"  {orphan.path}" for orphan in found]
        answer = {"table": target.full_name, "dry_run": args.dry_run}
        return Result(lines=lines, found={**answer, "orphans": orphans_json(found)})

    with stop_on_signals() as stop:
        return over_tables(args, choice, work, passes_over=True, stop=stop)
