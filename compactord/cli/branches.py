"""Snapshots of a table's branches expire as each branch's own options say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from compactord.cli.choice import Target
from compactord.cli.each_table import Result
from compactord.cli.expire import expiry
from compactord.cli.maintenance import MaintenanceRun, in_turn
from compactord.config.policy import policy_for
from compactord.paimon import paths
from compactord.paimon.snapshot import branch_names
from compactord.paimon.table import branch_of


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
        branch = branch_of(ref, name)
        policy = policy_for(
            run.choice.loaded.config, target.catalog_name, ref.database, branch.name
        )
        found = replace(target, ref=branch, policy=policy)
        if found.name not in chosen:
            yield found
