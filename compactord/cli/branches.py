"""Snapshots of a table's branches expire as each branch's own options say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from compactord.cli.arguments import error_json
from compactord.cli.choice import Target
from compactord.cli.each_table import Result, joint_code
from compactord.cli.expire import expiry
from compactord.cli.maintenance import MaintenanceRun, Work
from compactord.cli.running import FAILED, exit_code, say
from compactord.config.policy import policy_for
from compactord.errors import CompactordError
from compactord.paimon import paths
from compactord.paimon.snapshot import branch_names
from compactord.paimon.table import branch_of


def branch_expiry(run: MaintenanceRun) -> Work:
    """Expires the snapshots of all branches of one table but main; none of one that is a branch.

    Its result has what `expire` finds of each, by its name. One that fails, as one without a schema
    does, is told, loses nothing, and does not keep the others from their turn. Branches that the
    choice names by themselves are left to their own turn.
    """
    of_table = expiry(run)

    def work(target: Target) -> Result:
        lines: list[str] = []
        found: dict[str, Mapping[str, Any]] = {}
        codes: list[int] = []
        for branch in _branches(run, target):
            if run.stop.is_set():
                codes.append(FAILED)
                break
            try:
                result = of_table(branch)
            except CompactordError as error:
                say(f"{run.choice.shown_name(branch)}: FAILED: {error}")
                found[branch.ref.branch] = error_json(error)
                codes.append(exit_code(error))
            else:
                lines += result.lines
                found[branch.ref.branch] = result.found
                codes.append(result.code)
        return Result(lines=lines, found={"branches": found}, code=joint_code(codes))

    return work


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
