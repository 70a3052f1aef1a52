"""The view shows the loop's state; numbers of work are exact at every step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactord.config.choices import Mode
from compactord.errors import DataFileMissing
from compactord.maintenance.kind import MaintenanceRecord, Round
from compactord.maintenance.tags import ExpireTags
from compactord.model import TableKind, TableName, WorkKind
from compactord.paimon.data_file import BucketId
from compactord.paimon.schema import TableRef
from compactord.scheduler.compaction import Halt, HaltReason, PriorityClass
from compactord.scheduler.effects import CycleJob, DispatchJob, Submit
from compactord.scheduler.halts import HaltEnd
from compactord.scheduler.scheduler import ROUNDS_MAX, Maintenance
from compactord.scheduler.slots import Jobs
from compactord.service.status_source import ServiceState, StatusKeeper
from compactord.service.view import (
    ConfigView,
    EngineView,
    MaintenanceView,
    ServiceView,
    TableStatus,
    TableView,
    excluded_view,
    status_and_why,
)
from compactord.table.status import Backlog, BucketView, TableInfo
from tests.simulation.tables import MIB
from tests.unit.scheduler.test_scheduler import NAME, OTHER, Stage, only


def facts() -> ServiceState:
    return ServiceState(
        instance="i",
        version="1",
        started_ms=1,
        config=ConfigView(
            path="",
            last_reload_successful=True,
            last_reload_success_ms=1,
            error="",
            restart_required=(),
        ),
        engine=EngineView(
            is_up=True,
            master="local",
            restarts=0,
            error="",
            slots=2,
            running=0,
            lost_slots=0,
            memory_budget_bytes=1,
            memory_reserved_bytes=0,
            task_peak_memory_bytes=0,
            slot_busy_seconds=0.0,
        ),
    )


class Gallery:
    """A stage whose view is made after each step."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.excluded: dict[TableName, TableView] = {}
        self.facts = facts()
        self._status = StatusKeeper(stage.scheduler, 5)

    def update(self) -> ServiceView:
        return self._status.update(self.facts, self.excluded, self.stage.now)

    def table(self) -> TableView:
        return next(table for table in self.update().tables if table.name == NAME)


def test_backlog_counts_a_compaction_from_due_to_committed_and_never_twice() -> None:
    stage = Stage()
    stage.add(buckets=3)
    gallery = Gallery(stage)
    assert gallery.table().backlog == Backlog()
    for effect in stage.decide():
        stage.cycle_ended(effect)
    pending = gallery.table().backlog
    assert (pending.tasks, pending.files, pending.size_bytes) == (3, 15, 15 * MIB)
    dispatch = only(stage.decide())
    assert gallery.table().backlog == pending, "a dispatch is under way"
    stage.dispatched(dispatch)
    submit, *others = stage.decide()
    assert gallery.table().backlog == pending, "it is under way"
    for other in others:
        assert isinstance(other, DispatchJob)
        stage.dispatched(other)
    stage.poll()
    stage.cycle_ended(next(e for e in stage.decide() if isinstance(e, CycleJob)))
    assert gallery.table().backlog == pending, "it was planned again beside what is under way"
    assert isinstance(submit, Submit)
    stage.ends(submit)
    assert gallery.table().backlog == pending, "it has finished and is not committed"
    cycles = [e for e in stage.decide() if isinstance(e, CycleJob)]
    assert gallery.table().backlog == pending, "the commit runs"
    stage.cycle_ended(only([*cycles]))
    assert gallery.table().backlog.tasks == 2
    assert gallery.table().backlog.size_bytes == 10 * MIB


def test_running_and_queued_work_is_shown_for_what_it_is() -> None:
    stage = Stage(slots=1)
    stage.add(buckets=3)
    stage.submitted()
    view = Gallery(stage).update()
    assert [task.bucket for task in view.running] == [0]
    assert view.queued == {
        PriorityClass.FRESHNESS: 0,
        PriorityClass.FORCED: 0,
        PriorityClass.BREACH: 0,
        PriorityClass.BENEFIT: 2,
    }
    assert view.queued_by_table == {NAME: {PriorityClass.BENEFIT: 2}}
    assert {task.bucket for task in view.queue} == {1, 2}


def test_every_discovered_table_is_shown_with_its_status_and_why() -> None:
    stage = Stage()
    stage.add(mode=Mode.PAUSED)
    stage.add(OTHER)
    for effect in stage.decide():
        stage.cycle_ended(effect)
    stage.scheduler.tables[NAME].unmanaged_reason = "by rules.0.set.mode (c.yaml:7)"
    beside = stage.scheduler.tables[OTHER]
    beside.is_excluded, beside.unmanaged_reason = True, "not write-only"
    gallery = Gallery(stage)
    name = TableName("c", "d", "tmp_1")
    ref = TableRef(database="d", name="tmp_1", location="/wh/d.db/tmp_1")
    gallery.excluded[name] = excluded_view(name, ref.location, "discovery.excluding_tables is tmp")
    # It is being left: what runs of it is still shown, once.
    gallery.excluded[NAME] = excluded_view(NAME, ref.location, "too early")
    view = gallery.update()
    assert [(table.name, table.status, table.why) for table in view.tables] == [
        (NAME, TableStatus.PAUSED, "by rules.0.set.mode (c.yaml:7)"),
        (OTHER, TableStatus.EXCLUDED, "not write-only"),
        (name, TableStatus.EXCLUDED, "discovery.excluding_tables is tmp"),
    ]
    assert view.tables_by_status == {
        ("c", TableStatus.PAUSED): 1,
        ("c", TableStatus.EXCLUDED): 2,
    }
    assert gallery.update().tables[2] is view.tables[2], "made once for each listing"


_PAUSED, _EXCLUDED = (TableStatus.PAUSED, "by a rule"), (TableStatus.EXCLUDED, "a pattern")
_HALT = Halt(reason=HaltReason.REPEATED_FAILURES, message="missing")


@pytest.mark.parametrize(
    ("unmanaged", "halt", "error", "quarantine", "expected"),
    [
        (_EXCLUDED, _HALT, "error", "bucket 0", ("excluded", "a pattern")),
        (_PAUSED, _HALT, "error", "bucket 0", ("halted", "missing")),
        (_PAUSED, None, "error", "bucket 0", ("error", "error")),
        (_PAUSED, None, "", "bucket 0", ("paused", "by a rule; bucket 0")),
        (_PAUSED, None, "", "", ("paused", "by a rule")),
        (None, None, "error", "bucket 0", ("error", "error")),
        (None, None, "", "bucket 0", ("degraded", "bucket 0")),
        (None, None, "", "", ("active", "")),
    ],
)
def test_a_status_outranks_others(
    unmanaged: tuple[TableStatus, str] | None,
    halt: Halt | None,
    error: str,
    quarantine: str,
    expected: tuple[str, str],
) -> None:
    status, why = status_and_why(unmanaged, halt, error, quarantine)
    assert (status.value, why) == expected


def test_what_is_paused_or_excluded_does_not_wait() -> None:
    stage = Stage()
    stage.add(mode=Mode.PAUSED)
    stage.add(OTHER)
    for effect in stage.decide():
        stage.cycle_ended(effect)
    paused, other = stage.scheduler.tables[NAME], stage.scheduler.tables[OTHER]
    assert paused.offered, "it is polled all the same"
    bucket = BucketView(
        partition="",
        bucket=0,
        sorted_runs=9,
        level0_files=8,
        size_bytes=1,
        compaction_trigger=5,
        stop_trigger=8,
    )
    for scheduled in (paused, other):
        assert scheduled.planned is not None
        scheduled.planned = replace(scheduled.planned, top=(bucket,))
    view = Gallery(stage).update()
    assert (sum(view.queued.values()), [task.name for task in view.queue]) == (1, [OTHER])
    assert [top.name for top in view.top_buckets] == [OTHER]
    other.is_excluded = True
    view = Gallery(stage).update()
    assert (sum(view.queued.values()), view.queue, view.top_buckets) == (0, (), ())


def _waiting(view: ServiceView) -> tuple[int, set[int], int, int]:
    """What waits: in the queue's figures, buckets of its list, and in the tables' backlogs."""
    backlog = [table.backlog for table in view.tables]
    return (
        sum(view.queued.values()),
        {task.bucket for task in view.queue},
        sum(each.tasks for each in backlog),
        sum(each.size_bytes for each in backlog),
    )


def test_what_a_halted_table_has_due_does_not_wait() -> None:
    stage = Stage(slots=1)
    stage.add(buckets=3)
    only(stage.planned())
    gallery, scheduled = Gallery(stage), stage.scheduler.tables[NAME]
    assert _waiting(gallery.update()) == (2, {1, 2}, 3, 15 * MIB), "one is being dispatched"
    scheduled.halts[HaltEnd.CYCLE] = Halt(
        reason=HaltReason.CORRUPT_METADATA, message="torn", action="", since_ms=1, next_try_ms=2
    )
    scheduled.version += 1
    assert _waiting(gallery.update()) == (0, set(), 0, 0)
    assert gallery.table().blocked.tasks == 3, "they wait for the end of the halt"
    del scheduled.halts[HaltEnd.CYCLE]
    scheduled.version += 1
    scheduled.next_poll_ms = stage.now + 1
    assert _waiting(gallery.update())[:2] == (0, set()), "nothing begins before the next poll"
    assert gallery.table().blocked.tasks == 0
    stage.now += 1
    assert _waiting(gallery.update()) == (2, {1, 2}, 3, 15 * MIB)


def test_a_quarantined_bucket_does_not_wait_and_the_others_do() -> None:
    stage = Stage(slots=1)
    stage.add(buckets=3)
    only(stage.planned())
    gallery, scheduled = Gallery(stage), stage.scheduler.tables[NAME]
    error = DataFileMissing("/t/bucket-0/data-1", "a live data file does not exist")
    stage.job_ends(error)
    assert gallery.table().status is TableStatus.HALTED
    assert _waiting(gallery.update())[:2] == (2, {1, 2})
    stage.poll()
    stage.cycle_ended(next(e for e in stage.decide(100) if isinstance(e, CycleJob)))
    assert _waiting(gallery.update()) == (2, {1, 2}, 2, 10 * MIB)
    blocked = gallery.table().blocked
    assert (blocked.tasks, blocked.files, blocked.size_bytes) == (1, 5, 5 * MIB)
    stage.now = scheduled.quarantined[BucketId(b"", 0)].until_ms
    stage.poll()
    stage.cycle_ended(next(e for e in stage.decide() if isinstance(e, CycleJob)))
    found = _waiting(gallery.update())
    assert (found[0], found[1], found[2]) == (3, {0, 1, 2}, 3), "it may be tried again"
    assert gallery.table().blocked == Backlog()


def test_a_halted_table_keeps_what_is_known_of_it_and_an_excluded_one_has_no_halt() -> None:
    stage = Stage()
    stage.add()
    gallery = Gallery(stage)
    scheduled = stage.scheduler.tables[NAME]
    scheduled.info = TableInfo(kind=TableKind.PRIMARY_KEY.value, write_only=True)
    scheduled.halts[HaltEnd.CYCLE] = Halt(
        reason=HaltReason.UNSUPPORTED_FEATURE, message="no", action="", since_ms=1, next_try_ms=0
    )
    scheduled.version += 1
    found = gallery.table()
    assert (found.status, found.why, found.info) == (
        TableStatus.UNSUPPORTED,
        "no",
        scheduled.info,
    )
    scheduled.is_excluded, scheduled.unmanaged_reason = True, "not write-only"
    scheduled.version += 1
    found = gallery.table()
    assert (found.status, found.why, found.halt) == (TableStatus.EXCLUDED, "not write-only", None)


def test_a_table_with_a_lost_file_does_not_look_healthy() -> None:
    stage = Stage()
    stage.add()
    gallery = Gallery(stage)
    only(stage.planned())
    error = DataFileMissing("/t/bucket-0/data-1", "a live data file does not exist")
    stage.job_ends(error)
    (table,) = gallery.update().tables
    assert (table.status, table.halt and table.halt.reason) == (
        TableStatus.HALTED,
        HaltReason.DATA_FILE_MISSING,
    )
    assert table.why == "bucket 0: a live data file does not exist: /t/bucket-0/data-1"
    assert [each.bucket for each in table.quarantined] == [0]


def test_a_table_is_painted_again_only_when_something_happened_to_it() -> None:
    stage = Stage()
    stage.add()
    gallery = Gallery(stage)
    first = gallery.table()
    assert gallery.table() is first
    for effect in stage.decide():
        stage.cycle_ended(effect)
    assert gallery.table() is not first


def test_a_table_that_came_back_is_not_shown_as_the_one_that_went() -> None:
    stage = Stage()
    stage.add()
    gallery = Gallery(stage)
    stage.cycle_ended(only(stage.decide()))
    old = gallery.table()
    version = stage.scheduler.tables[NAME].version
    del stage.scheduler.tables[NAME]
    stage.add(priority=99)
    stage.scheduler.tables[NAME].version = version
    assert gallery.table() is not old
    assert gallery.table().priority == 99


def test_rounds_of_maintenance_are_shown_by_kind_with_what_they_came_to() -> None:
    stage = Stage()
    stage.add()
    gallery = Gallery(stage)
    stage.cycle_ended(only(stage.decide()))
    assert gallery.table().maintenance == {}
    scheduled = stage.scheduler.tables[NAME]
    began_ms = stage.now
    scheduled.rounds["tags"] = MaintenanceRecord(began_ms=began_ms)
    stage.now += 5
    rounds, kind = Maintenance(Jobs(ROUNDS_MAX, silent=set())), ExpireTags(interval_ms=0)
    for why_not in ("a restore may be running", None):
        rounds.ended(scheduled, kind, Round(counts={"tags": 2}, why_not=why_not), stage.now)
        scheduled.version += 1
        assert gallery.table().maintenance["tags"].why_not == (why_not or "")
    shown = MaintenanceView(began_ms=began_ms, succeeded_ms=stage.now, counts={"tags": 4})
    assert gallery.table().maintenance == {"tags": shown}


def test_a_success_is_told_only_where_there_was_one() -> None:
    stage = Stage()
    stage.add()
    gallery = Gallery(stage)
    stage.cycle_ended(only(stage.decide()))
    assert gallery.table().first_poll_ms > 0
    assert gallery.table().last_success_ms == {}
    scheduled = stage.scheduler.tables[NAME]
    scheduled.last_success_ms[WorkKind.FULL] = stage.now
    scheduled.version += 1
    assert gallery.table().last_success_ms == {WorkKind.FULL: stage.now}


def test_a_table_whose_store_is_silent_since_the_start_is_unreachable_until_it_is_read() -> None:
    stage = Stage()
    stage.add()
    gallery = Gallery(stage)
    silent = gallery.facts.silent_since_ms
    statuses = []
    for since_ms in (0, 5):
        silent[NAME.catalog] = since_ms
        table = gallery.table()
        statuses.append((table.status, table.error))
    for effect in stage.decide():
        stage.cycle_ended(effect)
    statuses.append((gallery.table().status, gallery.table().error))
    why = "unreachable: its store or server does not answer"
    assert statuses == [
        (TableStatus.ACTIVE, ""),
        (TableStatus.ERROR, why),
        (TableStatus.ACTIVE, ""),
    ]
