"""Output of commands: text for a terminal, and plain data for programs."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from compactord.clock import iso_text
from compactord.errors import FormatError
from compactord.model import Compaction, TableKind, WorkKind
from compactord.paimon.data_file import BucketFiles, BucketId
from compactord.paimon.manifest.index_manifest import SORTED_INDEXES
from compactord.paimon.options.table_options import USUAL_MERGE_ENGINE
from compactord.paimon.types import MOMENTS, TICKS_PRECISION_MAX, AtomicType
from compactord.plan.picks import begins_text, bucket_runs, holds_parts, is_from_before
from compactord.plan.table import BucketPlan
from compactord.state.rewrites import Rewrite
from compactord.state.table_state import TableState
from compactord.table.jobs import CompactTotals
from compactord.table.opening import OpenTable
from compactord.table.planning import cooldown_text, damage_text
from compactord.table.shapes import BucketShape, bucket_shape
from compactord.table.status import run_state
from compactord.text import bucket_text, columns_text, count_text, size_text


def foreign_note(table: OpenTable, shapes: Sequence[BucketShape]) -> str | None:
    """A warning that Java may misread times in other writers' files, or None if there are none."""
    count = sum(shape.foreign_files for shape in shapes)
    names = [
        field.name
        for field in table.schema.fields
        if isinstance(field.type, AtomicType)
        and field.type.root in MOMENTS
        and (field.type.precision or 0) <= TICKS_PRECISION_MAX
    ]
    if not count or not names:
        return None
    return (
        f"{count_text(count, 'file')} with names of other writers: where one has times in another "
        f"unit than the table (columns {', '.join(names)}), Java 2.0.0 may read them wrongly by a "
        "factor of 1,000, and compactord reads them rightly; inspect reads no footers to find out"
    )


# The risk for commands that rewrite files of the table.
REWRITTEN = (
    "commands that rewrite files fail when compactord has compacted one of these meanwhile; "
    "quiet_for makes compactord skip recently rewritten partitions"
)


def place_text(table: OpenTable, partition: bytes, bucket: int) -> str:
    """`bucket_text` of an encoded partition."""
    return bucket_text(table.partition_text(partition), bucket)


def totals_text(table: str, totals: CompactTotals) -> Iterator[str]:
    """The closing lines of `compact`."""
    if totals.snapshots:
        ids = f"{totals.snapshots[0]}..{totals.snapshots[-1]}"
        yield (
            f"{table}: {count_text(totals.compactions, 'compaction')} in "
            f"{count_text(len(totals.snapshots), 'snapshot')} ({ids}), {_seconds_text(totals)}"
        )
        yield (
            f"  {count_text(totals.files_in, 'file')}, {count_text(totals.rows_in, 'row')}, "
            f"{size_text(totals.bytes_in)}  ->  {count_text(totals.files_out, 'file')}, "
            f"{count_text(totals.rows_out, 'row')}, {size_text(totals.bytes_out)}"
        )
        if totals.upgraded_files:
            upgraded = count_text(totals.upgraded_files, "file")
            yield f"  {upgraded} upgraded to a higher level without rewriting"
    elif totals.failures:
        yield f"{table}: no compaction succeeded"
    elif not totals.stopped:
        if totals.dropped:
            yield f"{table}: nothing published and nothing left to do: other writers did the work"
        else:
            yield f"{table}: nothing to do"
    for partition in totals.absent_partitions:
        yield f"  {absent_text(partition)}"
    for partition, why in totals.resting.items():
        yield f"  {partition}: {why}" if partition else f"  {why}"
    if totals.dropped:
        yield (
            f"  {count_text(totals.dropped, 'result')} dropped because other commits came first, "
            f"{size_text(totals.wasted_bytes)} wasted"
        )
    for lost in totals.lost_snapshots:
        yield f"  LOST: {lost}"
    for lost in totals.lost_commits:
        yield f"  RECOVERED: {lost}"
    for failure in totals.failures:
        yield f"  FAILED: {failure}"
    if totals.stopped:
        yield f"{table}: stopped before everything was done; run it again to continue"


def _seconds_text(totals: CompactTotals) -> str:
    """The duration of the work, and of Spark's start, which is not part of it."""
    work = f"{totals.seconds:.2f} s"
    return f"{work}, after {totals.start_seconds:.1f} s for Spark" if totals.start_seconds else work


def absent_text(partition: str) -> str:
    """The text for a requested partition without live files."""
    return f"no live files in partition {partition}"


def compaction_json(table: OpenTable, compaction: Compaction) -> dict[str, Any]:
    """One planned compaction as plain data."""
    inputs = compaction.inputs
    found: dict[str, Any] = {
        "partition": _partition_json(table, compaction.bucket.partition),
        "bucket": compaction.bucket.bucket,
        "reason": compaction.reason.value,
        "files": [file.file_name for file in inputs],
        "bytes": compaction.input_bytes,
        "rows": sum(file.row_count for file in inputs),
    }
    if compaction.kind is WorkKind.APPEND:
        return found | {"output_level": compaction.output_level}
    return found | {
        "merge_engine": table.options.merge_engine,
        "output_level": compaction.output_level,
        "drop_deletes": compaction.drop_deletes,
        "upgrades": [file.file_name for file in compaction.upgraded],
        "looks_up_in": sorted(file.file_name for file in compaction.looked_up),
    }


def _partition_json(table: OpenTable, partition: bytes) -> str:
    """The partition's folders, or its readable text if it has none."""
    try:
        return table.partition_path(partition)
    except FormatError:
        return table.partition_text(partition)


def compaction_text(table: OpenTable, compaction: Compaction) -> str:
    """One planned compaction in one line; a merge engine is named unless it is the usual one."""
    place = place_text(table, compaction.bucket.partition, compaction.bucket.bucket)
    engine = table.options.merge_engine
    is_usual = table.key_of is None or engine == USUAL_MERGE_ENGINE
    return f"{place}: {action_text(compaction)}" + ("" if is_usual else f", {engine}")


def action_text(compaction: Compaction) -> str:
    """The reason and what is done: `size_amp, rewrite 6 files (1.5 MiB) to level 5`."""
    upgraded, above = len(compaction.upgraded), compaction.looked_up
    rewritten = len(compaction.inputs) - upgraded
    what = [f"rewrite {count_text(rewritten, 'file')}"] if rewritten else []
    what += [f"upgrade {count_text(upgraded, 'file')}"] if upgraded else []
    size = size_text(compaction.input_bytes)
    text = f"{compaction.reason.value}, {' and '.join(what)} ({size})"
    if compaction.kind is not WorkKind.APPEND:
        text += f" to level {compaction.output_level}"
    if above:
        most = size_text(sum(file.file_size for file in above))
        text += f", look up in {count_text(len(above), 'file')} above (at most {most})"
    return text


def rewrite_text(rewrite: Rewrite) -> str:
    """`rewritten by spark in snapshot 7 (UPDATE), 2026-01-01T12:00:00Z`."""
    operation = f" ({rewrite.operation})" if rewrite.operation else ""
    where = f"in snapshot {rewrite.snapshot_id}{operation}"
    return f"rewritten by {rewrite.commit_user} {where}, {iso_text(rewrite.time_ms)}"


def cooling_down(table: OpenTable, plans: Iterable[BucketPlan]) -> dict[str, str]:
    """The skipped partitions, with reasons."""
    return {
        table.partition_text(plan.bucket.partition): cooldown_text(found.rewrite, found.age_ms)
        for plan in plans
        if (found := plan.cooldown) is not None
    }


def plan_notes(table: OpenTable, plan: BucketPlan) -> Iterator[str]:
    place = place_text(table, plan.bucket.partition, plan.bucket.bucket)
    notes = list(plan.notes)
    if plan.cooldown is not None:
        notes.append(cooldown_text(plan.cooldown.rewrite, plan.cooldown.age_ms))
    if plan.damage:
        notes.append(f"cannot be planned: {plan.damage}")
    for note in notes:
        yield f"{place}: {note}"


def bucket_shapes(
    table: OpenTable,
    state: TableState,
    *,
    wanted: Callable[[BucketId], bool] | None = None,
    worst: int | None = None,
) -> list[BucketShape]:
    """The shapes of the buckets, or of the wanted ones, in order; or only of the worst.

    The worst, which are listed first, have the most sorted runs, or small files in tables without
    keys; then the largest. Objects of one bucket's files exist at a time.
    """
    columns, older = _indexed_columns(table), table.partial_schemas | table.unmarked_schemas

    def shape_of(bucket: BucketId) -> BucketShape:
        # This includes buckets whose entries disagree about the number of buckets.
        files, total = state.files.files_in(bucket), state.files.summary(bucket).total_buckets
        indexes = state.indexes
        return bucket_shape(
            BucketFiles(bucket=bucket, total_buckets=total, files=files),
            table.options.compaction,
            indexes.vectors(bucket),
            partition=_partition_json(table, bucket.partition),
            levels_without_index=indexes.levels_without(bucket, files, columns),
            lookup_begins=is_from_before(files, older),
            file_prefix=table.options.files.data_file_prefix,
        )

    shapes = (
        shape_of(bucket)
        for bucket in sorted(state.files.bucket_ids())
        if wanted is None or wanted(bucket)
    )
    if worst is None:
        return list(shapes)

    def need(shape: BucketShape) -> tuple[int, int]:
        is_keyed = table.key_of is not None
        return (shape.sorted_runs if is_keyed else shape.small_files, shape.size_bytes)

    return heapq.nlargest(worst, shapes, key=need)


def _indexed_columns(table: OpenTable) -> dict[int, str]:
    """The types of sorted indexes that the table wants, by the field id of the column."""
    found: dict[int, str] = {}
    for kind in SORTED_INDEXES:
        text = table.schema.options.get(f"pk-{kind}.index.columns", "")
        names = {name.strip() for name in text.split(",")}
        found |= {field.id: kind for field in table.schema.fields if field.name in names}
    return found


def damage_notes(
    table: OpenTable, state: TableState, shapes: Iterable[BucketShape]
) -> Iterator[str]:
    """Why some buckets cannot be planned, each with its partition; only for tables with buckets."""
    if table.kind is TableKind.APPEND_UNAWARE:
        return
    lookup, partial = table.options.compaction.lookup, table.partial_schemas
    for shape in shapes:
        try:
            found = state.files.bucket(shape.bucket_id)
            if table.key_of is not None:
                runs = bucket_runs(found.files, table.key_of)
                if lookup is not None:
                    holds_parts(runs, partial, is_one_record=lookup.is_one_record)
                for file in found.files:
                    file.key_range(table.key_of)
        except FormatError as error:
            place = place_text(table, shape.bucket_id.partition, shape.bucket)
            yield f"{place}: {damage_text(error)}"


def inspect_json(
    table: OpenTable, state: TableState, shapes: Sequence[BucketShape], reasons: Sequence[str]
) -> dict[str, Any]:
    """The object that `inspect --json` prints."""
    rewrite = state.rewrites.newest if state.rewrites else None
    return {
        "table": table.ref.full_name,
        "location": table.ref.location,
        "kind": table.kind.value,
        "merge_engine": table.options.merge_engine if table.key_of is not None else None,
        "snapshot": state.snapshot.id if state.snapshot else None,
        "schema": table.schema.id,
        "supported": not reasons,
        "reasons": list(reasons),
        "warnings": [*table.warnings, *filter(None, [foreign_note(table, shapes)])],
        "rewrite": None if rewrite is None else asdict(rewrite),
        "buckets": [_shape_json(shape) for shape in shapes],
    }


def inspect_text(
    table: OpenTable, state: TableState, shapes: Sequence[BucketShape], reasons: Sequence[str]
) -> Iterator[str]:
    """The lines that `inspect` prints."""
    yield f"{table.ref.full_name}  ({table.ref.location})"
    snapshot = state.snapshot
    newest = f"snapshot {snapshot.id} ({snapshot.commit_kind.value})" if snapshot else "no snapshot"
    engine = f", {table.options.merge_engine}" if table.key_of is not None else ""
    yield f"{table.kind.value} table{engine}, schema {table.schema.id}, {newest}"
    if reasons:
        yield "NOT SUPPORTED, not compacted:"
        yield from (f"  - {reason}" for reason in reasons)
    else:
        yield "supported"
    yield from (f"note: {warning}" for warning in table.warnings)
    if state.rewrites is not None and state.rewrites.newest is not None:
        yield f"note: {rewrite_text(state.rewrites.newest)}: {REWRITTEN}"
    options = table.options.compaction
    if table.key_of is not None:
        yield (
            f"compaction-trigger {count_text(options.compaction_trigger, 'sorted run')} (*), "
            f"stop-trigger {options.stop_trigger} (!!), {options.num_levels} levels, "
            f"target file size {size_text(options.target_file_size)}"
        )
    else:
        yield (
            f"target file size {size_text(options.target_file_size)}, files below "
            f"{size_text(options.small_file_size)} are small, merged from {options.min_file_num} on"
        )
    unindexed = sum(shape.levels_without_index for shape in shapes)
    if unindexed:
        without = f"{count_text(unindexed, 'level')} in {count_text(len(shapes), 'bucket')}"
        yield f"note: without a sorted index: {without}; queries read these as a whole"
    before = sum(shape.lookup_begins for shape in shapes)
    if before:
        yield f"note: {count_text(before, 'bucket')}: the table {begins_text(options)}"
    if (foreign := foreign_note(table, shapes)) is not None:
        yield f"note: {foreign}"
    if shapes:
        yield ""
        yield from _shapes_text(table, shapes)


def _shape_json(shape: BucketShape) -> dict[str, Any]:
    renamed, internal = {"size_bytes": "bytes"}, ("bucket_id", "foreign_files")
    found = asdict(shape).items()
    return {renamed.get(name, name): value for name, value in found if name not in internal}


def _shapes_text(table: OpenTable, shapes: Sequence[BucketShape]) -> Iterator[str]:
    """The buckets of `inspect` as a table, levels as `L0 3 x 12.0 MiB`."""
    is_keyed = table.key_of is not None
    rows = [("bucket", "runs" if is_keyed else "small", "files", "rows", "size", "levels")]
    for shape in shapes:
        runs = shape.sorted_runs
        mark = run_state(runs, shape.compaction_trigger, shape.stop_trigger).mark
        levels = "  ".join(
            f"L{level.level} {level.file_count} x {size_text(level.size_bytes / level.file_count)}"
            for level in shape.levels
        )
        rows.append(
            (
                place_text(table, shape.bucket_id.partition, shape.bucket),
                f"{runs}{mark}" if is_keyed else f"{shape.small_files}",
                f"{shape.files:,}",
                _rows_text(shape),
                size_text(shape.size_bytes),
                levels,
            )
        )
    yield from columns_text(rows, right=range(1, len(rows[0]) - 1))


def _rows_text(shape: BucketShape) -> str:
    """`1,000 (12 deleted in 1 file)`: of files that have deletion vectors."""
    rows = f"{shape.rows:,}"
    if not shape.files_with_deleted_rows:
        return rows
    where = count_text(shape.files_with_deleted_rows, "file")
    return f"{rows} ({shape.deleted_rows:,} deleted in {where})"
