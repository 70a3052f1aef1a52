"""The commands of the command line. A command's module is imported only to run it."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from compactord import __version__
from compactord.cli import arguments as takes
from compactord.cli.arguments import AddArguments, Parser
from compactord.cli.examples import HELP
from compactord.cli.running import run

# Slow to import, and --help does not need them.
if TYPE_CHECKING:
    from compactord.cli.registries import Registries


class _Command(NamedTuple):
    """A command by its words. The last word names its function in `module` of this package.

    If `has_figures`, the module's `figures_of_error` returns what `--json` adds to an error.
    """

    words: str
    module: str
    arguments: tuple[AddArguments, ...] = ()
    has_figures: bool = False


_DELETES = (takes.dry_run, takes.force)
_PLAN_ARGUMENTS = (takes.choice, takes.option, takes.plan, takes.engine)
_COMMANDS = (
    _Command("compact", "compact", _PLAN_ARGUMENTS, has_figures=True),
    _Command("plan", "plan", _PLAN_ARGUMENTS),
    _Command("inspect", "plan", (takes.choice, takes.option, takes.partition, takes.worst)),
    _Command("tables", "tables", (takes.listing,)),
    _Command(
        "why", "tables", (takes.one_table, takes.bucket, takes.partition, takes.worst, takes.pick)
    ),
    _Command("maintain", "maintain", (takes.choice, takes.only, *_DELETES, takes.grace)),
    _Command("expire", "maintain", (takes.choice, *_DELETES)),
    _Command("orphans", "maintain", (takes.choice, *_DELETES, takes.grace, takes.foreign)),
    _Command("verify", "verify", (takes.choice, takes.verify)),
    _Command("doctor", "doctor", (takes.doctor, takes.as_json)),
    _Command("serve", "serve", (takes.serve,)),
    _Command("config check", "serve", (takes.serve, takes.as_json, takes.online), has_figures=True),
    _Command("config show", "serve", (takes.serve, takes.as_json), has_figures=True),
    _Command("config schema", "serve"),
    _Command("top", "top", (takes.top,)),
    _Command("status", "status", (takes.status, takes.as_json)),
    _Command("catalog register", "register", (takes.choice, takes.execute)),
    _Command("completion", "command", (takes.shell,)),
)


def main(arguments: Sequence[str] | None = None, registries: Registries | None = None) -> int:
    """Run a command; returns the exit code. `registries` default to the product's own."""
    return run(_parser(registries), arguments)


def _parser(
    registries: Registries | None = None, maintenance: Sequence[str] | None = None
) -> argparse.ArgumentParser:
    parser = Parser(
        prog="compactord",
        description="Compacts Apache Paimon tables that write-only jobs fill.",
        epilog="`compactord COMMAND --help` shows the options of a command, with examples.",
    )
    parser.add_argument("--version", action="version", version=f"compactord {__version__}")
    parser.set_defaults(registries=registries, json=False, verbose=False)
    parser.set_defaults(figures_of_error=lambda error: {})
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    groups: dict[str, Any] = {}
    for command in _COMMANDS:
        first, _, action = command.words.partition(" ")
        if action and first not in groups:
            group = _add_parser(commands, first, first)
            groups[first] = group.add_subparsers(required=True, metavar="ACTION")
        name, place = (action, groups[first]) if action else (first, commands)
        sub = _add_parser(place, name, command.words)
        sub.maintenance = maintenance
        if registries is not None:
            sub.kinds = registries.kinds
        for add in command.arguments:
            add(sub)
        sub.set_defaults(command=partial(_run, command.module, name))
        if command.has_figures:
            sub.set_defaults(figures_of_error=partial(_run, command.module, "figures_of_error"))
    return parser


def _add_parser(place: Any, name: str, words: str) -> Parser:
    summary, _, examples = HELP[words].partition("\n")
    parser: Parser = place.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=examples or None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return parser


def _run(module: str, name: str, given: object) -> Any:
    function: Callable[[Any], Any] = getattr(
        importlib.import_module(f"compactord.cli.{module}"), name
    )
    return function(given)


def completion(args: argparse.Namespace) -> int:
    import shtab

    # Parsers of other commands omit these values, to start faster.
    from compactord.cli.maintain import choices
    from compactord.cli.registries import registries_of
    from compactord.config.model import Recovery

    kinds = tuple(choices(registries_of(args).maintenance(Recovery())))
    print(shtab.complete(_parser(args.registries, kinds), args.shell))
    return 0
