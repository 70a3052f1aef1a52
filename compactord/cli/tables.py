"""`compactord tables` and `compactord why`: the status of tables, with or without a service.

It reads no table. The state and its reason are those that `top --url` and the page show.

Only a service knows which tables it has halted and which buckets it has quarantined.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from compactord.cli.argument_values import partitions_of, pick_of
from compactord.cli.plan import planner_now
from compactord.cli.running import OK, answer, exit_code, say
from compactord.cli.select import SelectedTable, TableSelection, choose, side_by_side, table_test
from compactord.clock import Clock, SystemClock, age_text, iso_text
from compactord.config.load import plain_config
from compactord.config.policy import matching_rules, refuse_catalog_arguments, shown_key
from compactord.config.source import scalar_yaml
from compactord.config.values import duration_text
from compactord.config.windows import may_start, next_change_ms
from compactord.errors import (
    CompactordError,
    FormatError,
    TableNotFound,
    UnsupportedTable,
    UsageError,
)
from compactord.maintenance.holds import stored_hold
from compactord.model import WorkKind
from compactord.paimon.data_file import BucketFiles, BucketId
from compactord.paimon.options.catalogue import OptionClass, canonical_key, find
from compactord.paimon.options.table_options import TableOptions
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
    offline_view,
    unread_view,
)
from compactord.state.table_state import TableState
from compactord.table import report
from compactord.table.explain import BucketReasons, explain, explain_damage
from compactord.table.opening import OpenTable, describe_table, live_reasons
from compactord.table.planning import PartitionTest, with_waiting_rows
from compactord.table.report import bucket_text, columns_text
from compactord.table.request import CompactRequest
from compactord.table.status import BucketDetail, TableShape, measured_stop_trigger, run_mark
from compactord.text import count_text, redacted, size_text
from compactord.top.status import NoAnswer
from compactord.top.top import DaemonSource

# The commands say it below what they read themselves.
ASK_A_SERVICE = (
    "what a running service has halted or quarantined is known to it alone: --url http://HOST:9464"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A table as it is listed: `shown_name` has the catalog where needed, `why` is for people."""

    table: TableView
    shown_name: str
    why: str

    @property
    def figures(self) -> dict[str, Any]:
        """The table in numbers; those of runs only where there are keys."""
        info, shape = self.table.info, self.table.shape
        if not info.kind:
            return {}
        has_runs = info.compaction_trigger > 0
        found: dict[str, Any] = {
            "kind": info.kind,
            "merge_engine": info.merge_engine if has_runs else "",
            "write_only": info.write_only,
        }
        if self.table.is_read:
            found |= {
                "snapshot": shape.snapshot_id or None,
                "bucket_count": shape.buckets,
                "files": shape.files,
                "small_files": shape.small_files,
                "bytes": shape.size_bytes,
            }
        if self.table.is_read and info.readers_wait:
            found["waiting_since_ms"] = shape.waiting_since_ms or None
        if self.table.is_read and has_runs:
            found |= {
                "sorted_runs_max": shape.sorted_runs_max,
                "compaction_trigger": info.compaction_trigger,
                "stop_trigger": info.stop_trigger,
            }
        return found

    def as_json(self) -> dict[str, Any]:
        name = self.table.name
        return {
            "catalog": name.catalog,
            "table": f"{name.database}.{name.table}",
            "location": self.table.location,
            "state": self.table.status.value,
            "why": self.why,
            **self.figures,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTable:
    """A table that was read. `table` and `state` are None where they cannot be."""

    target: SelectedTable
    view: TableView
    table: OpenTable | None = None
    state: TableState | None = None

    def listed(self, choice: TableSelection) -> Listed:
        return Listed(table=self.view, shown_name=choice.shown_name(self.target), why=self.view.why)


def read_table(choice: TableSelection, target: SelectedTable, clock: Clock) -> ReadTable:
    """Read one table; its errors are its status. Reads its newest snapshot's metadata."""
    table: OpenTable | None = None
    state: TableState | None = None
    refused: list[str] = []
    error, hold = "", None
    try:
        access = target.open()
        schema, overrides = access.newest_schema(), target.policy.options
        table = describe_table(access, schema, overrides, target.registries)
        refused += table.refusals
        state = with_waiting_rows(table, access.newest_state().state, clock)
        refused += live_reasons(table, state)
        hold = stored_hold(access.storage, access.ref.location)
    except UnsupportedTable as unsupported:
        refused += unsupported.reasons
    except CompactordError as failure:
        error = str(failure)
    view = replace(unread_view(target.name, target.ref, table, choice.loaded), error=error)
    if table is not None and state is not None:
        lag_ms = target.policy.max_freshness_lag_ms or 0
        view = replace(view, shape=_shape(table, state), max_freshness_lag_ms=lag_ms)
        view = replace(view, first_poll_ms=clock.now_ms())
    # Of a table that cannot be read nobody knows whether it is write-only.
    alone = choice.unmanaged_reason(target, write_only=table is None or table.options.write_only)
    return ReadTable(
        target=target,
        view=offline_view(view, alone, refused, hold),
        table=table,
        state=state,
    )


def _shape(table: OpenTable, state: TableState) -> TableShape:
    """The numbers that are told without planning."""
    files = state.files
    summaries = files.summaries()
    return TableShape(
        snapshot_id=state.snapshot.id if state.snapshot else 0,
        buckets=len(summaries),
        files=files.file_count,
        small_files=files.count_smaller(table.options.compaction.small_file_size),
        size_bytes=files.size_bytes,
        sorted_runs_max=int(summaries.run_count.max(initial=0)) if table.key_of else 0,
        waiting_since_ms=state.waiting.oldest_ms if state.waiting else 0,
    )


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
    answer(args, found, _service_lines(table, detail, buckets, view.now_ms))
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


def _service_lines(
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


def _read(choice: TableSelection) -> list[Listed]:
    clock = SystemClock(choice.zone)
    groups = itertools.groupby(choice.targets, lambda target: target.catalog_name)
    by_catalog = [list(targets) for _, targets in groups]

    def read(targets: Sequence[SelectedTable]) -> list[Listed]:
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
    return f"{runs}{run_mark(runs, trigger, stop)} of {trigger}, {stop}"


_WORST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Findings:
    """All that is told; `buckets` are those shown, of `bucket_count` asked for."""

    read: ReadTable
    rules: Sequence[str]
    settings: Mapping[str, tuple[str, str]]
    options: Mapping[str, tuple[str, str]]
    windows: Mapping[WorkKind, str]
    poll: str
    buckets: Sequence[BucketReasons]
    bucket_count: int
    now_ms: int


def why(args: argparse.Namespace) -> int:
    """Run the command; the exit code. Raises `UsageError` and `TableNotFound`."""
    for name, value, least in (("bucket", args.bucket, 0), ("worst", args.worst, 1)):
        if value is not None and value < least:
            raise UsageError(f"--{name} {value}: expected {least} or more")
    if args.url is not None:
        return why_by_service(args)
    partitions_of(args)
    pick_of(args)
    choice = choose(args)
    clock = SystemClock(choice.zone)
    findings = _findings(args, choice, choice.targets[0], clock)
    answer(args, _json(choice, findings), _why_lines(choice, findings))
    return OK


def _findings(
    args: argparse.Namespace, choice: TableSelection, target: SelectedTable, clock: Clock
) -> _Findings:
    found = read_table(choice, target, clock)
    buckets: list[BucketReasons] = []
    count = 0
    if found.table is not None and found.state is not None:
        buckets, count = _buckets(args, choice, found, clock)
    rules = matching_rules(choice.loaded.config, target.name)
    options = _effective_options(choice, target, found.table) if found.table is not None else {}
    return _Findings(
        read=found,
        rules=[shown_key(choice.loaded, f"rules.{index}") for index in rules],
        settings=_effective_settings(choice, target),
        options=options,
        windows=_closed_windows(target, clock),
        poll=_poll_text(found),
        buckets=buckets,
        bucket_count=count,
        now_ms=clock.now_ms(),
    )


def _buckets(
    args: argparse.Namespace, choice: TableSelection, found: ReadTable, clock: Clock
) -> tuple[list[BucketReasons], int]:
    """The buckets asked for, those with the most to do first; and how many there are."""
    table, state = found.table, found.state
    assert table is not None, "it was read"
    assert state is not None, "it was read"
    request = CompactRequest.of(found.target.policy, choice.loaded.config)
    request = replace(request, pick=pick_of(args) or request.pick)
    planner = planner_now(table, state, request, clock)
    state = planner.state
    in_partition = PartitionTest(table, partitions_of(args))

    def wanted(bucket: BucketId) -> bool:
        return args.bucket in (None, bucket.bucket) and in_partition(bucket.partition)

    asked = [bucket for bucket in state.files.bucket_ids() if wanted(bucket)]
    if not asked and (args.bucket is not None or args.partition):
        raise UsageError(f"{table.ref.full_name} has no live files in what was asked for")
    worst = args.worst or (_WORST if args.bucket is None else len(asked))
    shapes = report.bucket_shapes(table, state, wanted=wanted, worst=worst)
    reasons = []
    for shape in shapes:
        waits = False
        try:
            planned, plan = planner.decided(shape.bucket)
            small = table.options.compaction.small_file_size
            files = (
                planned
                if isinstance(planned, BucketFiles)
                else state.files.bucket(shape.bucket, smaller_than=small)
            )
            told = explain(table, files, plan, planner.request, planner.context.now_ms)
            if plan.compactions:
                level = plan.compactions[0].output_level
                waits = planner.waiting_since_ms(shape.bucket, level) > 0
        except FormatError as error:
            told = explain_damage(table, shape.bucket, shape.run_count, error)
        later = told.later or _when(choice, found, told, clock, waits=waits)
        reasons.append(replace(told, later=later))
    return reasons, len(asked)


def _when(
    choice: TableSelection, found: ReadTable, told: BucketReasons, clock: Clock, *, waits: bool
) -> str:
    """When the service begins what is due; `waits`: readers wait for it."""
    policy, table = found.target.policy, found.table
    assert table is not None, "it was read"
    if found.view.status is not TableStatus.ACTIVE:
        return f"not by the service, as the table is {found.view.status.value}"
    closed = told.kind is not None and _closed_windows(found.target, clock).get(told.kind)
    fallback = choice.loaded.config.alerts.stop_trigger_fallback
    stop = measured_stop_trigger(table.options.compaction, fallback)
    is_forced = table.key_of is not None and told.sorted_runs >= stop - 1
    if closed and not ((is_forced or waits) and not policy.windows_strict):
        return f"when its window {closed}"
    forced = ", before other work: readers wait for it" if waits else ""
    if is_forced:
        runs = count_text(told.sorted_runs, "run")
        forced = f", before other work: {runs}, stop trigger {stop}"
    return f"within {_poll_text(found)}, when a slot is free{forced}"


def _closed_windows(target: SelectedTable, clock: Clock) -> dict[WorkKind, str]:
    """The kinds of work that may not start now, and when they may."""
    windows, now_ms, zone = target.policy.windows, clock.now_ms(), clock.time_zone
    closed = {}
    for kind in WorkKind:
        if not may_start(windows, kind, now_ms, zone):
            opens_ms = next_change_ms(windows, kind, now_ms, zone)
            closed[kind] = "never opens" if opens_ms is None else f"opens at {iso_text(opens_ms)}"
    return closed


def _poll_text(found: ReadTable) -> str:
    """How often the service polls the table."""
    interval_ms, source = found.target.policy.discovery_interval_ms, "discovery_interval"
    if interval_ms is None and found.table is not None:
        interval_ms = found.table.options.discovery_interval_ms
        source = "continuous.discovery-interval"
    if interval_ms is None:
        return ""
    quiet_ms = found.target.policy.max_quiet_interval_ms or 0
    if found.table is not None and found.table.options.compaction.waiting_level is not None:
        # Readers wait: it is polled as often in any case.
        quiet_ms = 0
    quiet = f", up to {quiet_ms / 1000:g} s while nothing changes" if quiet_ms > interval_ms else ""
    return f"{interval_ms / 1000:g} s ({source}){quiet}"


def _why_lines(choice: TableSelection, found: _Findings) -> Iterator[str]:
    each = found.read
    yield f"{choice.shown_name(each.target)}  ({each.target.ref.location})"
    status, reason = each.view.status, each.view.why
    yield f"{status.value}: {reason}" if reason else status.value
    if freshness := freshness_text(each.view, found.now_ms):
        yield freshness
    if choice.is_configured:
        yield f"rules that match: {', '.join(found.rules) or 'none'}"
        if status is TableStatus.ACTIVE and found.poll:
            yield f"the service polls it every {found.poll}"
        for kind, opens in found.windows.items():
            yield f"window: {kind.value} work may not start now; it {opens}"
    if each.table is not None:
        yield from (f"note: {warning}" for warning in each.table.warnings)
    if found.buckets:
        yield ""
    for bucket in found.buckets:
        yield f"{bucket.place}: {bucket.what or 'nothing is picked'}"
        yield f"  because: {bucket.why}"
        yield f"  next: {bucket.later}"
    if len(found.buckets) < found.bucket_count:
        yield f"({len(found.buckets)} of {found.bucket_count:,} buckets; --bucket N, --worst N)"
    for title, values in (("settings", found.settings), ("table options", found.options)):
        if values and (title != "settings" or choice.is_configured):
            yield ""
            yield f"{title}:"
            rows = [(f"  {key}", *value) for key, value in values.items()]
            yield from report.columns_text(rows)
    yield ""
    yield ASK_A_SERVICE


def _json(choice: TableSelection, found: _Findings) -> dict[str, Any]:
    each = found.read

    def with_origin(values: Mapping[str, tuple[str, str]]) -> dict[str, dict[str, str]]:
        return {key: {"value": v, "origin": origin} for key, (v, origin) in values.items()}

    return {
        **each.listed(choice).as_json(),
        "rules": list(found.rules),
        "closed_windows": {kind.value: opens for kind, opens in found.windows.items()},
        "poll": found.poll,
        "buckets_asked": found.bucket_count,
        "buckets": [_bucket_json(each.table, bucket) for bucket in found.buckets],
        "settings": with_origin(found.settings),
        "options": with_origin(found.options),
    }


def _bucket_json(table: OpenTable | None, bucket: BucketReasons) -> dict[str, Any]:
    partition = table.partition_text(bucket.bucket.partition) if table is not None else ""
    return {
        "partition": partition,
        "bucket": bucket.bucket.bucket,
        "reason": None if bucket.reason is None else bucket.reason.value,
        "what": bucket.what,
        "why": bucket.why,
        "later": bucket.later,
    }


# What decides most often, shown although it is only Paimon's default.
_SHOWN: Mapping[str, Callable[[TableOptions], str]] = {
    "num-sorted-run.compaction-trigger": lambda o: str(o.compaction.compaction_trigger),
    "num-sorted-run.stop-trigger": lambda o: str(o.compaction.stop_trigger),
    "compaction.max-size-amplification-percent": lambda o: str(
        o.compaction.max_size_amplification_percent
    ),
    "compaction.size-ratio": lambda o: str(o.compaction.size_ratio_percent),
    "compaction.optimization-interval": lambda o: _duration(o.compaction.optimization_interval_ms),
    "full-compaction.delta-commits": lambda o: str(
        o.compaction.full_compaction_delta_commits or "not set"
    ),
    "compaction.min.file-num": lambda o: str(o.compaction.min_file_num),
    "target-file-size": lambda o: size_text(o.compaction.target_file_size),
    "snapshot.num-retained.min": lambda o: str(o.expire.num_retained_min),
    "snapshot.num-retained.max": lambda o: str(o.expire.num_retained_max),
    "snapshot.time-retained": lambda o: _duration(o.expire.time_retained_ms),
    "write-only": lambda o: str(o.write_only).lower(),
}
_KEYED_ONLY = (
    "num-sorted-run.",
    "compaction.max-size",
    "compaction.size-ratio",
    "full-compaction.",
)


def _effective_settings(
    choice: TableSelection, target: SelectedTable
) -> dict[str, tuple[str, str]]:
    """Each setting's value as it would be written, and which rule or default it came from."""
    values, found = plain_config(choice.loaded.config), {}
    for key, origin in choice.keys_of(target).items():
        if key.startswith("options."):
            continue
        value = redacted(_at(values, origin), key=key)
        shown = json.dumps(value) if isinstance(value, list | dict) else scalar_yaml(value)
        found[key] = (choice.loaded.reference(origin) or shown, shown_key(choice.loaded, origin))
    return found


def _effective_options(
    choice: TableSelection, target: SelectedTable, table: OpenTable
) -> dict[str, tuple[str, str]]:
    """The options that concern a compactor: those that decide most, and all that are set."""
    schema, options, keys = table.schema, table.options, choice.keys_of(target)
    own = {canonical_key(key) for key in schema.options}
    texts = {
        key: shown(options)
        for key, shown in _SHOWN.items()
        if schema.primary_keys or not key.startswith(_KEYED_ONLY)
    }
    for key, text in sorted(options.raw.items()):
        name = canonical_key(key)
        option = find(name)
        if option is None or option.meaning is not OptionClass.IRRELEVANT:
            texts.setdefault(name, str(redacted(text, key=name)))
    found = {}
    for key, text in texts.items():
        origin = keys.get(f"options.{key}")
        if origin is not None:
            found[key] = (choice.loaded.reference(origin) or text, shown_key(choice.loaded, origin))
        else:
            found[key] = (text, "the table" if key in own else "Paimon's default")
    return found


def _at(values: Mapping[str, Any], dotted: str) -> object:
    """The value under `rules.0.set.priority`."""
    place: Any = values
    for part in dotted.split("."):
        place = place[int(part)] if isinstance(place, list) else place[part]
    found: object = place
    return found


def _duration(milliseconds: int | None) -> str:
    return "not set" if milliseconds is None else duration_text(milliseconds)
