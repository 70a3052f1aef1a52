"""The page of all tables: health, what needs attention, tables by need, work."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from compactord.service.page.choice import Choice, choice_of, chosen, ordered, sortable, state_links
from compactord.service.page.figures import (
    age_text,
    count,
    meter,
    moment,
    more_tables,
    noted,
    nothing,
    place,
    runs_bar,
    size,
    status_mark,
    table_link,
)
from compactord.service.page.markup import Markup, columns, element, facts, grid, join, section
from compactord.service.page.need import Need, need_of
from compactord.service.page.notices import Notice, notice_list, service_notices, table_notices
from compactord.service.page.work import with_work, work_sections
from compactord.service.view import BucketView, ServiceView, TableStatus, TableView
from compactord.text import count_text

# How many are shown unless all are requested.
TABLES_SHOWN = 200
_NOTICES_SHOWN = 40
_BUCKETS_SHOWN = 20

_TABLES = columns(
    "Table, State, Sorted runs (worst bucket): runs, Level-0 files: number, Files: number, "
    "Size: number, Backlog: number, Oldest due work: number, Last commit"
)
_BUCKETS = columns("Table, Bucket, Sorted runs: runs, Level-0 files: number, Size: number")
# Left alone because the configuration says so.
_LEFT_ALONE = (TableStatus.PAUSED, TableStatus.EXCLUDED)
_NEED_MARKS = {Need.OVER_STOP: "over_stop", Need.LATE: "late", Need.NEAR_STOP: "near_stop"}


def overview(view: ServiceView, query: Mapping[str, str], now_ms: int) -> Markup:
    """The main part. The query says which tables are shown, and in which order (`choice`)."""
    choice, whole = choice_of(query), view
    view = _filtered(view, choice)
    tables = ordered(view.tables, choice, now_ms)
    more = None if choice.is_all else _all_link(choice)
    return join(
        element("h1", "Compaction", _health_mark(whole, now_ms)),
        notice_list(list(service_notices(whole, now_ms))),
        facts(_health(view, whole, now_ms), "tiles"),
        _attention(ordered(view.tables, Choice(), now_ms), choice, now_ms),
        section(
            "tables-part",
            "Tables",
            state_links(whole, choice),
            _found_text(view, whole, choice),
            _tables(tables, choice, now_ms),
        ),
        *work_sections(view, now_ms, more),
        section(
            "buckets-part",
            "Buckets with the most sorted runs",
            _buckets(view.top_buckets, more),
        ),
    )


def trouble_count(view: ServiceView, now_ms: int) -> int:
    """Notices of the service, and tables that are halted, over their stop trigger or late."""
    needs = (need_of(table, now_ms) for table in view.tables)
    service = sum(notice.severity == "bad" for notice in service_notices(view, now_ms))
    return service + sum(need <= Need.LATE for need in needs)


def _filtered(view: ServiceView, choice: Choice) -> ServiceView:
    if not (choice.sought or choice.state):
        return view
    kept = tuple(chosen(view.tables, choice))
    wanted = {table.name for table in kept}
    return replace(with_work(view, wanted.__contains__), tables=kept)


def _health_mark(view: ServiceView, now_ms: int) -> Markup:
    troubles = trouble_count(view, now_ms)
    if troubles:
        needs = "needs" if troubles == 1 else "need"
        return element("span", f"{count(troubles)} {needs} attention", class_="mark trouble")
    if view.is_draining:
        return status_mark("draining")
    if not view.is_started:
        return status_mark("starting")
    paused = sum(table.status is TableStatus.PAUSED for table in view.tables)
    if paused:
        return element("span", f"{count(paused)} paused, all others well", class_="mark paused")
    return element("span", "all well", class_="mark well")


def _health(view: ServiceView, whole: ServiceView, now_ms: int) -> Iterator[tuple[str, str]]:
    """Of the tables that are shown, and of the service, whatever is shown."""
    engine = view.engine
    restarts = f"{engine.master}, {count_text(engine.restarts, 'restart')}"
    # One that has not failed is starting.
    word = "up" if engine.is_up else "down" if engine.error else "starting"
    yield "Engine", noted(status_mark(word), restarts)
    busy = f"{count(engine.running)} of {count(engine.slots)}"
    yield "Slots", noted(join(busy, meter(engine.running, engine.slots)), "busy with merges")
    used, budget = engine.memory_reserved_bytes, engine.memory_budget_bytes
    yield "Memory", noted(join(size(used), meter(used, budget)), "reserved of ", size(budget))
    shown, total = count(len(view.tables)), count(len(whole.tables))
    tables = shown if view is whole else f"{shown} of {total}"
    totals = Counter(table.status for table in view.tables)
    statuses = ", ".join(f"{count(totals[s])} {s.value}" for s in TableStatus if totals[s])
    yield "Tables", noted(tables, statuses)
    queued = sum(view.queued.values())
    wait = "compaction waits" if queued == 1 else "compactions wait"
    yield "Queue", noted(count(queued), wait)
    backlog = [table.backlog for table in view.tables if table.status not in _LEFT_ALONE]
    oldest_ms = min((b.oldest_ms for b in backlog if b.oldest_ms), default=0)
    waits = f"oldest has waited {age_text(now_ms - oldest_ms)}" if oldest_ms else "nothing is due"
    yield "Backlog", noted(size(sum(b.size_bytes for b in backlog)), waits)
    stale = [loop.name for loop in view.loops if now_ms - loop.heartbeat_ms > loop.stale_after_ms]
    if stale:
        yield "Loops", noted(status_mark("error"), f"silent: {', '.join(stale)}")
    version = f"{view.instance}, version {view.version}"
    yield "Up for", noted(age_text(now_ms - view.started_ms), version)


def _attention(tables: Sequence[TableView], choice: Choice, now_ms: int) -> Markup | None:
    notices: list[Notice] = []
    for table in tables:
        notices.extend(table_notices(table, now_ms, names_table=True))
    if not notices:
        return None
    shown = notices if choice.is_all else notices[:_NOTICES_SHOWN]
    more = len(notices) - len(shown)
    return section(
        "attention-part",
        "Why tables are not compacted, and what to do",
        notice_list(shown),
        element("p", f"{count(more)} more; ", _all_link(choice)) if more else None,
    )


def _found_text(view: ServiceView, whole: ServiceView, choice: Choice) -> Markup | None:
    if not choice.sought:
        return None
    return element(
        "p",
        f"{count(len(view.tables))} of {count_text(len(whole.tables), 'table')}: ",
        "the name contains ",
        element("q", element("bdi", choice.sought)),
        f", the state is {choice.state.value}" if choice.state else None,
        "; ",
        element("a", "show every table", href="/"),
    )


def _tables(tables: Sequence[TableView], choice: Choice, now_ms: int) -> Markup:
    shown = tables if choice.is_all else tables[:TABLES_SHOWN]
    more = len(tables) - len(shown)
    rows = (_table_row(table, now_ms) for table in shown)
    by_need = "Most urgent need first, then larger backlog"
    caption = (
        join("Sorted as marked; ", element("a", "by need", href=replace(choice, sort="").link))
        if choice.sort
        else by_need
    )
    found = grid("tables", caption, sortable(_TABLES, choice), rows, empty="No tables.")
    rest = (
        f"{count_text(more, 'more table')}; "
        if choice.sort
        else f"{more_tables(more)} less urgent; "
    )
    return join(found, element("p", rest, _all_link(choice)) if more else None)


def _all_link(choice: Choice) -> Markup:
    return element("a", "show all", href=replace(choice, is_all=True).link)


def _table_row(table: TableView, now_ms: int) -> tuple[str, ...]:
    shape, backlog = table.shape, table.backlog
    if not table.first_poll_ms:
        unknown = (nothing(),) * (len(_TABLES) - 3)
        return table_link(table.name), _state(table, now_ms), _runs(table), *unknown
    return (
        table_link(table.name),
        _state(table, now_ms),
        _runs(table),
        count(shape.level0_files) if table.info.compaction_trigger else nothing(),
        noted(count(shape.files), f"{count(shape.small_files)} small")
        if shape.small_files
        else count(shape.files),
        size(shape.size_bytes),
        _backlog(table),
        age_text(now_ms - backlog.oldest_ms) if backlog.oldest_ms else nothing(),
        moment(table.last_commit_ms, now_ms),
    )


def _state(table: TableView, now_ms: int) -> Markup:
    need = _NEED_MARKS.get(need_of(table, now_ms))
    marks: list[str | None] = [status_mark(table.status.value)]
    if table.status in _LEFT_ALONE:
        return join(*marks, element("small", element("bdi", table.why)), separator=" ")
    if need == "late":
        marks.append(status_mark(need))
    if table.running_tasks:
        marks.append(element("small", f"{count(table.running_tasks)} running"))
    if not table.window_open:
        next_window = age_text(table.next_window_ms - now_ms) if table.next_window_ms else ""
        marks.append(
            element("small", f"window opens in {next_window}" if next_window else "window closed")
        )
    return join(*marks, separator=" ")


def _runs(table: TableView) -> Markup:
    info = table.info
    if not table.first_poll_ms:
        return element("span", f"{info.kind}: not read", class_="quiet") if info.kind else nothing()
    if not info.compaction_trigger:
        return element("span", "append: no runs", class_="quiet")
    return runs_bar(table.shape.sorted_runs_max, info.compaction_trigger, info.stop_trigger)


def _backlog(table: TableView) -> Markup:
    backlog = table.backlog
    if not backlog.tasks:
        return nothing()
    return noted(size(backlog.size_bytes), count_text(backlog.tasks, "compaction"))


def _buckets(buckets: Sequence[BucketView], more: Markup | None) -> Markup:
    rows = (
        (
            table_link(bucket.name),
            place(bucket.partition, bucket.bucket),
            runs_bar(bucket.sorted_runs, bucket.compaction_trigger, bucket.stop_trigger),
            count(bucket.level0_files),
            size(bucket.size_bytes),
        )
        for bucket in itertools.islice(buckets, _BUCKETS_SHOWN)
    )
    return grid(
        "buckets",
        "Over all tables that are neither paused nor excluded",
        _BUCKETS,
        rows,
        empty="No bucket has sorted runs.",
        more=more,
    )
