"""Does one thing with every table of a choice: one result each, one summary, one exit code."""

from __future__ import annotations

import argparse
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from structlog.contextvars import bound_contextvars

from compactord.cli.argument_values import overrides_of
from compactord.cli.arguments import error_json
from compactord.cli.choice import Choice, Target
from compactord.cli.running import FAILED, NO_ENGINE, OK, USAGE, answer, exit_code, say, tell
from compactord.errors import CompactordError, UnsupportedTable
from compactord.paimon.options.table_options import parse_options
from compactord.text import count_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a command found or did in one table: lines for people, the same as plain data."""

    lines: Sequence[str]
    found: Mapping[str, Any]
    code: int = OK


def joint_code(codes: Sequence[int]) -> int:
    """0 when nothing failed; the code of the failures when they agree; else 3."""
    failed = set(codes) - {OK}
    if not failed:
        return OK
    if len(failed) > 1 or (failed == {USAGE} and OK in codes):
        return FAILED
    return failed.pop()


def table_overrides(args: argparse.Namespace, target: Target) -> dict[str, str]:
    """Table options of the rules, and over them those of the run, if it takes any."""
    given = overrides_of(args) if "option" in args else {}
    return {**target.policy.options, **given}


def why_left_alone(args: argparse.Namespace, choice: Choice, target: Target) -> str | None:
    """Why the service does not work on the table, None if it does. Reads the table's schema."""
    options = parse_options(target.open().newest_schema(), table_overrides(args, target))
    found = choice.left_alone(target, write_only=options.write_only)
    return None if found is None else f"{found[0].value}: {found[1]}"


def note_if_left_alone(args: argparse.Namespace, choice: Choice, what: str) -> None:
    """Say that something is done with the one table that was named though the service does not."""
    if not choice.is_single:
        return
    why = why_left_alone(args, choice, choice.targets[0])
    if why is not None:
        name = choice.shown_name(choice.targets[0])
        say(f"note: {name}: {what} because it was named; serve leaves it alone: {why}")


def over_tables(
    args: argparse.Namespace,
    choice: Choice,
    work: Callable[[Target], Result],
    *,
    passes_over: bool,
    stop: threading.Event | None = None,
) -> int:
    """Print the result of `work` for each table; the exit code.

    Of one table that was named, errors are raised. Of several, a failure does not keep the others
    from their turn, and what the service leaves alone is passed over if `passes_over`. Once `stop`
    is set, or the engine cannot be had, no other table begins.
    """
    if choice.is_single:
        result = _worked(work, choice.targets[0])
        answer(args, result.found, result.lines)
        return result.code
    tables: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    # Those of tables and of what cannot be listed.
    codes: list[int] = []
    for index, target in enumerate(choice.targets):
        if (stop is not None and stop.is_set()) or NO_ENGINE in codes:
            counts["not begun"] += len(choice.targets) - index
            codes.append(NO_ENGINE if NO_ENGINE in codes else FAILED)
            break
        outcome, more, own = _one_of_several(args, choice, target, work, passes_over=passes_over)
        named = {"table": target.full_name, "catalog": target.catalog_name}
        tables.append({**named, "outcome": outcome.replace(" ", "_"), **more})
        counts[outcome] += 1
        codes += own
    for what, trouble in choice.unreadable.items():
        say(f"{what}: FAILED: {trouble}")
        counts["not listed"] += 1
        codes.append(exit_code(trouble))
    unreadable = {name: str(error) for name, error in choice.unreadable.items()}
    found = {"tables": tables, "unreadable": unreadable, "summary": dict(counts)}
    parts = ", ".join(f"{number} {what}" for what, number in counts.items())
    count = count_text(len(choice.targets), "table")
    answer(args, found, [f"{count}{': ' if parts else ''}{parts}"])
    return joint_code(codes)


def _one_of_several(
    args: argparse.Namespace,
    choice: Choice,
    target: Target,
    work: Callable[[Target], Result],
    *,
    passes_over: bool,
) -> tuple[str, Mapping[str, Any], list[int]]:
    """The outcome in words, more of it as plain data, and the code of what was not passed over."""
    name = choice.shown_name(target)
    try:
        why = why_left_alone(args, choice, target) if passes_over else None
        if why is not None:
            _print(args, [f"{name}: passed over, {why}"])
            return "passed over", {"why": why}, []
        result = _worked(work, target)
    except CompactordError as error:
        outcome = "refused" if isinstance(error, UnsupportedTable) else "failed"
        say(f"{name}: {outcome.upper()}: {error}")
        return outcome, error_json(error), [exit_code(error)]
    _print(args, result.lines)
    return "done" if result.code == OK else "failed", result.found, [result.code]


def _worked(work: Callable[[Target], Result], target: Target) -> Result:
    """The result of `work`; whatever it logs, names the table."""
    with bound_contextvars(**target.name.log_fields):
        return work(target)


def _print(args: argparse.Namespace, lines: Sequence[str]) -> None:
    """Lines for people, who are not those who ask for JSON."""
    for line in () if args.json else lines:
        tell(line)
