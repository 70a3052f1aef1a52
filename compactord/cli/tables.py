"""`compactord tables` and `compactord why`: the status of tables, with or without a service.

With a service they read no table. `top --url` and the page show the same state and reason.

Only a service knows which tables it has halted and which buckets it has quarantined.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from compactord.cli.catalog_arguments import refuse_catalog_arguments
from compactord.cli.names import suggestion, table_test, with_catalog_of_table
from compactord.cli.running import (
    FAILED,
    OK,
    REFUSED,
    answer,
    exit_code,
    joint_code,
    say,
    summary_text,
)
from compactord.errors import (
    CompactordError,
    TableNotFound,
    UsageError,
)
from compactord.service.codec import decode, plain, plain_fields
from compactord.service.page.attention import (
    Attention,
    attempt_text,
    attention_of,
    freshness_text,
    why_text,
)
from compactord.service.view import (
    ServiceView,
    TableDetail,
    TableStatus,
    TableView,
)
from compactord.table.status import run_state
from compactord.text import (
    age_text,
    bucket_text,
    columns_text,
    count_text,
    interval_text,
    size_text,
)
from compactord.top.daemon import DaemonSource, NoAnswer

# The commands print it below their own findings.
ASK_A_SERVICE = (
    "only a running service knows what it has halted or quarantined: --url http://HOST:9464"
)


# Exit codes by the state of a table; a service of a later release may send other states.
_CODES = {"degraded": FAILED, "error": FAILED, "halted": FAILED, "unsupported": REFUSED}
# The displayed name, with the catalog if needed, and the row.
_Listed = tuple[str, dict[str, Any]]


def _row(table: TableView, now_ms: int) -> dict[str, Any]:
    """The table's row: its state and numbers; numbers of runs only for primary-key tables."""
    name, info, shape = table.name, table.info, table.shape
    has_runs = info.compaction_trigger > 0
    found: dict[str, Any] = {
        "catalog": name.catalog,
        "table": _full_name(table),
        "location": table.location,
        "state": table.status.value,
        "why": why_text(table, now_ms),
    }
    if info.kind:
        found["kind"] = info.kind
        found["merge_engine"] = info.merge_engine if has_runs else ""
        found["write_only"] = info.write_only
    if not (info.kind and table.is_read):
        return found
    found |= {
        "snapshot": shape.snapshot_id or None,
        "bucket_count": shape.buckets,
        "files": shape.files,
        "small_files": shape.small_files,
        "bytes": shape.size_bytes,
    }
    if info.readers_wait:
        found["waiting_since_ms"] = shape.waiting_since_ms or None
    if has_runs:
        found["sorted_runs_max"] = shape.sorted_runs_max
        found["compaction_trigger"] = info.compaction_trigger
        found["stop_trigger"] = info.stop_trigger
    return found


def listed_by_service(args: argparse.Namespace) -> tuple[list[_Listed], dict[str, str]]:
    """The tables of the service at `--url` that the arguments select, and its unlisted catalogs.

    Raises `NoAnswer` if none answers there, `TableNotFound` if it has none of them.
    """
    source = _source(args)
    view = _view(args, source)
    tables = _chosen(args, view)
    catalogs = decode(ServiceView, source.get("/v1/status")).catalogs
    names = {*(each.name for each in catalogs), *(table.name.catalog for table in tables)}
    has_several = len(names) > 1
    listed = [
        (str(table.name) if has_several else _full_name(table), _row(table, view.now_ms))
        for table in tables
    ]
    never = {
        f"catalog {each.name}": each.trouble
        for each in catalogs
        if not each.last_success_ms and args.catalog in (None, each.name)
    }
    return listed, never


def why_by_service(args: argparse.Namespace) -> int:
    """Run `why` with `--url`; the exit code. Raises as `listed_by_service`."""
    if args.bucket is not None or args.partition or args.pick is not None:
        raise UsageError("--bucket, --partition and --pick need --config or --warehouse")
    source = _source(args)
    view = _view(args, source)
    table, *others = _chosen(args, view)
    if others:
        catalogs = ", ".join(each.name.catalog for each in (table, *others))
        raise UsageError(
            f"{args.table}: the service has it in several catalogs ({catalogs}); "
            "give one of them by --catalog"
        )
    path = "/".join(quote(part, safe="") for part in table.name)
    detail = decode(TableDetail, source.get(f"/v1/tables/{path}"))
    detail = replace(detail, view=table, buckets=detail.buckets[: args.worst])
    known = {"quarantined": plain(table.quarantined), "bucket_count": detail.bucket_count}
    found = _why_json(detail, view.now_ms, known, _BUCKET_FIELDS)
    # A service of an earlier release sends no settings.
    is_configured = bool(detail.settings)
    lines = _why_lines(
        detail, str(table.name), view.now_ms, is_configured=is_configured, is_served=True
    )
    answer(args, found, lines)
    return OK


def _source(args: argparse.Namespace) -> DaemonSource:
    refuse_catalog_arguments(args)
    if args.config_overrides:
        raise UsageError("--set needs --config")
    return DaemonSource(args.url)


def _view(args: argparse.Namespace, source: DaemonSource) -> ServiceView:
    """The service's tables, and when it saw them so."""
    found = source.get("/v1/tables")
    if "tables" not in found:
        raise NoAnswer(f"what answers at {args.url} is not compactord")
    return decode(ServiceView, found)


def _chosen(args: argparse.Namespace, view: ServiceView) -> list[TableView]:
    """The selected tables. Raises `TableNotFound` if the arguments match none."""
    args = with_catalog_of_table(args, {table.name.catalog for table in view.tables})
    is_chosen = table_test(args)
    chosen = [
        table
        for table in view.tables
        if args.catalog in (None, table.name.catalog)
        and is_chosen(table.name.database, _full_name(table))
    ]
    wanted = args.table or args.database or args.tables or args.catalog
    if wanted is not None and not chosen:
        hint = suggestion(args, {(t.name.database, _full_name(t)) for t in view.tables})
        raise TableNotFound(f"the service at {args.url} has no table {wanted}{hint}")
    return sorted(chosen, key=lambda table: str(table.name))


def _full_name(table: TableView) -> str:
    return f"{table.name.database}.{table.name.table}"


def tables(args: argparse.Namespace) -> int:
    """Run the command; the exit code. Raises `UsageError` and `TableNotFound`."""
    found: Sequence[_Listed]
    unreadable: Mapping[str, CompactordError] = {}
    unlisted: Mapping[str, str]
    if args.url is not None:
        found, unlisted = listed_by_service(args)
    else:
        # Slow to import, and not needed to query a service.
        from compactord.cli.read_tables import listed

        views, unreadable = listed(args)
        found = [(shown_name, _row(view, now_ms)) for shown_name, view, now_ms in views]
        unlisted = {name: str(error) for name, error in unreadable.items()}
    counts = Counter(row["state"] for _, row in found)
    told = {
        "tables": [row for _, row in found],
        "states": dict(counts),
        "unreadable": unlisted,
    }
    parts = [f"{count} {state}" for state, count in sorted(counts.items())]
    summary = summary_text(len(found), parts)
    if unlisted:
        summary = summary if found else "0 tables"
        summary += f"; not listed: {', '.join(unlisted)}"
    lines = [*_text(found), summary]
    if args.url is not None:
        lines += [f"{what}: {why}" for what, why in unlisted.items()]
    elif found:
        lines.append(ASK_A_SERVICE)
    answer(args, told, lines)
    for what, error in unreadable.items():
        say(f"compactord: {what} cannot be listed: {error}")
    codes = [_CODES.get(state, OK) for state in counts]
    codes += [FAILED] if args.url is not None and unlisted else []
    return joint_code([*codes, *map(exit_code, unreadable.values())])


def _text(found: Sequence[_Listed]) -> Iterator[str]:
    rows = [("state", "table", "kind", "engine", "runs", "files", "size", "why")]
    for shown_name, row in found:
        rows.append(
            (
                row["state"],
                shown_name,
                row.get("kind", ""),
                row.get("merge_engine", ""),
                _runs(row),
                f"{row['files']:,}" if "files" in row else "",
                size_text(row["bytes"]) if "bytes" in row else "",
                row["why"],
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
    return f"{runs}{run_state(runs, trigger, stop).mark} of {trigger}, {stop}"


def why(args: argparse.Namespace) -> int:
    """Run the command; the exit code. Raises `UsageError` and `TableNotFound`."""
    for name, value, least in (("bucket", args.bucket, 0), ("worst", args.worst, 1)):
        if value is not None and value < least:
            raise UsageError(f"--{name} {value}: expected {least} or more")
    if args.url is not None:
        return why_by_service(args)
    # Slow to import, and not needed to query a service.
    from compactord.cli.read_tables import read_detail

    detail, shown_name, now_ms = read_detail(args)
    found = _why_json(detail, now_ms, {"buckets_asked": detail.bucket_count}, _REASONS)
    lines = _why_lines(detail, shown_name, now_ms, is_configured=args.config is not None)
    answer(args, found, [*lines, "", ASK_A_SERVICE])
    return OK


def _why_lines(
    detail: TableDetail,
    shown_name: str,
    now_ms: int,
    *,
    is_configured: bool,
    is_served: bool = False,
) -> Iterator[str]:
    view = detail.view
    yield f"{shown_name}  ({view.location})" if view.location else shown_name
    state, attention = view.status.value, attention_of(view, now_ms)
    if is_served and view.status is TableStatus.ACTIVE and attention is not Attention.NOTHING:
        state += f", {attention.word}"
    reason = why_text(view, now_ms)
    yield f"{state}: {reason}" if reason else state
    if freshness := freshness_text(view, now_ms):
        yield freshness
    if is_configured:
        yield f"rules that match: {', '.join(detail.rules) or 'none'}"
        yield from (f"a rule looks similar: {rule}" for rule in detail.similar_rules)
        if view.status is TableStatus.ACTIVE and detail.poll and not is_served:
            yield f"the service polls it every {detail.poll}"
    for kind, opens in detail.closed_windows.items():
        yield f"window: {kind.value} work may not start now; it {opens}"
    if interval_ms := view.discovery_interval_ms:
        left_ms = max(0, view.last_poll_ms + interval_ms - now_ms)
        every = detail.poll or interval_text(interval_ms)
        has_failed = view.status is TableStatus.ERROR or view.halt is not None
        when = "less often after failures" if has_failed else f"next within {age_text(left_ms)}"
        yield f"the service polls it every {every}, {when}"
    yield from (f"note: {warning}" for warning in view.info.warnings)
    for each in view.quarantined:
        yield (
            f"{bucket_text(each.partition, each.bucket)} is quarantined after "
            f"{count_text(each.failures, 'failure')}: {each.message}; "
            f"next attempt {attempt_text(each.until_ms, now_ms)}"
            f"{f'. What to do: {each.action}' if each.action else ''}"
        )
    if blocked := view.blocked.tasks:
        size = size_text(view.blocked.size_bytes)
        by = "the halt" if view.halt else "quarantine"
        yield f"blocked by {by}: {count_text(blocked, 'compaction')}, {size}"
    for name, rounds in sorted(view.maintenance.items()):
        if rounds.why_not:
            yield f"maintenance, {name}: the last round ended early: {rounds.why_not}"
    if view.running_tasks:
        yield f"{count_text(view.running_tasks, 'compaction')} running"
    yield from _bucket_lines(detail, is_served=is_served)
    for title, values in (("settings", detail.settings), ("table options", detail.options)):
        if values and (title != "settings" or is_configured):
            yield ""
            yield f"{title}:"
            yield from columns_text([(f"  {key}", *value) for key, value in values.items()])


def _bucket_lines(detail: TableDetail, *, is_served: bool) -> Iterator[str]:
    """The pick in each bucket, with the reason."""
    if detail.buckets:
        yield ""
    for bucket in detail.buckets:
        place = bucket_text(bucket.partition, bucket.bucket)
        has_runs = detail.view.has_sorted_runs
        runs = f"{count_text(bucket.sorted_runs, 'sorted run')}, " if has_runs else ""
        figures = f"{runs}{count_text(bucket.files, 'file')}; " if is_served else ""
        picked = bucket.what if bucket.why else bucket.plan
        yield f"{place}: {figures}{picked or 'nothing is picked'}"
        if bucket.why:
            yield f"  because: {bucket.why}"
            yield f"  next: {bucket.later}"
    if len(detail.buckets) < detail.bucket_count:
        count = f"{len(detail.buckets)} of {detail.bucket_count:,}"
        yield f"({count} buckets)" if is_served else f"({count} buckets; --bucket N, --worst N)"


_REASONS = ("partition", "bucket", "reason", "what", "why", "later")
# All but the runs, which may be 200.
_BUCKET_FIELDS = (*_REASONS[:2], "sorted_runs", "files", "size_bytes", "plan", *_REASONS[2:])


def _why_json(
    detail: TableDetail, now_ms: int, known: Mapping[str, Any], of_bucket: Sequence[str]
) -> dict[str, Any]:
    return {
        **_row(detail.view, now_ms),
        **plain_fields(("rules", "similar_rules", "closed_windows", "poll"), detail),
        **known,
        "buckets": [plain_fields(of_bucket, bucket) for bucket in detail.buckets],
        **plain_fields(("settings", "options"), detail),
    }
