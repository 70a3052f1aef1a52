"""Expiry of consumers: readers that have not recorded for long where they are keep no snapshots.

A consumer expires if its file has not changed for the table's `consumer.expiration-time`; without
the option none does, since a paused reader loses its place. Of the branch that the table is, as
consumer/ConsumerManager.java (expire).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from compactord.errors import CompactordError, FormatError, ObjectNotFound
from compactord.maintenance.copied_files import watched
from compactord.maintenance.kind import (
    Done,
    OpenedTable,
    Round,
    RuledKind,
    ShownTable,
    TableValues,
    Told,
    UnderWay,
)
from compactord.maintenance.own_files import own_files
from compactord.paimon import paths
from compactord.paimon.snapshot import parse_consumer
from compactord.text import count_text

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleConsumer:
    """A consumer whose file at `path` changed last at `changed_ms`, too long ago.

    `next_snapshot` is what it would have read next; None if its file does not say.
    """

    name: str
    path: str
    changed_ms: int
    next_snapshot: int | None


def idle_consumers(table: TableValues, now_ms: int) -> tuple[IdleConsumer, ...]:
    """The consumers that expire now, by name; changes nothing. Raises what reading raises."""
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


def expire_consumers(
    table: TableValues, now_ms: int, may_delete: Callable[[], bool] = lambda: True
) -> Sequence[IdleConsumer]:
    """Delete the consumers that expire now, if any may be; returns those that were deleted.

    Each is looked at again right before: one that has moved since, or is gone, is passed over.
    Raises what reading raises, before the first deletion, and `StorageError` if a deletion fails:
    the next round continues there. What has gone is logged in any case.
    """
    gone: list[IdleConsumer] = []
    own, idle = own_files(table), idle_consumers(table, now_ms)
    if not (idle and may_delete()):
        return ()
    try:
        for consumer in idle:
            status = table.storage.status(consumer.path)
            if status is not None and status.changed_ms == consumer.changed_ms:
                own.delete(consumer.path)
                gone.append(consumer)
    finally:
        if gone:
            _log.info(
                "consumers_expired", consumers={each.name: each.next_snapshot for each in gone}
            )
    return gone


def _next_snapshot(table: TableValues, path: str) -> int | None:
    try:
        return parse_consumer(table.storage.read(path), path)
    except (FormatError, ObjectNotFound):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireConsumers(RuledKind[Sequence[IdleConsumer]]):
    """Due every `interval_ms`, in the windows of expiry, where options ask for it."""

    name = choice = "consumers"
    rule = "expire_consumers"
    is_short = True
    is_free = True
    unasked = "consumer.expiration-time is not set"
    counters = (("expired_consumers", "Consumers that expired."),)

    def preview(self, table: OpenedTable) -> Done[Sequence[IdleConsumer]]:
        idle = idle_consumers(table.table, table.clock.now_ms())
        return Done(rounds=[idle if idle and self._may_delete(table) else ()])

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> Sequence[IdleConsumer]:
        now_ms = table.clock.now_ms()
        return expire_consumers(table.table, now_ms, lambda: self._may_delete(table))

    def _may_delete(self, table: OpenedTable) -> bool:
        """Consumers keep snapshots, none of which may go from a held or restored table."""
        copies, now_ms = watched(table, self.grace_ms), table.clock.now_ms()
        return table.why_held() is None and copies.why_wait(table.table, now_ms) is None

    def ended(self, result: Sequence[IdleConsumer] | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning("consumers_kept", error=str(result))
            return Round(has_failed=True)
        return Round(counts={"expired_consumers": len(result)})

    def told(
        self, shown: ShownTable, done: Done[Sequence[IdleConsumer]], *others: Done[Any]
    ) -> Told:
        gone, why_not = [each for round_ in done.rounds for each in round_], done.why_not
        line = f"{shown.name}: {shown.expired} {count_text(len(gone), 'consumer')}"
        if not gone:
            reason = "" if why_not is None else f", because {why_not}"
            line = f"{shown.name}: no consumer {shown.expired}{reason}"
        lines = [f"  {each.name}, next snapshot {each.next_snapshot or '?'}" for each in gone]
        found = {"consumers": [asdict(each) for each in gone], "why_not": why_not}
        return Told(lines=[line, *lines], found=found)
