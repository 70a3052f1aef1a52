"""Snapshots, changelogs after them, and consumers expire as tables' options say, as in the service.

Snapshots of branches do as each branch's own options say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial

from compactord.amounts import count_text
from compactord.cli.choice import Target
from compactord.cli.each_table import Result
from compactord.cli.maintenance import (
    MaintenanceRun,
    in_turn,
    of_kinds,
    off_by_rule,
    open_supported,
)
from compactord.config.policy import policy_for
from compactord.maintenance.changelog_expiry import (
    ExpireChangelogs,
)
from compactord.maintenance.consumer_expiry import (
    ExpireConsumers,
    IdleConsumer,
    expire_consumers,
    idle_consumers,
)
from compactord.maintenance.snapshot_expiry import ExpireSnapshots
from compactord.paimon import paths
from compactord.paimon.snapshot import branch_names
from compactord.paimon.table import branch_of


def expiry(run: MaintenanceRun, target: Target) -> Result:
    """Expires the snapshots of one table. Its result has the fields of `Expired`."""
    return of_kinds(run.offered[ExpireSnapshots.choice], run, target)


def changelog_expiry(run: MaintenanceRun, target: Target) -> Result:
    """Expires the long-lived changelogs of one table. Its result has the fields of `Expired`."""
    return of_kinds(run.offered[ExpireChangelogs.choice], run, target)


def consumer_expiry(run: MaintenanceRun, target: Target) -> Result:
    """Expires the consumers of one table. Its result lists them; `why_not` says why none did."""
    gone: Sequence[IdleConsumer] = ()
    why_not = off_by_rule(run, target, ExpireConsumers.rule)
    if why_not is None:
        table, _ = open_supported(target)
        if table.options.maintenance.consumer_time_ms is None:
            why_not = "consumer.expiration-time is not set"
        else:
            take = idle_consumers if run.is_dry else expire_consumers
            gone = take(table, run.clock.now_ms())
    name, verb = run.choice.shown_name(target), run.expired
    line = f"{name}: {verb} {count_text(len(gone), 'consumer')}"
    if not gone:
        line = f"{name}: no consumer {verb}{'' if why_not is None else f', because {why_not}'}"
    lines = [line, *(f"  {each.name}, next snapshot {each.next_snapshot or '?'}" for each in gone)]
    found = {"consumers": [asdict(each) for each in gone], "why_not": why_not}
    return Result(lines=lines, found=found)


def branch_expiry(run: MaintenanceRun, target: Target) -> Result:
    """Expires the snapshots of all branches of one table but main; none of one that is a branch.

    Its result has what `expire` finds of each, by its name. One that fails, as one without a schema
    does, is told, loses nothing, and does not keep the others from their turn. Branches that the
    choice names by themselves are left to their own turn.
    """
    works = (
        (branch.ref.branch, run.choice.shown_name(branch), partial(expiry, run, branch))
        for branch in _branches(run, target)
    )
    lines, found, code = in_turn(run, works)
    return Result(lines=lines, found={"branches": found}, code=code)


def _branches(run: MaintenanceRun, target: Target) -> Iterator[Target]:
    ref = target.ref
    if ref.branch != paths.MAIN_BRANCH:
        return
    chosen = {each.name for each in run.choice.targets}
    for name in branch_names(target.open().storage, ref.location):
        branch = replace(target, ref=branch_of(ref, name))
        if branch.name not in chosen:
            yield replace(branch, policy=policy_for(run.choice.loaded.config, branch.name))
