"""One table's worst buckets, run by run, for the page and `/v1`."""

from __future__ import annotations

import heapq
from dataclasses import replace

from compactord.errors import FormatError
from compactord.model import SortedRun
from compactord.paimon.binary_row import Value, decode_row
from compactord.paimon.data_file import BucketId
from compactord.paimon.java_text import to_string
from compactord.paimon.types import DataField
from compactord.plan.picks import bucket_runs
from compactord.plan.table import TableKind, plan_bucket
from compactord.table import report
from compactord.table.opening import OpenTable
from compactord.table.planning import StatePlanner, damage_text
from compactord.table.status import BUCKETS_MAX, BucketDetail, RunView

_RUNS_MAX = 200
# Objects of more files than this are not made for a request.
_FILES_MAX = 5_000
_KEY_CHARACTERS_MAX = 80


def bucket_details(seen: StatePlanner) -> tuple[BucketDetail, ...]:
    """The buckets with the most runs, then the largest, at most `BUCKETS_MAX`.

    Answers from memory, of the planner's values alone, so any thread may ask.
    """
    summaries = seen.state.files.summaries()
    worst = heapq.nlargest(
        BUCKETS_MAX,
        range(len(summaries)),
        key=lambda row: (int(summaries.run_count[row]), int(summaries.size_bytes[row])),
    )
    return tuple(_detail(seen, summaries.index.bucket_id(row)) for row in worst)


def _detail(seen: StatePlanner, bucket: BucketId) -> BucketDetail:
    summary = seen.state.files.summary(bucket)
    facts = BucketDetail(
        partition=seen.table.partition_text(bucket.partition),
        bucket=bucket.bucket,
        sorted_runs=summary.run_count,
        files=summary.file_count,
        size_bytes=summary.size_bytes,
        runs=(),
        plan="",
    )
    if summary.file_count > _FILES_MAX:
        return replace(facts, plan=f"not planned here: it has more than {_FILES_MAX:,} files")
    try:
        return _planned(seen, bucket, facts)
    except FormatError as error:
        return replace(facts, plan=f"cannot be planned: {damage_text(error)}")


def _planned(seen: StatePlanner, bucket: BucketId, facts: BucketDetail) -> BucketDetail:
    """The facts with runs and plan. Raises `FormatError` for a damaged bucket."""
    table = seen.table
    # Of a partition without buckets only the small files are planned and shown.
    unaware = table.kind is TableKind.APPEND_UNAWARE
    smaller_than = table.options.compaction.small_file_size if unaware else None
    found = seen.state.files.bucket(bucket, smaller_than=smaller_than)
    if table.key_of is not None:
        runs = bucket_runs(found.files, table.key_of)
    else:
        runs = tuple(SortedRun(level=file.level, files=(file,)) for file in reversed(found.files))
    plan = plan_bucket(found, seen.request)
    if plan.rest is not None:
        planned = f"skipped, {report.rewrite_text(plan.rest.rewrite)}"
    else:
        texts = (report.compaction_text(table, compaction) for compaction in plan.compactions[:3])
        planned = "; ".join(texts)
    return replace(facts, runs=tuple(_run(table, run) for run in runs[:_RUNS_MAX]), plan=planned)


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
