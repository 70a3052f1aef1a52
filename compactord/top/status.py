"""Rates and troubles of a view, for `top`. Quick to import, for a service's view."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from compactord.model import TableName
from compactord.service.codec import plain_fields, status_json
from compactord.service.page.attention import table_json, urgency
from compactord.service.page.notices import service_notices
from compactord.service.view import (
    ServiceView,
    TableView,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Bytes per second of committed compactions, in and out."""

    input_bytes: float
    output_bytes: float


class Source(Protocol):
    """A place that `top` watches: `name` is its URL or path."""

    name: str

    def view(self) -> ServiceView:
        """Raises `NoAnswer` if it may work later, `CompactordError` if it never will."""
        ...


def shown_name(name: TableName) -> str:
    """A table's name, without empty parts such as an unnamed catalog's."""
    return ".".join(part for part in name if part)


def place_text(partition: str, bucket: int) -> str:
    """The bucket first: a long partition may be cut short."""
    return f"b{bucket} {partition}".rstrip()


def service_troubles(view: ServiceView) -> list[str]:
    """Problems of the service itself that need an operator, as on the page."""
    notices = service_notices(view, view.now_ms)
    return [notice.text for notice in notices if notice.severity == "bad"]


def rates_between(before: ServiceView | None, now: ServiceView) -> Rates | None:
    """Speed since the previous view, or None if unknown.

    Tables that are only in one of the two, and counters that were reset, count as 0.
    """
    if before is None or not (before.is_served and now.is_served):
        return None
    seconds = (now.now_ms - before.now_ms) / 1000
    if seconds <= 0:
        return None
    known = {table.name: table.counters for table in before.tables}
    pairs = [(known[t.name], t.counters) for t in now.tables if t.name in known]
    return Rates(
        input_bytes=_growth((a.input_bytes, b.input_bytes) for a, b in pairs) / seconds,
        output_bytes=_growth((a.output_bytes, b.output_bytes) for a, b in pairs) / seconds,
    )


def _growth(pairs: Iterable[tuple[int, int]]) -> int:
    return sum(max(0, after - before) for before, after in pairs)


def by_need(view: ServiceView) -> list[TableView]:
    """Tables with problems first, as on the page."""
    return sorted(view.tables, key=lambda table: urgency(table, view.now_ms))


def frame_json(source: str, view: ServiceView, rates: Rates | None, trouble: str) -> dict[str, Any]:
    """The view as `/v1/status` and `/v1/tables` serve it, tables by need.

    `trouble` is the reason if the view is outdated, empty otherwise. Without a service, it has only
    fields that a warehouse provides.
    """
    return {
        "source": source,
        "trouble": trouble,
        "rates": None if rates is None else asdict(rates),
        "troubles": service_troubles(view),
        **(status_json(view) if view.is_served else plain_fields(("now_ms", "recent"), view)),
        "tables": [table_json(table, view.now_ms) for table in by_need(view)],
    }
