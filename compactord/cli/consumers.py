"""Consumers expire as the tables' options say, as the service expires them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from compactord.cli.choice import Target
from compactord.cli.each_table import Result
from compactord.cli.maintenance import MaintenanceRun, off_by_rule, open_supported
from compactord.maintenance.consumer_expiry import (
    ExpireConsumers,
    IdleConsumer,
    expire_consumers,
    idle_consumers,
)
from compactord.table.report import count_text

_OPTION = "consumer.expiration-time"


def consumer_expiry(run: MaintenanceRun, target: Target) -> Result:
    """Expires the consumers of one table. Its result lists them; `why_not` says why none did."""
    why_not = off_by_rule(run, target, ExpireConsumers.rule)
    if why_not is not None:
        return _result(run, target, (), why_not)
    table, _ = open_supported(target)
    if table.options.maintenance.consumer_time_ms is None:
        return _result(run, target, (), f"{_OPTION} is not set")
    take = idle_consumers if run.is_dry else expire_consumers
    return _result(run, target, take(table, run.clock.now_ms()), None)


def _result(
    run: MaintenanceRun, target: Target, gone: Sequence[IdleConsumer], why_not: str | None
) -> Result:
    name, verb = run.choice.shown_name(target), run.expired
    line = f"{name}: {verb} {count_text(len(gone), 'consumer')}"
    if not gone:
        line = f"{name}: no consumer {verb}{'' if why_not is None else f', because {why_not}'}"
    lines = [line, *(f"  {each.name}, next snapshot {each.next_snapshot or '?'}" for each in gone)]
    found = {"consumers": [asdict(each) for each in gone], "why_not": why_not}
    return Result(lines=lines, found=found)
