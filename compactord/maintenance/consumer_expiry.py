"""Expiry of consumers: idle readers stop pinning snapshots.

A consumer expires if its file has not changed for the table's `consumer.expiration-time`; without
the option none does, since a paused reader would lose its place. Only the table's own branch is
covered, as in consumer/ConsumerManager.java (expire).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from compactord.errors import FormatError, ObjectNotFound
from compactord.maintenance.copied_files import watched
from compactord.maintenance.kind import OpenedTable, RuledKind, UnderWay
from compactord.maintenance.own_files import own_files
from compactord.maintenance.rounds import Plan, PlannedKind, RoundResult
from compactord.paimon import paths
from compactord.paimon.snapshot import parse_consumer
from compactord.table.opening import OpenTable


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleConsumer:
    """A consumer whose file at `path` changed last at `changed_ms`, too long ago.

    `next_snapshot` is what it would have read next, or None if its file does not contain it.
    """

    name: str
    path: str
    changed_ms: int
    next_snapshot: int | None

    def __str__(self) -> str:
        return f"{self.name}, next snapshot {self.next_snapshot or '?'}"


def idle_consumers(table: OpenTable, now_ms: int) -> tuple[IdleConsumer, ...]:
    """The consumers that expire now, by name. Raises what reading raises."""
    time_ms = table.options.maintenance.consumer_time_ms
    if time_ms is None:
        return ()
    found = []
    folder, prefix = paths.consumer_folder(table.ref.root), paths.CONSUMER_PREFIX
    for status in sorted(table.storage.list(folder), key=lambda status: status.name):
        if status.is_folder or not status.name.startswith(prefix):
            continue
        if status.changed_ms < now_ms - time_ms:
            path = paths.join(folder, status.name)
            found.append(
                IdleConsumer(
                    name=status.name[len(prefix) :],
                    path=path,
                    changed_ms=status.changed_ms,
                    next_snapshot=_next_snapshot(table, path),
                )
            )
    return tuple(found)


def _next_snapshot(table: OpenTable, path: str) -> int | None:
    try:
        return parse_consumer(table.storage.read(path), path)
    except (FormatError, ObjectNotFound):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireConsumers(RuledKind[RoundResult[IdleConsumer]], PlannedKind[IdleConsumer]):
    """Due every `interval_ms`, in the windows of expiry, if the table's options enable it."""

    name = choice = key = "consumers"
    noun = "consumer"
    finished = "consumers_expired"
    rule = "expire_consumers"
    is_short = True
    is_free = True
    not_requested = "consumer.expiration-time is not set"
    counters = (("expired_consumers", "Consumers that expired."),)

    def plan(self, table: OpenedTable, under_way: UnderWay | None) -> Plan[IdleConsumer]:
        """Idle consumers; none while the table is held or being restored: they keep snapshots."""
        idle = idle_consumers(table.table, table.clock.now_ms())
        copies = watched(table, self.grace_ms)
        may_delete = (
            idle
            and table.why_held() is None
            and copies.why_wait(table.table, table.clock.now_ms()) is None
        )
        return Plan(items=idle if may_delete else ())

    def apply(
        self, table: OpenedTable, plan: Plan[IdleConsumer], result: RoundResult[IdleConsumer]
    ) -> None:
        storage, own = table.table.storage, own_files(table.table)
        for consumer in plan.items:
            status = storage.status(consumer.path)
            # The consumer may have moved or been deleted meanwhile.
            if status is not None and status.changed_ms == consumer.changed_ms:
                own.delete(consumer.path)
                result.items.append(consumer)

    def fields(self, result: RoundResult[IdleConsumer], seconds: float) -> Mapping[str, Any]:
        return {"consumers": {each.name: each.next_snapshot for each in result.items}}

    def item_json(self, item: IdleConsumer) -> Any:
        return asdict(item)
