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

from compactord.model import TableName
from compactord.service.page.attention import Attention, attention_of, urgency
from compactord.service.page.notices import service_notices, silent_loops
from compactord.service.view import ServiceView, TableStatus, TableView, total_queued
from compactord.table.status import Backlog

# Tables shown unless the address requests all.
TABLES_SHOWN = 200
_NOTICES_SHOWN = 40
_BUCKETS_SHOWN = 20
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
        "silent_loops": ", ".join(loop.name for loop in silent_loops(whole, now_ms)),
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
