"""Which tables the overview shows, and in which order: from the query to the links that change it.

Everything is in the address, so it works without a script and outlives the page's refreshing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from compactord.service.page.figures import count
from compactord.service.page.markup import Column, Markup, element
from compactord.service.page.need import urgency
from compactord.service.view import ServiceView, TableStatus, TableView

_NEVER_MS = 1 << 62
# What each column is sorted by; a column whose largest values matter begins with these.
_SORTS: Mapping[str, tuple[str, Callable[[TableView], float | str], bool]] = {
    "Table": ("name", lambda table: str(table.name), False),
    "State": ("state", lambda table: list(TableStatus).index(table.status), False),
    "Sorted runs (worst bucket)": ("runs", lambda table: table.shape.sorted_runs_max, True),
    "Level-0 files": ("level0", lambda table: table.shape.level0_files, True),
    "Files": ("files", lambda table: table.shape.files, True),
    "Size": ("size", lambda table: table.shape.size_bytes, True),
    "Backlog": ("backlog", lambda table: table.backlog.size_bytes, True),
    # By age: what began to wait first has waited longest, and 0 is nothing.
    "Oldest due work": ("oldest", lambda table: -(table.backlog.oldest_ms or _NEVER_MS), True),
    "Last commit": ("commit", lambda table: table.last_commit_ms, True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the address asks for: part of a name, a state, an order (`-size`), all tables."""

    sought: str = ""
    state: TableStatus | None = None
    sort: str = ""
    is_descending: bool = False
    is_all: bool = False

    @property
    def query(self) -> dict[str, str]:
        sort = f"-{self.sort}" if self.is_descending else self.sort
        given = {
            "q": self.sought,
            "state": self.state.value if self.state else "",
            "sort": sort,
            "all": "1" if self.is_all else "",
        }
        return {key: value for key, value in given.items() if value}

    @property
    def link(self) -> str:
        return "/?" + urlencode(self.query) if self.query else "/"


def choice_of(query: Mapping[str, str]) -> Choice:
    """What a query asks for; values that mean nothing are left out."""
    sort = query.get("sort", "")
    names = {name for name, _, _ in _SORTS.values()}
    states = {status.value: status for status in TableStatus}
    return Choice(
        sought=query.get("q", "").strip(),
        state=states.get(query.get("state", "")),
        sort=sort.removeprefix("-") if sort.removeprefix("-") in names else "",
        is_descending=sort.startswith("-") and sort[1:] in names,
        is_all="all" in query,
    )


def chosen(tables: Sequence[TableView], choice: Choice) -> list[TableView]:
    """The tables that are asked for."""
    sought = choice.sought.casefold()
    return [
        table
        for table in tables
        if sought in str(table.name).casefold() and choice.state in (None, table.status)
    ]


def ordered(tables: Sequence[TableView], choice: Choice, now_ms: int) -> list[TableView]:
    """Most urgent need first; where another order is asked for, that comes before."""
    found = sorted(tables, key=lambda table: urgency(table, now_ms))
    for name, value, _ in _SORTS.values():
        if name == choice.sort:
            found.sort(key=value, reverse=choice.is_descending)
    return found


def sortable(columns: Sequence[Column], choice: Choice) -> list[Column]:
    """The columns with links that sort by them; that of the one in use turns the order round."""
    found = []
    for column in columns:
        name, _, is_descending = _SORTS[column.title]
        order = None
        if name == choice.sort:
            is_descending = not choice.is_descending
            order = "descending" if choice.is_descending else "ascending"
        link = replace(choice, sort=name, is_descending=is_descending).link
        found.append(column._replace(link=link, order=order))
    return found


def state_links(view: ServiceView, choice: Choice) -> Markup:
    """A link for each state that a table has, with how many have it."""
    counts = Counter(table.status for table in view.tables)
    shown: list[tuple[TableStatus | None, str, int]] = [(None, "all", len(view.tables))]
    shown += [(s, s.value, counts[s]) for s in TableStatus if counts[s] or choice.state is s]
    items = (
        element(
            "a",
            f"{word} {count(number)}",
            href=replace(choice, state=status).link,
            aria_current="true" if choice.state is status else None,
        )
        for status, word, number in shown
    )
    return element("nav", *items, class_="states", aria_label="Tables by state")
