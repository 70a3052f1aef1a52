"""`compactord status`: one answer about a whole service, for scripts and for monitoring systems.

It judges as the page does: problems of the service, and tables by their most urgent need.
"""

from __future__ import annotations

import argparse
import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compactord.cli.running import NAGIOS_UNKNOWN, answer, say
from compactord.errors import UsageError
from compactord.service.codec import plain_fields
from compactord.service.page.attention import (
    Attention,
    attention_of,
    freshness_text,
    urgency,
    why_text,
)
from compactord.service.page.notices import service_notices
from compactord.service.view import ServiceView, TableView
from compactord.table.status import Backlog
from compactord.text import age_text, count_text, size_text
from compactord.top.daemon import DaemonSource, NoAnswer

# Problems shown as text; --json has all.
_SHOWN = 20
_PROBLEM_FIELDS = ("what", "detail", "action", "runbook")
_CRITICAL_NEEDS = (Attention.HALTED, Attention.ERROR, Attention.OVER_STOP)


class Verdict(enum.Enum):
    """A judgement of the service: its exit code, that for Nagios, and the word that Nagios uses."""

    WELL = (0, 0, "OK")
    DEGRADED = (10, 1, "WARNING")
    CRITICAL = (11, 2, "CRITICAL")
    NO_ANSWER = (12, NAGIOS_UNKNOWN, "UNKNOWN")

    @property
    def code(self) -> int:
        return self.value[0]

    @property
    def nagios_code(self) -> int:
        return self.value[1]

    @property
    def nagios_word(self) -> str:
        return self.value[2]

    @property
    def word(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem of the service, or of a table by its name; `runbook` may name an alert.

    What to do with a table is part of `detail`.
    """

    verdict: Verdict
    what: str
    detail: str
    action: str = ""
    runbook: str = ""


def status(args: argparse.Namespace) -> int:
    """Run the command; the exit code. Raises `UsageError`, but not with --nagios."""
    try:
        view = DaemonSource(args.url).view()
    except UsageError as error:
        if not args.nagios:
            raise
        say(f"compactord: {error}")
        return NAGIOS_UNKNOWN
    except NoAnswer as error:
        verdict, found, lines = Verdict.NO_ANSWER, {"error": str(error)}, [str(error)]
        perf_data = ""
    else:
        problems = list(problems_of(view))
        verdict = max(
            (each.verdict for each in problems),
            key=lambda verdict: verdict.code,
            default=Verdict.WELL,
        )
        found = _figures(view, problems)
        lines = list(_lines(args.url, view, found, problems))
        perf_data = _performance_data(found)
    if args.nagios:
        first = f"COMPACTORD {verdict.nagios_word} - {lines[0]}".replace("|", "/")
        lines = [first + perf_data, *lines[1:]]
    else:
        lines[0] = f"{verdict.word}: {lines[0]}"
    answer(args, {"status": verdict.word, **found}, lines)
    return verdict.nagios_code if args.nagios else verdict.code


def problems_of(view: ServiceView) -> Iterator[Problem]:
    """The service's problems, then its tables', the gravest first of each."""
    notices = list(service_notices(view, view.now_ms))
    for severity, verdict in (("bad", Verdict.CRITICAL), ("warn", Verdict.DEGRADED)):
        for notice in notices:
            if notice.severity == severity:
                yield Problem(
                    verdict=verdict,
                    what=notice.title,
                    detail=notice.detail,
                    action=notice.action,
                    runbook=notice.alert,
                )
    for table in sorted(view.tables, key=lambda table: urgency(table, view.now_ms)):
        need = attention_of(table, view.now_ms)
        if need <= Attention.NEAR_STOP:
            yield Problem(
                verdict=Verdict.CRITICAL if need in _CRITICAL_NEEDS else Verdict.DEGRADED,
                what=f"{table.name} {need.word}",
                detail=_detail(table, need, view.now_ms),
                runbook=need.alert,
            )


def _figures(view: ServiceView, problems: Sequence[Problem]) -> dict[str, Any]:
    """For --json. Sizes are bytes, times milliseconds since the epoch."""
    return {
        **plain_fields(("instance", "version", "started_ms", "now_ms"), view),
        "tables": dict(sorted(Counter(table.status.value for table in view.tables).items())),
        "backlog_bytes": Backlog.total([table.backlog for table in view.managed]).size_bytes,
        "queued": sum(view.queued.values()),
        "running": view.engine.running,
        "slots": view.engine.slots,
        "problems": [
            {
                **plain_fields(("what", "detail", "action", "runbook"), each),
                "status": each.verdict.word,
            }
            for each in problems
        ],
    }


def _detail(table: TableView, need: Attention, now_ms: int) -> str:
    """Why the table is in need, in words."""
    if reason := why_text(table, now_ms):
        return reason
    shape, info, backlog = table.shape, table.info, table.backlog
    found = []
    if table.has_sorted_runs and need is not Attention.LATE:
        runs = count_text(shape.sorted_runs_max, "sorted run")
        found.append(f"{runs} in a bucket, stop trigger {info.stop_trigger}")
    if table.consecutive_failures:
        found.append(count_text(table.consecutive_failures, "failure") + " in a row")
    if backlog.oldest_ms:
        age = age_text(now_ms - backlog.oldest_ms)
        found.append(f"{size_text(backlog.size_bytes)} due, the oldest for {age}")
    if freshness := freshness_text(table, now_ms):
        found.append(freshness)
    return "; ".join(found)


def _lines(
    url: str, view: ServiceView, figures: Mapping[str, Any], problems: Sequence[Problem]
) -> Iterator[str]:
    """A page of text; the first line is a summary."""
    states = ", ".join(f"{count} {state}" for state, count in figures["tables"].items())
    tables = count_text(len(view.tables), "table") + (f" ({states})" if states else "")
    yield f"{count_text(len(problems), 'problem')}, {tables}"
    up = age_text(view.now_ms - view.started_ms)
    yield f"compactord {view.version} at {url}, {view.instance}, up for {up}"
    yield (
        f"{figures['running']} of {count_text(figures['slots'], 'slot')} busy, "
        f"{count_text(figures['queued'], 'compaction')} waiting, "
        f"{size_text(figures['backlog_bytes'])} due"
    )
    for each in problems[:_SHOWN]:
        yield ""
        yield f"{each.verdict.word}: {each.what}"
        if each.detail:
            yield f"  {each.detail}"
        if each.action:
            yield f"  what to do: {each.action}"
        if each.runbook:
            yield f"  runbook: {url.rstrip('/')}/runbooks/{each.runbook}"
    if len(problems) > _SHOWN:
        yield ""
        yield f"and {count_text(len(problems) - _SHOWN, 'more problem')}: --json has all"


def _performance_data(figures: Mapping[str, Any]) -> str:
    """The end of a line for Nagios, which draws charts of these numbers."""
    tables, problems = sum(figures["tables"].values()), len(figures["problems"])
    return (
        f" | tables={tables} problems={problems} backlog={figures['backlog_bytes']}B "
        f"queued={figures['queued']} slots_busy={figures['running']}"
    )
