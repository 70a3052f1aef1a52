"""The arguments of the commands for tables, as they are declared.

What is imported here is imported for `--help`, too: only what is quick to import.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from compactord.config.catalog_arguments import add_catalog_arguments
from compactord.errors import CompactordError, UsageError
from compactord.redaction import printable, redact_text


def error_json(error: CompactordError | KeyboardInterrupt) -> dict[str, str]:
    """The error that ended a command, as plain data."""
    return {"error": redact_text(str(error)) or "interrupted", "kind": type(error).__name__}


class Parser(argparse.ArgumentParser):
    """Unknown arguments are errors of the command that got them, with its usage.

    With --json, wrong arguments are also reported as a JSON object.
    """

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = sys.argv[1:] if args is None else list(args)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._hint(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        message = printable(redact_text(message))
        if "--json" in self._given:
            found = json.dumps(error_json(UsageError(message)))
            self._print_message(f"{found}\n", sys.stdout)
        super().error(message)

    def _hint(self, unknown: Sequence[str]) -> str:
        names = [text.partition("=")[0] for text in unknown if text.startswith("--")]
        known = [name for name in self._option_string_actions if name.startswith("--")]
        near = difflib.get_close_matches(names[0], known, n=1) if names else []
        return f"; did you mean {near[0]}?" if near else ""


AddArguments = Callable[[argparse.ArgumentParser], object]
_Group = argparse.ArgumentParser | argparse._ArgumentGroup
# Kinds of maintenance, as people name them, in the order in which they run.
MAINTENANCE_KINDS = (
    "tags",
    "consumers",
    "partitions",
    "snapshots",
    "changelogs",
    "branches",
    "done",
    "orphans",
    "foreign",
)
# The last two only if they are asked for.
UNASKED_KINDS = MAINTENANCE_KINDS[:-2]
# Where serve looks for its configuration.
_DEFAULT_PATH = "/etc/compactord/compactord.yaml"


_NUMBER = {"type": int}


def _declare(parser: _Group, lines: str, **more: Mapping[str, Any]) -> None:
    """Add arguments from lines as `--help` shows them: `--bucket N: only the buckets of …`.

    Where no word follows its name an argument is a switch; with three dots it may be given several
    times, which makes a list. Its help goes on in the lines that are indented. `more` is what else
    the parser is told of an argument, by its name.
    """
    for line in textwrap.dedent(lines).strip().replace("\n  ", " ").splitlines():
        described, _, meaning = line.partition(": ")
        name, _, metavar = described.partition(" ")
        told: dict[str, Any] = {"help": meaning, "metavar": metavar.removesuffix("...")}
        if not metavar:
            told = {"help": meaning, "action": "store_true"}
        elif metavar.endswith("..."):
            told |= {"action": "append", "default": []}
        parser.add_argument(name, **told, **more.get(name.lstrip("-").replace("-", "_"), {}))


def _argument(lines: str, **more: Mapping[str, Any]) -> Callable[[_Group], None]:
    return lambda parser: _declare(parser, lines, **more)


bucket = _argument("--bucket N: only the buckets of this number", bucket=_NUMBER)
dry_run = _argument("--dry-run: say what would go; change nothing")
execute = _argument("--execute: change the database instead of printing SQL")
grace = _argument("""
    --orphan-grace DURATION: age at which left-over files of earlier runs are deleted when it cannot
      be proved that their run has ended (default: --config's, else 1 d; at least 1 h); must exceed
      the longest compaction
""")
as_json = _argument("--json: print one JSON object")
online = _argument("""
    --online: also look at every catalog: is its warehouse there, may this user read it
""")
only = _argument(
    f"""
    --only KIND...: only this kind: {", ".join(MAINTENANCE_KINDS)}; may be repeated (default: all
      but orphans and foreign)
    """,
    only={"choices": MAINTENANCE_KINDS},
)
option = _argument("""
    --option KEY=VALUE...: a table option for this run; overrides the table's own; may be repeated
""")
partition = _argument("""
    --partition K=V[,K=V]...: only these partitions; may be repeated. Null is written as the table's
      partition.default-name (__DEFAULT_PARTITION__); %%2C is a comma, %%25 a percent sign
""")
pick = _argument("""
    --pick {2.0,2.1}: pick from sorted runs as this release of Paimon does (default: --config's,
      else 2.1); with 2.0 level 1 may grow without bound
""")
worst = _argument("--worst N: only the N buckets that need compaction most", worst=_NUMBER)
_set = _argument(
    "--set KEY=VALUE...: a value that overrides --config's; may be repeated",
    set={"dest": "config_overrides"},
)


def shell(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def listing(parser: argparse.ArgumentParser) -> None:
    """As `choice`, of a running service, too."""
    choice(parser, or_service=True)


def choice(parser: argparse.ArgumentParser, *, or_service: bool = False) -> None:
    """Which tables a command is for (`cli/choice.py`)."""
    _place(parser, or_service=or_service)
    which = """
        --table DB.T: one table, with its database; its branch b as DB.T$branch_b
        --database DB: all tables of a database
        --tables REGEX: all tables whose whole name, database.table, matches this regular expression
    """
    _declare(parser.add_mutually_exclusive_group(), which)
    _output(parser)


def one_table(parser: argparse.ArgumentParser) -> None:
    """As `listing`, for one table that is always named."""
    _declare(parser, "table DB.T: the table, with its database")
    parser.set_defaults(database=None, tables=None)
    _place(parser, or_service=True)
    _output(parser)


def _place(parser: argparse.ArgumentParser, *, or_service: bool) -> None:
    where = parser.add_mutually_exclusive_group(required=True)
    if or_service:
        of_service = """
            --url URL: ask the service that runs there, like http://HOST:9464; read no table
        """
        _declare(where, of_service)
    of_tables = """
        --warehouse WAREHOUSE: the warehouse: a folder, or s3://bucket/wh, gs://, abfss://, oss://,
          hdfs://
        --config FILE: a configuration of serve: its catalogs, and its rules for each table
    """
    _declare(where, of_tables)
    add_catalog_arguments(parser)
    several = "--config or --url" if or_service else "--config"
    _declare(parser, f"--catalog NAME: only this catalog of {several}")
    _set(parser)


def _output(parser: argparse.ArgumentParser) -> None:
    _declare(parser, "--json: print one JSON object, last on stdout")
    parser.add_argument("-v", "--verbose", action="store_true", help="log more on stderr")


def plan(parser: argparse.ArgumentParser) -> None:
    strategy = """
        --strategy {minor,full}: minor (default): compact what the table's triggers ask for; full:
          everything into the highest level, or every file below the target size on an append table
    """
    _declare(parser, strategy, strategy={"default": "minor"})
    partition(parser)
    waits = """
        --append-wait DURATION: merge small append files that have waited longer, even if there are
          fewer than compaction.min.file-num (default: --config's; without one they wait for more)
        --quiet-for DURATION: skip partitions of an append table that a command rewrote (DELETE,
          UPDATE, MERGE) within this time (default: --config's, else 0 s: skip none)
    """
    _declare(parser, waits)
    pick(parser)


def engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "where and how it runs", "For compact; plan checks these arguments but does not use them."
    )
    of_engine = """
        --master MASTER: Spark master, sc://… for Spark Connect (default: a Spark inside this
          process)
        --spark-conf KEY=VALUE...: a Spark setting; may be repeated. Other users can see command
          lines: write secrets as ${env:NAME} or ${file:/path}, here and in --master
        --memory MEMORY: memory of one merge, in addition to the idle worker's (default:
          --config's, else 512 mb)
        --task-timeout DURATION: a merge that takes longer than this, and than it takes to read its
          files at 1 MiB/s, is cancelled, and its bucket fails (default: --config's, else 10 min)
    """
    _declare(group, of_engine)
    grace(group)


def verify(parser: argparse.ArgumentParser) -> None:
    which = """
        --snapshot N: data files of this snapshot, not the newest
        --tag NAME: data files of this tag
        --all-snapshots: data files of every snapshot and tag, of branches too; each file once
    """
    _declare(parser.add_mutually_exclusive_group(), which, snapshot=_NUMBER)
    footers = """
        --footers {N,all}: read the footers of so many data files, picked at random (default: 1000)
    """
    _declare(parser, footers, footers={"default": "1000"})


def foreign(parser: argparse.ArgumentParser) -> None:
    of_foreign = """
        --foreign: also files of other programs in the table's folders that nothing names; use
          --dry-run first
        --older-than DURATION: with --foreign: how long they have not changed (default: 1 d; at
          least 1 h); must exceed the time from a writer's first file to its commit
        --external-paths: with --foreign: also look below the table's data-file.external-paths; only
          where no other table has data there, as nothing tells whose a file is
        --trash FOLDER: with --foreign: move files to this folder of the same store instead of
          deleting them
    """
    _declare(parser.add_argument_group("files of other programs"), of_foreign)


def doctor(parser: argparse.ArgumentParser) -> None:
    where = """
        --warehouse WAREHOUSE: a warehouse to be checked, too
        --config FILE: check for this configuration of serve
    """
    _declare(parser.add_mutually_exclusive_group(), where)
    add_catalog_arguments(parser)
    _set(parser)


def serve(parser: argparse.ArgumentParser) -> None:
    """Where a configuration of serve is."""
    where = f"""
        --config FILE: default: {_DEFAULT_PATH}
        --warehouse W: the only warehouse, without a file: catalog `warehouse`, all defaults
    """
    _declare(parser.add_mutually_exclusive_group(), where, config={"default": _DEFAULT_PATH})
    add_catalog_arguments(parser)
    over_file = """
        --set KEY=VALUE...: a value that overrides the file, e.g. limits.task_slots=2; may be
          repeated
    """
    _declare(parser, over_file, set={"dest": "overrides"})


def top(parser: argparse.ArgumentParser) -> None:
    what = """
        --url URL: the address of a running daemon
        --warehouse WAREHOUSE: a warehouse, read without a daemon
    """
    _declare(parser.add_mutually_exclusive_group(required=True), what)
    add_catalog_arguments(parser)
    frames = """
        --interval DURATION: time between two polls (default 2 s)
        --once: print one frame and end
        --json: print each frame as one line of JSON, never live
        --width COLUMNS: width of frames (default: the terminal's)
    """
    _declare(parser, frames, interval={"default": "2 s"}, width=_NUMBER)
