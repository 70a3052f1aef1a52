"""Metrics of the service as a whole, without any table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from compactord.scheduler.status import PriorityClass
from compactord.service.exposition import (
    Family,
    Sample,
    counter,
    gauge,
    label,
    labels_of,
    write_family,
)
from compactord.service.view import ServiceView, TableStatus


class _Metric(NamedTuple):
    family: Family
    read: Callable[[ServiceView], Iterable[Sample]]


class ServiceMetrics:
    """Writes the metrics of the service. `versions` are libraries', by the name of their label."""

    def __init__(self, versions: Mapping[str, str], *, top_buckets: int) -> None:
        self._build = gauge("compactord_build_info", "1; versions in use.", "version", *versions)
        self._aggregated = gauge(
            "compactord_metrics_tables_aggregated",
            "Tables without series of their own, beyond metrics.max_tables.",
        )
        self._versions = versions
        self._metrics = (
            *_service_metrics(),
            *_catalog_metrics(),
            *_work_metrics(),
            _top_metric(top_buckets),
        )

    @property
    def families(self) -> tuple[Family, ...]:
        """All that may be written."""
        return (self._build, self._aggregated, *(metric.family for metric in self._metrics))

    def write(self, view: ServiceView, *, aggregated: int, is_openmetrics: bool) -> str:
        build = labels_of({"version": view.version, **self._versions})
        samples: list[tuple[Family, Iterable[Sample]]] = [
            (self._build, [(build, 1)]),
            (self._aggregated, [("", aggregated)]),
            *((metric.family, metric.read(view)) for metric in self._metrics),
        ]
        return "".join(
            write_family(family, found, is_openmetrics=is_openmetrics) for family, found in samples
        )


def _gauge(name: str, meaning: str, read: Callable[[ServiceView], float]) -> _Metric:
    return _Metric(gauge(f"compactord_{name}", meaning), lambda view: [("", read(view))])


def _counter(name: str, meaning: str, read: Callable[[ServiceView], float]) -> _Metric:
    return _Metric(counter(f"compactord_{name}", meaning), lambda view: [("", read(view))])


def _service_metrics() -> tuple[_Metric, ...]:
    return (
        _gauge("draining", "1 while the service is ending.", lambda view: int(view.is_draining)),
        _gauge("spark_up", "1 while the engine answers.", lambda view: int(view.engine.is_up)),
        _counter(
            "spark_restarts_total",
            "Times the engine was started again.",
            lambda view: view.engine.restarts,
        ),
        _gauge(
            "config_last_reload_successful",
            "1 unless the last reload of the configuration failed.",
            lambda view: int(view.config.last_reload_successful),
        ),
        _gauge(
            "config_last_reload_success_timestamp_seconds",
            "Last time the configuration was loaded.",
            lambda view: view.config.last_reload_success_ms / 1000,
        ),
        _gauge(
            "config_patterns_unmatched",
            "Patterns of the configuration that match no table.",
            lambda view: len(view.unmatched_patterns),
        ),
        _Metric(
            gauge(
                "compactord_loop_last_heartbeat_timestamp_seconds",
                "Last heartbeat of a loop.",
                "loop",
            ),
            lambda view: [
                (label("loop", loop.name), loop.heartbeat_ms / 1000) for loop in view.loops
            ],
        ),
        _Metric(
            counter(
                "compactord_loop_overruns_total",
                "Iterations of a loop that took longer than its interval.",
                "loop",
            ),
            lambda view: [(label("loop", loop.name), loop.overruns) for loop in view.loops],
        ),
    )


def _catalog_metrics() -> tuple[_Metric, ...]:
    return (
        _Metric(
            gauge(
                "compactord_discovery_last_success_timestamp_seconds",
                "Last time a catalog's tables were listed, 0 for none.",
                "catalog",
            ),
            lambda view: [
                (label("catalog", catalog.name), catalog.last_success_ms / 1000)
                for catalog in view.catalogs
            ],
        ),
        _Metric(
            counter(
                "compactord_discovery_failures_total",
                "Listings of a catalog's tables that failed.",
                "catalog",
            ),
            lambda view: [
                (label("catalog", catalog.name), catalog.failures) for catalog in view.catalogs
            ],
        ),
        _Metric(
            gauge(
                "compactord_store_breaker_open",
                "1 while a catalog's store does not answer: its tables wait, and one request in "
                "30 s finds out whether it answers again.",
                "catalog",
            ),
            lambda view: [
                (label("catalog", catalog.name), int(catalog.store_silent_since_ms > 0))
                for catalog in view.catalogs
            ],
        ),
        _Metric(
            gauge("compactord_tables", "Tables by state.", "catalog", "state"), _tables_by_state
        ),
    )


def _tables_by_state(view: ServiceView) -> list[Sample]:
    counts = view.tables_by_status
    return [
        (labels_of({"catalog": catalog.name, "state": status.value}), count)
        for catalog in view.catalogs
        for status in TableStatus
        for count in (counts.get((catalog.name, status), 0),)
    ]


def _work_metrics() -> tuple[_Metric, ...]:
    return (
        _gauge("task_slots", "Compactions that may run at a time.", lambda view: view.engine.slots),
        _gauge("tasks_running", "Compactions that run.", lambda view: view.engine.running),
        _gauge(
            "task_slots_lost",
            "Slots held by workers that did not answer within their time limit.",
            lambda view: view.engine.lost_slots,
        ),
        _Metric(
            gauge(
                "compactord_jobs_hung",
                "Polls, commits, sweeps and expiries that take too long to be at work.",
                "loop",
            ),
            lambda view: [(label("loop", name), count) for name, count in view.hung_jobs.items()],
        ),
        _gauge(
            "expiry_held_since_timestamp_seconds",
            "Start of the oldest work that keeps snapshots from expiring, 0 for none.",
            lambda view: view.expiry_held_since_ms / 1000,
        ),
        _Metric(
            gauge(
                "compactord_tasks_queued",
                "Compactions that wait to start; what is paused, halted or quarantined does not.",
                "priority_class",
            ),
            lambda view: [
                (label("priority_class", rank.value), view.queued.get(rank, 0))
                for rank in PriorityClass
            ],
        ),
        _counter(
            "slot_busy_seconds_total",
            "Time that slots spent with compactions.",
            lambda view: view.engine.slot_busy_seconds,
        ),
        _Metric(
            counter("compactord_picks_total", "Compactions picked, and why.", "kind", "reason"),
            lambda view: [
                (labels_of({"kind": kind.value, "reason": reason.value}), count)
                for (kind, reason), count in view.picks.items()
            ],
        ),
        *_memory_metrics(),
    )


def _memory_metrics() -> tuple[_Metric, ...]:
    return (
        _gauge(
            "memory_budget_bytes",
            "Memory that running compactions may be granted.",
            lambda view: view.engine.memory_budget_bytes,
        ),
        _gauge(
            "memory_reserved_bytes",
            "Memory that running compactions are granted.",
            lambda view: view.engine.memory_reserved_bytes,
        ),
        _gauge(
            "task_peak_memory_bytes",
            "Largest memory of a worker in recent compactions.",
            lambda view: view.engine.task_peak_memory_bytes,
        ),
    )


def _top_metric(count: int) -> _Metric:
    family = gauge(
        "compactord_top_bucket_sorted_runs",
        "The largest counts of sorted runs over all buckets of tables that are neither paused nor "
        "excluded; /v1/buckets/top names them.",
        "rank",
    )

    def read(view: ServiceView) -> list[Sample]:
        # Ranks without a bucket are 0: the number of series does not depend on that of buckets.
        runs = [bucket.sorted_runs for bucket in view.top_buckets[:count]]
        runs += [0] * (count - len(runs))
        return [(label("rank", str(rank)), value) for rank, value in enumerate(runs, 1)]

    return _Metric(family, read)
