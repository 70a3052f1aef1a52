"""Since when each part of the daemon is at the same work, for `/livez`, and which jobs hang."""

from __future__ import annotations

from compactord.scheduler.scheduled_table import HUNG_JOB_MS
from compactord.scheduler.scheduler import Scheduler
from compactord.service.status_source import Facts
from compactord.service.table_jobs import ServedTables
from compactord.table.cycle import Phase

LOOP_STALE_MS = 60_000
# Before that the engine is started again, which is better than the whole process.
_SLOTS_STALE_MS = 300_000


def beat(facts: Facts, scheduler: Scheduler, tables: ServedTables, now_ms: int) -> None:
    """Write down the beats of the loop, the slots and the jobs: when, and after how long stale."""
    facts.beats["dispatcher"] = (now_ms, LOOP_STALE_MS)
    facts.beats["slots"] = (
        scheduler.engine.all_hung_since_ms(scheduler.slots, now_ms),
        _SLOTS_STALE_MS,
    )
    facts.beats["jobs"] = (scheduler.last_progress_ms(now_ms), HUNG_JOB_MS)
    for phase in Phase:
        since_ms = [
            scheduled.job.since_ms
            for scheduled in scheduler.tables.values()
            if scheduled.job is not None and tables.phase(scheduled.name) is phase
        ]
        facts.beats[phase.value] = (min(since_ms, default=now_ms), HUNG_JOB_MS)
        facts.hung_jobs[phase.value] = sum(now_ms - each > HUNG_JOB_MS for each in since_ms)
    facts.hung_jobs["maintenance"] = sum(
        each.is_maintenance_hung(now_ms) for each in scheduler.tables.values()
    )
