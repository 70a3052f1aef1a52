"""The page of one table: facts, warnings, counters, drawings of its worst buckets."""

from __future__ import annotations

from collections.abc import Iterator

from compactord.model import WorkKind
from compactord.service.page.figures import (
    age_text,
    attempt,
    band_mark,
    count,
    moment,
    place,
    runs_bar,
    size,
    status_mark,
    words,
)
from compactord.service.page.lsm import lsm_svg, scale_text
from compactord.service.page.markup import Markup, columns, element, facts, grid, join, section
from compactord.service.page.need import Need, freshness_text, is_stale, need_of
from compactord.service.page.notices import Notice, notice_list, table_notices
from compactord.service.page.runbooks import runbook_link
from compactord.service.page.work import with_work, work_sections
from compactord.service.view import ServiceView, TableDetail, TableView
from compactord.table.report import REWRITTEN, rewrite_text
from compactord.table.status import BucketDetail, RunState, TableInfo
from compactord.text import count_text

# What a table needs that its numbers show, and the alert whose runbook says what to do.
_NEEDS = {
    Need.OVER_STOP: (
        "A bucket has more sorted runs than the stop trigger.",
        "CompactordRunsOverStopTrigger",
    ),
    Need.NEAR_STOP: (
        "A bucket has almost as many sorted runs as the stop trigger.",
        "CompactordRunsNearStopTrigger",
    ),
    Need.LATE: ("Work fails, or waits longer than it may.", "CompactordBacklogOld"),
    Need.PAUSED: ("Nothing is compacted until the pause ends.", "CompactordTablePaused"),
}
_QUARANTINED = columns("Bucket, Failures: number, What failed: text, Next attempt")
_RESTING = columns("Partition, Rewritten: text, Skipped until")
_RUNS = columns("Level, Files: number, Rows: number, Size: number, Smallest key, Largest key")


def one_table(view: ServiceView, detail: TableDetail, now_ms: int) -> Markup:
    """The page's main part."""
    table = detail.view
    work = with_work(view, lambda name: name == table.name)
    return join(
        element("nav", element("a", "All tables", href="/"), aria_label="Up"),
        element("h1", element("bdi", str(table.name)), status_mark(table.status.value)),
        notice_list(list(_notices(table, now_ms))),
        *(_parts(detail, work, now_ms) if table.first_poll_ms else ()),
        section("settings-part", "Settings", facts(_settings(table, now_ms))),
        section("counters-part", "Since the service started", facts(_counted(table)))
        if table.first_poll_ms
        else element("p", "Its files have not been read.", class_="quiet"),
    )


def _parts(detail: TableDetail, work: ServiceView, now_ms: int) -> Iterator[Markup]:
    """What is known once its files have been read."""
    table = detail.view
    yield section("facts-part", "Now", facts(_shape_facts(table, now_ms)), _bands(table))
    yield section("buckets-part", "Worst buckets", *_buckets(detail))
    if table.maintenance:
        yield section("maintenance-part", "Maintenance", facts(_maintained(table, now_ms)))
    if table.quarantined_count:
        yield section("quarantined-part", "Quarantined buckets", _quarantined(table, now_ms))
    if table.resting_count:
        resting = _resting(table, now_ms)
        yield section("resting-part", "Partitions skipped after a rewrite", resting)
    yield from work_sections(work, now_ms)


def _notices(table: TableView, now_ms: int) -> Iterator[Notice]:
    yield from table_notices(table, now_ms, names_table=False)
    found = _NEEDS.get(need_of(table, now_ms))
    if found is not None:
        text, alert = found
        yield Notice("warn", element("p", text, " ", runbook_link(alert)))
    if is_stale(table, now_ms):
        text = f"Readers see changes too late: {freshness_text(table, now_ms)}."
        link = runbook_link("CompactordFreshnessLagExceeded")
        yield Notice("warn", element("p", text, " ", link))
    for warning in table.info.warnings:
        yield Notice("warn", element("bdi", warning))
    rewrite = table.info.rewrite
    if rewrite is not None:
        yield Notice("warn", element("bdi", f"Last {rewrite_text(rewrite)}: {REWRITTEN}."))


def _shape_facts(table: TableView, now_ms: int) -> Iterator[tuple[str, str]]:
    shape, info, backlog = table.shape, table.info, table.backlog
    if info.compaction_trigger:
        yield (
            "Sorted runs, worst bucket",
            runs_bar(shape.sorted_runs_max, info.compaction_trigger, info.stop_trigger),
        )
        yield "Sorted runs, on average", f"{shape.sorted_runs_avg:.1f}"
        yield (
            "Level-0 files",
            f"{count(shape.level0_files)}, at most {count(shape.level0_files_max)} a bucket",
        )
        yield "Size amplification, worst bucket", f"{shape.size_amplification_max:.0%}"
        yield "Last full compaction, worst bucket", moment(shape.last_full_compaction_ms, now_ms)
    if info.readers_wait:
        yield "Freshness", freshness_text(table, now_ms) or "no rows wait to be seen by readers"
    yield "Last compacted file", moment(shape.last_compacted_file_ms, now_ms)
    yield "Earliest file not compacted", moment(shape.earliest_uncompacted_file_ms, now_ms)
    yield "Files", f"{count(shape.files)}, {count(shape.small_files)} of them small"
    yield "Size", size(shape.size_bytes)
    yield "Rows", count(shape.rows)
    yield "Buckets", count(shape.buckets)
    yield "Largest bucket", size(shape.bucket_size_bytes_max)
    age = f", oldest has waited {age_text(now_ms - backlog.oldest_ms)}" if backlog.oldest_ms else ""
    yield (
        "Backlog",
        join(f"{count_text(backlog.tasks, 'compaction')}, ", size(backlog.size_bytes), age),
    )
    yield "Newest snapshot", f"{count(shape.snapshot_id)} ({count(shape.snapshots)} kept)"
    yield "Planned at snapshot", count(table.planned_snapshot_id)
    yield (
        "Last commit",
        join(
            f"snapshot {count(table.last_commit_snapshot_id)}, ",
            moment(table.last_commit_ms, now_ms),
        )
        if table.last_commit_ms
        else moment(0, now_ms),
    )
    yield "Last poll", moment(table.last_poll_ms, now_ms)
    yield "Failures in a row", count(table.consecutive_failures)


def _bands(table: TableView) -> Markup | None:
    bands = table.shape.buckets_by_run_state
    if not bands:
        return None
    items = (
        element("li", band_mark(state), f" {count(bands.get(state, 0))}") for state in RunState
    )
    return join(element("p", "Buckets by run state:"), element("ul", *items, class_="bands"))


def _buckets(detail: TableDetail) -> Iterator[Markup]:
    if not detail.buckets:
        yield element("p", "No bucket has files.", class_="quiet")
        return
    shown, total = len(detail.buckets), detail.bucket_count
    if shown < total:
        yield element("p", f"The worst {count(shown)} of {count(total)} buckets.")
    for index, bucket in enumerate(detail.buckets):
        yield _bucket(index, bucket, detail.view.info)


def _bucket(index: int, bucket: BucketDetail, info: TableInfo) -> Markup:
    runs = f"{count_text(bucket.sorted_runs, 'sorted run')}, " if info.compaction_trigger else ""
    files = count_text(bucket.files, "file")
    plan = element("p", element("strong", "Next: "), element("bdi", bucket.plan))
    return element(
        "figure",
        element(
            "h3",
            place(bucket.partition, bucket.bucket),
            element("small", f"{runs}{files}, ", size(bucket.size_bytes)),
        ),
        plan if bucket.plan else element("p", "Nothing would be picked now.", class_="quiet"),
        lsm_svg(bucket, compaction_trigger=info.compaction_trigger, stop_trigger=info.stop_trigger),
        element("figcaption", scale_text(bucket.runs)),
        element(
            "details",
            element("summary", "The numbers"),
            _run_grid(index, bucket),
            id=f"bucket-{index}",
        ),
        class_="bucket",
    )


def _run_grid(index: int, bucket: BucketDetail) -> Markup:
    rows = (
        (
            str(run.level),
            count(run.files),
            count(run.rows),
            size(run.size_bytes),
            element("bdi", run.min_key or "–"),
            element("bdi", run.max_key or "–"),
        )
        for run in bucket.runs
    )
    return grid(f"runs-{index}", "Sorted runs, newest first", _RUNS, rows, empty="No files.")


def _quarantined(table: TableView, now_ms: int) -> Markup:
    rows = (
        (
            place(quarantined.partition, quarantined.bucket),
            count(quarantined.failures),
            element("bdi", quarantined.message),
            attempt(quarantined.until_ms, now_ms),
        )
        for quarantined in table.quarantined
    )
    caption = f"{count(len(table.quarantined))} of {count(table.quarantined_count)}"
    return grid("quarantined", caption, _QUARANTINED, rows, empty="No bucket is listed.")


def _resting(table: TableView, now_ms: int) -> Markup:
    rows = (
        (
            element("bdi", resting.partition or "the whole table"),
            element("bdi", rewrite_text(resting.rewrite)),
            moment(resting.until_ms, now_ms),
        )
        for resting in table.resting
    )
    caption = f"{count(len(table.resting))} of {count(table.resting_count)}"
    return grid("resting", caption, _RESTING, rows, empty="No partition is listed.")


def _settings(table: TableView, now_ms: int) -> Iterator[tuple[str, str]]:
    info = table.info
    yield "Location", element("bdi", table.location)
    for name, value in (
        ("Kind", info.kind),
        ("Bucket mode", info.bucket_mode),
        ("Merge engine", info.merge_engine),
        ("Changelog producer", info.changelog_producer),
    ):
        if value:
            yield name, words(value)
    if info.kind:
        no = "not in its options: its writers compact as well, unless they set it as they run"
        yield "Write-only", "yes" if info.write_only else no
    if info.compaction_trigger:
        yield "Compaction trigger", count_text(info.compaction_trigger, "sorted run")
        yield "Stop trigger", count_text(info.stop_trigger, "sorted run")
    if not table.discovery_interval_ms:
        # A pattern excludes it: no settings hold for it.
        return
    yield "Priority", str(table.priority)
    yield "Polled every", age_text(table.discovery_interval_ms)
    if table.max_backlog_age_ms:
        yield "Backlog is late after", age_text(table.max_backlog_age_ms)
    if table.max_freshness_lag_ms:
        yield "Readers may wait for", age_text(table.max_freshness_lag_ms)
    window = "open" if table.window_open else "closed"
    opens = join(", opens ", moment(table.next_window_ms, now_ms)) if table.next_window_ms else ""
    yield "Window", window if table.window_open else join(window, opens)
    yield "First poll", moment(table.first_poll_ms, now_ms)
    for kind in WorkKind:
        if kind in table.last_success_ms:
            yield f"Last success: {kind.value}", moment(table.last_success_ms[kind], now_ms)
    if not table.last_success_ms:
        yield "Last success", moment(0, now_ms)


def _maintained(table: TableView, now_ms: int) -> Iterator[tuple[str, Markup]]:
    """Of each kind: its last round, and what its rounds came to since the service started."""
    for name, rounds in sorted(table.maintenance.items()):
        parts = ["last round ", moment(rounds.began_ms, now_ms)]
        if not rounds.succeeded_ms:
            parts.append(", none succeeded")
        elif rounds.succeeded_ms < rounds.began_ms:
            parts += [", last success ", moment(rounds.succeeded_ms, now_ms)]
        counted = [f"{words(counter)}: {count(n)}" for counter, n in sorted(rounds.counts.items())]
        yield words(name).capitalize(), join(*parts, *(f"; {text}" for text in counted))


def _counted(table: TableView) -> Iterator[tuple[str, str]]:
    counters = table.counters
    for (kind, outcome), number in counters.compactions.items():
        yield f"Compactions, {kind.value}: {words(outcome.value)}", count(number)
    for conflict, number in counters.conflicts.items():
        yield f"Conflicts: {words(conflict.value)}", count(number)
    yield "Commits", count(counters.commits_committed)
    yield "Commit attempts", count(counters.commit_attempts)
    yield "Commits given up", count(counters.commits_gave_up)
    yield "Commits that failed", count(counters.commits_error)
    yield "Snapshots lost to other writers", count(counters.lost_snapshots)
    yield "Writers' commits lost by late renames, healed", count(counters.lost_commits_healed)
    yield "Writers' commits lost by late renames, halted", count(counters.lost_commits_halted)
    yield "Files", f"{count(counters.input_files)} → {count(counters.output_files)}"
    yield "Files upgraded without rewriting", count(counters.upgraded_files)
    yield "Bytes", join(size(counters.input_bytes), size(counters.output_bytes), separator=" → ")
    yield "Records", f"{count(counters.input_records)} → {count(counters.output_records)}"
    yield "Bytes written and discarded", size(counters.wasted_bytes)
    yield "Bytes that writers appended", size(counters.ingested_bytes)
    if counters.compaction_seconds_count:
        mean = counters.compaction_seconds_sum / counters.compaction_seconds_count
        yield "Mean time of a compaction", f"{mean:,.1f} s"
        yield "CPU time of workers", f"{counters.worker_cpu_seconds:,.1f} s"
    yield "Snapshots expired", count(counters.expired_snapshots)
    yield "Files of expired snapshots", count(counters.expired_files)
    yield "Expiries that failed", count(counters.expire_failures)
