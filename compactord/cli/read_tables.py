"""Reads the status of tables without a service, for `tables` and `why`."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from compactord.cli.argument_values import partitions_of, pick_of
from compactord.cli.plan import planner_now
from compactord.cli.select import SelectedTable, TableSelection, choose, side_by_side
from compactord.clock import Clock, SystemClock
from compactord.errors import CompactordError, FormatError, UnsupportedTable, UsageError
from compactord.paimon.data_file import BucketFiles, BucketId
from compactord.service.view import TableDetail, TableView, offline_view, unread_view
from compactord.service.why import explained
from compactord.state.table_state import TableState
from compactord.table import report
from compactord.table.explain import explain, explain_damage
from compactord.table.opening import OpenTable, describe_table, reasons_before_planning
from compactord.table.planning import CompactRequest, PartitionTest, StatePlanner, with_waiting_rows
from compactord.table.status import BucketDetail, TableShape
from compactord.verify.holds import stored_hold

_WORST = 5


def listed(
    args: argparse.Namespace,
) -> tuple[list[tuple[str, TableView, int]], Mapping[str, CompactordError]]:
    """The selected tables, each with its shown name and the time; and what could not be listed."""
    choice = choose(args)
    clock = SystemClock(choice.zone)
    groups = itertools.groupby(choice.targets, lambda target: target.catalog_name)
    by_catalog = [list(targets) for _, targets in groups]

    def read(targets: Sequence[SelectedTable]) -> list[tuple[str, TableView, int]]:
        return [
            (choice.shown_name(each), _read(choice, each, clock)[0], clock.now_ms())
            for each in targets
        ]

    return list(itertools.chain(*side_by_side(read, by_catalog))), choice.unreadable


def read_detail(args: argparse.Namespace) -> tuple[TableDetail, str, int]:
    """The table that the arguments name, with the requested buckets; its shown name; the time.

    Raises as `choose`, and `UsageError` for the arguments that select buckets.
    """
    partitions_of(args)
    pick_of(args)
    choice = choose(args)
    (target, *_), clock = choice.targets, SystemClock(choice.zone)
    view, table, state = _read(choice, target, clock)
    detail = TableDetail(view=view, buckets=(), bucket_count=0)
    if table is not None and state is not None:
        request = CompactRequest.of(target.policy, choice.loaded.config)
        request = replace(request, pick=pick_of(args) or request.pick)
        detail = _with_buckets(args, detail, planner_now(table, state, request, clock))
    now_ms = clock.now_ms()
    detail = explained(detail, table, choice.loaded, now_ms=now_ms, zone=clock.time_zone)
    return detail, choice.shown_name(target), now_ms


def _read(
    choice: TableSelection, target: SelectedTable, clock: Clock
) -> tuple[TableView, OpenTable | None, TableState | None]:
    """Read one table's newest metadata; its errors are its status.

    The table and its state are None where they cannot be read.
    """
    table: OpenTable | None = None
    state: TableState | None = None
    refused: list[str] = []
    error, hold = "", None
    try:
        access = target.open()
        schema, overrides = access.newest_schema(), target.policy.options
        table = describe_table(access, schema, overrides, target.registries)
        refused += table.refusals
        state = with_waiting_rows(table, access.newest_state().state, clock)
        refused += reasons_before_planning(table, state)
        hold = stored_hold(access.storage, access.ref.location)
    except UnsupportedTable as unsupported:
        refused += unsupported.reasons
    except CompactordError as failure:
        error = str(failure)
    view = replace(unread_view(target.name, target.ref, table, choice.loaded), error=error)
    if table is not None and state is not None:
        lag_ms = target.policy.max_freshness_lag_ms or 0
        view = replace(view, shape=_shape(table, state), max_freshness_lag_ms=lag_ms)
        view = replace(view, first_poll_ms=clock.now_ms())
    # A table that cannot be read may be write-only.
    alone = choice.unmanaged_reason(target, write_only=table is None or table.options.write_only)
    return offline_view(view, alone, refused, hold), table, state


def _shape(table: OpenTable, state: TableState) -> TableShape:
    """The numbers that need no plan."""
    files = state.files
    summaries = files.summaries()
    return TableShape(
        snapshot_id=state.snapshot.id if state.snapshot else 0,
        buckets=len(summaries),
        files=files.file_count,
        small_files=files.count_smaller(table.options.compaction.small_file_size),
        size_bytes=files.size_bytes,
        sorted_runs_max=int(summaries.run_count.max(initial=0)) if table.key_of else 0,
        waiting_since_ms=state.waiting.oldest_ms if state.waiting else 0,
    )


def _with_buckets(
    args: argparse.Namespace, detail: TableDetail, planner: StatePlanner
) -> TableDetail:
    """The table with the requested buckets, most work first."""
    table, state = planner.table, planner.state
    in_partition = PartitionTest(table, partitions_of(args))

    def wanted(bucket: BucketId) -> bool:
        return args.bucket in (None, bucket.bucket) and in_partition(bucket.partition)

    requested = [bucket for bucket in state.files.bucket_ids() if wanted(bucket)]
    if not requested and (args.bucket is not None or args.partition):
        raise UsageError(f"{table.ref.full_name} has no live files in the requested buckets")
    worst = args.worst or (_WORST if args.bucket is None else len(requested))
    shapes = report.bucket_shapes(table, state, wanted=wanted, worst=worst)
    buckets = tuple(_bucket(planner, shape.bucket_id) for shape in shapes)
    return replace(detail, buckets=buckets, bucket_count=len(requested))


def _bucket(planner: StatePlanner, bucket: BucketId) -> BucketDetail:
    try:
        files, plan = planner.decided(bucket)
        if not isinstance(files, BucketFiles):
            small = planner.request.options.small_file_size
            files = planner.state.files.bucket(bucket, smaller_than=small)
        return explain(planner, files, plan)
    except FormatError as error:
        return explain_damage(planner, bucket, error)
