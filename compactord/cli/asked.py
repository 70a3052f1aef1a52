"""What a running service answers of its tables, for `tables --url` and `why --url`.

It reads no table. The state and its reason are those that `top --url` and the page show.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from compactord.amounts import count_text
from compactord.cli.choice import table_test
from compactord.cli.running import OK, answer
from compactord.cli.table_status import Listed
from compactord.clock import age_text
from compactord.config.warehouse import refuse_catalog_arguments
from compactord.errors import TableNotFound, UsageError
from compactord.service.codec import decode, plain, plain_fields
from compactord.service.page.attention import (
    Attention,
    attempt_text,
    attention_of,
    freshness_text,
    why_text,
)
from compactord.service.view import ServiceView, TableDetail, TableStatus, TableView
from compactord.table.report import bucket_text
from compactord.table.status import BucketDetail
from compactord.top.daemon import DaemonSource
from compactord.top.status import NoAnswer

# All but the runs, which may be 200.
_BUCKET_FIELDS = ("partition", "bucket", "sorted_runs", "files", "size_bytes", "plan")


def listed_by_service(args: argparse.Namespace) -> tuple[Listed, ...]:
    """The tables that the arguments choose of those of the service at `--url`.

    Raises `UsageError` if none answers there, `TableNotFound` if it has none of them.
    """
    view = _view(args, _source(args))
    tables = _chosen(args, view)
    has_several = len({table.name.catalog for table in tables}) > 1
    return tuple(_listed(table, view.now_ms, has_several=has_several) for table in tables)


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
    detail = decode(TableDetail, _asked(source, f"/v1/tables/{path}"))
    buckets = detail.buckets[: args.worst]
    found = {
        **_listed(table, view.now_ms, has_several=False).as_json(),
        "quarantined": plain(table.quarantined),
        "bucket_count": detail.bucket_count,
        "buckets": [plain_fields(_BUCKET_FIELDS, bucket) for bucket in buckets],
    }
    answer(args, found, _text(table, detail, buckets, view.now_ms))
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


def _view(args: argparse.Namespace, source: DaemonSource) -> ServiceView:
    """The service's tables, and when it saw them so."""
    found = _asked(source, "/v1/tables")
    if "tables" not in found:
        raise UsageError(f"what answers at {args.url} is not compactord")
    return decode(ServiceView, found)


def _chosen(args: argparse.Namespace, view: ServiceView) -> list[TableView]:
    """Those that the arguments choose. Raises `TableNotFound` if they name what is not there."""
    is_chosen = table_test(args)
    chosen = [
        table
        for table in view.tables
        if args.catalog in (None, table.name.catalog)
        and is_chosen(table.name.database, _full_name(table))
    ]
    wanted = args.table or args.database or args.tables or args.catalog
    if wanted is not None and not chosen:
        raise TableNotFound(f"the service at {args.url} has no table of {wanted}")
    return sorted(chosen, key=lambda table: str(table.name))


def _full_name(table: TableView) -> str:
    return f"{table.name.database}.{table.name.table}"


def _listed(table: TableView, now_ms: int, *, has_several: bool) -> Listed:
    shown_name = str(table.name) if has_several else _full_name(table)
    return Listed(table=table, shown_name=shown_name, why=why_text(table, now_ms))


def _text(
    table: TableView, detail: TableDetail, buckets: Sequence[BucketDetail], now_ms: int
) -> Iterator[str]:
    yield f"{table.name}  ({table.location})"
    attention, why = attention_of(table, now_ms), why_text(table, now_ms)
    is_urgent = table.status is TableStatus.ACTIVE and attention is not Attention.NOTHING
    state = f"{table.status.value}, {attention.word}" if is_urgent else table.status.value
    yield f"{state}: {why}" if why else state
    if freshness := freshness_text(table, now_ms):
        yield freshness
    if table.discovery_interval_ms:
        left_ms = max(0, table.last_poll_ms + table.discovery_interval_ms - now_ms)
        yield (
            f"the service polls it every {table.discovery_interval_ms / 1000:g} s, "
            f"next within {left_ms / 1000:.0f} s"
        )
        if not table.window_open:
            opens_ms = table.next_window_ms
            opens = f", opens in {age_text(opens_ms - now_ms)}" if opens_ms else ""
            yield f"window: closed{opens}"
    for each in table.quarantined:
        yield (
            f"{bucket_text(each.partition, each.bucket)} is quarantined after "
            f"{count_text(each.failures, 'failure')}: {each.message}; "
            f"next attempt {attempt_text(each.until_ms, now_ms)}"
        )
    if table.running_tasks:
        yield f"{count_text(table.running_tasks, 'compaction')} running"
    if buckets:
        yield ""
    for bucket in buckets:
        runs = count_text(bucket.sorted_runs, "sorted run")
        files = count_text(bucket.files, "file")
        figures = f"{runs}, {files}" if table.info.compaction_trigger else files
        place = bucket_text(bucket.partition, bucket.bucket)
        yield f"{place}: {figures}; {bucket.plan or 'nothing is picked'}"
    if len(buckets) < detail.bucket_count:
        yield f"({len(buckets)} of {detail.bucket_count:,} buckets)"
