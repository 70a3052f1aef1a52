"""Explains one table: the settings in effect, and when a service starts due compactions.

Uses only values in memory, so any thread may call it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import tzinfo
from typing import Any

from compactord.clock import iso_text
from compactord.config.load import LoadedConfig, plain_config
from compactord.config.policy import (
    TablePolicy,
    matching_rules,
    pattern_text,
    policy_for,
    setting_keys,
    shown_key,
    similar_rules,
)
from compactord.config.source import scalar_yaml
from compactord.config.values import duration_text
from compactord.config.windows import may_start, next_change_ms
from compactord.model import WorkKind
from compactord.paimon.options.catalogue import OptionClass, canonical_key, find
from compactord.paimon.options.table_options import TableOptions
from compactord.service.view import Setting, TableDetail, TableStatus
from compactord.table.opening import OpenTable
from compactord.table.status import BucketDetail, is_near_stop
from compactord.text import count_text, interval_text, redacted, size_text


def explained(
    detail: TableDetail,
    table: OpenTable | None,
    loaded: LoadedConfig,
    *,
    now_ms: int,
    zone: tzinfo,
) -> TableDetail:
    """The table with its settings, and with the time at which each bucket's pick begins.

    `table` is None where its schema cannot be read.
    """
    name = detail.view.name
    policy, keys = policy_for(loaded.config, name), setting_keys(loaded.config, name)
    rules = matching_rules(loaded.config, name)
    found = replace(
        detail,
        rules=tuple(shown_key(loaded, f"rules.{index}") for index in rules),
        similar_rules=tuple(
            pattern_text(loaded, f"rules.{index}.match.table", rule.pattern)
            for index in similar_rules(loaded.config, name)
            if (rule := loaded.config.rules[index].match.table)
        ),
        closed_windows=_closed_windows(policy, now_ms, zone),
        poll=_poll_text(policy, table),
        settings=_settings(loaded, keys),
        options=_options(loaded, keys, table) if table is not None else {},
    )
    buckets = (
        replace(bucket, later=_when(found, bucket, policy))
        if bucket.why and not bucket.later
        else bucket
        for bucket in detail.buckets
    )
    return replace(found, buckets=tuple(buckets))


def _when(detail: TableDetail, bucket: BucketDetail, policy: TablePolicy) -> str:
    """When the service begins the bucket's pick."""
    if any(
        (q.partition, q.bucket) == (bucket.partition, bucket.bucket)
        for q in detail.view.quarantined
    ):
        return "when its quarantine ends"
    if detail.view.status not in (TableStatus.ACTIVE, TableStatus.DEGRADED):
        return f"not by the service, as the table is {detail.view.status.value}"
    closed = bucket.kind is not None and detail.closed_windows.get(bucket.kind)
    stop = detail.view.info.stop_trigger
    is_forced = detail.view.has_sorted_runs and is_near_stop(bucket.sorted_runs, stop)
    if closed and not ((is_forced or bucket.readers_wait) and not policy.windows_strict):
        return f"when its window {closed}"
    forced = ", before other work: readers wait for it" if bucket.readers_wait else ""
    if is_forced:
        runs = count_text(bucket.sorted_runs, "run")
        forced = f", before other work: {runs}, stop trigger {stop}"
    return f"within {detail.poll}, when a slot is free{forced}"


def _closed_windows(policy: TablePolicy, now_ms: int, zone: tzinfo) -> dict[WorkKind, str]:
    """The kinds of work that may not start now, and when they may."""
    closed = {}
    for kind in WorkKind:
        if not may_start(policy.windows, kind, now_ms, zone):
            opens_ms = next_change_ms(policy.windows, kind, now_ms, zone)
            closed[kind] = "never opens" if opens_ms is None else f"opens at {iso_text(opens_ms)}"
    return closed


def _poll_text(policy: TablePolicy, table: OpenTable | None) -> str:
    """How often the service polls the table."""
    interval_ms, source = policy.discovery_interval_ms, "discovery_interval"
    if interval_ms is None and table is not None:
        interval_ms = table.options.discovery_interval_ms
        source = "continuous.discovery-interval"
    if interval_ms is None:
        return ""
    quiet_ms = policy.max_quiet_interval_ms or 0
    if table is not None and table.options.compaction.waiting_level is not None:
        # Readers wait: it is polled as often in any case.
        quiet_ms = 0
    quiet = f", up to {interval_text(quiet_ms)} while nothing changes"
    return f"{interval_text(interval_ms)} ({source}){quiet if quiet_ms > interval_ms else ''}"


# The most decisive options, shown even with Paimon's default.
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


def _settings(loaded: LoadedConfig, keys: Mapping[str, str]) -> dict[str, Setting]:
    """Each setting's value as it would be written, and which rule or default it came from."""
    values, found = plain_config(loaded.config), {}
    for key, origin in keys.items():
        if key.startswith("options."):
            continue
        value = redacted(_at(values, origin), key=key)
        shown = json.dumps(value) if isinstance(value, list | dict) else scalar_yaml(value)
        found[key] = Setting(loaded.reference(origin) or shown, shown_key(loaded, origin))
    return found


def _options(loaded: LoadedConfig, keys: Mapping[str, str], table: OpenTable) -> dict[str, Setting]:
    """The options that concern a compactor: the most decisive ones, and all that are set."""
    schema, options = table.schema, table.options
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
            found[key] = Setting(loaded.reference(origin) or text, shown_key(loaded, origin))
        else:
            found[key] = Setting(text, "the table" if key in own else "Paimon's default")
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
