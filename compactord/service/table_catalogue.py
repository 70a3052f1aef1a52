"""The metrics of a table: names, meanings, the tables that have them, the source of each value.

A table with 100,000 buckets has as many series as one with a single bucket. From a closed list of
label values, those that occurred are exposed, and from the start, with 0, those whose first
increase an alert waits for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from compactord.commit.changes import LossOutcome
from compactord.model import WorkKind
from compactord.scheduler.status import Outcome
from compactord.service.exposition import Family, Sample, counter, gauge, label, labels_of
from compactord.service.view import TableStatus, TableView
from compactord.table.status import RunState

TABLE_LABELS = ("catalog", "database", "table")


class Value(NamedTuple):
    """A metric with one sample per table that it `concerns`."""

    family: Family
    concerns: Callable[[TableView], bool]
    read: Callable[[TableView], float]


class Values(NamedTuple):
    """A metric with samples per value of its own labels."""

    family: Family
    concerns: Callable[[TableView], bool]
    read: Callable[[TableView], Iterable[Sample]]


def is_included(table: TableView) -> bool:
    """Excluded tables have their state alone: there may be many."""
    return table.status is not TableStatus.EXCLUDED


def _is_served(table: TableView) -> bool:
    return table.status in (TableStatus.ACTIVE, TableStatus.ERROR)


def is_polled(table: TableView) -> bool:
    return table.first_poll_ms > 0 and is_included(table)


def _has_runs(table: TableView) -> bool:
    return is_polled(table) and table.has_sorted_runs


def _is_expired(table: TableView) -> bool:
    counters = table.counters
    return bool(table.last_expire_ms or counters.expired_snapshots or counters.expire_failures)


def _gauge(name: str, meaning: str, *labels: str) -> Family:
    return gauge(f"compactord_table_{name}", meaning, *TABLE_LABELS, *labels)


def _counter(name: str, meaning: str, *labels: str) -> Family:
    return counter(f"compactord_{name}", meaning, *TABLE_LABELS, *labels)


def _info(table: TableView) -> Iterator[Sample]:
    info = table.info
    values = {
        "bucket_mode": info.bucket_mode,
        "merge_engine": info.merge_engine,
        "changelog_producer": info.changelog_producer,
        "write_only": str(info.write_only).lower(),
        "priority_class": str(table.priority),
    }
    yield labels_of(values), 1


def _last_success(table: TableView) -> Iterator[Sample]:
    # Expiry does not count: it would hide that no compaction succeeds.
    kinds = [kind for kind in table.last_success_ms if kind is not WorkKind.EXPIRE]
    for kind in kinds:
        yield label("kind", kind.value), table.last_success_ms[kind] / 1000
    if not kinds:
        # An alert must also fire for a table on which nothing ever succeeds.
        yield label("kind", table.info.usual_kind.value), table.first_poll_ms / 1000


def _compactions(table: TableView) -> Iterator[Sample]:
    usual = table.info.usual_kind
    counts = {(usual, Outcome.COMMITTED): 0, (usual, Outcome.FAILED): 0}
    counts.update(table.counters.compactions)
    for (kind, outcome), count in counts.items():
        yield f"{label('kind', kind.value)},{label('outcome', outcome.value)}", count


def _commits(table: TableView) -> Iterator[Sample]:
    counters = table.counters
    yield label("result", "committed"), counters.commits_committed
    yield label("result", "gave_up"), counters.commits_gave_up
    if counters.commits_error:
        yield label("result", "error"), counters.commits_error


def _lost_commits(table: TableView) -> Iterator[Sample]:
    # From the start: an alert on an increase does not see a series that begins with 1.
    yield label("outcome", LossOutcome.HEALED.value), table.counters.lost_commits_healed
    yield label("outcome", LossOutcome.HALTED.value), table.counters.lost_commits_halted


def _state_metrics() -> tuple[Value | Values, ...]:
    return (
        Values(
            _gauge(
                "state",
                "1; what is done about the table: active, paused, halted, unsupported, excluded or "
                "error. /v1/tables, the page and the log say why. Excluded tables have only this.",
                "state",
            ),
            lambda _: True,
            lambda t: [(label("state", t.status.value), 1)],
        ),
        Values(
            _gauge(
                "info",
                "1; what kind of table it is and its priority from 0 to 100.",
                "bucket_mode",
                "merge_engine",
                "changelog_producer",
                "write_only",
                "priority_class",
            ),
            lambda t: is_included(t) and bool(t.info.kind),
            _info,
        ),
        Values(
            _gauge("halted", "1 for a halted table, with the reason.", "reason"),
            lambda t: t.halt is not None,
            lambda t: [(label("reason", t.halt.reason.value), 1)] if t.halt else [],
        ),
        _gauge_value(
            "max_backlog_age_seconds",
            "How old due work may become, as configured.",
            "max_backlog_age_ms",
            is_included,
        ),
        _gauge_value(
            "discovery_interval_seconds",
            "Time between polls in effect.",
            "discovery_interval_ms",
            is_included,
        ),
        *_poll_metrics(),
    )


def _poll_metrics() -> tuple[Value | Values, ...]:
    return (
        Value(
            _gauge("window_open", "1 while its schedule lets work start."),
            is_included,
            lambda t: int(t.window_open),
        ),
        _gauge_value(
            "consecutive_failures",
            "Failures since the last success, or since nothing was left to do.",
            "consecutive_failures",
            is_included,
        ),
        _gauge_value(
            "quarantined_buckets",
            "Buckets left alone after failures, or because their files are damaged; not there "
            "while there are none.",
            "quarantined_count",
            lambda t: is_included(t) and t.quarantined_count > 0,
        ),
        _gauge_value(
            "last_poll_timestamp_seconds",
            "Last poll that succeeded, 0 for none; of tables that are neither paused nor halted.",
            "last_poll_ms",
            _is_served,
        ),
    )


def _run_metrics() -> tuple[Value | Values, ...]:
    values = (
        ("sorted_runs_max", "Sorted runs of the bucket with the most.", "shape.sorted_runs_max"),
        ("sorted_runs_avg", "Sorted runs per bucket.", "shape.sorted_runs_avg"),
        (
            "level0_files_max",
            "Level-0 files of the bucket with the most.",
            "shape.level0_files_max",
        ),
        ("level0_files_avg", "Level-0 files per bucket.", "shape.level0_files_avg"),
        (
            "size_amplification_ratio_max",
            "All runs but the oldest, against the oldest, in the worst bucket.",
            "shape.size_amplification_max",
        ),
        (
            "compaction_trigger_runs",
            "Sorted runs from which a bucket is compacted.",
            "info.compaction_trigger",
        ),
        (
            "stop_trigger_runs",
            "Sorted runs beyond which Paimon stops writers that compact themselves; where the "
            "table has none, alerts.stop_trigger_fallback above the compaction trigger.",
            "info.stop_trigger",
        ),
        (
            "last_full_compaction_timestamp_seconds",
            "Last full compaction of the bucket where it is longest ago, as its files tell it; "
            "0 while a bucket never had one.",
            "shape.last_full_compaction_ms",
        ),
    )
    return (
        *(_gauge_value(*row, _has_runs) for row in values),
        Values(
            _gauge(
                "buckets_by_run_state",
                "Buckets whose sorted runs are below the trigger (idle), from it on (due), from "
                "one below the stop trigger to it (near_stop), above it (over_stop).",
                "run_state",
            ),
            _has_runs,
            lambda t: [
                (label("run_state", state.value), t.shape.buckets_by_run_state.get(state, 0))
                for state in RunState
            ],
        ),
    )


def _file_metrics() -> tuple[Value, ...]:
    values = (
        ("files", "Live data files.", "shape.files"),
        (
            "small_files",
            "Data files below target-file-size times compaction.small-file-ratio.",
            "shape.small_files",
        ),
        ("size_bytes", "Size of the live data files.", "shape.size_bytes"),
        (
            "avg_file_size_bytes_min",
            "Average file size of the bucket where it is smallest.",
            "shape.avg_file_size_bytes_min",
        ),
        ("bucket_size_bytes_max", "Size of the largest bucket.", "shape.bucket_size_bytes_max"),
        ("bucket_size_bytes_avg", "Size per bucket.", "shape.bucket_size_bytes_avg"),
        ("snapshots", "Retained snapshots.", "shape.snapshots"),
        ("latest_snapshot_id", "Newest snapshot that was seen.", "shape.snapshot_id"),
    )
    return tuple(_gauge_value(*row, is_polled) for row in values)


def _gauge_value(
    name: str, meaning: str, path: str, concerns: Callable[[TableView], bool]
) -> Value:
    """`path` leads to the value, which is in milliseconds where the metric is in seconds."""
    read = operator.attrgetter(path)
    if name.endswith("_seconds"):
        return Value(_gauge(name, meaning), concerns, lambda table: read(table) / 1000)
    return Value(_gauge(name, meaning), concerns, read)


def _work_metrics() -> tuple[Value | Values, ...]:
    backlog = "Due and not committed, running work included, what is halted or quarantined not: "
    values = (
        ("planned_snapshot_id", "Snapshot of the last plan.", "planned_snapshot_id"),
        (
            "last_commit_snapshot_id",
            "Last snapshot of compactord, 0 for none known.",
            "last_commit_snapshot_id",
        ),
        ("backlog_tasks", backlog + "compactions.", "backlog.tasks"),
        ("backlog_files", backlog + "input files.", "backlog.files"),
        ("backlog_bytes", backlog + "size of input files.", "backlog.size_bytes"),
        (
            "backlog_oldest_timestamp_seconds",
            "Creation of the oldest input that made a bucket due, 0 for none.",
            "backlog.oldest_ms",
        ),
    )
    return (
        *(_gauge_value(*row, is_polled) for row in values),
        Values(
            _gauge(
                "last_success_timestamp_seconds",
                "Last compaction committed by this service; before the first one, the first poll.",
                "kind",
            ),
            is_polled,
            _last_success,
        ),
        _gauge_value(
            "last_expire_timestamp_seconds",
            "Last expiry of snapshots without an error, 0 for none.",
            "last_expire_ms",
            _is_expired,
        ),
        Values(
            _counter("compactions_total", "Compactions by how they ended.", "kind", "outcome"),
            is_polled,
            _compactions,
        ),
    )


def _commit_metrics() -> tuple[Value | Values, ...]:
    return (
        Values(
            _counter("commits_total", "Commits by how they ended.", "result"), is_polled, _commits
        ),
        Values(
            _counter(
                "commit_conflicts_total",
                "What commits met; a snapshot_race is retried, the others discard work.",
                "conflict",
            ),
            is_polled,
            lambda t: [
                (label("conflict", each.value), n) for each, n in t.counters.conflicts.items()
            ],
        ),
        Values(
            _counter(
                "lost_writer_commits_total",
                "Commits that writers lost by a late rename: healed ones were committed again, "
                "halted ones are not in the table.",
                "outcome",
            ),
            is_polled,
            _lost_commits,
        ),
        *(
            _counter_value(name, meaning, field, is_polled)
            for name, meaning, field in (
                (
                    "commit_attempts_total",
                    "Attempts to commit, those included that lost a race.",
                    "commit_attempts",
                ),
                (
                    "commit_lost_snapshots_total",
                    "Snapshots of this service that another writer replaced later.",
                    "lost_snapshots",
                ),
            )
        ),
    )


def _volume_metrics() -> tuple[Value, ...]:
    polled = (
        ("input_bytes_total", "Size of the files that commits replaced.", "input_bytes"),
        ("output_bytes_total", "Size of the files that commits added.", "output_bytes"),
        ("input_files_total", "Files that commits replaced.", "input_files"),
        ("output_files_total", "Files that commits added.", "output_files"),
        ("input_records_total", "Records of the files that commits replaced.", "input_records"),
        ("output_records_total", "Records of the files that commits added.", "output_records"),
        ("wasted_bytes_total", "Output that was written and discarded.", "wasted_bytes"),
        ("ingested_bytes_total", "What writers were seen to append.", "ingested_bytes"),
    )
    expired = (
        ("expired_snapshots_total", "Snapshots that expired.", "expired_snapshots"),
        ("expired_files_total", "Files deleted with expired snapshots.", "expired_files"),
        ("expire_failures_total", "Expiries that failed.", "expire_failures"),
    )
    return (
        *(_counter_value(*row, is_polled) for row in polled),
        *(_counter_value(*row, _is_expired) for row in expired),
    )


def _counter_value(
    name: str, meaning: str, field: str, concerns: Callable[[TableView], bool]
) -> Value:
    read = operator.attrgetter(f"counters.{field}")
    return Value(_counter(name, meaning), concerns, read)


def table_catalogue() -> tuple[Value | Values, ...]:
    """All metrics with one sample per table or per value of a closed list."""
    return (
        *_state_metrics(),
        *_run_metrics(),
        *_file_metrics(),
        *_work_metrics(),
        *_commit_metrics(),
        *_volume_metrics(),
    )
