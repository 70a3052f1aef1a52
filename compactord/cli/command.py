"""The command line: which commands there are. What carries one out is imported when it is run."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from compactord import __version__
from compactord.cli import examples
from compactord.cli.arguments import (
    Parser,
    add_bucket_argument,
    add_choice_arguments,
    add_doctor_arguments,
    add_dry_run_argument,
    add_engine_arguments,
    add_grace_argument,
    add_listing_arguments,
    add_one_table_arguments,
    add_option_argument,
    add_partition_argument,
    add_pick_argument,
    add_plan_arguments,
    add_verify_arguments,
    add_worst_argument,
)
from compactord.cli.running import run, stop_on_signals
from compactord.cli.service_arguments import add_config_arguments, add_serve_arguments
from compactord.top.arguments import TOP_EXAMPLES, add_top_arguments

_AddArguments = Callable[[argparse.ArgumentParser], None]
# The function of that name, its module, a summary, examples, and what adds its arguments.
_TABLE_COMMANDS: tuple[tuple[str, str, str, str, tuple[_AddArguments, ...]], ...] = (
    (
        "compact",
        "compactord.cli.compact",
        "compact tables until nothing is left to do",
        examples.COMPACT_EXAMPLES,
        (add_choice_arguments, add_option_argument, add_plan_arguments, add_engine_arguments),
    ),
    (
        "plan",
        "compactord.cli.plan",
        "show what compact would do, and why, without doing it",
        examples.PLAN_EXAMPLES,
        (add_choice_arguments, add_option_argument, add_plan_arguments, add_engine_arguments),
    ),
    (
        "inspect",
        "compactord.cli.inspect_command",
        "show a table's LSM tree against its triggers",
        examples.INSPECT_EXAMPLES,
        (add_choice_arguments, add_option_argument, add_partition_argument, add_worst_argument),
    ),
    (
        "tables",
        "compactord.cli.tables",
        "list all tables with their states, and why",
        examples.TABLES_EXAMPLES,
        (add_listing_arguments,),
    ),
    (
        "why",
        "compactord.cli.why",
        "explain one table: why it is picked or not, when next, by which rules and options",
        examples.WHY_EXAMPLES,
        (
            add_one_table_arguments,
            add_bucket_argument,
            add_partition_argument,
            add_worst_argument,
            add_pick_argument,
        ),
    ),
    (
        "expire",
        "compactord.cli.expire",
        "expire snapshots of tables by their own options",
        examples.EXPIRE_EXAMPLES,
        (add_choice_arguments, add_dry_run_argument),
    ),
    (
        "orphans",
        "compactord.cli.orphans",
        "remove left-over files of compactord's own dead runs",
        examples.ORPHANS_EXAMPLES,
        (add_choice_arguments, add_dry_run_argument, add_grace_argument),
    ),
    (
        "verify",
        "compactord.cli.verify",
        "check that all files of tables are there and as their metadata says",
        examples.VERIFY_EXAMPLES,
        (add_choice_arguments, add_verify_arguments),
    ),
    (
        "doctor",
        "compactord.cli.doctor",
        "check that compactord can work here, and say what to do",
        examples.DOCTOR_EXAMPLES,
        (add_doctor_arguments,),
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
    for name, module, summary, shown, arguments in _TABLE_COMMANDS:
        sub = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=shown,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        figures = _figures_of_error if name == "compact" else _no_figures
        sub.set_defaults(command=partial(_run, module, name), figures_of_error=figures)
        for add in arguments:
            add(sub)
    for name, add_arguments, summary in (
        ("serve", add_serve_arguments, "compact all tables of a warehouse continuously"),
        ("config", add_config_arguments, "check or show the configuration of serve"),
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
    _add_catalog_command(commands)
    completion = commands.add_parser(
        "completion",
        help="print a script that completes commands and options in a shell",
        description="Print a script that completes commands and options in a shell.",
        epilog=examples.COMPLETION_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    completion.set_defaults(
        command=_completion, json=False, verbose=False, figures_of_error=_no_figures
    )
    return parser


def _add_catalog_command(commands: Any) -> None:
    summary = "register the tables of a warehouse in the database of a catalog"
    catalog = commands.add_parser(
        "catalog", help=summary, description=f"{summary.capitalize()}.", allow_abbrev=False
    )
    actions = catalog.add_subparsers(required=True, metavar="ACTION")
    register = actions.add_parser(
        "register",
        help=summary,
        description=f"{summary.capitalize()}.",
        epilog=examples.REGISTER_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    register.set_defaults(
        command=partial(_run, "compactord.cli.register", "register"),
        figures_of_error=_no_figures,
    )
    add_choice_arguments(register)
    register.add_argument(
        "--execute", action="store_true", help="change the database instead of printing SQL"
    )


def _run(module: str, name: str, args: argparse.Namespace) -> int:
    command: Callable[[argparse.Namespace], int] = getattr(importlib.import_module(module), name)
    return command(args)


def _figures_of_error(error: BaseException) -> dict[str, object]:
    from compactord.cli.compact import figures_of_error

    return figures_of_error(error)


def _no_figures(error: BaseException) -> dict[str, object]:
    return {}


def _add_top_arguments(parser: argparse.ArgumentParser) -> None:
    add_top_arguments(parser)
    parser.epilog = TOP_EXAMPLES
    parser.set_defaults(command=_top, verbose=False, figures_of_error=_no_figures)


def _top(args: argparse.Namespace) -> int:
    from compactord.top.command import top

    with stop_on_signals() as stop:
        return top(args, stop)


def _completion(args: argparse.Namespace) -> int:
    import shtab

    print(shtab.complete(_parser(), args.shell))
    return 0
