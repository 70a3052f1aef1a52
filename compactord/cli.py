"""The command line: arguments in, text or JSON out. The only place that joins the components."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace

from compactord import __version__, ids, serve
from compactord.catalog.base import Catalog
from compactord.catalog.open import open_catalog
from compactord.cli_arguments import (
    Parser,
    add_engine_arguments,
    add_plan_arguments,
    add_table_arguments,
    append_wait_ms,
    engine_arguments,
    error_json,
    overrides_of,
    partitions_of,
    quiet_for_ms,
    strategy_of,
)
from compactord.clock import SystemClock
from compactord.config.model import LogFormat, LogLevel
from compactord.engine.spark import start_spark
from compactord.errors import (
    AccessDenied,
    CompactordError,
    EngineUnavailable,
    TableNotFound,
    UsageError,
)
from compactord.paimon.schema import latest_schema
from compactord.paimon.support import reasons_to_refuse
from compactord.paimon.table import TableRef
from compactord.service.logs import configure_logs
from compactord.showcase import show
from compactord.state.table_state import load_state
from compactord.storage.base import Storage
from compactord.table import report
from compactord.table.one_shot import CompactTotals, OneShot
from compactord.table.opening import describe_table, live_reasons, open_table, refuse_live_state
from compactord.table.planning import (
    PartitionTest,
    PlanContext,
    plan_state,
    remember_rewrites,
    resting_partitions,
)
from compactord.table.session import SessionRequest
from compactord.table.subcompactions import WorkerSpec
from compactord.top.command import TOP_EXAMPLES, add_top_arguments, top

_OK, _USAGE, _FAILED, _NO_ENGINE, _DENIED = 0, 2, 3, 69, 77
_DEMO_SECONDS, _DEMO_SECONDS_MAX = "35", 3600

_COMPACT_EXAMPLES = """\
examples:
  compactord compact --warehouse /data/wh --table sales.orders
  compactord compact --warehouse /data/wh --table sales.orders --strategy full
  compactord compact --warehouse /data/wh --table sales.orders --partition dt=2026-11-01
  compactord compact --warehouse /data/wh --table logs.raw --option target-file-size=512mb --json
  compactord compact --warehouse /data/wh --table sales.orders --master spark://head:7077 \\
      --spark-conf spark.cores.max=16

exit codes: 0 done, or nothing to do; 2 arguments or configuration; 3 something failed
or the table is refused; 69 no engine; 77 permission denied; 1 a defect of compactord
"""
_PLAN_EXAMPLES = """\
examples:
  compactord plan --warehouse /data/wh --table sales.orders
  compactord plan --warehouse /data/wh --table sales.orders --strategy full --json
"""
_DEMO_EXAMPLES = """\
examples:
  compactord demo
  compactord demo --seconds 120
  compactord demo --warehouse /tmp/wh   # keeps the tables

exit codes: 0 the rows are those ingested; 3 they are not, the daemon failed, or it was interrupted
"""
_INSPECT_EXAMPLES = """\
examples:
  compactord inspect --warehouse /data/wh --table sales.orders
  compactord inspect --warehouse /data/wh --table sales.orders --json | jq .supported
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the result is the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name that the terminal cannot show must not end the work.
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            code = _run(_parser().parse_args(arguments))
        except SystemExit:
            _flush()  # what --help said
            raise
        _flush()
    except OSError as error:
        # Only writing our own output can raise this: stores have errors of their own.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not isinstance(error, BrokenPipeError):
            _say(f"compactord: its output cannot be written: {error}")
        return _FAILED
    return code


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _run(args: argparse.Namespace) -> int:
    # Events go to stderr: readable on a terminal, one JSON object per line elsewhere.
    level = LogLevel.INFO if args.verbose else LogLevel.WARNING
    configure_logs(level=level, format=LogFormat.AUTO, stream=sys.stderr)
    command: Callable[[argparse.Namespace], int] = args.command
    try:
        return command(args)
    except (CompactordError, KeyboardInterrupt) as error:
        told = error_json(error)
        if args.json:
            # Who reads the figures of `compact` finds them whatever happened.
            totals = CompactTotals(stopped=isinstance(error, KeyboardInterrupt))
            print(json.dumps((asdict(totals) if command is _compact else {}) | told))
        _say(f"compactord: {told['error']}")
        return _exit_code(error)


def _say(text: str) -> None:
    """A line on stderr, if there is one that takes it: exit codes and results count without."""
    if sys.stderr is None:
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        # What it holds back would fail once more at the end, which Python tells by the exit code.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _exit_code(error: CompactordError | KeyboardInterrupt) -> int:
    match error:
        case UsageError() | TableNotFound():
            return _USAGE
        case AccessDenied():
            return _DENIED
        case EngineUnavailable():
            return _NO_ENGINE
        case _:
            return _FAILED


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="compactord",
        description="Compacts Apache Paimon tables that write-only jobs fill.",
        epilog="`compactord COMMAND --help` shows the options of a command, with examples.",
    )
    parser.add_argument("--version", action="version", version=f"compactord {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, summary, examples in (
        ("compact", _compact, "compact a table until nothing is left to do", _COMPACT_EXAMPLES),
        ("plan", _plan, "show what compact would do, and why, without doing it", _PLAN_EXAMPLES),
        ("inspect", _inspect, "show a table's LSM tree against its triggers", _INSPECT_EXAMPLES),
    ):
        sub = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.set_defaults(command=command)
        add_table_arguments(sub)
        if name != "inspect":
            add_plan_arguments(sub)
            add_engine_arguments(sub)
    for name, add_arguments, summary in (
        ("serve", serve.add_serve_arguments, "keep all tables of a warehouse compact"),
        ("config", serve.add_config_arguments, "check or show the configuration of serve"),
        ("top", _add_top_arguments, "watch a service, or the tables of a warehouse"),
    ):
        sub = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        add_arguments(sub)
    demo = commands.add_parser(
        "demo",
        help="watch serve keep two tables compact while jobs fill them",
        description="Fill two tables as write-only jobs do, with serve running beside the jobs, "
        "show runs and files rise and fall, and compare the rows with those ingested.",
        epilog=_DEMO_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument("--warehouse", help="an empty folder to keep the tables in")
    demo.add_argument(
        "--seconds",
        default=_DEMO_SECONDS,
        metavar="N",
        help=f"how long the jobs write (default {_DEMO_SECONDS}); the demo takes about 20 s more",
    )
    demo.set_defaults(command=_demo, json=False, verbose=False)
    return parser


def _add_top_arguments(parser: argparse.ArgumentParser) -> None:
    add_top_arguments(parser)
    parser.epilog = TOP_EXAMPLES
    parser.set_defaults(command=_top, json=False, verbose=False)


def _top(args: argparse.Namespace) -> int:
    with _stop_on_signals() as stop:
        return top(args, stop)


def _compact(args: argparse.Namespace) -> int:
    catalog, table = _find(args)
    request = SessionRequest(
        strategy=strategy_of(args),
        overrides=overrides_of(args),
        partitions=partitions_of(args),
        append_wait_ms=append_wait_ms(args),
        quiet_for_ms=quiet_for_ms(args),
    )
    where = engine_arguments(args)
    clock = SystemClock()
    worker = WorkerSpec(
        owner=ids.this_process(),
        memory_bytes=where.memory_bytes,
        zone=clock.time_zone,
    )
    progress = report.TerminalProgress()
    failed: dict[str, str] = {}
    with contextlib.ExitStack() as closing:
        closing.callback(progress.close)
        stop = closing.enter_context(_stop_on_signals())
        run = OneShot(
            table,
            request,
            storage=catalog.storage,
            publisher=catalog.publisher,
            start_engine=lambda: closing.enter_context(start_spark(where.master, where.spark_conf)),
            clock=clock,
            worker=worker,
            progress=progress,
            stop=stop,
        )
        run.remove_orphans(grace_ms=where.orphan_grace_ms)
        try:
            totals = run.run()
        except CompactordError as error:
            totals = run.totals
            if not totals.snapshots:
                raise
            totals.failures.append(str(error))
            totals.denied += isinstance(error, AccessDenied)
            failed = error_json(error)
    for line in report.totals_text(table.full_name, totals):
        (_say if args.json else print)(line)
    if args.json:
        print(json.dumps(asdict(totals) | failed))
    if totals.failures and totals.denied == len(totals.failures):
        return _DENIED
    return _FAILED if totals.failures or totals.stopped else _OK


def _demo(args: argparse.Namespace) -> int:
    seconds = _demo_seconds(args.seconds)
    with contextlib.ExitStack() as closing:
        folder = args.warehouse
        if folder is None:
            folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="compactord-demo-"))
        catalog = _open_catalog(folder)
        _refuse_used(catalog.storage, catalog.warehouse)
        went_well = show.run(
            catalog.storage,
            catalog.warehouse,
            seconds=seconds,
            owner=ids.this_process(),
            clock=SystemClock(),
            stop=closing.enter_context(_stop_on_signals()),
        )
    return _OK if went_well else _FAILED


def _refuse_used(storage: Storage, warehouse: str) -> None:
    status = storage.status(warehouse)
    if status is not None and not status.is_folder:
        raise UsageError(f"--warehouse {warehouse} is not a folder")
    if status is not None and any(True for _ in storage.list(warehouse)):
        raise UsageError(
            f"--warehouse {warehouse} is not empty: give the demo an empty or a new folder"
        )


def _demo_seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) <= _DEMO_SECONDS_MAX):
        raise UsageError(f"--seconds {text}: not a number from 1 to {_DEMO_SECONDS_MAX}")
    return int(text)


def _plan(args: argparse.Namespace) -> int:
    catalog, ref = _find(args)
    storage = catalog.storage
    engine_arguments(args)
    clock = SystemClock()
    quiet_ms = quiet_for_ms(args)
    context = PlanContext(
        strategy=strategy_of(args),
        partitions=partitions_of(args),
        append_wait_ms=append_wait_ms(args),
        now_ms=clock.now_ms(),
        steady_ms=clock.steady_ms(),
        zone=clock.time_zone,
        last_full_ms={},
        settled=frozenset(),
    )
    table = open_table(storage, ref, overrides_of(args))
    state = load_state(storage, ref)
    refuse_live_state(table, state)
    state = remember_rewrites(storage, table, state, quiet_for_ms=quiet_ms, now_ms=context.now_ms)
    context = replace(context, resting=resting_partitions(state, quiet_ms, context.now_ms))
    plans = list(plan_state(storage, table, state, context))
    compactions = [compaction for plan in plans for compaction in plan.compactions]
    notes = [note for plan in plans for note in report.plan_notes(table, plan)]
    live = (bucket.partition for bucket in state.files.bucket_ids())
    absent = PartitionTest(table, context.partitions).absent(live)
    notes += [report.absent_text(partition) for partition in absent]
    if args.json:
        found = {
            "table": ref.full_name,
            "snapshot": state.snapshot.id if state.snapshot else None,
            "strategy": context.strategy.value,
            "compactions": [report.compaction_json(table, c) for c in compactions],
            "absent_partitions": absent,
            "resting": report.resting(table, plans),
            "notes": notes,
            "warnings": list(table.warnings),
        }
        print(json.dumps(found))
        return _OK
    for compaction in compactions:
        print(report.compaction_text(table, compaction))
    for text in (*notes, *table.warnings):
        print(f"note: {text}")
    if not compactions:
        print(f"{ref.full_name}: nothing to do")
    return _OK


def _inspect(args: argparse.Namespace) -> int:
    catalog, ref = _find(args)
    storage = catalog.storage
    table = describe_table(storage, ref, latest_schema(storage, ref.location), overrides_of(args))
    state = remember_rewrites(
        storage, table, load_state(storage, ref), quiet_for_ms=0, now_ms=SystemClock().now_ms()
    )
    reasons = (*reasons_to_refuse(table.schema, table.options), *live_reasons(table, state))
    shapes = report.bucket_shapes(table, state)
    if args.json:
        print(json.dumps(report.inspect_json(table, state, shapes, reasons)))
    else:
        for line in report.inspect_text(table, state, shapes, reasons):
            print(line)
    return _OK


def _find(args: argparse.Namespace) -> tuple[Catalog, TableRef]:
    catalog = _open_catalog(args.warehouse)
    return catalog, catalog.find_table(args.table)


def _open_catalog(warehouse: str) -> Catalog:
    if not warehouse:
        raise UsageError("--warehouse is empty")
    return open_catalog(warehouse)


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """An event that the signals to end set; a second signal of any of them ends the process."""
    stop = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    previous = {number: signal.getsignal(number) for number in numbers}

    def on_signal(number: int, frame: object) -> None:
        stop.set()
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)

    for number in numbers:
        # Who starts us with nohup wants SIGHUP to be ignored.
        if previous[number] is not signal.SIG_IGN:
            signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
