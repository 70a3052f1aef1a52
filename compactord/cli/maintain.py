"""`compactord maintain`: the kinds of maintenance, in tables of a choice, as the service does them.

`expire` and `orphans` do one kind each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from compactord.cli.arguments import MAINTENANCE_KINDS, UNASKED_KINDS, error_json
from compactord.cli.branches import branch_expiry
from compactord.cli.choice import Target, choose
from compactord.cli.consumers import consumer_expiry
from compactord.cli.done import marking
from compactord.cli.each_table import Result, joint_code, note_if_left_alone, over_tables
from compactord.cli.expire import changelog_expiry, expiry
from compactord.cli.foreign import ruled_sweep
from compactord.cli.maintenance import MaintenanceRun, Work
from compactord.cli.orphans import sweep
from compactord.cli.partitions import partition_expiry
from compactord.cli.running import FAILED, exit_code, say, stop_on_signals
from compactord.cli.tags import tags_upkeep
from compactord.clock import Clock, SystemClock
from compactord.errors import CompactordError, UnsupportedTable
from compactord.storage.pacing import DeletePace
from compactord.table.paced import paced


class _Kind(NamedTuple):
    """`note` says in a sentence what is done in a table that is named."""

    work: Callable[[MaintenanceRun], Work]
    note: str


_KINDS: Mapping[str, _Kind] = {
    "tags": _Kind(tags_upkeep, "tags are created and expire"),
    "consumers": _Kind(consumer_expiry, "consumers expire"),
    "partitions": _Kind(partition_expiry, "partitions expire"),
    "snapshots": _Kind(expiry, "snapshots expire"),
    "changelogs": _Kind(changelog_expiry, "changelogs expire"),
    "branches": _Kind(branch_expiry, "snapshots of its branches expire"),
    "done": _Kind(marking, "partitions are marked done"),
    "orphans": _Kind(sweep, "left-over files are looked for"),
    "foreign": _Kind(ruled_sweep, "files that nothing names are looked for"),
}


def maintain(args: argparse.Namespace, clock: Clock | None = None) -> int:
    """Run the command; the exit code. `clock` None: the machine's."""
    asked = args.only or UNASKED_KINDS
    names = [name for name in MAINTENANCE_KINDS if name in asked]
    return _over(args, "it is maintained", lambda run: _of_kinds(run, names), clock)


def expire(args: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    return _alone(args, "snapshots")


def orphans(args: argparse.Namespace, clock: Clock | None = None) -> int:
    """Run the command; the exit code. `clock` None: the machine's."""
    return _alone(args, "orphans", clock)


def _alone(args: argparse.Namespace, name: str, clock: Clock | None = None) -> int:
    kind = _KINDS[name]
    return _over(args, kind.note, kind.work, clock)


def _over(
    args: argparse.Namespace,
    note: str,
    make: Callable[[MaintenanceRun], Work],
    clock: Clock | None = None,
) -> int:
    choice = choose(args, all_of_warehouse=True)
    with stop_on_signals() as stop:
        own = clock or SystemClock(choice.zone)
        work = make(MaintenanceRun(args=args, choice=choice, clock=own, stop=stop))
        note_if_left_alone(args, choice, note)
        pace = DeletePace(own, choice.loaded.config.limits.max_deletes_per_second)

        def named(target: Target) -> Result:
            result = work(replace(target, around=partial(paced, pace=pace)))
            found = {"table": target.full_name, "dry_run": args.dry_run, **result.found}
            return Result(lines=result.lines, found=found, code=result.code)

        return over_tables(args, choice, named, passes_over=True, stop=stop)


def _of_kinds(run: MaintenanceRun, names: list[str]) -> Work:
    """All of these kinds: a kind that fails does not keep the others from their turn."""
    works = {name: _KINDS[name].work(run) for name in names}

    def work(target: Target) -> Result:
        lines: list[str] = []
        kinds: dict[str, Mapping[str, Any]] = {}
        codes: list[int] = []
        for name, of_kind in works.items():
            if run.stop.is_set():
                codes.append(FAILED)
                break
            try:
                result = of_kind(target)
            except CompactordError as error:
                if isinstance(error, UnsupportedTable) and not kinds:
                    raise
                say(f"{run.choice.shown_name(target)}: {name}: FAILED: {error}")
                kinds[name] = error_json(error)
                codes.append(exit_code(error))
            else:
                lines += result.lines
                kinds[name] = result.found
                codes.append(result.code)
        return Result(lines=lines, found={"kinds": kinds}, code=joint_code(codes))

    return work
