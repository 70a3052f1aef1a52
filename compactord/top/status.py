"""The status of a service or a warehouse at one moment: the values from which a frame is drawn.

Times are milliseconds since the epoch, 0 for none; sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from compactord.clock import age_text
from compactord.model import TableName
from compactord.service.page.need import urgency
from compactord.service.view import ServiceView, TableView


class NoAnswer(Exception):
    """The status could not be read this time; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCompaction:
    """A compaction of which no more is known than its snapshot."""

    name: TableName
    snapshot_id: int
    finished_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopStatus:
    """One status. `service` is None for a warehouse: then nothing is known of running work.

    Of a warehouse `seen` has the last compactions; the catalog's name is empty in those of tables.
    """

    source: str
    now_ms: int
    tables: tuple[TableView, ...]
    service: ServiceView | None
    seen: tuple[SeenCompaction, ...] = ()

    def by_need(self) -> list[TableView]:
        """Tables with problems first, as on the page."""
        return sorted(self.tables, key=lambda table: urgency(table, self.now_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Bytes per second of committed compactions, in and out."""

    input_bytes: float
    output_bytes: float


class Source(Protocol):
    """What is asked for the status."""

    def status(self) -> TopStatus:
        """Raises `NoAnswer` if it may work later, `CompactordError` if it never will."""
        ...


def shown_name(name: TableName) -> str:
    """A table's name, without that of a catalog which has none."""
    return ".".join(part for part in name if part)


def place_text(partition: str, bucket: int) -> str:
    """The bucket first: a long partition may be cut short."""
    return f"b{bucket} {partition}".rstrip()


def service_troubles(view: ServiceView) -> Iterator[str]:
    """Sentences about the service itself."""
    if not view.engine.is_up and view.engine.error:
        yield f"the engine is down: {view.engine.error}"
    for catalog in view.catalogs:
        if catalog.error:
            yield f"catalog {catalog.name} cannot be listed: {catalog.error}"
    for catalog in view.catalogs:
        if catalog.store_silent_since_ms:
            yield f"the store or server of catalog {catalog.name} does not answer; its tables wait"
    if not view.config.last_reload_successful:
        yield f"the configuration could not be reloaded: {view.config.error}"
    for loop in view.loops:
        silent_ms = view.now_ms - loop.heartbeat_ms
        if silent_ms > loop.stale_after_ms:
            yield f"the loop {loop.name} is silent for {age_text(silent_ms)}"


def rates_between(before: TopStatus | None, now: TopStatus) -> Rates | None:
    """Speed since the previous status; None if it is unknown.

    Tables that are only in one of the two, and counters that were reset, count as 0.
    """
    if before is None or now.service is None or before.service is None:
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
