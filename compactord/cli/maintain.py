"""`compactord maintain`: the kinds of maintenance, in tables of a choice, as the service does them.

`expire` and `orphans` do one kind each.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from compactord.cli.argument_values import amount_of
from compactord.cli.choice import Target, choose
from compactord.cli.each_table import Result, note_if_left_alone, over_tables
from compactord.cli.maintenance import MaintenanceRun, Work, in_turn, of_choice, offered
from compactord.cli.orphans import foreign_sweep, ruled_sweep
from compactord.cli.registries import registries_of
from compactord.cli.running import stop_on_signals
from compactord.clock import Clock, SystemClock
from compactord.config.model import Recovery
from compactord.config.policy import policy_for
from compactord.errors import UsageError
from compactord.maintenance.changelog_expiry import ExpireChangelogs
from compactord.maintenance.kind import AnyKind
from compactord.maintenance.orphans import SweepForeign, SweepOrphans
from compactord.maintenance.snapshots import ExpireSnapshots
from compactord.paimon import paths
from compactord.paimon.schema import branch_of
from compactord.paimon.snapshot import branch_names
from compactord.storage.calls import DeletePace
from compactord.table.status import paced

_BRANCHES = "branches"


def maintain(args: argparse.Namespace, clock: Clock | None = None) -> int:
    """Run the command; the exit code, or `UsageError`. `clock` None: the machine's."""
    works = choices(registries_of(args).maintenance(Recovery()))
    for name in args.only:
        if name not in works:
            raise UsageError(f"--only {name}: unknown; it is one of {', '.join(works)}")
    names = [name for name, (_, is_usual) in works.items() if is_usual]
    asked = {name: works[name][0] for name in works if name in (args.only or names)}
    return _over(args, "it is maintained", partial(_of_kinds, asked), clock)


def expire(args: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    return _over(args, "snapshots expire", partial(of_choice, ExpireSnapshots.choice))


def orphans(args: argparse.Namespace, clock: Clock | None = None) -> int:
    """Run the command; the exit code, or `UsageError`. `clock` None: the machine's."""
    if not args.foreign and (args.older_than or args.trash or args.external_paths):
        raise UsageError("--older-than, --trash and --external-paths need --foreign")
    work = foreign_sweep if args.foreign else partial(of_choice, SweepOrphans.choice)
    return _over(args, "left-over files are looked for", work, clock)


def _over(args: argparse.Namespace, note: str, work: Work, clock: Clock | None = None) -> int:
    choice = choose(args, all_of_warehouse=True)
    recovery = choice.loaded.config.recovery
    if "orphan_grace" in args:
        # What no table could make right is said before the first.
        grace_ms = amount_of(args, "orphan_grace", recovery.orphan_grace_ms)
        recovery = recovery.model_copy(update={"orphan_grace_ms": grace_ms})
    with stop_on_signals() as stop:
        own = clock or SystemClock(choice.zone)
        run = MaintenanceRun(
            args=args,
            choice=choice,
            clock=own,
            stop=stop,
            kinds=registries_of(args).maintenance(recovery),
            grace_ms=recovery.orphan_grace_ms,
        )
        note_if_left_alone(args, choice, note)
        pace = DeletePace(own, choice.loaded.config.limits.max_deletes_per_second)

        def named(target: Target) -> Result:
            result = work(run, replace(target, around=partial(paced, pace=pace)))
            found = {"table": target.full_name, "dry_run": args.dry_run, **result.found}
            return Result(lines=result.lines, found=found, code=result.code)

        return over_tables(args, choice, named, passes_over=True, stop=stop)


def choices(kinds: Sequence[AnyKind]) -> Mapping[str, tuple[Work, bool]]:
    """What people may choose, in the order in which it runs, and whether it does unless they do.

    The kinds that are offered; snapshots of branches, once the table's have gone; and files of
    other programs, in ways of the command's own.
    """
    works: dict[str, tuple[Work, bool]] = {}
    for name, each in offered(kinds).items():
        works[name] = partial(of_choice, name), not any(kind.only_if_asked for kind in each)
        if name == ExpireChangelogs.choice and ExpireSnapshots.choice in works:
            works[_BRANCHES] = _of_branches, True
    works[SweepForeign.name] = ruled_sweep, False
    # What has to be named runs last, after all that may leave files over.
    return dict(sorted(works.items(), key=lambda work: not work[1][1]))


def _of_kinds(works: Mapping[str, Work], run: MaintenanceRun, target: Target) -> Result:
    """All of these kinds: a kind that fails does not keep the others from their turn."""
    shown = run.choice.shown_name(target)
    turns = ((name, f"{shown}: {name}", partial(work, run, target)) for name, work in works.items())
    lines, kinds, code = in_turn(run, turns, raises_refusal=True)
    return Result(lines=lines, found={"kinds": kinds}, code=code)


def _of_branches(run: MaintenanceRun, target: Target) -> Result:
    """Expires the snapshots of all branches of one table but main; none of one that is a branch.

    By each branch's own options. Its result has what `expire` finds of each, by its name. One that
    fails, as one without a schema does, is told, loses nothing, and does not keep the others from
    their turn. Branches that the choice names by themselves are left to their own turn.
    """
    works = (
        (
            branch.ref.branch,
            run.choice.shown_name(branch),
            partial(of_choice, ExpireSnapshots.choice, run, branch),
        )
        for branch in _branches(run, target)
    )
    lines, found, code = in_turn(run, works)
    return Result(lines=lines, found={_BRANCHES: found}, code=code)


def _branches(run: MaintenanceRun, target: Target) -> Iterator[Target]:
    ref = target.ref
    if ref.branch != paths.MAIN_BRANCH:
        return
    chosen = {each.name for each in run.choice.targets}
    for name in branch_names(target.open().storage, ref.location):
        branch = replace(target, ref=branch_of(ref, name))
        if branch.name not in chosen:
            yield replace(branch, policy=policy_for(run.choice.loaded.config, branch.name))
