"""Declarations of the arguments of all commands.

Imports only modules that load quickly: `--help` imports this one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from compactord.catalog.registry import CATALOGS, CatalogKinds
from compactord.cli.running import USAGE, error_json
from compactord.config.choices import UnlockedWriters
from compactord.errors import UsageError
from compactord.text import did_you_mean, printable, redact_text


class Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one line, as errors of the command that got them.

    With --json, wrong arguments are also reported as a JSON object. `kinds` are kinds of catalogs.
    `maintenance` are the kinds that users can run, or None if the parser does not know them.
    """

    kinds: CatalogKinds = CATALOGS
    maintenance: Sequence[str] | None = None
    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = sys.argv[1:] if args is None else list(args)
        # Before argparse reports that a misspelt argument is missing.
        if self._subparsers is None:
            names = (text.partition("=")[0] for text in self._given)
            self._refuse([*filter(self._is_unknown, names)])
        found, unknown = super().parse_known_args(args, namespace)
        self._refuse(unknown)
        return found, unknown

    def _is_unknown(self, name: str) -> bool:
        is_flag = len(name) > 2 and name.startswith("--") and " " not in name
        return is_flag and name not in self._option_string_actions

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # A word that resembles no choice gets the list of all.
        choices = [*map(str, action.choices or ())]
        hint = did_you_mean(str(value), choices)
        if hint and value not in choices:
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}{hint}")
        super()._check_value(action, value)

    def _refuse(self, unknown: Sequence[str]) -> None:
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._hint(unknown)}")

    def error(self, message: str) -> NoReturn:
        message = printable(redact_text(message))
        if "--json" in self._given:
            found = json.dumps(error_json(UsageError(message)))
            self._print_message(f"{found}\n", sys.stdout)
        self.exit(USAGE, f"{self.prog}: {message} ({self.prog} --help)\n")

    def _hint(self, unknown: Sequence[str]) -> str:
        names = [text.partition("=")[0] for text in unknown if text.startswith("--")]
        known = [name for name in self._option_string_actions if name.startswith("--")]
        return did_you_mean(names[0], known) if names else ""


AddArguments = Callable[[Parser], object]
_Group = argparse.ArgumentParser | argparse._ArgumentGroup
# Where serve looks for its configuration.
_DEFAULT_PATH = "/etc/compactord/compactord.yaml"


def _argument(*names: str, **meaning: Any) -> Callable[[_Group], object]:
    return lambda parser: parser.add_argument(*names, **meaning)


def _repeated(name: str, metavar: str, help: str, **meaning: Any) -> Callable[[_Group], object]:
    """An argument that may be repeated; its values become a list."""
    return _argument(name, action="append", default=[], metavar=metavar, help=help, **meaning)


bucket = _argument("--bucket", type=int, metavar="N", help="only the buckets of this number")
dry_run = _argument("--dry-run", action="store_true", help="show the work, and do nothing")
force = _argument(
    "--force",
    action="store_true",
    help="delete even if live files of a table are missing or damaged; this may remove the "
    "versions that you could roll back to",
)
execute = _argument(
    "--execute", action="store_true", help="change the database instead of printing SQL"
)
grace = _argument(
    "--orphan-grace",
    metavar="DURATION",
    help="age at which left-over files of earlier runs are deleted when it cannot be proved "
    "that their run has ended (default: --config's, else 1 d; at least 1 h); must exceed the "
    "longest compaction",
)
as_json = _argument("--json", action="store_true", help="print one JSON object")
online = _argument(
    "--online",
    action="store_true",
    help="also check that every catalog's warehouse exists and that this user may read it",
)


def only(parser: Parser) -> None:
    _repeated(
        "--only",
        "KIND",
        "only this kind of those below; may be repeated (default: all but orphans and foreign)",
        choices=parser.maintenance,
    )(parser)


option = _repeated(
    "--option",
    "KEY=VALUE",
    "a table option for this run; overrides the table's own; may be repeated",
)
partition = _repeated(
    "--partition",
    "K=V[,K=V]",
    "only these partitions; may be repeated. Null is written as the table's "
    "partition.default-name (__DEFAULT_PARTITION__); %%2C is a comma, %%25 a percent sign",
)
pick = _argument(
    "--pick",
    metavar="{2.0,2.1}",
    help="pick from sorted runs as this release of Paimon does (default: --config's, else "
    "2.1); with 2.0 level 1 may grow without bound",
)
shell = _argument("shell", choices=("bash", "zsh", "tcsh"))
worst = _argument(
    "--worst", type=int, metavar="N", help="only the N buckets that need compaction most"
)
_set_values = _repeated(
    "--set",
    "KEY=VALUE",
    "a value that overrides --config's; may be repeated",
    dest="config_overrides",
)


def choice(parser: Parser, *, is_listing: bool = False) -> None:
    """Adds the arguments that select tables (`cli/select.py`).

    A selection is required, except for a listing, which may also query a running service.
    """
    _place(parser, or_service=is_listing)
    which = parser.add_mutually_exclusive_group(required=not is_listing)
    which.add_argument(
        "--table",
        metavar="DB.T",
        help="one table, with its database; its branch b as DB.T$branch_b; also CATALOG.DB.T",
    )
    which.add_argument("--database", metavar="DB", help="all tables of a database")
    which.add_argument(
        "--tables",
        metavar="REGEX",
        help="all tables whose whole name, database.table, matches this regular expression",
    )
    default = " (default)" if is_listing else ""
    which.add_argument("--all", action="store_true", help=f"all tables{default}")
    _output(parser)


def add_catalog_arguments(parser: Parser) -> None:
    """Adds the arguments for the kind and options of the catalog of `--warehouse`."""
    examples = [kind.example_option for kind in parser.kinds.values() if kind.example_option]
    parser.add_argument(
        "--metastore",
        choices=tuple(parser.kinds),
        help="kind of the catalog of --warehouse (default: filesystem)",
    )
    parser.add_argument(
        "--unlocked-writers",
        choices=[each.value for each in UnlockedWriters],
        help="what to do with a --warehouse on S3, GCS or Azure whose writers take no lock: refuse "
        "it (default), or compact guarded (docs/operations.md)",
    )
    parser.add_argument(
        "--allow-http",
        action="store_true",
        help="allow plain http to the server of a REST --warehouse on another machine",
    )
    _repeated(
        "--allow-scheme",
        "SCHEME",
        "a further scheme of locations that the server of a REST or Hive --warehouse may name "
        "(file, or one of fsspec's); object stores, HDFS and the warehouse's own are always "
        "allowed; may be repeated",
    )(parser)
    _repeated(
        "--catalog-option",
        "KEY=VALUE",
        "an option of the catalog of --warehouse under Paimon's name, such as "
        f"{' or '.join([*examples, 's3.endpoint=…'])}; may be repeated. Other users can see "
        "command lines: write secrets as ${env:NAME} or ${file:/path}",
    )(parser)


listing = partial(choice, is_listing=True)


def one_table(parser: Parser) -> None:
    """Like `listing`, for one table that must be named."""
    parser.add_argument(
        "table", metavar="DB.T", help="the table, with its database; also CATALOG.DB.T"
    )
    parser.set_defaults(database=None, tables=None)
    _place(parser, or_service=True)
    _output(parser)


def _place(parser: Parser, *, or_service: bool) -> None:
    where = parser.add_mutually_exclusive_group(required=True)
    if or_service:
        where.add_argument(
            "--url", help="query the service at this address, like http://HOST:9464; read no table"
        )
    where.add_argument(
        "--warehouse",
        help="the warehouse: a folder, or s3://bucket/wh, gs://, abfss://, oss://, hdfs://",
    )
    where.add_argument(
        "--config",
        metavar="FILE",
        help="a configuration of serve: its catalogs, and its rules for each table",
    )
    add_catalog_arguments(parser)
    several = "--config or --url" if or_service else "--config"
    parser.add_argument("--catalog", metavar="NAME", help=f"only this catalog of {several}")
    _set_values(parser)


def _output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object, last on stdout")
    parser.add_argument("-v", "--verbose", action="store_true", help="log more on stderr")


def plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--strategy",
        default="minor",
        metavar="{minor,full}",
        help="minor (default): compact by the table's triggers; full: everything into the highest "
        "level, or every file below the target size on an append table",
    )
    partition(parser)
    parser.add_argument(
        "--append-wait",
        metavar="DURATION",
        help="merge small append files that have waited longer, even if there are fewer than "
        "compaction.min.file-num (default: --config's; without one they wait for more)",
    )
    parser.add_argument(
        "--quiet-for",
        metavar="DURATION",
        help="skip partitions of an append table that a command rewrote (DELETE, UPDATE, "
        "MERGE) within this time (default: --config's, else 0 s: skip none)",
    )
    pick(parser)


def engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "where and how it runs", "Used by compact; plan only validates them."
    )
    group.add_argument(
        "--master",
        help="Spark master, sc://… for Spark Connect (default: a Spark inside this process)",
    )
    _repeated(
        "--spark-conf",
        "KEY=VALUE",
        "a Spark setting; may be repeated. Other users can see command lines: write "
        "secrets as ${env:NAME} or ${file:/path}, here and in --master",
    )(group)
    group.add_argument(
        "--memory",
        help="memory of one merge, in addition to the idle worker's (default: --config's, else "
        "512 mb)",
    )
    group.add_argument(
        "--task-timeout",
        metavar="DURATION",
        help="cancel a merge that takes longer than this and longer than reading its files at "
        "1 MiB/s; its bucket fails (default: --config's, else 10 min)",
    )
    grace(group)


def verify(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--snapshot", type=int, metavar="N", help="data files of this snapshot, not the newest"
    )
    which.add_argument("--tag", metavar="NAME", help="data files of this tag")
    which.add_argument(
        "--all-snapshots",
        action="store_true",
        help="data files of every snapshot and tag, of branches too; each file once",
    )
    parser.add_argument(
        "--footers",
        default="1000",
        metavar="{N,all}",
        help="read the footers of this many data files, picked at random (default: 1000)",
    )
    parser.add_argument(
        "--pages",
        metavar="{SHARE,all}",
        help="read every page, or the pages of randomly chosen row groups that make up this share "
        "of the bytes, such as 1%% (default: none)",
    )


def foreign(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("files of other programs")
    group.add_argument(
        "--foreign",
        action="store_true",
        help="also remove unreferenced files of other programs in the table's folders; use "
        "--dry-run first",
    )
    group.add_argument(
        "--older-than",
        metavar="DURATION",
        help="with --foreign: time since a file's last change (default: 1 d; at least 1 h); must "
        "exceed the time from a writer's first file to its commit",
    )
    group.add_argument(
        "--external-paths",
        action="store_true",
        help="with --foreign: also search the table's data-file.external-paths; only safe if no "
        "other table has data there, as files there do not show which table they belong to",
    )
    group.add_argument(
        "--trash",
        metavar="FOLDER",
        help="with --foreign: move files to this folder of the same store instead of deleting them",
    )


def doctor(parser: Parser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--warehouse", help="also check this warehouse")
    where.add_argument("--config", metavar="FILE", help="check for this configuration of serve")
    add_catalog_arguments(parser)
    _set_values(parser)


def serve(parser: Parser) -> None:
    """Adds the arguments that locate the configuration of serve."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--config", default=_DEFAULT_PATH, metavar="FILE", help=f"default: {_DEFAULT_PATH}"
    )
    where.add_argument(
        "--warehouse",
        metavar="W",
        help="the only warehouse, without a file: catalog `warehouse`, all defaults",
    )
    add_catalog_arguments(parser)
    _repeated(
        "--set",
        "KEY=VALUE",
        "a value that overrides the file, e.g. limits.task_slots=2; may be repeated",
        dest="overrides",
    )(parser)


def status(parser: Parser) -> None:
    parser.add_argument("--url", required=True, help="the address of a running daemon")
    parser.add_argument(
        "--nagios",
        action="store_true",
        help="a line for Nagios, and its exit codes: 0, 1, 2, and 3 for no answer and usage errors",
    )


def top(parser: Parser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--url", help="the address of a running daemon")
    what.add_argument("--warehouse", help="a warehouse, read without a daemon")
    add_catalog_arguments(parser)
    parser.add_argument(
        "--interval", default="2 s", metavar="DURATION", help="time between two polls (default 2 s)"
    )
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    parser.add_argument(
        "--json", action="store_true", help="print each frame as one line of JSON, never live"
    )
    parser.add_argument(
        "--width", type=int, metavar="COLUMNS", help="width of frames (default: the terminal's)"
    )
