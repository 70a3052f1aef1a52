"""Files that were left in tables, by dead runs of ours or by anybody, listed and removed."""

from __future__ import annotations

from compactord.cli.argument_values import grace_ms
from compactord.cli.choice import Target
from compactord.cli.each_table import Result
from compactord.cli.maintenance import (
    MaintenanceRun,
    open_supported,
    orphan_lines,
    orphans_json,
    orphans_text,
    owner_rule,
)
from compactord.maintenance.orphan_files import find_orphans, remove_orphans


def sweep(run: MaintenanceRun, target: Target) -> Result:
    """Removes the left-over files of one table. Its result lists them as `orphans`."""
    rule = owner_rule(run.clock, grace_ms(run.args, run.choice.loaded.config))
    take = find_orphans if run.is_dry else remove_orphans
    name = run.choice.shown_name(target)
    table, _ = open_supported(target)
    depth = len(table.schema.partition_keys)
    found = take(table.storage, table.ref.location, partition_depth=depth, rule=rule)
    verb = "would remove" if run.is_dry else "removed"
    lines = [f"{name}: {verb} {orphans_text(found)}" if found else f"{name}: nothing left over"]
    if run.is_dry:
        lines += orphan_lines(found)
    return Result(lines=lines, found={"orphans": orphans_json(found)})
