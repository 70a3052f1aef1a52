"""The metrics of a table: names, meanings, the tables that have them, the source of each value.

A table with 100,000 buckets has as many series as one with a single bucket. Label values come from
closed lists and are exposed once they occur. Values whose first increase triggers an alert are
exposed from the start, with 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from compactord.commit.changes import LossOutcome
from compactord.model import WorkKind
from compactord.scheduler.compaction import Outcome
from compactord.service.exposition import (
    Family,
    Labelled,
    Sample,
    family,
    labels_text,
    reader,
    write_family,
)
from compactord.service.view import TableStatus, TableView
from compactord.table.status import RunState

_TABLE_LABELS = ("catalog", "database", "table")
_Test = Callable[[TableView], bool]
_DURATION = Family(
    "compactord_table_compaction_duration_seconds",
    "Time from start to closed outputs of compactions.",
    _TABLE_LABELS,
    "summary",
)


class _Value(NamedTuple):
    """A metric with one sample per table that it `concerns`."""

    family: Family
    concerns: _Test
    read: Callable[[TableView], float]


class _Values(NamedTuple):
    """A metric with samples per value of its own labels."""

    family: Family
    concerns: _Test
    read: Callable[[TableView], Iterable[Labelled]]


def write_tables(tables: Sequence[TableView], *, is_openmetrics: bool) -> Iterator[str]:
    """The text of all metrics of these tables, one metric at a time."""
    named = [(table, labels_text(_TABLE_LABELS, table.name)) for table in tables]
    concerned = {
        concerns: [pair for pair in named if concerns(pair[0])]
        for concerns in {metric.concerns for metric in METRICS}
    }
    for metric in METRICS:
        samples = _samples(metric, concerned[metric.concerns])
        yield write_family(metric.family, samples, is_openmetrics=is_openmetrics)
    durations = (
        sample
        for table, name in concerned[_is_polled]
        for sample in (
            (f"_count{{{name}}}", table.counters.compaction_seconds_count),
            (f"_sum{{{name}}}", table.counters.compaction_seconds_sum),
        )
    )
    yield write_family(_DURATION, durations, is_openmetrics=is_openmetrics)


def _samples(metric: _Value | _Values, named: Sequence[tuple[TableView, str]]) -> Iterable[Sample]:
    match metric:
        case _Value(read=read):
            return ((f"{{{name}}}", read(table)) for table, name in named)
        case _Values(read=read_all):
            own = metric.family.labels[len(_TABLE_LABELS) :]
            return (
                (f"{{{name},{labels_text(own, values)}}}", value)
                for table, name in named
                for values, value in read_all(table)
            )


def _is_included(table: TableView) -> bool:
    """Excluded tables have only their state: there may be many."""
    return table.status is not TableStatus.EXCLUDED


def _is_served(table: TableView) -> bool:
    return table.status in (TableStatus.ACTIVE, TableStatus.ERROR, TableStatus.DEGRADED)


def _is_polled(table: TableView) -> bool:
    return table.is_read and _is_included(table)


def _has_runs(table: TableView) -> bool:
    return _is_polled(table) and table.has_sorted_runs


def _is_expired(table: TableView) -> bool:
    counters = table.counters
    return bool(table.last_expire_ms or counters.expired_snapshots or counters.expire_failures)


def _info(table: TableView) -> Iterator[Labelled]:
    info, write_only = table.info, str(table.info.write_only).lower()
    kinds = info.bucket_mode, info.merge_engine, info.changelog_producer
    yield (*kinds, write_only, str(table.priority)), 1


def _last_success(table: TableView) -> Iterator[Labelled]:
    # Expiry does not count: its success would hide that no compaction succeeds.
    kinds = [kind for kind in table.last_success_ms if kind is not WorkKind.EXPIRE]
    for kind in kinds:
        yield (kind.value,), table.last_success_ms[kind] / 1000
    if not kinds:
        # An alert must also fire for a table without any success.
        yield (table.info.usual_kind.value,), table.first_poll_ms / 1000


def _compactions(table: TableView) -> Iterator[Labelled]:
    usual = table.info.usual_kind
    counts = {(usual, Outcome.COMMITTED): 0, (usual, Outcome.FAILED): 0}
    counts.update(table.counters.compactions)
    for (kind, outcome), count in counts.items():
        yield (kind.value, outcome.value), count


def _commits(table: TableView) -> Iterator[Labelled]:
    counters = table.counters
    yield ("committed",), counters.commits_committed
    yield ("gave_up",), counters.commits_gave_up
    if counters.commits_error:
        yield ("error",), counters.commits_error


def _lost_commits(table: TableView) -> Iterator[Labelled]:
    # Exposed from the start: an alert on an increase does not see a series that begins with 1.
    yield (LossOutcome.HEALED.value,), table.counters.lost_commits_healed
    yield (LossOutcome.HALTED.value,), table.counters.lost_commits_halted


def _of(concerns: _Test, *rows: tuple[str, str] | tuple[str, str, str]) -> Iterator[_Value]:
    """Metrics from rows: path to the value (`reader`), meaning, name if not the field's."""
    for path, meaning, *other in rows:
        owner, _, field = path.rpartition(".")
        own = f"{field}_total" if owner == "counters" else f"table_{field}"
        name = other[0] if other else own
        yield _Value(family(name, meaning, *_TABLE_LABELS), concerns, reader(name, path))


def _values(
    name: str,
    meaning: str,
    labels: str,
    concerns: _Test,
    read: Callable[[TableView], Iterable[Labelled]],
) -> _Values:
    return _Values(family(name, meaning, *_TABLE_LABELS, *labels.split()), concerns, read)


_DUE = "Due and not committed, with running work, without halted or quarantined work: "
_BLOCKED = "Due, but waiting for the end of a halt or quarantine; absent while there is none: "
METRICS: tuple[_Value | _Values, ...] = (
    _values(
        "table_state",
        "1; the state of the table: active, paused, halted, unsupported, excluded, error "
        "or degraded. "
        "/v1/tables, the page and the log give the reason. Excluded tables have only this metric.",
        "state",
        lambda _: True,
        lambda t: [((t.status.value,), 1)],
    ),
    _values(
        "table_info",
        "1; the kind of the table and its priority from 0 to 100.",
        "bucket_mode merge_engine changelog_producer write_only priority_class",
        lambda t: _is_included(t) and bool(t.info.kind),
        _info,
    ),
    _values(
        "table_halted",
        "1 for a halted table, with the reason.",
        "reason",
        lambda t: t.halt is not None,
        lambda t: [((t.halt.reason.value,), 1)] if t.halt else [],
    ),
    *_of(
        _is_included,
        (
            "max_backlog_age_ms",
            "Configured maximum age of due work.",
            "table_max_backlog_age_seconds",
        ),
        (
            "discovery_interval_ms",
            "Current time between polls.",
            "table_discovery_interval_seconds",
        ),
        ("window_open", "1 while its schedule lets work start."),
        (
            "consecutive_failures",
            "Failures since the last success, or since no work was left.",
        ),
    ),
    *_of(
        lambda t: _is_included(t) and t.max_freshness_lag_ms > 0,
        (
            "max_freshness_lag_ms",
            "Configured maximum time that rows wait for the compaction that makes them visible "
            "to readers; absent without a maximum.",
            "table_max_freshness_lag_seconds",
        ),
    ),
    *_of(
        lambda t: _is_polled(t) and t.info.readers_wait,
        (
            "shape.waiting_since_ms",
            "Since when the oldest row waits for the compaction that makes it visible to readers: "
            "the time of the snapshot that added it, or the creation of its file if that snapshot "
            "is unknown; 0 while none waits. Only for tables whose readers wait.",
            "table_waiting_since_timestamp_seconds",
        ),
    ),
    *_of(
        lambda t: _is_included(t) and t.quarantined_count > 0,
        (
            "quarantined_count",
            "Buckets skipped after failures, or because their files are damaged; absent while "
            "there are none.",
            "table_quarantined_buckets",
        ),
    ),
    *_of(
        lambda t: _is_polled(t) and t.blocked.tasks > 0,
        ("blocked.tasks", _BLOCKED + "compactions.", "table_blocked_tasks"),
        ("blocked.size_bytes", _BLOCKED + "size of input files.", "table_blocked_bytes"),
    ),
    *_of(
        lambda t: _is_polled(t) and t.shape.deleted_rows_ratio_max > 0,
        ("shape.deleted_rows_ratio_max", "Share of deleted rows, worst bucket, if there are any."),
    ),
    *_of(
        _is_served,
        (
            "last_poll_ms",
            "Last poll that succeeded, 0 for none; only for tables neither paused nor halted.",
            "table_last_poll_timestamp_seconds",
        ),
    ),
    *_of(
        _has_runs,
        ("shape.sorted_runs_max", "Sorted runs of the bucket with the most."),
        ("shape.sorted_runs_avg", "Sorted runs per bucket."),
        ("shape.level0_files_max", "Level-0 files of the bucket with the most."),
        ("shape.level0_files_avg", "Level-0 files per bucket."),
        (
            "shape.size_amplification_max",
            "Size of all runs except the oldest, relative to the oldest, in the worst bucket.",
            "table_size_amplification_ratio_max",
        ),
        (
            "info.compaction_trigger",
            "Number of sorted runs from which a bucket is compacted.",
            "table_compaction_trigger_runs",
        ),
        (
            "info.stop_trigger",
            "Number of sorted runs beyond which Paimon stops writers that compact themselves; if "
            "the table sets none, alerts.stop_trigger_fallback above the compaction trigger.",
            "table_stop_trigger_runs",
        ),
        (
            "shape.last_full_compaction_ms",
            "Last full compaction of the bucket where it is longest ago, by its files' times; "
            "0 while a bucket never had one.",
            "table_last_full_compaction_timestamp_seconds",
        ),
    ),
    _values(
        "table_buckets_by_run_state",
        "Buckets by their sorted runs: below the trigger (idle), from the trigger on (due), at or "
        "one below the stop trigger (near_stop), above it (over_stop).",
        "run_state",
        _has_runs,
        lambda t: [((band.value,), t.shape.buckets_by_run_state.get(band, 0)) for band in RunState],
    ),
    *_of(
        _is_polled,
        ("shape.files", "Live data files."),
        (
            "shape.small_files",
            "Data files below target-file-size times compaction.small-file-ratio.",
        ),
        ("shape.size_bytes", "Size of the live data files."),
        (
            "shape.last_compacted_file_ms",
            "Creation of the newest live data file that a compaction wrote or moved to a higher "
            "level, 0 for none.",
            "table_last_compacted_file_timestamp_seconds",
        ),
        (
            "shape.earliest_uncompacted_file_ms",
            "Creation of the oldest live data file that no compaction wrote or moved: on level 0, "
            "or without keys among small files; 0 for none.",
            "table_earliest_uncompacted_file_timestamp_seconds",
        ),
        ("shape.avg_file_size_bytes_min", "Average file size of the bucket where it is smallest."),
        ("shape.bucket_size_bytes_max", "Size of the largest bucket."),
        ("shape.bucket_size_bytes_avg", "Size per bucket."),
        ("shape.snapshots", "Retained snapshots."),
        ("shape.snapshot_id", "Newest snapshot that was read.", "table_latest_snapshot_id"),
        ("planned_snapshot_id", "Snapshot of the last plan."),
        ("last_commit_snapshot_id", "Last snapshot of compactord, 0 for none known."),
        ("backlog.tasks", _DUE + "compactions.", "table_backlog_tasks"),
        ("backlog.files", _DUE + "input files.", "table_backlog_files"),
        ("backlog.size_bytes", _DUE + "size of input files.", "table_backlog_bytes"),
        (
            "backlog.oldest_ms",
            "Creation of the oldest input that made a bucket due, 0 for none.",
            "table_backlog_oldest_timestamp_seconds",
        ),
    ),
    _values(
        "table_last_success_timestamp_seconds",
        "Last compaction committed by this service; before the first one, the first poll.",
        "kind",
        _is_polled,
        _last_success,
    ),
    *_of(
        _is_expired,
        (
            "last_expire_ms",
            "Last expiry of snapshots without an error, 0 for none.",
            "table_last_expire_timestamp_seconds",
        ),
    ),
    *_of(
        lambda t: _is_included(t) and t.last_expire_failed,
        ("last_expire_failed", "1 if the last expiry of snapshots failed; absent otherwise."),
    ),
    _values(
        "compactions_total",
        "Compactions by how they ended.",
        "kind outcome",
        _is_polled,
        _compactions,
    ),
    _values("commits_total", "Commits by how they ended.", "result", _is_polled, _commits),
    _values(
        "commit_conflicts_total",
        "Conflicts of commits; a snapshot_race is retried, all other conflicts discard work.",
        "conflict",
        _is_polled,
        lambda t: [((each.value,), n) for each, n in t.counters.conflicts.items()],
    ),
    _values(
        "lost_writer_commits_total",
        "Commits that writers lost by a late rename: healed (committed again by compactord) or "
        "halted (not in the table).",
        "outcome",
        _is_polled,
        _lost_commits,
    ),
    *_of(
        _is_polled,
        ("counters.commit_attempts", "Attempts to commit, including lost races."),
        (
            "counters.lost_snapshots",
            "Snapshots of this service that another writer replaced later.",
            "commit_lost_snapshots_total",
        ),
        ("counters.input_bytes", "Size of the files that commits replaced."),
        ("counters.output_bytes", "Size of the files that commits added."),
        ("counters.input_files", "Files that commits replaced."),
        ("counters.output_files", "Files that commits added."),
        ("counters.input_records", "Records of the files that commits replaced."),
        ("counters.output_records", "Records of the files that commits added."),
        ("counters.wasted_bytes", "Output that was written and discarded."),
        (
            "counters.worker_cpu_seconds",
            "CPU time of workers in merges that succeeded, committed or not.",
        ),
        ("counters.ingested_bytes", "Size of the files that writers appended."),
    ),
    *_of(
        _is_expired,
        ("counters.expired_snapshots", "Snapshots that expired."),
        ("counters.expired_files", "Files deleted with expired snapshots."),
        ("counters.expire_failures", "Expiries that failed."),
    ),
)
