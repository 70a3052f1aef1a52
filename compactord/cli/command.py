"""The command line: arguments in, text or JSON out. It puts the components together."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from compactord import __version__, ids
from compactord.catalog.base import Catalog
from compactord.cli import serve
from compactord.cli.arguments import (
    Parser,
    add_engine_arguments,
    add_plan_arguments,
    add_table_arguments,
    append_wait_ms,
    engine_arguments,
    error_json,
    open_warehouse,
    overrides_of,
    partitions_of,
    quiet_for_ms,
    strategy_of,
)
from compactord.cli.running import DENIED, FAILED, OK, run, say, stop_on_signals
from compactord.clock import SystemClock
from compactord.engine.spark import start_spark
from compactord.errors import (
    AccessDenied,
    CompactordError,
)
from compactord.paimon.schema import latest_schema
from compactord.paimon.support import reasons_to_refuse
from compactord.paimon.table import TableRef
from compactord.service.one_shot import OneShot
from compactord.state.table_state import load_state
from compactord.table import report
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
from compactord.table.totals import CompactTotals
from compactord.top.command import TOP_EXAMPLES, add_top_arguments, top

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
_INSPECT_EXAMPLES = """\
examples:
  compactord inspect --warehouse /data/wh --table sales.orders
  compactord inspect --warehouse /data/wh --table sales.orders --json | jq .supported
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the result is the exit code."""
    return run(_parser(), arguments)


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
        figures = _figures_of_error if name == "compact" else _no_figures
        sub.set_defaults(command=command, figures_of_error=figures)
        add_table_arguments(sub)
        if name != "inspect":
            add_plan_arguments(sub)
            add_engine_arguments(sub)
    for name, add_arguments, summary in (
        ("serve", serve.add_serve_arguments, "compact all tables of a warehouse continuously"),
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
    return parser


def _figures_of_error(error: BaseException) -> dict[str, object]:
    """The figures of `compact`, which are printed after an error as well."""
    return asdict(CompactTotals(stopped=isinstance(error, KeyboardInterrupt)))


def _no_figures(error: BaseException) -> dict[str, object]:
    return {}


def _add_top_arguments(parser: argparse.ArgumentParser) -> None:
    add_top_arguments(parser)
    parser.epilog = TOP_EXAMPLES
    parser.set_defaults(command=_top, json=False, verbose=False)


def _top(args: argparse.Namespace) -> int:
    with stop_on_signals() as stop:
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
        stop = closing.enter_context(stop_on_signals())
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
        (say if args.json else print)(line)
    if args.json:
        print(json.dumps(asdict(totals) | failed))
    if totals.failures and totals.denied == len(totals.failures):
        return DENIED
    return FAILED if totals.failures or totals.stopped else OK


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
        return OK
    for compaction in compactions:
        print(report.compaction_text(table, compaction))
    for text in (*notes, *table.warnings):
        print(f"note: {text}")
    if not compactions:
        print(f"{ref.full_name}: nothing to do")
    return OK


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
    return OK


def _find(args: argparse.Namespace) -> tuple[Catalog, TableRef]:
    catalog = open_warehouse(args.warehouse)
    return catalog, catalog.find_table(args.table)
