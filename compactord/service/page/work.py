"""Tables of work: what runs, what waits, what ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from compactord.model import TableName
from compactord.scheduler.compaction import EndedCompaction, Outcome, PriorityClass, Status
from compactord.service.page.figures import (
    CLASSES,
    age_text,
    class_mark,
    count,
    kind_text,
    meter,
    moment,
    noted,
    nothing,
    place,
    reason,
    size,
    status_mark,
    table_link,
)
from compactord.service.page.markup import Markup, columns, element, grid, join, section
from compactord.service.view import ActiveCompaction, ServiceView, total_queued
from compactord.text import count_text

_RUNNING = columns(
    "Table, Bucket, Kind, Why, Files: number, Size: number, Runs: number, Progress: runs, "
    "For: number"
)
_QUEUE = (*_RUNNING[:7], *columns("Class, Waits: number"))
_RECENT = columns(
    "Table, Bucket, Kind, Why, Outcome: text, Files: number, Bytes: number, Rows: number, "
    "Took: number, Ended"
)


def work_sections(view: ServiceView, now_ms: int, more: Markup | None = None) -> Iterator[Markup]:
    """What runs, waits and ended; with `more`, a link to all, narrow screens show a few of each."""
    yield section("running-part", "Running", _running(view.running, now_ms, more))
    yield section("queue-part", "Queue", _queue(view.queue, view.queued, now_ms, more))
    yield section("recent-part", "Recent compactions", _recent(view.recent, now_ms, more))


def _running(tasks: Sequence[ActiveCompaction], now_ms: int, more: Markup | None) -> Markup:
    rows = (
        (*_task_cells(task), _progress(task), age_text(now_ms - task.started_ms)) for task in tasks
    )
    return grid(
        "running", "Merges in progress", _RUNNING, rows, empty="Nothing is running.", more=more
    )


def _queue(
    tasks: Sequence[ActiveCompaction],
    queued: Mapping[PriorityClass, int],
    now_ms: int,
    more: Markup | None,
) -> Markup:
    """`queued` counts all that wait; `tasks` may be the first of them."""
    by_class = [
        join(count(queued[kind]), element("abbr", kind.value, title=CLASSES[kind]), separator=" ")
        for kind in PriorityClass
        if queued.get(kind)
    ]
    rows = (
        (
            *_task_cells(task),
            class_mark(task.priority_class),
            age_text(now_ms - task.queued_ms),
        )
        for task in tasks
    )
    caption = f"The next {count(len(tasks))}, the most urgent first"
    waiting = join("; waiting in all: ", join(*by_class, separator=", ")) if by_class else None
    titled = join(caption, waiting)
    return grid("queue", titled, _QUEUE, rows, empty="Nothing waits.", more=more)


def _recent(compactions: Sequence[EndedCompaction], now_ms: int, more: Markup | None) -> Markup:
    rows = (
        (
            table_link(ended.name),
            place(ended.partition, ended.bucket),
            kind_text(ended.kind),
            reason(ended.reason),
            _outcome(ended),
            _change(
                count,
                ended.files_in,
                ended.files_out,
                f"{count(ended.upgraded_files)} upgraded" if ended.upgraded_files else None,
            ),
            _change(size, ended.bytes_in, ended.bytes_out),
            _change(count, ended.rows_in, ended.rows_out),
            f"{ended.seconds:,.1f} s",
            moment(ended.finished_ms, now_ms),
        )
        for ended in compactions
    )
    return grid(
        "recent",
        "Newest first",
        _RECENT,
        rows,
        empty="Nothing has been compacted yet.",
        more=more,
    )


def with_work(view: ServiceView, wanted: Callable[[TableName], bool]) -> ServiceView:
    """The same view with only the wanted tables' work."""
    return replace(
        view,
        running=tuple(task for task in view.running if wanted(task.name)),
        queue=tuple(task for task in view.queue if wanted(task.name)),
        queued=total_queued(c for name, c in view.queued_by_table.items() if wanted(name)),
        recent=tuple(ended for ended in view.recent if wanted(ended.name)),
        top_buckets=tuple(bucket for bucket in view.top_buckets if wanted(bucket.name)),
    )


def _task_cells(task: ActiveCompaction) -> tuple[str, ...]:
    return (
        table_link(task.name),
        place(task.partition, task.bucket),
        kind_text(task.kind),
        reason(task.reason),
        count(task.files),
        size(task.size_bytes),
        count(task.sorted_runs) if task.sorted_runs else nothing(),
    )


def _progress(task: ActiveCompaction) -> Markup:
    return join(
        f"{count(task.subcompactions_done)} of {count_text(task.subcompactions, 'subcompaction')}"
        if task.status in (None, Status.RUNNING)
        else task.status.value,
        meter(task.subcompactions_done, task.subcompactions),
    )


def _outcome(ended: EndedCompaction) -> Markup:
    snapshot = f" snapshot {ended.snapshot_id}" if ended.snapshot_id else None
    mark = status_mark(ended.outcome.value)
    if ended.outcome is Outcome.COMMITTED:
        return join(mark, snapshot)
    return join(mark, snapshot, element("small", element("bdi", ended.message)))


def _change(text: Callable[[int], str], before: int, after: int, note: str | None = None) -> Markup:
    shown = join(text(before), text(after), separator=" → ")
    return noted(shown, note) if note else shown
