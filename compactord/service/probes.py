"""Health probes for orchestrators.

Every answer comes from the newest view and its clock (`ServiceView.reading_ms`), which runs on
when the loop that makes views stops. Stores, catalogs and single tables never fail `livez`: a
restart repairs none of them. A heartbeat is the time of a part's last progress.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from compactord.scheduler.scheduled_table import HUNG_JOB_MS
from compactord.scheduler.scheduler import Scheduler
from compactord.service.jobs import ServedTables
from compactord.service.status_source import ServiceState
from compactord.service.view import ServiceView
from compactord.table.jobs import Phase
from compactord.text import age_text

# Readiness names a catalog that has not been listed for this long.
CATALOG_REACHABLE_MS = 300_000
# The engine is restarted before that, which is cheaper than restarting the process.
_SLOTS_STALE_MS = 300_000
LOOP_STALE_MS = 60_000
# The heartbeats of these are the starts of single jobs.
_OF_ONE_JOB = frozenset(phase.value for phase in Phase)
_ALL_HUNG = {
    "slots": "every slot is lost to a worker that does not answer",
    "jobs": "every thread, or every table, waits for a call into a store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCheck:
    """A problem, worded for readers of the orchestrator's events."""

    check: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """An answer to a probe; it passes if no check failed. `warnings` do not count."""

    status: str
    failed: tuple[FailedCheck, ...]
    warnings: tuple[FailedCheck, ...] = ()

    @property
    def is_well(self) -> bool:
        return not self.failed


def _health(*failed: FailedCheck) -> Health:
    return Health(status="failed" if failed else "ok", failed=failed)


def liveness(view: ServiceView, now_ms: int) -> Health:
    """Passes if every loop has had a recent heartbeat. A restart ends a loop that hangs.

    One hung worker or job fails no check. If all hang, `slots` or `jobs` has no heartbeat.
    """
    failed = []
    for loop in view.loops:
        age_ms, stale_after_ms = now_ms - loop.heartbeat_ms, loop.stale_after_ms
        if loop.name in _OF_ONE_JOB or age_ms <= stale_after_ms:
            continue
        what = _ALL_HUNG.get(loop.name, "no heartbeat")
        text = f"{what} for {age_text(age_ms)}, at most {age_text(stale_after_ms)} are allowed"
        failed.append(FailedCheck(check=f"loop {loop.name}", message=text))
    return _health(*failed)


def startup(view: ServiceView) -> Health:
    """Passes if the engine has been up at least once."""
    if view.is_started:
        return _health()
    waits = [FailedCheck(check="start", message="the service is starting")]
    if not view.engine.is_up:
        waits.append(_engine(view))
    return _health(*waits)


def readiness(view: ServiceView, now_ms: int) -> Health:
    """Passes if the service has started and is not ending, and the engine is up.

    Unlisted catalogs and silent stores are only warnings: the page that shows why must stay
    reachable.
    """
    failed = list(startup(view).failed)
    if view.is_started and not view.engine.is_up:
        failed.append(_engine(view))
    if view.is_draining:
        failed.append(FailedCheck(check="draining", message="the service is ending"))
    return replace(_health(*failed), warnings=tuple(_unavailable(view, now_ms)))


def _unavailable(view: ServiceView, now_ms: int) -> Iterator[FailedCheck]:
    for catalog in view.catalogs:
        if since_ms := catalog.store_silent_since_ms:
            why = f"its store or server has not answered for {age_text(now_ms - since_ms)}"
        elif now_ms - catalog.last_success_ms > CATALOG_REACHABLE_MS:
            why = catalog.error or "it has not been listed lately"
        else:
            continue
        yield FailedCheck(check=f"catalog {catalog.name}", message=why)


def _engine(view: ServiceView) -> FailedCheck:
    return FailedCheck(check="engine", message=view.engine.error or "the engine is not up")


def heartbeat(facts: ServiceState, scheduler: Scheduler, tables: ServedTables, now_ms: int) -> None:
    """Record the heartbeats of the loop, the slots and the jobs, each with its stale age."""
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
