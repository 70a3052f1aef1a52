from __future__ import annotations

from dataclasses import replace

import pytest

from compactord.model import TableName, WorkKind
from compactord.scheduler.status import HaltReason, TableCounters
from compactord.service.overflow import Overflow
from compactord.service.view import TableStatus, TableView
from compactord.table.status import Backlog, RunState, TableShape
from tests.views import NOW_MS, append_view, halt, table_view


def table(name: str, *, backlog_bytes: int = 0, commits: int = 0, **changes: object) -> TableView:
    return table_view(
        f"d.{name}",
        backlog=Backlog(size_bytes=backlog_bytes),
        counters=TableCounters(commits_committed=commits),
        **changes,
    )


def own(overflow: Overflow, *tables: TableView) -> set[str]:
    return {kept.name.table for kept in overflow.split(tables).tables}


def other(overflow: Overflow, *tables: TableView) -> TableView:
    (summed_up,) = overflow.split(tables).others
    return summed_up


def test_within_the_limit_every_table_is_its_own() -> None:
    split = Overflow(2).split((table("a"), table("b")))
    assert [t.name.table for t in split.tables] == ["a", "b"]
    assert (split.others, split.aggregated) == ((), 0)


def test_the_smallest_backlogs_are_summed_up() -> None:
    tables = (table("a", backlog_bytes=5), table("b", backlog_bytes=50), table("c"))
    assert own(Overflow(1), *tables) == {"b"}
    assert own(Overflow(2), *tables) == {"a", "b"}


def test_a_halted_table_has_series_of_its_own_although_nothing_of_it_waits() -> None:
    tables = (table("a", backlog_bytes=5), table("b", status=TableStatus.HALTED, halt=halt()))
    assert own(Overflow(1), *tables) == {"b"}


def test_a_table_keeps_its_series_until_another_needs_them_much_more() -> None:
    overflow = Overflow(1)
    assert own(overflow, table("a", backlog_bytes=10), table("b")) == {"a"}
    assert own(overflow, table("a", backlog_bytes=10), table("b", backlog_bytes=15)) == {"a"}
    assert own(overflow, table("a", backlog_bytes=10), table("b", backlog_bytes=25)) == {"b"}


def test_idle_tables_keep_their_places() -> None:
    overflow = Overflow(1)
    assert own(overflow, table("b", backlog_bytes=1), table("a")) == {"b"}
    assert own(overflow, table("b"), table("a")) == {"b"}


def test_each_catalog_has_its_sum() -> None:
    elsewhere = replace(table("x", commits=3), name=TableName("lab", "d", "x"))
    tables = (table("own", backlog_bytes=9), table("a", commits=2), elsewhere)
    split = Overflow(1).split(tables)
    assert [t.name for t in split.others] == [
        TableName("lab", "__other__", "__other__"),
        TableName("lake", "__other__", "__other__"),
    ]
    assert [t.counters.commits_committed for t in split.others] == [3, 2]


def commits(overflow: Overflow, *tables: TableView) -> int:
    return other(overflow, *tables).counters.commits_committed


def test_the_sums_counters_do_not_fall_when_a_table_leaves_it() -> None:
    overflow = Overflow(1)
    big = table("big", backlog_bytes=100, commits=50)
    assert commits(overflow, big, table("a", commits=7), table("b", commits=2)) == 9
    # a gets its own series, and b does a commit meanwhile
    a = table("a", backlog_bytes=900, commits=8)
    assert commits(overflow, big, a, table("b", commits=3)) == 10
    # b is dropped
    assert commits(overflow, big, a) == 10


def test_a_table_that_joins_the_sum_brings_only_what_it_does_from_then_on() -> None:
    overflow = Overflow(1)
    assert commits(overflow, table("big", backlog_bytes=10, commits=50), table("a", commits=1)) == 1
    a = table("a", backlog_bytes=900, commits=1)
    assert commits(overflow, table("big", backlog_bytes=10, commits=50), a) == 1
    assert commits(overflow, table("big", backlog_bytes=10, commits=54), a) == 5


def test_counters_by_kind_are_carried_too() -> None:
    def with_kind(name: str, count: int, backlog_bytes: int = 0) -> TableView:
        counters = TableCounters(commits_committed=1, conflicts={"x": count})  # type: ignore[dict-item]
        return replace(table(name, backlog_bytes=backlog_bytes), counters=counters)

    overflow = Overflow(1)
    own_table = table("own", backlog_bytes=5)
    first = other(overflow, own_table, with_kind("a", 2), with_kind("b", 3))
    assert first.counters.conflicts == {"x": 5}
    later = other(overflow, own_table, with_kind("a", 4))
    assert later.counters.conflicts == {"x": 7}


def summed_up(*tables: TableView) -> TableView:
    return other(Overflow(0), *tables)


def test_shapes_are_added_maximised_and_weighted() -> None:
    small = TableShape(
        buckets=1,
        files=4,
        sorted_runs_max=9,
        sorted_runs_avg=9.0,
        bucket_size_bytes_avg=100.0,
        avg_file_size_bytes_min=25.0,
        buckets_by_run_state={RunState.OVER_STOP: 1},
        last_full_compaction_ms=500,
    )
    large = TableShape(
        buckets=3,
        files=6,
        sorted_runs_max=2,
        sorted_runs_avg=1.0,
        bucket_size_bytes_avg=20.0,
        avg_file_size_bytes_min=10.0,
        buckets_by_run_state={RunState.IDLE: 3},
        last_full_compaction_ms=900,
    )
    files_only = replace(append_view(), shape=TableShape(buckets=4, bucket_size_bytes_avg=5.0))
    shape = summed_up(table("a", shape=small), table("b", shape=large), files_only).shape
    assert (shape.buckets, shape.files, shape.sorted_runs_max) == (8, 10, 9)
    assert shape.sorted_runs_avg == 3.0
    assert shape.bucket_size_bytes_avg == (100 + 3 * 20 + 4 * 5) / 8
    assert shape.avg_file_size_bytes_min == 10.0
    assert shape.buckets_by_run_state == {RunState.OVER_STOP: 1, RunState.IDLE: 3}
    assert shape.last_full_compaction_ms == 500


def test_triggers_are_those_of_the_table_with_the_most_runs() -> None:
    wide = table_view("d.wide", runs=12)
    wide = replace(wide, info=replace(wide.info, compaction_trigger=20, stop_trigger=30))
    info = summed_up(table_view("d.narrow", runs=3), wide, append_view()).info
    assert (info.kind, info.compaction_trigger, info.stop_trigger) == ("primary-key", 20, 30)


def test_append_tables_alone_have_no_triggers() -> None:
    assert summed_up(append_view("d.a"), append_view("d.b")).info.compaction_trigger == 0


def waiting(name: str, *, open_window: bool = True, **success_ms: int) -> TableView:
    return table_view(
        f"d.{name}",
        backlog=Backlog(tasks=1, oldest_ms=NOW_MS),
        window_open=open_window,
        last_success_ms={WorkKind[kind.upper()]: at for kind, at in success_ms.items()},
    )


def test_the_last_success_is_that_of_the_table_that_waits_longest() -> None:
    """Table a succeeded at 100, b at 200: neither kind by kind, nor by tables without work."""
    a = waiting("a", minor=100, full=50, expire=9000)
    b = waiting("b", minor=10, full=200)
    idle = table_view("d.idle", last_success_ms={WorkKind.MINOR: 1})
    closed = waiting("closed", open_window=False, minor=2)
    both = summed_up(a, b, idle, closed)
    assert both.last_success_ms == {WorkKind.MINOR: 100, WorkKind.FULL: 50}
    assert both.window_open
    assert not summed_up(idle, closed).window_open


@pytest.mark.parametrize("status", [TableStatus.PAUSED, TableStatus.HALTED])
def test_nothing_is_waited_for_on_tables_that_are_left_alone(status: TableStatus) -> None:
    left_alone = replace(waiting("left", minor=1), status=status)
    fine = replace(waiting("fine", minor=900), backlog=Backlog())
    assert not summed_up(left_alone, fine).window_open
    busy = waiting("busy", minor=500)
    assert summed_up(left_alone, fine, busy).last_success_ms == busy.last_success_ms


def test_age_and_limit_of_the_backlog_are_of_the_table_that_is_due_first() -> None:
    strict = replace(
        waiting("strict"), backlog=Backlog(tasks=1, oldest_ms=900), max_backlog_age_ms=50
    )
    lax = replace(waiting("lax"), backlog=Backlog(tasks=2, oldest_ms=100), max_backlog_age_ms=5000)
    both = summed_up(strict, lax, table("idle"))
    assert both.backlog.tasks == 3
    assert (both.backlog.oldest_ms, both.max_backlog_age_ms) == (900, 50)
    assert summed_up(table("idle")).backlog.oldest_ms == 0


def test_a_halted_table_shows_in_the_sum() -> None:
    assert summed_up(table("a"), table("b", halt=halt())).halt == halt()


def test_a_table_that_was_halted_hides_behind_no_unsupported_one() -> None:
    unsupported = table("a", halt=halt(HaltReason.UNSUPPORTED_FEATURE))
    corrupt = table("b", halt=halt(HaltReason.CORRUPT_METADATA))
    assert summed_up(unsupported, corrupt).halt == corrupt.halt


def test_what_is_paused_is_no_backlog_and_over_no_trigger() -> None:
    pending = Backlog(tasks=1, files=5, size_bytes=9, oldest_ms=100)
    bands = {RunState.OVER_STOP: 3}
    paused = table("paused", runs=20, status=TableStatus.PAUSED)
    paused = replace(
        paused, backlog=pending, shape=replace(paused.shape, buckets_by_run_state=bands)
    )
    both = summed_up(paused, table("calm", runs=2))
    assert both.backlog == Backlog()
    assert both.shape.sorted_runs_max == 2
    assert not both.shape.buckets_by_run_state.get(RunState.OVER_STOP)
    assert both.shape.files == 2 * paused.shape.files, "its files are there all the same"
    alone = summed_up(paused, paused)
    assert (alone.status, alone.backlog, alone.info.kind) == (TableStatus.PAUSED, Backlog(), "")
