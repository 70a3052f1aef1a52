"""Starts rounds of maintenance that are due, and records their results. The same for all kinds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from compactord.clock import WallTime
from compactord.maintenance.kind import AnyKind, MaintenanceRecord, Round, UnderWay
from compactord.scheduler.effects import MaintenanceJob
from compactord.scheduler.scheduled_table import HUNG_JOB_MS, ScheduledTable
from compactord.scheduler.slots import Jobs

# Rounds that run at once: at most two of one catalog beside any of others. Rounds need memory.
ROUNDS_MAX = 8
# Threads that only short rounds use.
_SHORT_ROUNDS = 2


class Maintenance:
    """The rounds under way, over all tables; `jobs` shares the threads among catalogs."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        # Whether a second has passed since `begin` looked.
        self._has_ticked = False
        # Catalogs of which a round may be due before the next second; those that had to wait.
        self._due: set[str] = set()
        self._waiting: set[str] = set()

    @property
    def is_due(self) -> bool:
        """Whether a round may begin now."""
        return self._has_ticked or bool(self._due)

    def tick(self, tables: Collection[ScheduledTable], now_ms: int) -> None:
        """A second has passed: rounds that take too long hold up no others any more."""
        self._has_ticked = True
        for scheduled in tables:
            running = scheduled.maintenance
            if running is not None and now_ms - running.since_ms > HUNG_JOB_MS:
                self._jobs.hung(scheduled.name)

    def begin(
        self,
        tables: Collection[ScheduledTable],
        kinds: Sequence[AnyKind],
        *,
        now_ms: int,
        wall: WallTime,
    ) -> Iterator[MaintenanceJob]:
        """The rounds that begin now, marked as begun; none of a table before its first plan.

        Least recently maintained tables first. A round spares what work under way reads and writes.
        Of long ones a catalog has one, alone in its folder: branches have their files in the
        table's. Where there is place for short ones alone, these are looked for once a second.
        """
        ticks, self._has_ticked = self._has_ticked, False
        looked = set(self._jobs.catalogs) if ticks else self._due
        self._due = set()
        open_to_short, open_ = self._open_to(looked, ticks)
        self._waiting -= looked
        if not open_to_short:
            self._waiting |= looked
            return
        # By folder, whether its round is a long one.
        running = {
            each.ref.location: job.kind.is_long for each in tables if (job := each.maintenance)
        }
        have_long = _with_long_rounds(tables, now_ms)
        for scheduled in sorted(tables, key=lambda scheduled: scheduled.maintained_ms):
            location, catalog = scheduled.ref.location, scheduled.name.catalog
            if catalog not in looked or not _may(scheduled):
                continue
            if catalog not in open_to_short or running.get(location):
                self._waiting.add(catalog)
                continue
            may_be_long = location not in running and catalog not in have_long
            able = [
                kind
                for kind in kinds
                if (kind.is_short or catalog in open_)
                and (may_be_long or not kind.is_long)
                and kind.is_due(scheduled, scheduled.rounds_of(kind.name), now_ms, wall)
            ]
            if catalog not in open_ or not may_be_long:
                self._waiting.add(catalog)
            if able:
                kind = _first(scheduled, able, kinds)
                running[location] = kind.is_long
                if kind.is_long:
                    have_long.add(catalog)
                self._jobs.began(scheduled.name)
                yield _begun(scheduled, kind, tables, now_ms=now_ms, wall=wall)
                open_to_short, open_ = self._open_to(looked, ticks)
                if not open_to_short:
                    self._waiting |= looked
                    return

    def _open_to(self, catalogs: Collection[str], ticks: bool) -> tuple[set[str], set[str]]:
        """The catalogs of which short rounds are looked for, and those of which all are."""
        may_begin = self._jobs.may_begin
        to_all = {each for each in catalogs if may_begin(each, spare=_SHORT_ROUNDS)}
        return ({each for each in catalogs if may_begin(each)} if ticks else to_all), to_all

    def ended(self, scheduled: ScheduledTable, kind: AnyKind, round_: Round, now_ms: int) -> None:
        """The table may have another round, of this kind at once if there is more to do."""
        self._jobs.ended(scheduled.name)
        self._due |= self._waiting
        if round_.more:
            self._due.add(scheduled.name.catalog)
        scheduled.maintenance = None
        record = scheduled.rounds.setdefault(kind.name, MaintenanceRecord())
        # A cycle may have found new snapshots meanwhile.
        record.has_news = record.has_news or round_.more
        record.ended_ms = 0 if round_.more else now_ms
        record.counts.update(round_.counts)
        if round_.has_failed:
            record.snapshot_id = 0
        else:
            record.succeeded_ms = now_ms


def _with_long_rounds(tables: Collection[ScheduledTable], now_ms: int) -> set[str]:
    """The catalogs that have a long round, unless it hangs."""
    return {
        each.name.catalog
        for each in tables
        if (job := each.maintenance) is not None
        and job.kind.is_long
        and not each.is_maintenance_hung(now_ms)
    }


def _may(scheduled: ScheduledTable) -> bool:
    """Whether the table may have a round."""
    if scheduled.maintenance is not None or scheduled.planned is None or scheduled.is_leaving:
        return False
    return scheduled.is_worked_on and not scheduled.keeps_snapshots


def _first(
    scheduled: ScheduledTable, able: Collection[AnyKind], kinds: Collection[AnyKind]
) -> AnyKind:
    """The kind that goes first: a short one; of others the one that began longest ago.

    A short one goes before others once: they have their turn, however often short ones are due.
    """

    def began_ms(kind: AnyKind) -> int:
        return scheduled.rounds_of(kind.name).began_ms

    others_ms = max((began_ms(kind) for kind in kinds if not kind.is_short), default=0)

    def rank(kind: AnyKind) -> tuple[bool, bool, int]:
        return kind.is_short and began_ms(kind) > others_ms, not kind.is_short, began_ms(kind)

    return min(able, key=rank)


def _begun(
    scheduled: ScheduledTable,
    kind: AnyKind,
    tables: Collection[ScheduledTable],
    *,
    now_ms: int,
    wall: WallTime,
) -> MaintenanceJob:
    # Branches have their files in the same folders.
    sharing = [each for each in tables if each.ref.location == scheduled.ref.location]
    began_ms = min(each.under_way_since_ms(now_ms) for each in sharing)
    under_way = UnderWay(
        since_ms=wall.lowest_since(began_ms),
        for_ms=now_ms - began_ms,
        reads_from=scheduled.oldest_read_snapshot(now_ms),
    )
    scheduled.maintenance = job = MaintenanceJob(
        name=scheduled.name,
        since_ms=now_ms,
        kind=kind.for_table(scheduled.policy),
        under_way=under_way,
    )
    scheduled.maintained_ms = now_ms
    record = scheduled.rounds.setdefault(kind.name, MaintenanceRecord())
    record.began_ms, record.has_news = now_ms, False
    record.snapshot_id = scheduled.snapshot_id
    return job
