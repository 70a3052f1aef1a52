"""Runs rounds of maintenance for the service and the commands; logs, counts and renders results.

A kind only plans and applies.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import structlog

from compactord.errors import CompactordError
from compactord.maintenance.kind import (
    Done,
    OfferedKind,
    OpenedTable,
    Report,
    Round,
    ShownTable,
    UnderWay,
    because,
)
from compactord.maintenance.planned_deletion import TableChanged
from compactord.table.opening import OpenTable
from compactord.text import count_text, size_text

Item = TypeVar("Item")
_log = structlog.get_logger()
# The nouns of figures, in their order in a line.
_NOUNS = {
    "data_files": "data file",
    "changelog_files": "changelog file",
    "manifests": "manifest file",
    "index_files": "index file",
    "metadata": "other file",
    "files": "data file",
    "rows": "row",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Generic[Item]):
    """A round's work, in order; `why_not` is why it is empty or incomplete, or None.

    `figures` count the parts of the items, by the kind's `figures`. `files` are the files to
    delete, or None if unknown. With `more` another round would follow at once. Versions from
    `first` to `end` (exclusive) expire; both are 0 for other items. `context` passes data that was
    read to `apply` and `fields`.
    """

    items: Sequence[Item] = ()
    figures: Mapping[str, int] = field(default_factory=dict)
    files: Sequence[str] | None = None
    more: bool = False
    why_not: str | None = None
    first: int = 0
    end: int = 0
    context: Any = None


@dataclass(slots=True, kw_only=True)
class RoundResult(Generic[Item]):
    """The finished part of a round, also of one that raised; fields as in `Plan`."""

    items: list[Item] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)
    more: bool = False
    why_not: str | None = None
    first: int = 0
    end: int = 0
    context: Any = None

    @classmethod
    def of(cls, plan: Plan[Item]) -> RoundResult[Item]:
        """The result before any work of the plan is done."""
        return cls(
            more=plan.more,
            why_not=plan.why_not,
            first=plan.first,
            end=plan.end,
            context=plan.context,
        )


class PlannedKind(OfferedKind[RoundResult[Item]]):
    """A kind that only plans and applies. An item is a `noun`; `verb` has the base and the past.

    `finished` is the event of a round with results, unless `apply` logs them itself; `stopped` (by
    default `<name>_failed`) the event of a round that ended early. A report has the items under
    `key`, then `figures`. The items are in the first line if `is_inline`, otherwise in a line each.
    """

    noun: ClassVar[str]
    verb: ClassVar[tuple[str, str]] = ("expire", "expired")
    key: ClassVar[str]
    figures: ClassVar[tuple[str, ...]] = ()
    finished: ClassVar[str] = ""
    stopped: ClassVar[str] = ""
    is_inline: ClassVar[bool] = False

    @abstractmethod
    def plan(self, table: OpenedTable, under_way: UnderWay | None) -> Plan[Item]:
        """The next round's work. Reads only; raises what reading raises."""

    @abstractmethod
    def apply(self, table: OpenedTable, plan: Plan[Item], result: RoundResult[Item]) -> None:
        """Do the work, after a new check of each item; `result` is right even after an error.

        Raises `TableChanged` if the remaining work must not be done.
        """

    def fields(self, result: RoundResult[Item], seconds: float) -> Mapping[str, Any]:
        """The fields of the event `finished`."""
        raise NotImplementedError

    def counted(self, result: RoundResult[Item]) -> Mapping[str, int]:
        """Increments of `counters`."""
        return {self.counters[0][0]: len(result.items)}

    def item_json(self, item: Item) -> Any:
        return str(item)

    def note(self, table: OpenTable) -> str | None:
        """A line about all items, or None."""
        return None

    def data(self, result: RoundResult[Item]) -> Mapping[str, Any]:
        """The report as plain data."""
        figures = {name: result.figures[name] for name in self.figures}
        items = [self.item_json(each) for each in result.items]
        return {self.key: items, **figures, "why_not": result.why_not}

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> RoundResult[Item]:
        start_ms = table.clock.steady_ms()
        plan = self.plan(table, under_way)
        result = RoundResult.of(plan)
        try:
            if plan.items:
                self.apply(table, plan, result)
        except TableChanged as changed:
            result.more, result.why_not = False, str(changed)
        finally:
            if result.items and self.finished:
                seconds = (table.clock.steady_ms() - start_ms) / 1000
                _log.info(self.finished, **self.fields(result, round(seconds, 3)))
        return result

    def preview(self, table: OpenedTable) -> Done[RoundResult[Item]]:
        plan = self.plan(table, None)
        result = RoundResult.of(plan)
        result.items, result.figures = [*plan.items], Counter(plan.figures)
        return Done(rounds=[result], files=plan.files)

    def ended(self, result: RoundResult[Item] | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning(f"{self.name}_failed", error=str(result))
            return Round(has_failed=True, why_not=str(result))
        if result.why_not is not None:
            _log.warning(self.stopped or f"{self.name}_failed", error=result.why_not)
        return Round(counts=self.counted(result), more=result.more, why_not=result.why_not)

    def report(
        self, shown: ShownTable, done: Done[RoundResult[Item]], *others: Done[Any]
    ) -> Report:
        result = joined(done.rounds)
        result.why_not = done.why_not or result.why_not
        found = dict(self.data(result))
        if done.files is not None:
            found["files"] = list(done.files)
        return Report(lines=self._lines(shown, result), found=found)

    def _lines(self, shown: ShownTable, result: RoundResult[Item]) -> list[str]:
        (base, past), items = self.verb, [str(each) for each in result.items]
        because_of = because(result.why_not, has_some=items)
        if not items:
            would_be = "would be " if shown.is_dry else ""
            return [f"{shown.name}: no {self.noun} {would_be}{past}", *because_of]
        head = f"would {base}" if shown.is_dry else past
        span = f"{result.first}..{result.end - 1}" if result.end else ""
        names = span or (", ".join(items) if self.is_inline else "")
        inline = f" ({names})" if names else ""
        figures = [
            count_text(result.figures[name], noun)
            for name, noun in _NOUNS.items()
            if name in self.figures and result.figures[name]
        ]
        if "size_bytes" in self.figures:
            figures.append(size_text(result.figures["size_bytes"]))
        line = f"{shown.name}: {head} {count_text(len(items), self.noun)}{inline}"
        lines = [f"{line}: {', '.join(figures)}" if figures else line]
        if not inline:
            lines += [f"  {each}" for each in items]
        note = None if shown.table is None else self.note(shown.table)
        lines += [] if note is None else [f"  {note}"]
        if result.figures["left"]:
            lines.append(
                f"  {count_text(result.figures['left'], self.noun)} more by the next check"
            )
        return [*lines, *because_of]


def joined(rounds: Sequence[RoundResult[Item]]) -> RoundResult[Item]:
    """The sum of rounds; `more` and `left` are the last one's."""
    joined = RoundResult[Item]()
    for each in rounds:
        joined.items += each.items
        joined.figures += each.figures
        joined.more, joined.why_not = each.more, joined.why_not or each.why_not
        # A later round that did not start has neither.
        joined.first, joined.end = joined.first or each.first, each.end or joined.end
    if rounds:
        joined.figures["left"] = rounds[-1].figures["left"]
    return joined
