"""Which table gets the next free slot. Pure.

Three classes, in this order: work that keeps a table from its stop-trigger or has waited far too
long; work that has waited longer than its table allows; all other work, by files saved per byte.
Within the first two, tables alternate by weight (stride scheduling). No table starves: whatever
waits becomes urgent in time, and urgent tables alternate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compactord.scheduler.status import PriorityClass
from compactord.table.backlog import PendingCompaction

# Work that waits longer than this multiple of its table's limit is in the most urgent class.
_OVERDUE = 2
_ORDER = {PriorityClass.FORCED: 0, PriorityClass.BREACH: 1, PriorityClass.BENEFIT: 2}
# Subcompactions with at least so much input are large: they never get the last slot.
LARGE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A table that could use a slot now: for what is cut already, or for its next decision.

    It holds `slots`, at most `slots_max`. `is_large`: it would run a large subcompaction.
    `virtual_time` is the cost of the slots it got so far, divided by its weight.
    """

    index: int
    priority_class: PriorityClass
    benefit: float
    weight: float
    slots: int
    slots_max: int
    is_large: bool
    virtual_time: float


def priority_class(pending: PendingCompaction, *, max_age_ms: int, now_ms: int) -> PriorityClass:
    """How urgent a bucket is."""
    age_ms = now_ms - pending.since_ms
    if pending.is_forced or age_ms > _OVERDUE * max_age_ms:
        return PriorityClass.FORCED
    return PriorityClass.BREACH if age_ms > max_age_ms else PriorityClass.BENEFIT


def most_urgent(
    offered: Iterable[PendingCompaction], *, max_age_ms: int, now_ms: int
) -> PendingCompaction | None:
    """The pending compaction that a table would do next; of equals, the one that waits longest."""

    def need(pending: PendingCompaction) -> tuple[int, float, int]:
        urgency = priority_class(pending, max_age_ms=max_age_ms, now_ms=now_ms)
        if urgency is PriorityClass.BENEFIT:
            return _ORDER[urgency], -pending.benefit, pending.since_ms
        return _ORDER[urgency], pending.since_ms, 0

    return min(offered, key=need, default=None)


def choose(
    contenders: Sequence[Contender], *, slots: int, free: int, large_running: int
) -> Contender | None:
    """The table that gets the next of `free` slots, None when no table may.

    A table that holds its share yields while another one can use the slot. One slot of several is
    never given to large ones: a small table does not wait for a huge one's full compaction.
    """
    if free <= 0:
        return None
    large_may = slots == 1 or large_running < slots - 1
    able = [c for c in contenders if c.slots < c.slots_max and (large_may or not c.is_large)]
    if not able:
        return None
    weights = sum(contender.weight for contender in able)

    def has_less_than_share(contender: Contender) -> bool:
        return contender.slots < max(1, int(slots * contender.weight / weights))

    return min([c for c in able if has_less_than_share(c)] or able, key=_virtual_time)


def cost(size_bytes: int) -> float:
    """What a slot costs its table: about 1 for a small subcompaction, more for a large one."""
    return 1 + size_bytes / LARGE_BYTES


def _virtual_time(contender: Contender) -> tuple[int, float, float]:
    order = _ORDER[contender.priority_class]
    if contender.priority_class is PriorityClass.BENEFIT:
        return order, -contender.benefit * contender.weight, contender.virtual_time
    return order, contender.virtual_time, -contender.weight
