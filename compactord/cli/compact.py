"""`compactord compact`: compacts tables one after the other and prints progress.

With `-v` it logs an event for every step.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial

import structlog

from compactord.cli.amounts import amount_of, check_amounts
from compactord.cli.argument_values import (
    check_overrides,
    engine_config,
    partitions_of,
    pick_of,
    strategy_of,
)
from compactord.cli.registries import StartEngine, registries_of
from compactord.cli.running import DENIED, FAILED, OK, error_json, say, stop_on_signals
from compactord.cli.select import (
    Result,
    SelectedTable,
    TableSelection,
    choose,
    note_if_unmanaged,
    over_tables,
    table_overrides,
)
from compactord.cli.serve import refuse_literal_secrets
from compactord.clock import Clock, SystemClock
from compactord.commit.changes import BucketChange
from compactord.config.model import Spark
from compactord.engine.base import Engine
from compactord.engine.masters import shown_master
from compactord.errors import AccessDenied, CompactordError
from compactord.maintenance.orphans import REMOVED, SweepOrphans
from compactord.model import Compaction
from compactord.service.logs import ObserverThread
from compactord.service.one_shot import OneShot
from compactord.table import report
from compactord.table.jobs import CompactTotals, InFlight
from compactord.table.opening import OpenTable
from compactord.table.planning import CompactRequest
from compactord.text import count_text, size_text

_log = structlog.get_logger()
_PROGRESS_EVERY_S = 5.0


def progress_reporter(name: str, clock: Clock) -> Callable[[str], None]:
    """Returns a function that prints progress on a table to stderr, at most every 5 seconds."""
    printed_s = clock.monotonic_s()

    def report(what: str) -> None:
        nonlocal printed_s
        if clock.monotonic_s() - printed_s >= _PROGRESS_EVERY_S:
            printed_s = clock.monotonic_s()
            say(f"{name}: {what}")

    return report


class CommandProgress:
    """Logs every step at INFO (`-v`), with the service's event names.

    Without `-v` it rewrites one line on a terminal, and prints nothing elsewhere.
    """

    def __init__(self, *, is_logged: bool) -> None:
        self._stream = sys.stderr
        self._shown = not is_logged and self._stream is not None and self._stream.isatty()
        self._planned = self._finished = self._snapshots = 0
        self._bytes_planned = self._bytes_finished = 0
        self._waited = False

    def starting(self, where: str) -> None:
        """`where` is the Spark master without secrets."""
        _log.info("spark_starting", master=where)
        self._write(f"starting Spark ({where}) …")

    def started(self, *, seconds: float, slots: int) -> None:
        _log.info("spark_started", seconds=round(seconds, 2), slots=slots)
        self._show()

    def planned(self, table: OpenTable, compaction: Compaction) -> None:
        found = report.compaction_json(table, compaction)
        _log.info(
            "compaction_planned",
            partition=table.partition_text(compaction.bucket.partition),
            bucket=found["bucket"],
            reason=found["reason"],
            input_files=len(found["files"]),
            input_bytes=found["bytes"],
            input_records=found["rows"],
            output_level=found["output_level"],
        )
        self._planned += 1
        self._bytes_planned += found["bytes"]
        self._show()

    def finished(self, in_flight: InFlight) -> None:
        compaction, change, stats = in_flight.compaction, in_flight.result, in_flight.stats
        assert isinstance(change, BucketChange), "it has not failed"
        _log.info(
            "compaction_finished",
            partition=in_flight.partition,
            bucket=compaction.bucket.bucket,
            input_files=len(compaction.inputs),
            output_files=len(change.after),
            input_bytes=sum(each.input_bytes for each in stats),
            output_bytes=sum(each.output_bytes for each in stats),
            input_records=sum(each.input_records for each in stats),
            output_records=sum(each.output_records for each in stats),
        )
        self._finished += 1
        self._bytes_finished += compaction.input_bytes
        self._show()

    def committed(self, snapshot_id: int) -> None:
        _log.info("commit_succeeded", snapshot_id=snapshot_id)
        self._snapshots += 1
        self._show()

    def waiting(self, wait_ms: int) -> None:
        _log.info("commit_settling", seconds=round(wait_ms / 1000, 1))
        self._waited = True
        self._show(f"; waiting {wait_ms / 1000:.0f} s until writers cannot replace the last one")

    def close(self) -> None:
        """Clear the progress line."""
        if self._planned or self._waited:
            self._write("")

    def _show(self, then: str = "") -> None:
        self._write(
            f"{self._finished} of {count_text(self._planned, 'compaction')}, "
            f"{size_text(self._bytes_finished)} of {size_text(self._bytes_planned)}, "
            f"{count_text(self._snapshots, 'snapshot')}{then}"
        )

    def _write(self, line: str) -> None:
        if self._shown:
            self._stream.write(f"\r\x1b[K{line}")
            self._stream.flush()


def figures_of_error(error: BaseException) -> dict[str, object]:
    """The figures of `compact`, also printed after an error."""
    return asdict(CompactTotals(stopped=isinstance(error, KeyboardInterrupt)))


def request_of(
    args: argparse.Namespace, choice: TableSelection, target: SelectedTable
) -> CompactRequest:
    """The request by the arguments; the table's settings in --config are its defaults."""
    request = CompactRequest.of(target.policy, choice.loaded.config, table_overrides(args, target))
    return replace(
        request,
        strategy=strategy_of(args),
        partitions=partitions_of(args),
        append_wait_ms=amount_of(args, "append_wait", request.append_wait_ms),
        quiet_for_ms=amount_of(args, "quiet_for", request.quiet_for_ms),
        pick=pick_of(args) or request.pick,
    )


def check_arguments(args: argparse.Namespace) -> None:
    """Raises `UsageError` for arguments that are wrong for any table."""
    strategy_of(args)
    check_overrides(args)
    partitions_of(args)
    check_amounts(args)
    pick_of(args)


def compact(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    registries = registries_of(args)
    check_arguments(args)
    choice = choose(args)
    config = engine_config(args, choice.loaded.config)
    refuse_literal_secrets(config, config.spark.master, registries.stores)
    note_if_unmanaged(args, choice, "it is compacted")
    with contextlib.ExitStack() as closing:
        stop = closing.enter_context(stop_on_signals())
        engines = _Engines(config.spark, registries.start_engine)
        closing.callback(engines.drop)
        clock = SystemClock(choice.zone)
        worker = registries.worker(config.spark, clock.time_zone)
        observers = [ObserverThread(each) for each in registries.observers]
        for observer in observers:
            closing.callback(observer.close)

        def work(target: SelectedTable) -> Result:
            target.catalog.check_commits()
            with contextlib.closing(CommandProgress(is_logged=args.verbose)) as progress:
                run = OneShot(
                    target.open(),
                    request_of(args, choice, target),
                    start_engine=partial(engines.running, progress),
                    clock=clock,
                    worker=worker,
                    progress=progress,
                    stop=stop,
                    limits=config.limits,
                    observers=observers,
                )
                result = _compacted(choice, target, run, engines, config.recovery.orphan_grace_ms)
            # A run takes long: an operator may watch it while a program waits for the JSON object.
            for line in result.lines if args.json else ():
                say(line)
            return result

        return over_tables(args, choice, work, passes_over=True, stop=stop)


class _Engines:
    """One engine for all tables, started for the first table that needs it."""

    def __init__(self, spark: Spark, start: StartEngine) -> None:
        self._spark = spark
        self._start = start
        self._engine: Engine | None = None

    def running(self, progress: CommandProgress) -> Engine:
        """The engine; reports to `progress` if it has to be started."""
        if self._engine is None:
            master, conf = self._spark.master, self._spark.settings
            progress.starting(shown_master(master or "inside this process"))
            start_s = time.monotonic()
            self._engine = self._start(master, conf)
            seconds = time.monotonic() - start_s
            progress.started(seconds=seconds, slots=self._engine.capacity)
        return self._engine

    def drop(self) -> None:
        """Start another engine for the next table: this one may still run work of the last."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def _compacted(
    choice: TableSelection,
    target: SelectedTable,
    run: OneShot,
    engines: _Engines,
    orphan_grace_ms: int,
) -> Result:
    failed: dict[str, str] = {}
    found = run.maintain(SweepOrphans(interval_ms=0, grace_ms=orphan_grace_ms))
    run.totals.orphans_removed = found.get(REMOVED, 0)
    try:
        totals = run.run()
    except CompactordError as error:
        engines.drop()
        totals = run.totals
        if not totals.snapshots:
            raise
        totals.failures.append(str(error))
        totals.denied += isinstance(error, AccessDenied)
        failed = error_json(error)
    if run.leaves_workers:
        engines.drop()
    code = FAILED if totals.failures or totals.stopped else OK
    if totals.failures and totals.denied == len(totals.failures):
        code = DENIED
    return Result(
        lines=list(report.totals_text(choice.shown_name(target), totals)),
        found=asdict(totals) | failed,
        code=code,
    )
