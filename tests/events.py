"""The log's events as `docs/events.md` tells them: the one place where tests know them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parents[1] / "docs" / "events.md"
TABLE = frozenset({"catalog", "database", "table"})
# What every event of a section has.
_OWNERS = {
    "Table events": TABLE,
    "Catalog events": frozenset({"catalog"}),
    "Service events": frozenset[str](),
}
_EVERYWHERE = {"ts", "level", "event", "logger", "version", "instance", "suppressed"}
_ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<level>\w+) \| (?P<fields>[^|]*)\| [^|]+ \|$")


@dataclass(frozen=True, slots=True)
class Told:
    """A row of the document.

    `owner` are the fields that name the table or catalog, `sometimes` those that not every such
    event has.
    """

    owner: frozenset[str]
    level: str
    always: frozenset[str]
    sometimes: frozenset[str]


@cache
def told_events() -> Mapping[str, Told]:
    """The document's rows by the names of events."""
    found: dict[str, Told] = {}
    section = ""
    for line in DOCUMENT.read_text().splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        row = _ROW.match(line)
        if row is None:
            continue
        assert row["name"] not in found, f"{row['name']} is told twice"
        sometimes = frozenset(re.findall(r"\(`(\w+)`\)", row["fields"]))
        fields = frozenset(re.findall(r"`(\w+)`", row["fields"]))
        found[row["name"]] = Told(_OWNERS[section], row["level"], fields - sometimes, sometimes)
    return found


def untold(lines: list[dict[str, Any]]) -> Iterator[tuple[str, set[str]]]:
    """The events of compactord in a log that are not as told, with the fields in question."""
    for line in lines:
        if not line["logger"].startswith("compactord"):
            continue
        told = told_events()[line["event"]]
        fields = line.keys() - _EVERYWHERE
        wrong = (told.owner | told.always) - fields
        # What happens to be logged while a table is worked on names it, too.
        wrong |= fields - told.owner - told.always - told.sometimes - TABLE
        if wrong or "." in line.get("database", ""):
            yield line["event"], wrong
