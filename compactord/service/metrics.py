"""Everything exposed to Prometheus, described in docs/metrics.md.

State comes from the view, which each scrape reads: a dropped table has no series from then on.
Events between two views are counted here as they happen, without the table. A scrape does no I/O.
"""

from __future__ import annotations

import itertools
import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version as installed_version
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    Summary,
    disable_created_metrics,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from compactord.config.model import Recovery
from compactord.maintenance.kind import AnyKind
from compactord.maintenance.registry import maintenance_kinds
from compactord.model import TableKind, TableName
from compactord.scheduler.compaction import PriorityClass
from compactord.service.exposition import (
    Family,
    Labelled,
    family,
    labels_text,
    reader,
    write_family,
)
from compactord.service.http import accepts
from compactord.service.page.attention import Attention, attention_of
from compactord.service.table_metrics import write_tables
from compactord.service.view import ServiceView, TableStatus, TableView
from compactord.storage.requests import RequestTotal, StorageOutcome, StorageRequest

_Read = Callable[[ServiceView], Iterable[Labelled]]


class _Metric(NamedTuple):
    family: Family
    read: _Read


class ServiceMetrics:
    """Writes the metrics of the service. `versions` of libraries are keyed by label."""

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
    """A metric without labels; see `reader`. `name` defaults to the field's name."""
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
        "Polls, commits, sweeps and expiries that take so long that they probably hang.",
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
        "Compactions that wait to start, without paused, halted or quarantined work.",
        "priority_class",
        lambda view: (((rank.value,), view.queued.get(rank, 0)) for rank in PriorityClass),
    ),
    _value(
        "engine.slot_busy_seconds",
        "Time that slots spent on compactions.",
        "slot_busy_seconds_total",
    ),
    _values(
        "picks_total",
        "Compactions picked, by kind and reason.",
        "kind reason",
        lambda view: (((kind.value, why.value), n) for (kind, why), n in view.picks.items()),
    ),
    _value("engine.memory_budget_bytes", "Memory that running compactions may be granted."),
    _value("engine.memory_reserved_bytes", "Memory that running compactions are granted."),
    _value("engine.task_peak_memory_bytes", "Largest memory of a worker in recent compactions."),
)


def _top_metric(count: int) -> _Metric:
    def read(view: ServiceView) -> Iterable[Labelled]:
        # Ranks without a bucket are 0, so the number of series is fixed.
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


MAX_TABLES = 2000
TOP_BUCKETS = 20
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_NAMESPACE = "compactord"
_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_BYTES = tuple(float(4**power << 20) for power in range(9))
_BUCKETS = (1, 4, 16, 64, 256, 1000)
_OWN_BONUS = 2
_KINDS = maintenance_kinds(Recovery())


class Metrics:
    """The service's counts and the text of a scrape. Any thread may use all of it.

    Observers use its public attributes. Tables beyond `max_tables` are only counted. `kinds` are
    kinds of maintenance.
    """

    def __init__(
        self,
        *,
        max_tables: int = MAX_TABLES,
        top_buckets: int = TOP_BUCKETS,
        kinds: Sequence[AnyKind] = _KINDS,
    ) -> None:
        # Without this, every counter has a second series with its creation time.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # its library left it so
        self._counted = CollectorRegistry()
        ProcessCollector("", lambda: "self", "/proc", self._counted)
        self._versions = {
            "python": platform.python_version(),
            "pyspark": installed_version("pyspark"),
            "pyarrow": installed_version("pyarrow"),
        }
        self._own_series = OwnSeries(max_tables)
        self._make_work_metrics()
        self._make_maintenance_metrics(kinds)
        self._make_service_metrics()
        self.configure(max_tables=max_tables, top_buckets=top_buckets)

    def configure(self, *, max_tables: int, top_buckets: int) -> None:
        """Use other settings from the next scrape on. Counts are kept."""
        self._own_series.max_tables = max_tables
        self._service = ServiceMetrics(self._versions, top_buckets=top_buckets)

    def _make_work_metrics(self) -> None:
        self.wait = self._histogram(
            "task_wait_seconds", "Time from pick to start.", _SECONDS, "priority_class"
        )
        self.compaction = self._histogram(
            "compaction_duration_seconds", "Time from start to closed outputs.", _SECONDS, "kind"
        )
        self.input = self._histogram(
            "compaction_input_bytes", "Size of a compaction's inputs.", _BYTES, "kind"
        )
        self.output = self._histogram(
            "compaction_output_bytes", "Size of a compaction's outputs.", _BYTES, "kind"
        )
        self.commit = self._histogram(
            "commit_duration_seconds", "Time of a whole commit with its retries.", _SECONDS
        )
        self.commit_buckets = self._histogram(
            "commit_buckets", "Buckets that a commit changed.", _BUCKETS
        )

    def _make_maintenance_metrics(self, kinds: Sequence[AnyKind]) -> None:
        self._durations = {
            kind.name: self._summary(*kind.duration_metric)
            for kind in kinds
            if kind.duration_metric is not None
        }
        self._rounds = {
            name: self._counter(name, meaning) for kind in kinds for name, meaning in kind.counters
        }

    def _make_service_metrics(self) -> None:
        self.poll = self._histogram(
            "poll_duration_seconds", "Time of one poll of a table.", _SECONDS
        )
        self.scan = self._histogram(
            "scan_duration_seconds", "Time to read what changed in a table's files.", _SECONDS
        )
        self.manifests = self._counter("scan_manifests", "Manifests read to learn of files.")
        self.entries = self._counter(
            "scan_entries", "Manifest entries kept and skipped in scans.", "result"
        )
        self._loop = self._histogram(
            "loop_duration_seconds", "Time of an iteration of a loop.", _SECONDS, "loop"
        )
        self.discovery = self._summary(
            "discovery_duration_seconds", "Time to list a catalog's tables.", "catalog"
        )
        self._catalog_requests = self._counter(
            "catalog_requests",
            "Requests to a catalog's REST server, metastore or database; error: no answer.",
            "catalog",
            "outcome",
        )
        self.events_dropped = self._counter(
            "events_dropped", "Events that an observer failed to process in time.", "observer"
        )
        self._requests = self._counter(
            "storage_requests", "Requests to stores.", "store", "op", "outcome"
        )
        self._table_requests = self._counter(
            "table_kind_storage_requests",
            "Requests to stores for tables of a kind; requests of workers are not counted.",
            "kind",
        )
        self._request_seconds = self._summary(
            "storage_request_duration_seconds",
            "Time of requests to stores; requests of workers are not counted.",
            "store",
            "op",
        )
        self._request_bytes = self._counter(
            "storage_bytes", "Bytes read from stores (get) and written to them.", "store", "op"
        )
        self._retries = self._counter(
            "storage_retries", "Requests to stores that failed and were retried.", "store", "op"
        )

    # The library's arguments: name, help, labels, namespace, subsystem, unit, registry.

    def _histogram(
        self, name: str, meaning: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(name, meaning, labels, _NAMESPACE, "", "", self._counted, buckets=buckets)

    def _summary(self, name: str, meaning: str, *labels: str) -> Summary:
        return Summary(name, meaning, labels, _NAMESPACE, "", "", self._counted)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(name, meaning, labels, _NAMESPACE, "", "", self._counted)

    def maintained(self, kind: AnyKind, counts: Mapping[str, int], seconds: float) -> None:
        """Count an ended round of maintenance of one table, whether it succeeded or not."""
        if kind.name in self._durations:
            self._durations[kind.name].observe(seconds)
        for name, _ in kind.counters:
            self._rounds[name].inc(counts.get(name, 0))

    def loop_ran(self, loop: str, seconds: float) -> None:
        self._loop.labels(loop).observe(seconds)

    def catalog_request(self, catalog: str, is_answered: bool) -> None:
        """Count a request that a catalog's breaker reports; a refusal is an answer."""
        outcome = StorageOutcome.OK if is_answered else StorageOutcome.ERROR
        self._catalog_requests.labels(catalog, outcome.value).inc()

    def storage_request(self, request: StorageRequest) -> None:
        """Count a request that a store reports (`compactord/storage/requests.py`)."""
        store, op = request.store, request.op.value
        self._requests.labels(store, op, request.outcome.value).inc()
        self._request_seconds.labels(store, op).observe(request.seconds)
        if request.size_bytes:
            self._request_bytes.labels(store, op).inc(request.size_bytes)
        if request.is_repeated:
            self._retries.labels(store, op).inc()

    def worker_requests(self, totals: Iterable[RequestTotal]) -> None:
        """Count a worker's requests to its store for a merge that succeeded; without the time."""
        for total in totals:
            store, op = total.store, total.op.value
            self._requests.labels(store, op, total.outcome.value).inc(total.requests)
            if total.size_bytes:
                self._request_bytes.labels(store, op).inc(total.size_bytes)
            if total.repeated:
                self._retries.labels(store, op).inc(total.repeated)

    def table_requests(self, kind: TableKind, count: int) -> None:
        """Count the service's requests for a table of this kind."""
        self._table_requests.labels(kind.value).inc(count)

    def expose(self, view: ServiceView, accept: str = "") -> tuple[Iterator[bytes], str]:
        """The text of a scrape and its content type: OpenMetrics if `accept` names it.

        Yields one metric at a time: the text for 5,000 tables has 40 MB, and each thread that has
        answered a scrape would keep that memory.
        """
        is_openmetrics = accepts(accept, "application/openmetrics-text")
        own, others = self._own_series.choose(view)
        service = self._service.write(view, aggregated=others, is_openmetrics=is_openmetrics)
        tables = write_tables(own, is_openmetrics=is_openmetrics)
        # The library's part is last: it ends with OpenMetrics' end mark.
        generate = generate_openmetrics if is_openmetrics else generate_latest
        of_view = (text.encode() for text in itertools.chain([service], tables))
        body = itertools.chain(of_view, [generate(self._counted)])
        return body, OPENMETRICS if is_openmetrics else TEXT


class OwnSeries:
    """Chooses tables for series of their own: in need of attention first, then by backlog.

    A table keeps its series until another's backlog is twice as large, so series do not come and go
    with every compaction. Thread-safe.
    """

    def __init__(self, max_tables: int) -> None:
        self.max_tables = max_tables
        self._lock = threading.Lock()
        self._own: frozenset[TableName] = frozenset()

    def choose(self, view: ServiceView) -> tuple[tuple[TableView, ...], int]:
        """The tables with series, and the number of tables without.

        Excluded tables fill the remaining room, and are not counted.
        """
        excluded = [table for table in view.tables if table.status is TableStatus.EXCLUDED]
        tables = [table for table in view.tables if table.status is not TableStatus.EXCLUDED]
        with self._lock:
            own = tables
            if len(tables) > self.max_tables:
                own = sorted(tables, key=lambda table: self._rank(table, view.now_ms))
                own = own[: self.max_tables]
            self._own = frozenset(table.name for table in own)
        return (*own, *excluded[: self.max_tables - len(own)]), len(tables) - len(own)

    def _rank(self, table: TableView, now_ms: int) -> tuple[int, int, bool, TableName]:
        is_own = table.name in self._own
        weight = table.backlog.size_bytes * (_OWN_BONUS if is_own else 1)
        # Alerts concern tables that need attention, including halted ones, which have no backlog.
        return min(attention_of(table, now_ms), Attention.DUE), -weight, not is_own, table.name
