"""Priorities of compactions, and their load at the engine.

Pure.

Four classes, in this order: work for which readers have waited at least half of their table's
`max_freshness_lag`, the table with the largest share first; work for which readers
wait, that keeps a table from its stop-trigger, or that has waited far too long; work that has
waited longer than its table allows; all other work, by files saved per byte. Within the second and
the third, tables alternate by weight (stride scheduling). No table starves: waiting work becomes
urgent in time, urgent tables alternate, and the first class leaves every fourth slot to others.

A subcompaction without an outcome within its time limit is hung. Its compaction ends at once; its
slot is lost until the engine reports its end or is started again. Pure except for its state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from compactord.config.model import Limits
from compactord.config.policy import TablePolicy
from compactord.model import Subcompaction
from compactord.scheduler.compaction import CompactionRecord, PriorityClass
from compactord.table.backlog import PendingCompaction
from compactord.table.planning import LAG_SERVED_FIRST
from compactord.text import age_text

# Work that waits longer than this multiple of its table's limit is in the most urgent class.
_OVERDUE = 2
_ORDER = {each: place for place, each in enumerate(PriorityClass)}
# Subcompactions with at least this much input are large: they never get the last slot.
LARGE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A table that could use a slot now: for a cut subcompaction, or for its next decision.

    It holds `slots`, at most `slots_max`. `is_large`: it would run a large subcompaction.
    `virtual_time` is the cost of the slots it got so far, divided by its weight. `lag` is the wait
    of readers as a share of their limit.
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
    """The readers' wait for the compaction, as a share of their limit."""
    if not pending.waiting_since_ms or policy.max_freshness_lag_ms is None:
        return 0.0
    return (now_ms - pending.waiting_since_ms) / policy.max_freshness_lag_ms


def priority_class(pending: PendingCompaction, policy: TablePolicy, now_ms: int) -> PriorityClass:
    """The class of a bucket's work."""
    if lag_of(pending, policy, now_ms) >= LAG_SERVED_FIRST:
        return PriorityClass.FRESHNESS
    age_ms, max_age_ms = now_ms - pending.since_ms, policy.max_backlog_age_ms
    if pending.is_forced or age_ms > _OVERDUE * max_age_ms:
        return PriorityClass.FORCED
    return PriorityClass.BREACH if age_ms > max_age_ms else PriorityClass.BENEFIT


def most_urgent(
    offered: Iterable[PendingCompaction], policy: TablePolicy, now_ms: int
) -> PendingCompaction | None:
    """The next pending compaction of a table; of equals, the one that waits longest."""

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
    """The table that gets the next of `free` slots, or None if no table may.

    A table that holds its share yields while another one can use the slot. One slot of several is
    never given to large ones: a small table does not wait for a huge one's full compaction. With
    `spares_others` a table that is not first because of its readers gets it, if there is one.
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
    """The cost of a slot: about 1 for a small subcompaction, more for a large one."""
    return 1 + size_bytes / LARGE_BYTES


def _virtual_time(contender: Contender) -> tuple[int, float, float]:
    order = _ORDER[contender.priority_class]
    if contender.priority_class is PriorityClass.FRESHNESS:
        return order, -contender.lag, contender.virtual_time
    if contender.priority_class is PriorityClass.BENEFIT:
        return order, -contender.benefit * contender.weight, contender.virtual_time
    return order, contender.virtual_time, -contender.weight


# The engine is restarted once subcompactions have hung for this long and no other work runs.
RESTART_IDLE_MS = 60_000
# It is restarted regardless of other work once a subcompaction has hung for this long.
RESTART_AT_LAST_MS = 3_600_000

# A longer gap between two checks of the time limits is a pause, which does not count.
PAUSE_MS = 30_000

# A subcompaction's compaction and its index.
Key = tuple[int, int]


def time_limit_ms(limits: Limits, size_bytes: int) -> int:
    """The time limit of a subcompaction that reads this much."""
    return limits.task_timeout_ms + 1000 * size_bytes // limits.task_min_bytes_per_s


@dataclass(slots=True, kw_only=True, eq=False)
class Submitted:
    """A subcompaction at the engine. Times are steady; 0 means not yet."""

    record: CompactionRecord
    subcompaction: Subcompaction
    # About how much it reads.
    size_bytes: int
    is_large: bool
    limit_ms: int
    # Latest possible start; it may have queued before that.
    began_ms: int = 0
    hung_ms: int = 0

    @property
    def is_abandoned(self) -> bool:
        """Whether its compaction has ended; its worker may still run."""
        return not self.record.is_under_way

    @property
    def key(self) -> Key:
        return self.subcompaction.compaction_id, self.subcompaction.index


@dataclass(slots=True)
class AtEngine:
    """Subcompactions at the engine, and their time limits."""

    # In the order of submission, which is the order in which they begin.
    _submitted: dict[Key, Submitted] = field(default_factory=dict)
    _restart_requested_ms: int = 0
    _checked_ms: int = 0

    @property
    def running(self) -> int:
        """How many are within their time limit."""
        return len(self._submitted) - self.hung

    @property
    def hung(self) -> int:
        """How many exceeded their time limit; each occupies a lost slot."""
        return sum(each.hung_ms > 0 for each in self._submitted.values())

    @property
    def large_running(self) -> int:
        return sum(each.is_large and not each.hung_ms for each in self._submitted.values())

    def add(self, submitted: Submitted) -> None:
        self._submitted[submitted.key] = submitted
        submitted.record.table.at_engine[submitted.key] = submitted

    def ended(self, key: Key) -> Submitted | None:
        """Removes a subcompaction with an outcome, which frees its slot; None if it is unknown."""
        ended = self._submitted.pop(key, None)
        if ended is not None:
            del ended.record.table.at_engine[key]
        return ended

    def clear(self) -> None:
        for key in list(self._submitted):
            self.ended(key)

    def of_compaction(self, compaction_id: int) -> list[Submitted]:
        """The subcompactions of one compaction that are still at the engine."""
        return [each for (of, _), each in self._submitted.items() if of == compaction_id]

    def overdue(self, at_once: int, now_ms: int) -> Iterator[Submitted]:
        """Subcompactions whose time has just run out; `at_once` is the engine's parallelism.

        Call it every few seconds. A longer gap between calls does not count: the
        machine was frozen, or outcomes could not be received.
        """
        paused_ms, self._checked_ms = now_ms - self._checked_ms, now_ms
        if paused_ms > PAUSE_MS:
            for each in self._submitted.values():
                each.began_ms += paused_ms if each.began_ms else 0
        for place, each in enumerate(list(self._submitted.values())):
            if place >= at_once and not each.hung_ms:
                # It waits for a core; a running one may have lost its executor.
                each.began_ms = 0
            elif not each.began_ms:
                each.began_ms = now_ms
            if each.began_ms and not each.hung_ms and now_ms - each.began_ms > each.limit_ms:
                each.hung_ms = now_ms
                yield each

    def all_hung_since_ms(self, slots: int, now_ms: int) -> int:
        """The time since when no slot can be used, or `now_ms` if one can."""
        hung = [each.hung_ms for each in self._submitted.values() if each.hung_ms]
        return max(hung) if hung and len(hung) >= slots else now_ms

    def why_restart(self, now_ms: int) -> str | None:
        """Why the engine must be restarted, which ends all its workers.

        None if it need not be, or a restart was requested a moment ago.
        """
        hung = [each.hung_ms for each in self._submitted.values() if each.hung_ms]
        if not hung or now_ms - self._restart_requested_ms < RESTART_IDLE_MS:
            return None
        others = any(each.began_ms and not each.hung_ms for each in self._submitted.values())
        is_alone = not others and now_ms - max(hung) >= RESTART_IDLE_MS
        if not is_alone and now_ms - min(hung) < RESTART_AT_LAST_MS:
            return None
        self._restart_requested_ms = now_ms
        return (
            f"{len(hung)} of its workers did not answer within their time limit, nor did they end"
            f" when they were cancelled {age_text(now_ms - min(hung))} ago"
        )
