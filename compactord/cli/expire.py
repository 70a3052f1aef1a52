"""Snapshots, changelogs after them, and consumers expire as tables' options say, as in the service.

Snapshots of branches do as each branch's own options say.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from compactord.amounts import count_text, size_text
from compactord.cli.choice import Target
from compactord.cli.each_table import Result
from compactord.cli.maintenance import (
    MaintenanceRun,
    because,
    in_turn,
    looked_back,
    off_by_rule,
    open_supported,
)
from compactord.cli.running import FAILED, OK
from compactord.config.policy import policy_for
from compactord.maintenance.changelog_expiry import (
    ExpireChangelogs,
    expire_changelogs,
    preview_changelogs,
)
from compactord.maintenance.consumer_expiry import (
    ExpireConsumers,
    IdleConsumer,
    expire_consumers,
    idle_consumers,
)
from compactord.maintenance.expire import Expired, ExpiryPreview, expire_snapshots, preview_expiry
from compactord.maintenance.snapshot_expiry import ExpireSnapshots
from compactord.paimon import paths
from compactord.paimon.options.maintenance import ExpireOptions
from compactord.paimon.snapshot import branch_names
from compactord.paimon.table import branch_of
from compactord.table.opening import OpenTable

# More than any table has: a dry run shows what all rounds together would remove.
_ALL_ROUNDS = 1 << 62
# Snapshots of a round at least.
_LEAST = 1000
_COUNTS = (
    ("data_files", "data file"),
    ("changelog_files", "changelog file"),
    ("manifests", "manifest file"),
    ("index_files", "index file"),
)
_SUMMED = ("snapshots", "changelogs", "size_bytes", *(name for name, _ in _COUNTS))


def expiry(run: MaintenanceRun, target: Target) -> Result:
    """Expires the snapshots of one table. Its result has the fields of `Expired`."""

    def preview(table: OpenTable, now_ms: int) -> ExpiryPreview:
        return preview_expiry(table, of_a_command(table.options.expire, _ALL_ROUNDS), now_ms)

    def a_round(table: OpenTable, now_ms: int) -> Expired:
        options = of_a_command(table.options.expire)
        return expire_snapshots(table, options, now_ms=now_ms, keep_from=None)

    return _expired(run, target, ExpireSnapshots.rule, "snapshot", preview, a_round)


def changelog_expiry(run: MaintenanceRun, target: Target) -> Result:
    """Expires the long-lived changelogs of one table. Its result has the fields of `Expired`."""

    def preview(table: OpenTable, now_ms: int) -> ExpiryPreview:
        limit = of_a_command(table.options.expire, _ALL_ROUNDS).limit
        return preview_changelogs(table, now_ms, limit=limit)

    rule = ExpireChangelogs.rule
    return _expired(run, target, rule, "changelog", preview, expire_changelogs)


def _expired(
    run: MaintenanceRun,
    target: Target,
    key: str,
    unit: str,
    preview: Callable[[OpenTable, int], ExpiryPreview],
    a_round: Callable[[OpenTable, int], Expired],
) -> Result:
    why_not = off_by_rule(run, target, key)
    if why_not is not None:
        return _result(run, target, unit, Expired(why_not=why_not))
    followed = looked_back(target, run.clock, run.stop)
    table, why = followed.table, followed.why_keep()
    if why is not None:
        return _result(run, target, unit, Expired(why_not=why))
    if run.is_dry:
        found = preview(table, run.clock.now_ms())
        return _result(run, target, unit, found.figures, {"files": list(found.files)})
    done = _all_rounds(lambda: a_round(table, run.clock.now_ms()), run.stop)
    result = _result(run, target, unit, done)
    return replace(result, code=FAILED if run.stop.is_set() else OK)


def of_a_command(options: ExpireOptions, least: int = _LEAST) -> ExpireOptions:
    """A command is done when nothing is due, and each round reads all snapshots that stay.

    Small rounds would read those that expire again and again. A limit of 0 switches expiry off.
    """
    return replace(options, limit=max(options.limit, least)) if options.limit > 0 else options


def _all_rounds(a_round: Callable[[], Expired], stop: threading.Event) -> Expired:
    """Rounds until no more are due."""
    sums: Counter[str] = Counter()
    first, done = 0, Expired()
    while not stop.is_set():
        done = a_round()
        first = first or done.first
        sums.update({name: getattr(done, name) for name in _SUMMED})
        if not done.more:
            break
    return Expired(first=first, end=done.end, more=done.more, why_not=done.why_not, **dict(sums))


def _result(
    run: MaintenanceRun,
    target: Target,
    unit: str,
    done: Expired,
    more: Mapping[str, Any] | None = None,
) -> Result:
    name, verb = run.choice.shown_name(target), run.expired
    count = done.snapshots + done.changelogs
    if count:
        files = [
            count_text(getattr(done, key), what) for key, what in _COUNTS if getattr(done, key)
        ]
        lines = [
            f"{name}: {verb} {count_text(count, unit)} "
            f"({done.first}..{done.end - 1}): {', '.join([*files, size_text(done.size_bytes)])}"
        ]
    else:
        lines = [f"{name}: no {unit} {verb}"]
    lines += because(done.why_not, has_some=count)
    return Result(lines=lines, found={**asdict(done), **(more or {})})


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
