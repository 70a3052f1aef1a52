from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import openmetrics, parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from compactord.commit.changes import BucketChange, Committed
from compactord.maintenance.snapshots import ExpireSnapshots
from compactord.model import CompactReason, Conflict, TableKind, TableName, WorkKind
from compactord.paimon.data_file import BucketId
from compactord.scheduler.compaction import HaltReason, Outcome, PriorityClass, TableCounters
from compactord.scheduler.events import Polled, SnapshotCommitted
from compactord.service import table_metrics
from compactord.service.logs import LoggingObserver
from compactord.service.metrics import METRICS, OPENMETRICS, TEXT, Metrics
from compactord.service.view import ServiceView, TableStatus, TableView
from compactord.storage.requests import RequestTotal, StorageOp, StorageOutcome, StorageRequest
from compactord.table.status import Backlog, RunState, TableInfo, TableShape
from tests.views import (
    NOW_MS,
    append_view,
    busy_night,
    compaction_view,
    halt,
    pattern_excluded_view,
    planned,
    service_view,
    table_view,
)

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"
# Per table and per service. Buckets, partitions, files, snapshots and texts are not among them.
LABELS = {"store", "catalog", "database", "table"} | {
    *("kind", "outcome", "result", "conflict", "reason", "priority_class", "run_state", "op"),
    *("loop", "observer", "state", "rank", "version", "python", "pyspark", "pyarrow"),
    *("bucket_mode", "merge_engine", "changelog_producer", "write_only"),
}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(view: ServiceView, metrics: Metrics | None = None) -> str:
    body, content_type = (metrics or Metrics()).expose(view)
    assert content_type == TEXT
    return b"".join(body).decode()


def samples(text: str) -> Samples:
    """Every sample; fails on a series that is there twice."""
    found: Samples = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def of_table(found: Samples, table: str = "orders") -> Samples:
    return {key: value for key, value in found.items() if ("table", table) in key[1]}


def value(found: Samples, name: str, **labels: str) -> float | None:
    """The one sample with these labels among others, None when there is none."""
    wanted = set(labels.items())
    hits = [v for (n, given), v in found.items() if n == name and wanted <= given]
    assert len(hits) < 2
    return hits[0] if hits else None


def count_all(metrics: Metrics) -> None:
    """Everything that can happen, once."""
    for kind in (WorkKind.MINOR, WorkKind.FULL, WorkKind.APPEND):
        metrics.compaction.labels(kind.value).observe(12.0)
        metrics.input.labels(kind.value).observe(5 << 20)
        metrics.output.labels(kind.value).observe(3 << 20)
    for priority_class in PriorityClass:
        metrics.wait.labels(priority_class.value).observe(0.2)
    metrics.commit.observe(0.3)
    metrics.commit_buckets.observe(12)
    metrics.maintained(ExpireSnapshots(interval_ms=1), {}, 0.4)
    metrics.poll.observe(0.05)
    metrics.scan.observe(0.01)
    metrics.manifests.inc(3)
    for result in ("kept", "skipped"):
        metrics.entries.labels(result).inc(5)
    metrics.loop_ran("service", 0.02)
    metrics.discovery.labels("lake").observe(0.5)
    metrics.events_dropped.labels("Toy").inc()
    for op in StorageOp:
        for outcome in StorageOutcome:
            metrics.storage_request(
                StorageRequest(
                    store="s3",
                    op=op,
                    outcome=outcome,
                    seconds=0.003,
                    size_bytes=9,
                    is_repeated=True,
                )
            )
    for kind in TableKind:
        metrics.table_requests(kind, 2)
    metrics.catalog_request("lake", True)


def eventful_counters() -> TableCounters:
    """A table to which everything has happened."""
    return TableCounters(
        compactions={(kind, outcome): 1 for kind in WorkKind for outcome in Outcome},
        commits_committed=9,
        commits_error=1,
        conflicts=dict.fromkeys(Conflict, 1),
        expired_snapshots=4,
        expired_files=30,
        expire_failures=1,
    )


def eventful() -> ServiceView:
    """A view in which every metric has a sample."""
    base = table_view()
    eventful_table = replace(
        base,
        status=TableStatus.HALTED,
        halt=halt(),
        counters=eventful_counters(),
        last_expire_ms=NOW_MS,
        last_expire_failed=True,
        last_success_ms=dict.fromkeys(WorkKind, NOW_MS),
        quarantined_count=2,
        blocked=Backlog(tasks=2, files=9, size_bytes=300, oldest_ms=NOW_MS),
        info=replace(base.info, readers_wait=True),
        shape=replace(base.shape, deleted_rows_ratio_max=0.25),
        max_freshness_lag_ms=60_000,
    )
    view = service_view(
        eventful_table,
        table_view("sales.calm"),
        append_view(),
        table_view("sales.off", status=TableStatus.PAUSED),
        *(
            table_view(f"sales.{each.value}", status=TableStatus.HALTED, halt=halt(each))
            for each in HaltReason
        ),
        pattern_excluded_view(),
    )
    picks = {
        (kind, reason): 1 for kind in (WorkKind.MINOR, WorkKind.FULL) for reason in CompactReason
    }
    return replace(view, picks=picks, queued=dict.fromkeys(PriorityClass, 2))


def everything() -> str:
    metrics = Metrics()
    count_all(metrics)
    return scrape(eventful(), metrics)


def test_both_formats_pass_the_client_librarys_own_parsers_and_say_the_same() -> None:
    metrics = Metrics()
    count_all(metrics)
    body, content_type = metrics.expose(eventful(), "application/openmetrics-text;version=1.0.0")
    assert content_type == OPENMETRICS
    assert content_type.startswith("application/openmetrics-text")
    assert openmetrics.exposition.CONTENT_TYPE_LATEST == OPENMETRICS
    strict = {
        (sample.name, frozenset(sample.labels.items()))
        for family in openmetrics_parser.text_string_to_metric_families(b"".join(body).decode())
        for sample in family.samples
    }
    assert strict == set(samples(scrape(eventful(), metrics)))


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        ("application/openmetrics-text; version=1.0.0, text/plain;q=0.5", OPENMETRICS),
        ("text/plain, Application/OpenMetrics-Text ; q=0.9", OPENMETRICS),
        ("application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text;q=0.0, */*", TEXT),
        ("application/openmetrics-text;version=nonsense", OPENMETRICS),
    ],
)
def test_the_format_is_what_the_scraper_accepts(accept: str, expected: str) -> None:
    assert Metrics().expose(service_view(), accept)[1] == expected


def described(text: str) -> dict[str, tuple[str, set[str], str]]:
    """Name -> type, labels, HELP of all that is exposed; buckets are the histogram's own affair."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
    labels: dict[str, set[str]] = {name: set() for name in kinds}
    for sample, given in samples(text):
        name = sample if sample in kinds else re.sub("_(sum|count|bucket)$", "", sample)
        labels[name] |= {label for label, _ in given} - {"le"}
    return {name: (kind, labels[name], helps[name]) for name, kind in kinds.items()}


def documented() -> dict[str, tuple[str, set[str], str]]:
    exposed = DOCS.read_text().split("## Metrics that do not exist", 1)[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.+) \|$", exposed, re.MULTILINE)
    return {
        name: (kind, set(re.findall(r"`(\w+)`", labels)), meaning)
        for name, kind, labels, meaning in rows
    }


def test_the_documentation_names_what_is_exposed_and_nothing_else() -> None:
    assert documented() == described(everything())


def test_all_that_may_be_made_from_a_view_is_exposed_by_the_eventful_one() -> None:
    metrics = (*METRICS, *table_metrics.METRICS)
    assert {metric.family.name for metric in metrics} <= set(described(everything()))


def test_names_and_labels_follow_the_rules() -> None:
    for name, (kind, labels, meaning) in described(everything()).items():
        assert name.endswith("_total") == (kind == "counter"), name
        assert meaning.endswith(".") or name.startswith("process_"), name
        assert labels <= LABELS, name
        assert "_created" not in name


def test_a_histogram_has_no_table() -> None:
    for name, (kind, labels, _) in described(everything()).items():
        if kind == "histogram":
            assert not labels & {"table", "catalog"}, name


def with_buckets(view: TableView, count: int) -> TableView:
    bands = {RunState.IDLE: count} if count < 2 else dict.fromkeys(RunState, count // 4)
    return replace(view, shape=replace(view.shape, buckets=count, buckets_by_run_state=bands))


@pytest.mark.parametrize("make", [table_view, append_view])
def test_a_hundred_thousand_buckets_have_as_many_series_as_one(
    make: Callable[[str], TableView],
) -> None:
    few, many = (
        samples(scrape(service_view(*(with_buckets(make(f"d.t{i}"), n) for i in range(3)))))
        for n in (1, 100_000)
    )
    assert set(few) == set(many)


def test_a_band_without_buckets_is_there_and_empty() -> None:
    found = samples(scrape(service_view(with_buckets(table_view(), 1))))
    bands = {
        state: value(found, "compactord_table_buckets_by_run_state", run_state=state.value)
        for state in RunState
    }
    assert bands == {**dict.fromkeys(RunState, 0), RunState.IDLE: 1}


def test_top_buckets_take_a_fixed_number_of_series() -> None:
    for view, runs in ((busy_night().view(), [9, 7, 6]), (service_view(), [])):
        found = samples(scrape(view, Metrics(top_buckets=4)))
        top = [value(found, "compactord_top_bucket_sorted_runs", rank=str(i)) for i in range(1, 6)]
        assert top == [*runs, *[0] * (4 - len(runs)), None]


def test_a_table_costs_few_series() -> None:
    """49 names for a table with runs, three more bands, three more zeros; docs/metrics.md too."""
    found = samples(scrape(service_view(table_view(), append_view())))
    assert len({name for name, _ in of_table(found)}) == 49
    assert len(of_table(found)) == 55
    assert len(of_table(found, "clicks")) == 43
    assert len(of_table(samples(scrape(eventful())))) < 100


@pytest.mark.parametrize(
    ("happened", "series"),
    [
        (
            {
                "counters": TableCounters(compactions={(WorkKind.FULL, Outcome.COMMITTED): 1}),
                "last_success_ms": {WorkKind.MINOR: 1, WorkKind.FULL: 2},
            },
            2,
        ),
        ({"counters": TableCounters(conflicts={Conflict.SNAPSHOT_RACE: 2})}, 1),
        ({"last_expire_ms": NOW_MS}, 4),
        ({"quarantined_count": 3}, 1),
        ({"status": TableStatus.HALTED, "halt": halt()}, 0),
        ({"status": TableStatus.EXCLUDED}, -54),
        ({"info": TableInfo(kind="primary-key", readers_wait=True)}, 1),
        ({"max_freshness_lag_ms": 60_000}, 1),
        ({"shape": replace(table_view().shape, deleted_rows_ratio_max=0.25)}, 1),
    ],
    ids=[
        "full compaction",
        "conflict",
        "expiry",
        "quarantine",
        "halt instead of polls",
        "excluded",
        "readers wait",
        "a limit for that",
        "deleted rows",
    ],
)
def test_what_happens_to_a_table_adds_few_series(happened: dict[str, object], series: int) -> None:
    found = samples(scrape(service_view(table_view(**happened))))
    assert len(of_table(found)) == 55 + series


def test_every_table_has_its_state_and_an_excluded_one_nothing_else() -> None:
    view = service_view(
        table_view("d.paused", status=TableStatus.PAUSED), pattern_excluded_view("d.tmp")
    )
    found = samples(scrape(view))
    for table, state in (("paused", "paused"), ("tmp", "excluded")):
        assert value(found, "compactord_table_state", table=table, state=state) == 1
        assert value(found, "compactord_tables", catalog="lake", state=state) == 1
    assert {name for name, _ in of_table(found, "tmp")} == {"compactord_table_state"}


def test_excluded_tables_take_only_the_room_that_is_left() -> None:
    excluded = [pattern_excluded_view(f"d.tmp_{n}") for n in range(5)]
    found = samples(scrape(service_view(*excluded, table_view("d.t")), Metrics(max_tables=3)))
    assert len([1 for name, _ in found if name == "compactord_table_state"]) == 3
    assert value(found, "compactord_metrics_tables_aggregated") == 0
    assert of_table(found, "t")


def test_of_a_table_whose_schema_nobody_could_read_nothing_is_claimed() -> None:
    unread = table_view("d.t", status=TableStatus.ERROR, info=TableInfo(), first_poll_ms=0)
    found = samples(scrape(service_view(unread)))
    assert not [labels for name, labels in found if name == "compactord_table_info"]


def test_before_the_first_success_the_first_poll_counts() -> None:
    table = table_view(last_success_ms={}, first_poll_ms=7000)
    name = "compactord_table_last_success_timestamp_seconds"
    assert value(samples(scrape(service_view(table))), name, kind="minor") == 7
    table = table_view(last_success_ms={WorkKind.FULL: 9000}, first_poll_ms=7000)
    assert value(samples(scrape(service_view(table))), name, kind="full") == 9


def test_the_service_itself_costs_at_most_435_series() -> None:
    metrics = Metrics()
    count_all(metrics)
    assert len(samples(scrape(replace(eventful(), tables=()), metrics))) <= 435


def test_a_table_that_is_gone_has_no_series() -> None:
    metrics = Metrics()
    assert of_table(samples(scrape(service_view(table_view()), metrics)))
    assert not of_table(samples(scrape(service_view(), metrics)))


def test_what_alerts_wait_for_starts_at_zero() -> None:
    found = samples(scrape(service_view(table_view())))
    assert value(found, "compactord_commits_total", result="gave_up") == 0
    assert value(found, "compactord_commit_lost_snapshots_total") == 0
    assert value(found, "compactord_wasted_bytes_total") == 0
    failed = value(found, "compactord_compactions_total", kind="minor", outcome="failed")
    assert failed == 0


def test_a_table_that_was_never_polled_shows_no_numbers_of_files() -> None:
    refused = table_view(
        status=TableStatus.UNSUPPORTED, halt=halt(), first_poll_ms=0, shape=TableShape()
    )
    found = of_table(samples(scrape(service_view(refused))))
    assert value(found, "compactord_table_halted", reason="unsupported_feature") == 1
    assert value(found, "compactord_table_stop_trigger_runs") is None
    assert value(found, "compactord_table_files") is None


@pytest.mark.parametrize("status", [TableStatus.PAUSED, TableStatus.HALTED])
def test_a_table_that_nobody_polls_does_not_look_as_if_polling_had_failed(
    status: TableStatus,
) -> None:
    name = "compactord_table_last_poll_timestamp_seconds"
    assert value(samples(scrape(service_view(table_view(status=status)))), name) is None
    assert value(samples(scrape(service_view(table_view()))), name) == (NOW_MS - 4000) / 1000


def test_the_stop_trigger_that_runs_are_measured_against_is_exposed() -> None:
    table = table_view(info=replace(table_view().info, stop_trigger=35))
    found = samples(scrape(service_view(table)))
    assert value(found, "compactord_table_stop_trigger_runs") == 35


def test_other_settings_hold_from_the_next_scrape_on_and_counts_stay() -> None:
    metrics = Metrics()
    metrics.poll.observe(1.0)
    view = service_view(table_view("d.a"), table_view("d.b"))
    metrics.configure(max_tables=1, top_buckets=2)
    found = samples(scrape(view, metrics))
    assert value(found, "compactord_metrics_tables_aggregated") == 1
    assert value(found, "compactord_top_bucket_sorted_runs", rank="3") is None
    assert value(found, "compactord_poll_duration_seconds_count") == 1


def test_an_expiry_is_not_taken_for_a_compaction_that_succeeded() -> None:
    table = table_view(last_success_ms={WorkKind.EXPIRE: NOW_MS, WorkKind.MINOR: 5000})
    found = samples(scrape(service_view(replace(table, last_expire_ms=NOW_MS))))
    assert value(found, "compactord_table_last_success_timestamp_seconds") == 5
    assert value(found, "compactord_table_last_expire_timestamp_seconds") == NOW_MS / 1000


def test_numbers_of_the_view_arrive_in_base_units() -> None:
    found = samples(scrape(busy_night().view()))
    orders = {"database": "sales", "table": "orders"}
    assert value(found, "compactord_table_sorted_runs_max", **orders) == 9
    assert value(found, "compactord_table_max_backlog_age_seconds", **orders) == 1800
    assert value(found, "compactord_table_discovery_interval_seconds", **orders) == 10
    oldest = value(found, "compactord_table_backlog_oldest_timestamp_seconds", **orders)
    assert oldest == NOW_MS / 1000 - 41 * 60
    minor = {"kind": "minor", "outcome": "conflict"}
    assert value(found, "compactord_compactions_total", **orders, **minor) == 3
    assert value(found, "compactord_table_compaction_duration_seconds_sum", **orders) == 9912
    assert value(found, "compactord_tables", catalog="lake", state="halted") == 1
    assert value(found, "compactord_tasks_queued", priority_class="forced") == 2
    assert value(found, "compactord_tasks_queued", priority_class="breach") == 0


def test_freshness_is_exposed_where_readers_wait() -> None:
    waiting = table_view("d.waiting", max_freshness_lag_ms=300_000)
    shape = replace(
        waiting.shape,
        waiting_since_ms=NOW_MS - 9_000,
        last_compacted_file_ms=NOW_MS - 7_000,
        earliest_uncompacted_file_ms=NOW_MS - 8_000,
    )
    info = replace(waiting.info, readers_wait=True)
    counters = TableCounters(worker_cpu_seconds=1.5)
    waiting = replace(waiting, shape=shape, info=info, counters=counters)
    found = samples(scrape(service_view(waiting, table_view("d.other"))))
    expected = {
        "compactord_table_waiting_since_timestamp_seconds": (NOW_MS / 1000 - 9, None),
        "compactord_table_max_freshness_lag_seconds": (300, None),
        "compactord_table_last_compacted_file_timestamp_seconds": (NOW_MS / 1000 - 7, 0),
        "compactord_table_earliest_uncompacted_file_timestamp_seconds": (NOW_MS / 1000 - 8, 0),
        "compactord_worker_cpu_seconds_total": (1.5, 0),
    }
    for name, values in expected.items():
        assert tuple(value(found, name, table=t) for t in ("waiting", "other")) == values, name


def test_one_list_of_reasons_serves_picks() -> None:
    found = samples(everything())
    reasons = {dict(labels)["reason"] for name, labels in found if name == "compactord_picks_total"}
    assert reasons == {reason.value for reason in CompactReason}


def test_halts_are_told_by_reason() -> None:
    halted = table_view(status=TableStatus.HALTED, halt=halt(HaltReason.CORRUPT_METADATA))
    found = samples(scrape(service_view(halted)))
    assert value(found, "compactord_table_halted", reason="corrupt_metadata") == 1


def test_what_happens_is_counted() -> None:
    metrics = Metrics()
    observer, name = LoggingObserver(metrics), TableName("lake", "d", "t")
    sizes = {"bytes_in": 3 << 20, "bytes_out": 1 << 20, "seconds": 7.0}
    observer.on_event(compaction_view(kind=WorkKind.FULL, **sizes))
    changes = tuple(
        BucketChange(
            bucket=BucketId(b"", number),
            total_buckets=3,
            output_level=0,
            before=(),
            upgraded=(),
            outputs=(),
            files_above=frozenset(),
            compaction_id=number,
        )
        for number in range(3)
    )
    commit = Committed(snapshot_id=1, base=("",), published=changes, dropped=(), attempts=1)
    observer.on_event(SnapshotCommitted(name=name, commit=commit, seconds=0.2))
    plan = planned(1, manifests_read=4, entries_read=9, entries_skipped=2)
    observer.on_event(Polled(name=name, seconds=0.1, planned=plan, before=None))
    put = StorageRequest(store="s3", op=StorageOp.PUT, outcome=StorageOutcome.ERROR, seconds=0.5)
    metrics.storage_request(replace(put, is_repeated=True))
    metrics.storage_request(replace(put, outcome=StorageOutcome.OK, size_bytes=77))
    worker = RequestTotal(
        store="s3",
        op=StorageOp.PUT,
        outcome=StorageOutcome.OK,
        requests=5,
        size_bytes=100,
        repeated=2,
    )
    metrics.worker_requests((worker,))
    for is_answered in (True, True, False):
        metrics.catalog_request("lake", is_answered)
    found = samples(scrape(service_view(), metrics))
    duration = "compactord_compaction_duration_seconds"
    assert value(found, f"{duration}_bucket", kind="full", le="5.0") == 0
    assert value(found, f"{duration}_bucket", kind="full", le="10.0") == 1
    assert value(found, "compactord_compaction_input_bytes_sum", kind="full") == 3 << 20
    assert value(found, "compactord_compaction_output_bytes_sum", kind="full") == 1 << 20
    assert value(found, "compactord_commit_buckets_sum") == 3
    assert value(found, "compactord_poll_duration_seconds_count") == 1
    assert value(found, "compactord_scan_manifests_total") == 4
    assert value(found, "compactord_scan_entries_total", result="kept") == 7
    assert value(found, "compactord_scan_entries_total", result="skipped") == 2
    named = {"store": "s3", "op": "put"}
    assert value(found, "compactord_storage_requests_total", **named, outcome="error") == 1
    assert value(found, "compactord_storage_requests_total", **named, outcome="ok") == 1 + 5
    assert value(found, "compactord_storage_request_duration_seconds_sum", **named) == 1.0
    assert value(found, "compactord_storage_retries_total", **named) == 1 + 2
    assert value(found, "compactord_storage_bytes_total", **named) == 77 + 100
    for outcome, count in (("ok", 2), ("error", 1)):
        found_count = value(
            found, "compactord_catalog_requests_total", catalog="lake", outcome=outcome
        )
        assert found_count == count


def test_two_services_in_one_process_do_not_share_counts() -> None:
    first, second = Metrics(), Metrics()
    first.poll.observe(1.0)
    name = "compactord_poll_duration_seconds_count"
    assert value(samples(scrape(service_view(), first)), name) == 1
    assert value(samples(scrape(service_view(), second)), name) == 0


def test_tables_beyond_the_limit_are_counted() -> None:
    tables = [table_view(f"d.t{i}") for i in range(10)]
    found = samples(scrape(service_view(*tables), Metrics(max_tables=4)))
    assert value(found, "compactord_metrics_tables_aggregated") == 6
    names = Counter(dict(labels).get("table") for name, labels in found if name.endswith("_files"))
    assert len(names) == 4


def test_a_scrape_of_2000_tables_is_quick() -> None:
    metrics = Metrics()
    view = service_view(*(table_view(f"d.t{i}") for i in range(2000)))
    started = time.monotonic()
    text = scrape(view, metrics)
    elapsed_s = time.monotonic() - started
    assert text.count("\n") > 90_000
    # 0.1 s on an idle machine: the bound only finds what is of another order.
    assert elapsed_s < 2


def test_blocked_work_is_measured_while_there_is_any() -> None:
    blocked = Backlog(tasks=2, files=9, size_bytes=300, oldest_ms=NOW_MS)
    found = samples(scrape(service_view(table_view(blocked=blocked))))
    assert value(found, "compactord_table_blocked_tasks") == 2
    assert value(found, "compactord_table_blocked_bytes") == 300
    assert value(samples(scrape(service_view())), "compactord_table_blocked_bytes") is None


def test_quarantined_buckets_are_counted_while_there_are_any() -> None:
    shown = table_view(quarantined_count=3)
    found = samples(scrape(service_view(shown)))
    assert value(found, "compactord_table_quarantined_buckets") == 3
    assert value(samples(scrape(service_view())), "compactord_table_quarantined_buckets") is None
