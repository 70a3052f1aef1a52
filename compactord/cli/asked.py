"""What a running service answers of its tables, for `tables --url` and `why --url`.

It reads no table. The state and its reason are those that `top --url` and the page show.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from compactord.cli.choice import table_test
from compactord.cli.running import OK, tell
from compactord.cli.standing import Listed
from compactord.clock import age_text
from compactord.config.warehouse import refuse_catalog_arguments
from compactord.errors import TableNotFound, UsageError
from compactord.service.page.need import Need, attempt_text, need_of
from compactord.service.view import TableStatus
from compactord.table.report import bucket_text, count_text
from compactord.top.daemon import DaemonSource, items, number, object_of, tables_of, text
from compactord.top.look import NoAnswer, TopTable


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of the service: its answer, and the same parsed; `name` is `database.table`."""

    answer: Mapping[str, Any]
    parsed: TopTable

    @property
    def name(self) -> str:
        return self.parsed.name.removeprefix(f"{self.parsed.catalog}.")


def listed_by_service(args: argparse.Namespace) -> tuple[Listed, ...]:
    """The tables that the arguments choose of those of the service at `--url`.

    Raises `UsageError` if none answers there.
    """
    source = _source(args)
    tables = _tables(args, _asked(source, "/v1/tables"))
    catalogs = {table.parsed.catalog for table in tables}
    return tuple(_listed(table.parsed, table.name, several=len(catalogs) > 1) for table in tables)


def why_by_service(args: argparse.Namespace) -> int:
    """Run `why` with `--url`; the exit code."""
    if args.bucket is not None or args.partition:
        raise UsageError("--bucket and --partition need --config or --warehouse")
    source = _source(args)
    answer = _asked(source, "/v1/tables")
    table, *others = _tables(args, answer)
    if others:
        catalogs = ", ".join(each.parsed.catalog for each in (table, *others))
        raise UsageError(
            f"{args.table}: the service has it in several catalogs ({catalogs}); "
            "give one of them by --catalog"
        )
    name = object_of(table.answer, "name")
    path = "/".join(quote(text(name, key), safe="") for key in ("catalog", "database", "table"))
    detail = _asked(source, f"/v1/tables/{path}")
    buckets = items(detail, "buckets")[: args.worst]
    if args.json:
        listed = _listed(table.parsed, table.name, several=False)
        found = {
            **listed.as_json(),
            "quarantined": items(table.answer, "quarantined"),
            "bucket_count": number(detail, "bucket_count"),
            "buckets": [{k: v for k, v in bucket.items() if k != "runs"} for bucket in buckets],
        }
        print(json.dumps(found))
        return OK
    for line in _text(table, detail, buckets, number(answer, "now_ms")):
        tell(line)
    return OK


def _source(args: argparse.Namespace) -> DaemonSource:
    refuse_catalog_arguments(args)
    if args.config_overrides:
        raise UsageError("--set needs --config")
    return DaemonSource(args.url)


def _asked(source: DaemonSource, path: str) -> Mapping[str, Any]:
    try:
        return source.get(path)
    except NoAnswer as error:
        raise UsageError(str(error)) from error


def _tables(args: argparse.Namespace, answer: Mapping[str, Any]) -> list[_Table]:
    """Those that the arguments choose. Raises `TableNotFound` if they name what is not there."""
    if "tables" not in answer:
        raise UsageError(f"what answers at {args.url} is not compactord")
    is_chosen = table_test(args)
    found = [
        _Table(each, parsed)
        for each, parsed in zip(items(answer, "tables"), tables_of(answer), strict=True)
    ]
    chosen = [
        table
        for table in found
        if args.catalog in (None, table.parsed.catalog)
        and is_chosen(text(object_of(table.answer, "name"), "database"), table.name)
    ]
    wanted = args.table or args.database or args.tables or args.catalog
    if wanted is not None and not chosen:
        raise TableNotFound(f"the service at {args.url} has no table of {wanted}")
    return sorted(chosen, key=lambda table: table.parsed.name)


def _listed(table: TopTable, name: str, *, several: bool) -> Listed:
    figures: dict[str, Any] = {}
    if table.kind:
        engine = table.merge_engine if table.compaction_trigger else ""
        figures |= {"kind": table.kind, "merge_engine": engine, "write_only": table.write_only}
    if table.is_read:
        figures |= {
            "files": table.files,
            "small_files": table.small_files,
            "bytes": table.size_bytes,
        }
    if table.is_read and table.compaction_trigger:
        figures |= {
            "sorted_runs_max": table.sorted_runs,
            "compaction_trigger": table.compaction_trigger,
            "stop_trigger": table.stop_trigger,
        }
    return Listed(
        catalog=table.catalog,
        name=name,
        shown_name=table.name if several else name,
        location=table.location,
        state=table.status,
        why=table.note,
        figures=figures,
    )


def _text(
    table: _Table, detail: Mapping[str, Any], buckets: Sequence[Mapping[str, Any]], now_ms: int
) -> Iterator[str]:
    parsed, answer = table.parsed, table.answer
    yield f"{parsed.name}  ({parsed.location})"
    need = need_of(parsed.standing(now_ms))
    is_needy = parsed.status == TableStatus.ACTIVE.value and need is not Need.NOTHING
    state = f"{parsed.status}, {need.word}" if is_needy else parsed.status
    yield f"{state}: {parsed.note}" if parsed.note else state
    if interval_ms := number(answer, "discovery_interval_ms"):
        yield f"the service looks every {interval_ms / 1000:g} s"
        if answer.get("window_open") is False:
            opens_ms = number(answer, "next_window_ms")
            opens = f", opens in {age_text(opens_ms - now_ms)}" if opens_ms else ""
            yield f"window: closed{opens}"
    for each in items(answer, "quarantined"):
        yield (
            f"{_place(each)} is quarantined after "
            f"{count_text(number(each, 'failures'), 'failure')}: {text(each, 'message')}; "
            f"next attempt {attempt_text(number(each, 'until_ms'), now_ms)}"
        )
    if running := number(answer, "running_tasks"):
        yield f"{count_text(running, 'compaction')} running"
    if buckets:
        yield ""
    for bucket in buckets:
        runs = count_text(number(bucket, "sorted_runs"), "sorted run")
        files = count_text(number(bucket, "files"), "file")
        figures = f"{runs}, {files}" if parsed.compaction_trigger else files
        yield f"{_place(bucket)}: {figures}; {text(bucket, 'plan') or 'nothing is picked'}"
    if len(buckets) < (total := number(detail, "bucket_count")):
        yield f"({len(buckets)} of {total:,} buckets)"


def _place(found: Mapping[str, Any]) -> str:
    return bucket_text(text(found, "partition"), number(found, "bucket"))
