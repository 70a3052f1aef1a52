"""`compactord why`: why a table's buckets are picked or not, when next, by which rules."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compactord.amounts import count_text, size_text
from compactord.cli.argument_values import partitions_of, pick_of
from compactord.cli.asked import why_by_service
from compactord.cli.choice import Choice, Target, choose
from compactord.cli.plan import planner_now
from compactord.cli.running import OK, answer
from compactord.cli.table_status import ASK_A_SERVICE, ReadTable, read_table
from compactord.clock import Clock, SystemClock, iso_text
from compactord.config.keys import plain
from compactord.config.policy import matching_rules
from compactord.config.reasons import shown_key
from compactord.config.source import scalar_yaml
from compactord.config.values import duration_text
from compactord.config.windows import may_start, next_change_ms
from compactord.errors import FormatError, UsageError
from compactord.model import WorkKind
from compactord.paimon.data_file import BucketFiles, BucketId
from compactord.paimon.options.catalogue import OptionClass, canonical_key, find
from compactord.paimon.options.table_options import TableOptions
from compactord.redaction import redacted
from compactord.service.page.attention import freshness_text
from compactord.service.view import TableStatus
from compactord.table import report
from compactord.table.explain import BucketReasons, explain, explain_damage
from compactord.table.opening import OpenTable
from compactord.table.pending_inputs import inputs_of
from compactord.table.planning import PartitionTest
from compactord.table.request import CompactRequest
from compactord.table.status import measured_stop_trigger

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
    answer(args, _json(choice, findings), _text(choice, findings))
    return OK


def _findings(args: argparse.Namespace, choice: Choice, target: Target, clock: Clock) -> _Findings:
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
    args: argparse.Namespace, choice: Choice, found: ReadTable, clock: Clock
) -> tuple[list[BucketReasons], int]:
    """The buckets asked for, those with the most to do first; and how many there are."""
    table, state, policy = found.table, found.state, found.target.policy
    assert table is not None, "it was read"
    assert state is not None, "it was read"
    request = CompactRequest(
        append_wait_ms=policy.append_wait_ms if choice.is_configured else None,
        max_freshness_lag_ms=policy.max_freshness_lag_ms,
        quiet_for_ms=policy.quiet_for_ms,
        pick=pick_of(args) or policy.pick,
    )
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
                level = inputs_of(plan.compactions).output_level
                waits = planner.waiting_since_ms(shape.bucket, level) > 0
        except FormatError as error:
            told = explain_damage(table, shape.bucket, shape.run_count, error)
        later = told.later or _when(choice, found, told, clock, waits=waits)
        reasons.append(replace(told, later=later))
    return reasons, len(asked)


def _when(
    choice: Choice, found: ReadTable, told: BucketReasons, clock: Clock, *, waits: bool
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


def _closed_windows(target: Target, clock: Clock) -> dict[WorkKind, str]:
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


def _text(choice: Choice, found: _Findings) -> Iterator[str]:
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


def _json(choice: Choice, found: _Findings) -> dict[str, Any]:
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


def _effective_settings(choice: Choice, target: Target) -> dict[str, tuple[str, str]]:
    """Each setting's value as it would be written, and which rule or default it came from."""
    values, found = plain(choice.loaded.config), {}
    for key, origin in choice.keys_of(target).items():
        if key.startswith("options."):
            continue
        value = redacted(_at(values, origin), key=key)
        shown = json.dumps(value) if isinstance(value, list | dict) else scalar_yaml(value)
        found[key] = (choice.loaded.reference(origin) or shown, shown_key(choice.loaded, origin))
    return found


def _effective_options(
    choice: Choice, target: Target, table: OpenTable
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
