"""Explains picks: why a bucket is picked, why not, and what would change that.

The planner makes the decision (`plan_bucket`); this module words it, with the numbers that it was
made from and the options that set the bounds.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from compactord.catalog.access import TableAccess
from compactord.clock import iso_text
from compactord.errors import CompactordError, FormatError
from compactord.model import Compaction, CompactReason, SortedRun, TableKind
from compactord.paimon.binary_row import Value, decode_row
from compactord.paimon.data_file import BucketFiles, BucketId, DataFile
from compactord.paimon.java_text import to_string
from compactord.paimon.options.table_options import CompactionOptions
from compactord.paimon.types import DataField
from compactord.plan.picks import begins_text, bucket_runs, last_full_compaction_ms
from compactord.plan.table import BucketPlan, PlanRequest, plan_bucket
from compactord.plan.triggers import INTERVAL, RUN_TRIGGER, amplification_text
from compactord.state.rewrites import Rewrite
from compactord.table import report
from compactord.table.opening import OpenTable, TableRegistries, describe_table
from compactord.table.planning import (
    LEFT_AS_IT_IS,
    CompactRequest,
    StatePlanner,
    cooldown_text,
    damage_text,
)
from compactord.table.shapes import measured_stop_trigger
from compactord.table.status import BUCKETS_MAX, BucketDetail, RunView, TableInfo
from compactord.text import age_text, count_text, size_text


def explain(planner: StatePlanner, found: BucketFiles, plan: BucketPlan) -> BucketDetail:
    """The plan of one bucket in words. `later` is empty where something is due."""
    request, now_ms = planner.request, planner.context.now_ms
    first = plan.compactions[0] if plan.compactions else None
    waits = first is not None and planner.waiting_since_ms(found.bucket, first.output_level) > 0
    what, why, later = "", "", ""
    if first is not None:
        more = len(plan.compactions) - 1
        what = report.action_text(first) + (f", and {more} more" if more else "")
        why = _why_picked(found, first, request)
    elif plan.cooldown is not None:
        why = cooldown_text(plan.cooldown.rewrite, plan.cooldown.age_ms)
        later = f"at {iso_text(plan.cooldown.until_ms)} (quiet_for)"
    elif request.kind is TableKind.PRIMARY_KEY:
        why, later = _idle_runs(found, request, now_ms)
    else:
        why, later = _idle_files(found, request, now_ms)
    return replace(
        _numbers(planner, found.bucket),
        kind=None if first is None else first.kind,
        reason=None if first is None else first.reason,
        what=what,
        why=why,
        later=later,
        readers_wait=waits,
    )


def explain_damage(planner: StatePlanner, bucket: BucketId, error: FormatError) -> BucketDetail:
    """A bucket that cannot be planned, in words."""
    return replace(
        _numbers(planner, bucket),
        plan=f"cannot be planned: {damage_text(error)}",
        why=f"it cannot be planned: {error}",
        later=LEFT_AS_IT_IS,
    )


def _numbers(planner: StatePlanner, bucket: BucketId) -> BucketDetail:
    summary = planner.state.files.summary(bucket)
    return BucketDetail(
        partition=planner.table.partition_text(bucket.partition),
        bucket=bucket.bucket,
        sorted_runs=summary.run_count,
        files=summary.file_count,
        size_bytes=summary.size_bytes,
    )


def _why_picked(found: BucketFiles, compaction: Compaction, request: PlanRequest) -> str:
    options, files = request.options, compaction.inputs
    for trigger in request.triggers:
        if trigger.reason is compaction.reason:
            return trigger.explain(bucket_runs(found.files, request.key_of), options)
    match compaction.reason:
        case CompactReason.DELTA_COMMITS:
            return (
                f"{options.full_compaction_delta_commits} commits or more since its last full "
                "compaction (full-compaction.delta-commits)"
            )
        case CompactReason.FRESHNESS_LAG:
            return "readers have waited for its rows for half of max_freshness_lag or longer"
        case CompactReason.APPEND_SMALL_FILES:
            return (
                f"{_small_text(files, options)}: enough for a file of the target size, or "
                f"{options.min_file_num} of them (compaction.min.file-num)"
            )
        case CompactReason.APPEND_WAITED:
            waited = age_text(request.append_wait_ms or 0)
            return (
                f"{_small_text(files, options)}: two or more have waited longer than {waited} "
                "(append_wait)"
            )
        case CompactReason.FULL | CompactReason.APPEND_FULL | CompactReason.FORCED_REWRITE:
            return "a full compaction was requested"
        case CompactReason.EXPIRED_RECORDS:
            return _expired_text(found, files, request)
        case CompactReason.DELETED_ROWS:
            return _deleted_text(found, files, request)
        case CompactReason.LOOKUP_BEGINS:
            return f"the table {begins_text(options)}"
        case reason:
            return reason.meaning


def _expired_text(found: BucketFiles, files: Sequence[DataFile], request: PlanRequest) -> str:
    """Counts files with expired records; files with deleted rows may be rewritten with them."""
    have = "1 file has" if len(files) == 1 else f"{len(files):,} files have"
    text = f"{have} expired records (record-level.expire-time)"
    vectors = request.vectors_of(found.bucket)
    return f"{text} or deleted rows" if any(f.file_name in vectors for f in files) else text


def _deleted_text(found: BucketFiles, files: Sequence[DataFile], request: PlanRequest) -> str:
    """Counts the deleted rows of files that have deletion vectors."""
    vectors = request.vectors_of(found.bucket)
    rows = sum(file.row_count for file in files)
    known = sum(vectors[file.file_name].cardinality or 0 for file in files)
    text = f"{count_text(known, 'row')} of {rows:,} are deleted (deletion vectors)"
    if request.kind is TableKind.PRIMARY_KEY:
        return text
    return (
        f"{text}: above {request.options.delete_ratio:g} of a file's rows "
        f"(compaction.delete-ratio-threshold), or in files below "
        f"{size_text(request.options.small_file_size)}"
    )


def _idle_runs(found: BucketFiles, request: PlanRequest, now_ms: int) -> tuple[str, str]:
    """The reason why no runs are picked, and when some would be."""
    options = request.options
    runs, trigger = bucket_runs(found.files, request.key_of), options.compaction_trigger
    count = count_text(len(runs), "sorted run")
    if len(runs) < trigger:
        why = f"{count}; sizes are compared from {trigger} on ({RUN_TRIGGER})"
        later = f"with {count_text(trigger - len(runs), 'more run')}"
    elif len(runs) == 1:
        why, later = f"{count}, on the highest level: nothing to merge it with", "with the next run"
    else:
        limit = options.max_size_amplification_percent
        why = (
            f"{count}, {amplification_text(runs)}: not above {limit} % "
            "(compaction.max-size-amplification-percent), and none are about as large as each other"
        )
        later = "with the next run"
    if options.lookup is not None and options.lookup.wait_ms is not None:
        later += f", or {age_text(options.lookup.wait_ms)} after a file was added to level 0"
    interval_ms = options.optimization_interval_ms
    last_ms = last_full_compaction_ms(found.files, options)
    if interval_ms is not None and last_ms is not None and len(runs) > 1:
        due_ms = last_ms + interval_ms - request.now_local_ms + now_ms
        later += f", or at {iso_text(due_ms)} ({INTERVAL})"
    return why, later


def _idle_files(found: BucketFiles, request: PlanRequest, now_ms: int) -> tuple[str, str]:
    """The reason why no files without keys are picked, and when some would be."""
    options = request.options
    small = [file for file in found.files if file.file_size < options.small_file_size]
    wanted = max(2, options.min_file_num)
    if not small:
        return f"no files below {size_text(options.small_file_size)}", "when some are added"
    why = _small_text(small, options)
    if len(small) >= wanted:
        return f"{why}, but rewriting neighbours would leave as many", "when more are added"
    why += f"; merged from {wanted} on (compaction.min.file-num)"
    later = f"with {count_text(wanted - len(small), 'more small file')}"
    created = sorted(f.creation_time_ms for f in small if f.creation_time_ms is not None)
    wait_ms = request.append_wait_ms
    if request.kind is TableKind.APPEND_UNAWARE and wait_ms is not None and len(created) > 1:
        due_ms = created[1] + wait_ms - request.now_local_ms + now_ms
        later += f", or at {iso_text(due_ms)} (append_wait)"
    return why, later


def _small_text(files: Sequence[DataFile], options: CompactionOptions) -> str:
    bound = size_text(options.small_file_size)
    return f"{count_text(len(files), 'file')} below {bound}"


_RUNS_MAX = 200
# Objects of more files than this are not made for a request.
_FILES_MAX = 5_000
_KEY_CHARACTERS_MAX = 80


def bucket_details(last_plan: StatePlanner) -> tuple[BucketDetail, ...]:
    """The buckets with the most runs, then the largest, at most `BUCKETS_MAX`.

    Reads only the plan in memory, so any thread may call it.
    """
    summaries = last_plan.state.files.summaries()
    worst = heapq.nlargest(
        BUCKETS_MAX,
        range(len(summaries)),
        key=lambda row: (int(summaries.run_count[row]), int(summaries.size_bytes[row])),
    )
    return tuple(_detail(last_plan, summaries.index.bucket_id(row)) for row in worst)


def _detail(last_plan: StatePlanner, bucket: BucketId) -> BucketDetail:
    numbers = _numbers(last_plan, bucket)
    if numbers.files > _FILES_MAX:
        return replace(numbers, plan=f"not planned here: it has more than {_FILES_MAX:,} files")
    try:
        return _planned(last_plan, bucket)
    except FormatError as error:
        return explain_damage(last_plan, bucket, error)


def _planned(last_plan: StatePlanner, bucket: BucketId) -> BucketDetail:
    """The bucket with runs, plan and reasons. Raises `FormatError` for a damaged bucket."""
    table = last_plan.table
    # A partition without buckets shows only the small files, as only these are planned.
    unaware = table.kind is TableKind.APPEND_UNAWARE
    smaller_than = table.options.compaction.small_file_size if unaware else None
    found = last_plan.state.files.bucket(bucket, smaller_than=smaller_than)
    if table.key_of is not None:
        runs = bucket_runs(found.files, table.key_of)
    else:
        runs = tuple(SortedRun(level=file.level, files=(file,)) for file in reversed(found.files))
    plan = plan_bucket(found, last_plan.request)
    if plan.cooldown is not None:
        planned = f"skipped, {report.rewrite_text(plan.cooldown.rewrite)}"
    else:
        texts = (report.compaction_text(table, compaction) for compaction in plan.compactions[:3])
        planned = "; ".join(texts)
    shown = tuple(_run(table, run) for run in runs[:_RUNS_MAX])
    return replace(explain(last_plan, found, plan), runs=shown, plan=planned)


def _run(table: OpenTable, run: SortedRun) -> RunView:
    first, last = run.files[0], run.files[-1]
    return RunView(
        level=run.level,
        files=len(run.files),
        rows=sum(file.row_count for file in run.files),
        size_bytes=run.size_bytes,
        min_key=_key_text(table, first.min_key),
        max_key=_key_text(table, last.max_key),
    )


def _key_text(table: OpenTable, key: bytes) -> str:
    fields = table.schema.key_fields
    if table.key_of is None or not fields:
        return ""
    values = decode_row(key, [field.type for field in fields], source=table.manifests)
    text = ", ".join(_value_text(value, f) for value, f in zip(values, fields, strict=True))
    return text if len(text) <= _KEY_CHARACTERS_MAX else f"{text[: _KEY_CHARACTERS_MAX - 1]}…"


def _value_text(value: Value, field: DataField) -> str:
    # A key may be binary, or text that is not UTF-8.
    return (
        f"0x{value.hex()}" if isinstance(value, bytes) else to_string(value, field.type) or "null"
    )


_DYNAMIC, _POSTPONED = -1, -2


def table_info(
    table: OpenTable, *, stop_trigger_fallback: int, rewrite: Rewrite | None = None
) -> TableInfo:
    """Facts from the table's schema and options; triggers are 0 if it has no sorted runs."""
    options = table.options
    has_runs = table.kind is TableKind.PRIMARY_KEY
    trigger, stop_trigger = 0, 0
    if has_runs:
        trigger = options.compaction.compaction_trigger
        stop_trigger = measured_stop_trigger(options.compaction, stop_trigger_fallback)
    return TableInfo(
        kind=table.kind.value,
        bucket_mode=_bucket_mode(table),
        merge_engine=options.merge_engine if has_runs else "none",
        changelog_producer=options.changelog_producer.value,
        write_only=options.write_only,
        compaction_trigger=trigger,
        stop_trigger=stop_trigger,
        warnings=table.warnings,
        rewrite=rewrite,
        readers_wait=options.compaction.waiting_level is not None,
        maintenance=options.maintenance.requested,
    )


def described_info(
    access: TableAccess, request: CompactRequest, registries: TableRegistries
) -> TableInfo | None:
    """`table_info` of a table that may be refused, or None if its schema cannot be read."""
    try:
        table = describe_table(access, access.newest_schema(), request.overrides, registries)
    except CompactordError:
        return None
    return table_info(table, stop_trigger_fallback=request.stop_trigger_fallback)


def _bucket_mode(table: OpenTable) -> str:
    """The bucket mode's name; tables with `postponed` are refused."""
    if table.kind is TableKind.APPEND_UNAWARE:
        return "unaware"
    return {_DYNAMIC: "dynamic", _POSTPONED: "postponed"}.get(table.options.bucket, "fixed")
