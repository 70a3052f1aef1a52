"""Which table gets the next free slot. Pure.

Four classes, in this order: work for which readers have waited half as long as their table's
`max_freshness_lag` or longer, the table first that is most over its own; work for which readers
wait, that keeps a table from its stop-trigger, or that has waited far too long; work that has
waited longer than its table allows; all other work, by files saved per byte. Within the second and
the third, tables alternate by weight (stride scheduling). No table starves: whatever waits becomes
urgent in time, urgent tables alternate, and the first class leaves every fourth slot to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compactord.config.policy import TablePolicy
from compactord.scheduler.status import PriorityClass
from compactord.table.backlog import PendingCompaction
from compactord.table.request import LAG_SERVED_FIRST

# Work that waits longer than this multiple of its table's limit is in the most urgent class.
_OVERDUE = 2
_ORDER = {each: place for place, each in enumerate(PriorityClass)}
# Subcompactions with at least so much input are large: they never get the last slot.
LARGE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A table that could use a slot now: for what is cut already, or for its next decision.

    It holds `slots`, at most `slots_max`. `is_large`: it would run a large subcompaction.
    `virtual_time` is the cost of the slots it got so far, divided by its weight. `lag` is how long
    readers wait, as a share of how long they may.
    """

    index: int
    priority_class: PriorityClass
    benefit: float
    weight: float
    slots: int
    slots_max: int
    is_large: bool
    virtual_time: float
    lag: float = 0.0


def lag_of(pending: PendingCompaction, policy: TablePolicy, now_ms: int) -> float:
    """How long readers have waited for the compaction, as a share of how long they may."""
    if not pending.waiting_since_ms or policy.max_freshness_lag_ms is None:
        return 0.0
    return (now_ms - pending.waiting_since_ms) / policy.max_freshness_lag_ms


def priority_class(pending: PendingCompaction, policy: TablePolicy, now_ms: int) -> PriorityClass:
    """How urgent a bucket is."""
    if lag_of(pending, policy, now_ms) >= LAG_SERVED_FIRST:
        return PriorityClass.FRESHNESS
    age_ms, max_age_ms = now_ms - pending.since_ms, policy.max_backlog_age_ms
    if pending.is_forced or age_ms > _OVERDUE * max_age_ms:
        return PriorityClass.FORCED
    return PriorityClass.BREACH if age_ms > max_age_ms else PriorityClass.BENEFIT


def most_urgent(
    offered: Iterable[PendingCompaction], policy: TablePolicy, now_ms: int
) -> PendingCompaction | None:
    """The pending compaction that a table would do next; of equals, the one that waits longest."""

    def need(pending: PendingCompaction) -> tuple[int, float, int]:
        urgency = priority_class(pending, policy, now_ms)
        if urgency is PriorityClass.BENEFIT:
            return _ORDER[urgency], -pending.benefit, pending.since_ms
        if urgency is PriorityClass.FRESHNESS:
            return _ORDER[urgency], pending.waiting_since_ms, pending.since_ms
        return _ORDER[urgency], pending.since_ms, 0

    return min(offered, key=need, default=None)


def choose(
    contenders: Sequence[Contender],
    *,
    slots: int,
    free: int,
    large_running: int,
    spares_others: bool = False,
) -> Contender | None:
    """The table that gets the next of `free` slots, None when no table may.

    A table that holds its share yields while another one can use the slot. One slot of several is
    never given to large ones: a small table does not wait for a huge one's full compaction. With
    `spares_others` a table that is not first for its readers' sake gets it, if there is one.
    """
    if free <= 0:
        return None
    large_may = slots == 1 or large_running < slots - 1
    able = [c for c in contenders if c.slots < c.slots_max and (large_may or not c.is_large)]
    if not able:
        return None
    if spares_others:
        able = [c for c in able if c.priority_class is not PriorityClass.FRESHNESS] or able
    weights = sum(contender.weight for contender in able)

    def has_less_than_share(contender: Contender) -> bool:
        return contender.slots < max(1, int(slots * contender.weight / weights))

    return min([c for c in able if has_less_than_share(c)] or able, key=_virtual_time)


def cost(size_bytes: int) -> float:
    """What a slot costs its table: about 1 for a small subcompaction, more for a large one."""
    return 1 + size_bytes / LARGE_BYTES


def _virtual_time(contender: Contender) -> tuple[int, float, float]:
    order = _ORDER[contender.priority_class]
    if contender.priority_class is PriorityClass.FRESHNESS:
        return order, -contender.lag, contender.virtual_time
    if contender.priority_class is PriorityClass.BENEFIT:
        return order, -contender.benefit * contender.weight, contender.virtual_time
    return order, contender.virtual_time, -contender.weight
