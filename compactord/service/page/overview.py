"""The overview's contents: which tables it shows, in which order, and what is wrong.

The address holds the whole selection, so links work without a script and survive refreshes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import urlencode

from compactord.clock import iso_text
from compactord.model import TableName
from compactord.service.page.attention import Attention, attention_of, urgency
from compactord.service.view import (
    LoopView,
    ServiceView,
    TableStatus,
    TableView,
    total_queued,
)
from compactord.table.status import Backlog
from compactord.text import age_text

# Tables shown unless the address requests all.
TABLES_SHOWN = 200
_NOTICES_SHOWN = 40
_BUCKETS_SHOWN = 20
# The loop publishes a view about once a second; a view this old means that the loop hangs.
_VIEW_STALE_MS = 30_000
_NEVER_MS = 1 << 62
# Columns whose stacked cells have no label: marks and places explain themselves.
_UNLABELLED = ("State", "Bucket", "Outcome", "Class")
_COLUMNS = (
    "Table, State, Sorted runs (worst bucket): runs, Level-0 files: number, Files: number, "
    "Size: number, Backlog: number, Oldest due work: number, Last commit"
)
# The name, key and first order of each column's sorting.
_SORTS: Mapping[str, tuple[str, Callable[[TableView], float | str], bool]] = {
    "Table": ("name", lambda table: str(table.name), False),
    "State": ("state", lambda table: list(TableStatus).index(table.status), False),
    "Sorted runs (worst bucket)": ("runs", lambda table: table.shape.sorted_runs_max, True),
    "Level-0 files": ("level0", lambda table: table.shape.level0_files, True),
    "Files": ("files", lambda table: table.shape.files, True),
    "Size": ("size", lambda table: table.shape.size_bytes, True),
    "Backlog": ("backlog", lambda table: table.backlog.size_bytes, True),
    # By age: the earliest begin is the greatest age, and 0 means none.
    "Oldest due work": ("oldest", lambda table: -(table.backlog.oldest_ms or _NEVER_MS), True),
    "Last commit": ("commit", lambda table: table.last_commit_ms, True),
}


class Column(NamedTuple):
    """A column's title, the class of its cells (`number`, `text`, `runs`) and their label.

    `link` sorts by the column; `order` is `ascending` or `descending` while the page does.
    """

    title: str
    kind: str | None
    label: str | None
    link: str | None = None
    order: str | None = None


@functools.cache
def columns(described: str) -> tuple[Column, ...]:
    """Columns by their titles, with the class of cells after a colon: `Table, Size: number`."""
    found = []
    for each in described.split(","):
        title, _, kind = (part.strip() for part in each.partition(":"))
        label = None if title in _UNLABELLED else title.partition(" (")[0]
        found.append(Column(title, kind or None, label))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFilter:
    """The selection that an address requests: part of a name, a status, an order (`-size`)."""

    name_part: str = ""
    state: TableStatus | None = None
    sort: str = ""
    is_descending: bool = False
    shows_all: bool = False

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> TableFilter:
        """The filter of a query; unknown values are ignored."""
        sort = query.get("sort", "")
        name = sort.removeprefix("-")
        is_known = name in {name for name, _, _ in _SORTS.values()}
        states = {status.value: status for status in TableStatus}
        return cls(
            name_part=query.get("q", "").strip(),
            state=states.get(query.get("state", "")),
            sort=name if is_known else "",
            is_descending=sort.startswith("-") and is_known,
            shows_all="all" in query,
        )

    @property
    def query(self) -> dict[str, str]:
        given = {
            "q": self.name_part,
            "state": self.state.value if self.state else "",
            "sort": f"-{self.sort}" if self.is_descending else self.sort,
            "all": "1" if self.shows_all else "",
        }
        return {key: value for key, value in given.items() if value}

    @property
    def link(self) -> str:
        return "/?" + urlencode(self.query) if self.query else "/"

    def applied_to(self, view: ServiceView) -> ServiceView:
        """The view with the selected tables and their work only."""
        if not (self.name_part or self.state):
            return view
        part = self.name_part.casefold()
        kept = tuple(
            table
            for table in view.tables
            if part in str(table.name).casefold() and self.state in (None, table.status)
        )
        names = {table.name for table in kept}
        return replace(with_work(view, names.__contains__), tables=kept)

    def ordered(self, by_urgency: Sequence[TableView]) -> list[TableView]:
        """The tables in the requested order; ties stay in order of urgency."""
        tables = list(by_urgency)
        for name, key, _ in _SORTS.values():
            if name == self.sort:
                tables.sort(key=key, reverse=self.is_descending)
        return tables

    def columns(self) -> list[Column]:
        """The table's columns with sorting links; the sorted column's link reverses the order."""
        found = []
        for column in columns(_COLUMNS):
            name, _, is_descending = _SORTS[column.title]
            order = None
            if name == self.sort:
                is_descending = not self.is_descending
                order = "descending" if self.is_descending else "ascending"
            link = replace(self, sort=name, is_descending=is_descending).link
            found.append(column._replace(link=link, order=order))
        return found


def overview(
    whole: ServiceView, selected: TableFilter, now_ms: int
) -> tuple[int, dict[str, object]]:
    """The number of troubles, and the values of the template."""
    notices = list(service_notices(whole, now_ms))
    troubles = sum(notice.severity == "bad" for notice in notices)
    troubles += sum(attention_of(table, now_ms) <= Attention.LATE for table in whole.tables)
    view = selected.applied_to(whole)
    by_urgency = sorted(view.tables, key=lambda table: urgency(table, now_ms))
    ordered = selected.ordered(by_urgency)
    explained = [
        table
        for table in by_urgency
        if notice_severity(table) and (table.halt or table.status is not TableStatus.EXCLUDED)
    ]
    statuses = Counter(table.status for table in view.tables)
    link_to_all = replace(selected, shows_all=True).link
    return troubles, {
        "view": view,
        "table_count": len(whole.tables),
        "statuses": [(status, statuses[status]) for status in TableStatus if statuses[status]],
        "health": _health(whole, troubles),
        "notices": notices,
        "silent_loops": ", ".join(loop.name for loop in _silent_loops(whole, now_ms)),
        "backlog": Backlog.total([table.backlog for table in view.managed]),
        "blocked": Backlog.total([table.blocked for table in view.managed]),
        "explained": explained if selected.shows_all else explained[:_NOTICES_SHOWN],
        "explained_count": len(explained),
        "state_links": list(_state_links(whole, selected)),
        "tables": ordered if selected.shows_all else ordered[:TABLES_SHOWN],
        "hidden_count": 0 if selected.shows_all else max(0, len(ordered) - TABLES_SHOWN),
        "buckets": view.top_buckets[:_BUCKETS_SHOWN],
        "link_to_all": link_to_all,
        "link_by_urgency": replace(selected, sort="").link,
        "more": None if selected.shows_all else link_to_all,
    }


def with_work(view: ServiceView, is_shown: Callable[[TableName], bool]) -> ServiceView:
    """The same view with the work of the shown tables only."""
    return replace(
        view,
        running=tuple(task for task in view.running if is_shown(task.name)),
        queue=tuple(task for task in view.queue if is_shown(task.name)),
        queued=total_queued(c for name, c in view.queued_by_table.items() if is_shown(name)),
        recent=tuple(ended for ended in view.recent if is_shown(ended.name)),
        top_buckets=tuple(bucket for bucket in view.top_buckets if is_shown(bucket.name)),
    )


def _health(view: ServiceView, troubles: int) -> tuple[str, str]:
    """The class and the text of the mark next to the title."""
    if troubles:
        return "trouble", f"{troubles:,} {'needs' if troubles == 1 else 'need'} attention"
    if view.is_draining:
        return "draining", "draining"
    if not view.is_started:
        return "starting", "starting"
    paused = sum(table.status is TableStatus.PAUSED for table in view.tables)
    return ("paused", f"{paused:,} paused, otherwise well") if paused else ("well", "all well")


def _silent_loops(view: ServiceView, now_ms: int) -> list[LoopView]:
    return [loop for loop in view.loops if now_ms - loop.heartbeat_ms > loop.stale_after_ms]


def _state_links(whole: ServiceView, selected: TableFilter) -> Iterator[tuple[str, int, str, bool]]:
    """The text, count, link and whether it is selected, for each status with tables."""
    counts = Counter(table.status for table in whole.tables)
    every: list[tuple[TableStatus | None, str, int]] = [(None, "all", len(whole.tables))]
    every += [(s, s.value, counts[s]) for s in TableStatus if counts[s] or selected.state is s]
    for status, word, count in every:
        yield word, count, replace(selected, state=status).link, selected.state is status


def notice_severity(table: TableView) -> str | None:
    """`bad`, `warn` or `plain`, or None if nothing keeps the table from being compacted."""
    if table.halt is not None:
        return "plain" if table.status is TableStatus.UNSUPPORTED else "bad"
    if table.status is TableStatus.ERROR:
        return "bad"
    if not table.is_managed:
        return "plain"
    return "warn" if table.status is TableStatus.DEGRADED else None


class Notice(NamedTuple):
    """`severity` is `bad` (an operator must act) or `warn` (an operator may want to).

    `alert` names a runbook. `note` is a small line that ends with the time `at_ms`.
    """

    severity: str
    title: str
    detail: str
    alert: str = ""
    note: str = ""
    at_ms: int = 0


def service_notices(view: ServiceView, now_ms: int) -> Iterator[Notice]:
    """Problems of the service itself."""
    yield from _loop_notices(view, now_ms)
    # Before the first start the notice that the service is starting is enough.
    if not view.engine.is_up and (view.is_started or view.engine.error):
        detail = view.engine.error or "No table is compacted until it is up again."
        yield Notice("bad", "The engine is down.", detail, "CompactordSparkUnavailable")
    for catalog in view.catalogs:
        if catalog.store_silent_since_ms:
            silent = age_text(now_ms - catalog.store_silent_since_ms)
            yield Notice(
                "bad",
                f"The store or server of catalog {catalog.name} does not answer; its tables wait.",
                f"{catalog.warehouse}: no answer for {silent}; retried every 30 s.",
                "CompactordStoreSilent",
            )
        if catalog.error:
            yield Notice(
                "bad",
                f"Catalog {catalog.name} cannot be listed.",
                catalog.trouble,
                "CompactordDiscoveryFailing",
                f"{catalog.warehouse}; last listed ",
                catalog.last_success_ms,
            )
        elif view.is_started and catalog.trouble:
            title = f"Catalog {catalog.name} was {catalog.trouble}."
            yield Notice("warn", title, "Its tables are not known yet.")
    config = view.config
    if not config.last_reload_successful:
        yield Notice(
            "bad",
            f"The configuration {config.path} could not be reloaded; "
            "the last valid one stays in effect.",
            config.error,
            "CompactordConfigReloadFailed",
        )
    if config.restart_required:
        keys = ", ".join(config.restart_required)
        yield Notice("warn", "Some changed settings need a restart.", keys)
    for pattern in view.unmatched_patterns:
        yield Notice("warn", "A pattern of the configuration matches no table.", pattern)
    if view.is_draining:
        detail = "It finishes running work and starts no new work."
        yield Notice("warn", "The service is draining.", detail)
    elif not view.is_started:
        yield Notice("warn", "The service is starting.", "The engine is not up yet.")


def _loop_notices(view: ServiceView, now_ms: int) -> Iterator[Notice]:
    age_ms = now_ms - view.now_ms
    if age_ms > _VIEW_STALE_MS:
        yield Notice(
            "bad",
            f"These numbers are {age_text(age_ms)} old: the service's loop does not answer.",
            f"They were taken at {iso_text(view.now_ms)}.",
        )
    for loop in _silent_loops(view, now_ms):
        yield Notice(
            "bad",
            f"The loop {loop.name} has been silent for {age_text(now_ms - loop.heartbeat_ms)}.",
            f"A heartbeat is expected every {age_text(loop.stale_after_ms)}.",
            "CompactordLoopStalled",
        )
