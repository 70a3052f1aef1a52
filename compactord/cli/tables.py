"""`compactord tables`: every table of a warehouse or configuration, its state, and why."""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compactord.cli.asked import listed_by_service
from compactord.cli.choice import Choice, Target, choose, side_by_side
from compactord.cli.running import OK, answer, exit_code, say
from compactord.cli.table_status import ASK_A_SERVICE, Listed, read_table
from compactord.clock import SystemClock
from compactord.errors import CompactordError
from compactord.table.report import columns_text
from compactord.text import count_text, size_text


def tables(args: argparse.Namespace) -> int:
    """Run the command; the exit code. Raises `UsageError` and `TableNotFound`."""
    found: Sequence[Listed]
    unreadable: Mapping[str, CompactordError] = {}
    if args.url is not None:
        found = listed_by_service(args)
    else:
        choice = choose(args, all_of_warehouse=True)
        found, unreadable = _read(choice), choice.unreadable
    counts = Counter(each.table.status.value for each in found)
    told = {
        "tables": [each.as_json() for each in found],
        "states": dict(counts),
        "unreadable": {name: str(error) for name, error in unreadable.items()},
    }
    states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    lines = [*_text(found), f"{count_text(len(found), 'table')}{': ' if states else ''}{states}"]
    lines += [ASK_A_SERVICE] if found and args.url is None else []
    answer(args, told, lines)
    for what, error in unreadable.items():
        say(f"compactord: {what} cannot be listed: {error}")
    codes = [exit_code(error) for error in unreadable.values()]
    return max(codes, default=OK)


def _read(choice: Choice) -> list[Listed]:
    clock = SystemClock(choice.zone)
    groups = itertools.groupby(choice.targets, lambda target: target.catalog_name)
    by_catalog = [list(targets) for _, targets in groups]

    def read(targets: Sequence[Target]) -> list[Listed]:
        return [read_table(choice, target, clock).listed(choice) for target in targets]

    return list(itertools.chain(*side_by_side(read, by_catalog)))


def _text(found: Sequence[Listed]) -> Iterator[str]:
    rows = [("state", "table", "kind", "engine", "runs", "files", "size", "why")]
    for each in found:
        figures = each.figures
        rows.append(
            (
                each.table.status.value,
                each.shown_name,
                figures.get("kind", ""),
                figures.get("merge_engine", ""),
                _runs(figures),
                f"{figures['files']:,}" if "files" in figures else "",
                size_text(figures["bytes"]) if "bytes" in figures else "",
                each.why,
            )
        )
    if found:
        yield from columns_text(rows, right=(5, 6))
        yield ""


def _runs(figures: Mapping[str, Any]) -> str:
    """`9 !! of 5, 8`: the runs against both triggers; of append tables `12 small`."""
    if "sorted_runs_max" not in figures:
        return f"{figures['small_files']:,} small" if "small_files" in figures else ""
    runs, trigger, stop = (
        figures[key] for key in ("sorted_runs_max", "compaction_trigger", "stop_trigger")
    )
    mark = " !!" if runs > stop else " *" if runs >= trigger else ""
    return f"{runs}{mark} of {trigger}, {stop}"
