"""The command line: arguments in, text or JSON out. It puts the components together."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from compactord import __version__
from compactord.cli import serve
from compactord.cli.arguments import (
    Parser,
    add_bucket_argument,
    add_choice_arguments,
    add_dry_run_argument,
    add_engine_arguments,
    add_grace_argument,
    add_one_table_arguments,
    add_option_argument,
    add_partition_argument,
    add_plan_arguments,
    add_worst_argument,
)
from compactord.cli.compact import COMPACT_EXAMPLES, compact, figures_of_error
from compactord.cli.doctor import add_doctor_arguments
from compactord.cli.expire import EXPIRE_EXAMPLES, expire
from compactord.cli.inspect_command import INSPECT_EXAMPLES, inspect
from compactord.cli.orphans import ORPHANS_EXAMPLES, orphans
from compactord.cli.plan import PLAN_EXAMPLES, plan
from compactord.cli.running import run, stop_on_signals
from compactord.cli.tables import TABLES_EXAMPLES, tables
from compactord.cli.why import WHY_EXAMPLES, why
from compactord.top.command import TOP_EXAMPLES, add_top_arguments, top

_TableCommand = tuple[
    str,
    Callable[[argparse.Namespace], int],
    str,
    str,
    tuple[Callable[[argparse.ArgumentParser], None], ...],
]
# Name, command, summary, examples, and what adds its arguments.
_TABLE_COMMANDS: tuple[_TableCommand, ...] = (
    (
        "compact",
        compact,
        "compact tables until nothing is left to do",
        COMPACT_EXAMPLES,
        (add_choice_arguments, add_option_argument, add_plan_arguments, add_engine_arguments),
    ),
    (
        "plan",
        plan,
        "show what compact would do, and why, without doing it",
        PLAN_EXAMPLES,
        (add_choice_arguments, add_option_argument, add_plan_arguments, add_engine_arguments),
    ),
    (
        "inspect",
        inspect,
        "show a table's LSM tree against its triggers",
        INSPECT_EXAMPLES,
        (
            add_choice_arguments,
            add_option_argument,
            add_partition_argument,
            add_worst_argument,
        ),
    ),
    (
        "tables",
        tables,
        "list all tables with their states, and why",
        TABLES_EXAMPLES,
        (add_choice_arguments,),
    ),
    (
        "why",
        why,
        "explain one table: why it is picked or not, when next, by which rules and options",
        WHY_EXAMPLES,
        (
            add_one_table_arguments,
            add_bucket_argument,
            add_partition_argument,
            add_worst_argument,
        ),
    ),
    (
        "expire",
        expire,
        "expire snapshots of tables by their own options",
        EXPIRE_EXAMPLES,
        (add_choice_arguments, add_dry_run_argument),
    ),
    (
        "orphans",
        orphans,
        "remove left-over files of compactord's own dead runs",
        ORPHANS_EXAMPLES,
        (add_choice_arguments, add_dry_run_argument, add_grace_argument),
    ),
)


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
    for name, command, summary, examples, arguments in _TABLE_COMMANDS:
        sub = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        figures = figures_of_error if name == "compact" else _no_figures
        sub.set_defaults(command=command, figures_of_error=figures)
        for add in arguments:
            add(sub)
    for name, add_arguments, summary in (
        ("serve", serve.add_serve_arguments, "compact all tables of a warehouse continuously"),
        ("config", serve.add_config_arguments, "check or show the configuration of serve"),
        ("top", _add_top_arguments, "watch a service, or the tables of a warehouse"),
        ("doctor", add_doctor_arguments, "check that compactord can work here, and say what to do"),
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


def _no_figures(error: BaseException) -> dict[str, object]:
    return {}


def _add_top_arguments(parser: argparse.ArgumentParser) -> None:
    add_top_arguments(parser)
    parser.epilog = TOP_EXAMPLES
    parser.set_defaults(command=_top, json=False, verbose=False)


def _top(args: argparse.Namespace) -> int:
    with stop_on_signals() as stop:
        return top(args, stop)
