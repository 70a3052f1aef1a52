"""Files that were left in tables, by dead runs of ours or by anybody, listed and removed."""

from __future__ import annotations

from compactord.cli.argument_values import grace_ms
from compactord.cli.choice import Target
from compactord.cli.each_table import Result
from compactord.cli.foreign import foreign_sweep
from compactord.cli.maintenance import (
    MaintenanceRun,
    Work,
    open_supported,
    orphan_lines,
    orphans_json,
    orphans_text,
    owner_rule,
)
from compactord.errors import UsageError
from compactord.maintenance.orphan_files import find_orphans, remove_orphans


def sweep(run: MaintenanceRun) -> Work:
    """Removes the left-over files of one table. Its result lists them as `orphans`."""
    if "foreign" in run.args and run.args.foreign:
        return foreign_sweep(run)
    if "foreign" in run.args:
        args = run.args
        if args.older_than or args.trash or args.external_paths:
            raise UsageError("--older-than, --trash and --external-paths need --foreign")
    rule = owner_rule(run.clock, grace_ms(run.args, run.choice.loaded.config))
    take = find_orphans if run.is_dry else remove_orphans

    def work(target: Target) -> Result:
        name = run.choice.shown_name(target)
        table, _ = open_supported(target)
        depth = len(table.schema.partition_keys)
        found = take(table.storage, table.ref.location, partition_depth=depth, rule=rule)
        verb = "would remove" if run.is_dry else "removed"
        lines = [f"{name}: {verb} {orphans_text(found)}" if found else f"{name}: nothing left over"]
        if run.is_dry:
            lines += orphan_lines(found)
        return Result(lines=lines, found={"orphans": orphans_json(found)})

    return work
