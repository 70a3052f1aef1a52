"""Metrics of the service as a whole, without any table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from compactord.scheduler.compaction import PriorityClass
from compactord.service.exposition import (
    Family,
    Labelled,
    family,
    labels_text,
    reader,
    write_family,
)
from compactord.service.view import ServiceView, TableStatus

_Read = Callable[[ServiceView], Iterable[Labelled]]


class _Metric(NamedTuple):
    family: Family
    read: _Read


class ServiceMetrics:
    """Writes the metrics of the service. `versions` are libraries', by the name of their label."""

    def __init__(self, versions: Mapping[str, str], *, top_buckets: int) -> None:
        build = family("build_info", "1; versions in use.", "version", *versions)
        self._metrics = (
            _Metric(build, lambda view: [((view.version, *versions.values()), 1)]),
            *METRICS,
            _top_metric(top_buckets),
        )

    def write(self, view: ServiceView, *, aggregated: int, is_openmetrics: bool) -> str:
        texts = [write_family(_AGGREGATED, [("", aggregated)], is_openmetrics=is_openmetrics)]
        for metric, read in self._metrics:
            braces = "{%s}" if metric.labels else "%s"
            found = ((braces % labels_text(metric.labels, values), n) for values, n in read(view))
            texts.append(write_family(metric, found, is_openmetrics=is_openmetrics))
        return "".join(texts)


def _value(path: str, meaning: str, name: str = "") -> _Metric:
    """A metric without labels; see `reader`. Without a name it has that of the field."""
    name = name or path.rpartition(".")[2]
    read = reader(name, path)
    return _Metric(family(name, meaning), lambda view: [((), read(view))])


def _values(name: str, meaning: str, labels: str, read: _Read) -> _Metric:
    return _Metric(family(name, meaning, *labels.split()), read)


_AGGREGATED = family(
    "metrics_tables_aggregated", "Tables without series of their own, beyond metrics.max_tables."
)
METRICS = (
    _value("is_draining", "1 while the service is ending.", "draining"),
    _value("engine.is_up", "1 while the engine answers.", "spark_up"),
    _value("engine.restarts", "Times the engine was started again.", "spark_restarts_total"),
    _value(
        "config.last_reload_successful",
        "1 unless the last reload of the configuration failed.",
        "config_last_reload_successful",
    ),
    _value(
        "config.last_reload_success_ms",
        "Last time the configuration was loaded.",
        "config_last_reload_success_timestamp_seconds",
    ),
    _values(
        "config_patterns_unmatched",
        "Patterns of the configuration that match no table.",
        "",
        lambda view: [((), len(view.unmatched_patterns))],
    ),
    _values(
        "loop_last_heartbeat_timestamp_seconds",
        "Last heartbeat of a loop.",
        "loop",
        lambda view: (((loop.name,), loop.heartbeat_ms / 1000) for loop in view.loops),
    ),
    _values(
        "loop_overruns_total",
        "Iterations of a loop that took longer than its interval.",
        "loop",
        lambda view: (((loop.name,), loop.overruns) for loop in view.loops),
    ),
    _values(
        "discovery_last_success_timestamp_seconds",
        "Last time a catalog's tables were listed, 0 for none.",
        "catalog",
        lambda view: (((each.name,), each.last_success_ms / 1000) for each in view.catalogs),
    ),
    _values(
        "discovery_failures_total",
        "Listings of a catalog's tables that failed.",
        "catalog",
        lambda view: (((each.name,), each.failures) for each in view.catalogs),
    ),
    _values(
        "store_breaker_open",
        "1 while a catalog's store or server does not answer: its tables wait, and one request in "
        "30 s finds out whether it answers again.",
        "catalog",
        lambda view: (((each.name,), each.store_silent_since_ms > 0) for each in view.catalogs),
    ),
    _values(
        "tables",
        "Tables by state.",
        "catalog state",
        lambda view: (
            ((each.name, state.value), view.tables_by_status.get((each.name, state), 0))
            for each in view.catalogs
            for state in TableStatus
        ),
    ),
    _value("engine.slots", "Compactions that may run at a time.", "task_slots"),
    _value("engine.running", "Compactions that run.", "tasks_running"),
    _value(
        "engine.lost_slots",
        "Slots held by workers that did not answer within their time limit.",
        "task_slots_lost",
    ),
    _values(
        "jobs_hung",
        "Polls, commits, sweeps and expiries that take too long to be at work.",
        "loop",
        lambda view: (((name,), count) for name, count in view.hung_jobs.items()),
    ),
    _value(
        "expiry_held_since_ms",
        "Start of the oldest work that keeps snapshots from expiring, 0 for none.",
        "expiry_held_since_timestamp_seconds",
    ),
    _values(
        "tasks_queued",
        "Compactions that wait to start; what is paused, halted or quarantined does not.",
        "priority_class",
        lambda view: (((rank.value,), view.queued.get(rank, 0)) for rank in PriorityClass),
    ),
    _value(
        "engine.slot_busy_seconds",
        "Time that slots spent with compactions.",
        "slot_busy_seconds_total",
    ),
    _values(
        "picks_total",
        "Compactions picked, and why.",
        "kind reason",
        lambda view: (((kind.value, why.value), n) for (kind, why), n in view.picks.items()),
    ),
    _value("engine.memory_budget_bytes", "Memory that running compactions may be granted."),
    _value("engine.memory_reserved_bytes", "Memory that running compactions are granted."),
    _value("engine.task_peak_memory_bytes", "Largest memory of a worker in recent compactions."),
)


def _top_metric(count: int) -> _Metric:
    def read(view: ServiceView) -> Iterable[Labelled]:
        # Ranks without a bucket are 0: the number of series does not depend on that of buckets.
        runs = [bucket.sorted_runs for bucket in view.top_buckets[:count]]
        runs += [0] * (count - len(runs))
        return (((str(rank),), value) for rank, value in enumerate(runs, 1))

    return _values(
        "top_bucket_sorted_runs",
        "The largest counts of sorted runs over all buckets of tables that are neither paused nor "
        "excluded; /v1/buckets/top names them.",
        "rank",
        read,
    )
