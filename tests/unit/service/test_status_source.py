"""The view shows the loop's state; numbers of work are exact at every step."""

from __future__ import annotations

from dataclasses import replace

from compactord.config.choices import Mode
from compactord.model import WorkKind
from compactord.plan.table import TableKind
from compactord.scheduler.effects import StartCycle, StartDispatch, Submit
from compactord.scheduler.status import PriorityClass
from compactord.service.status_source import Facts, StatusKeeper, table_view
from compactord.service.view import ConfigView, EngineView, ServiceView, TableStatus, TableView
from compactord.table.status import Backlog, TableInfo
from tests.simulation.tables import MIB
from tests.unit.scheduler.test_scheduler import NAME, OTHER, Stage, only


def facts() -> Facts:
    return Facts(
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
        self._status = StatusKeeper(stage.scheduler, 5)

    def update(self) -> ServiceView:
        return self._status.update(facts(), {}, self.stage.now)

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
        assert isinstance(other, StartDispatch)
        stage.dispatched(other)
    stage.poll()
    stage.cycle_ended(next(e for e in stage.decide() if isinstance(e, StartCycle)))
    assert gallery.table().backlog == pending, "it was planned again beside what is under way"
    assert isinstance(submit, Submit)
    stage.ends(submit)
    assert gallery.table().backlog == pending, "it has finished and is not committed"
    cycles = [e for e in stage.decide() if isinstance(e, StartCycle)]
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
        PriorityClass.FORCED: 0,
        PriorityClass.BREACH: 0,
        PriorityClass.BENEFIT: 2,
    }
    assert {task.bucket for task in view.queue} == {1, 2}


def test_statuses_and_what_is_left_out() -> None:
    stage = Stage()
    stage.add(mode=Mode.PAUSED)
    stage.add(OTHER)
    for effect in stage.decide():
        stage.cycle_ended(effect)
    stage.scheduler.tables[OTHER].is_excluded = True
    view = Gallery(stage).update()
    assert [table.name for table in view.tables] == [NAME]
    assert view.tables_by_status["c", TableStatus.PAUSED] == 1
    assert view.tables_by_status["c", TableStatus.EXCLUDED] == 1
    assert sum(view.queued.values()) == 1, "excluded tables have no queue"


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


def test_success_is_told_of_the_usual_kind_from_the_first_poll_and_of_others_in_time() -> None:
    stage = Stage()
    stage.add()
    gallery = Gallery(stage)
    assert gallery.table().last_success_ms == {WorkKind.APPEND: 0}
    stage.cycle_ended(only(stage.decide()))
    scheduled = stage.scheduler.tables[NAME]
    assert scheduled.planned is not None
    keyed = TableInfo(kind=TableKind.PRIMARY_KEY.value)
    scheduled.planned = replace(scheduled.planned, info=keyed)
    first = scheduled.first_poll_ms
    assert first > 0

    def shown() -> dict[WorkKind, int]:
        view = table_view(scheduled, interval_ms=1, now_ms=stage.now, wall=stage.scheduler.wall)
        return dict(view.last_success_ms)

    assert shown() == {WorkKind.MINOR: first}
    scheduled.last_success_ms[WorkKind.FULL] = first + 5
    assert shown() == {WorkKind.MINOR: first, WorkKind.FULL: first + 5}
    scheduled.last_success_ms[WorkKind.MINOR] = first + 9
    assert shown() == {WorkKind.MINOR: first + 9, WorkKind.FULL: first + 5}
