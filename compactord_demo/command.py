"""`compactord-demo`: parses the arguments and runs the demo on the terminal."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import tempfile
from collections.abc import Sequence

from compactord import ids
from compactord.cli.argument_values import warehouse_config
from compactord.cli.arguments import Parser, add_catalog_arguments
from compactord.cli.catalog_arguments import refuse_catalog_arguments
from compactord.cli.registries import Registries
from compactord.cli.running import FAILED, OK, run, stop_on_signals
from compactord.cli.serve import open_section
from compactord.clock import SystemClock
from compactord.config.policy import NAMELESS
from compactord.errors import UsageError
from compactord.paimon.schema import TableRef
from compactord.storage.base import Storage
from compactord_demo import show

_SECONDS, _SECONDS_MAX = "35", 3600
_KEPT_TABLES = "compactord-demo --warehouse /tmp/wh --seconds 5 --keep-backlog"
# Both tables are due by then in any state of the daemon: a trigger is 5 runs, or 5 small files.
_BACKLOG_COMMITS = 6
_DESCRIPTION = """\
Start serve, fill two tables as write-only jobs do while it runs, show how runs
and files rise and fall, and compare the rows with those ingested.
"""
_EXAMPLES = f"""\
examples:
  compactord-demo
  compactord-demo --seconds 120
  compactord-demo --warehouse /tmp/wh   # keeps the tables
  {_KEPT_TABLES}   # something to compact
  compactord-demo --warehouse s3://lake/wh --metastore jdbc \\
      --catalog-option uri=jdbc:sqlite:/tmp/lake.db   # docs/tour-object-store.md

exit codes: 0 both tables were compacted and their rows are those ingested; 3 they are not, the
daemon failed, or it was interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo. Returns the exit code."""
    return run(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="compactord-demo",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--warehouse", help="an empty folder, or URL, to keep the tables in")
    add_catalog_arguments(parser)
    parser.add_argument(
        "--seconds",
        default=_SECONDS,
        metavar="N",
        help=f"how long the jobs write (default {_SECONDS}), or longer until both tables were "
        "compacted; starting Spark and finishing take 20 s to a minute more",
    )
    parser.add_argument(
        "--keep-backlog",
        action="store_true",
        help="let the jobs commit more after the service has ended, so that the kept tables have "
        "something to compact",
    )
    parser.set_defaults(command=_demo, json=False, verbose=False)
    return parser


def _demo(args: argparse.Namespace) -> int:
    seconds = _seconds(args.seconds)
    if args.keep_backlog and args.warehouse is None:
        raise UsageError("--keep-backlog needs --warehouse: without it the tables are not kept")
    if args.warehouse is None:
        refuse_catalog_arguments(args)
    next_step = f"try the commands on tables that are kept: {_KEPT_TABLES}"
    if args.warehouse is not None:
        next_step = f"compactord tables --warehouse {shlex.quote(args.warehouse)}"
        next_step += " and the same catalog options" if args.metastore else ""
    with contextlib.ExitStack() as closing:
        if args.warehouse is None:
            args.warehouse = closing.enter_context(
                tempfile.TemporaryDirectory(prefix="compactord-demo-")
            )
        went_well = show.run(
            _place(args, next_step),
            seconds=seconds,
            owner=ids.this_process(),
            clock=SystemClock(),
            stop=closing.enter_context(stop_on_signals()),
            backlog_commits=_BACKLOG_COMMITS if args.keep_backlog else 0,
        )
    return OK if went_well else FAILED


def _place(args: argparse.Namespace, next_step: str) -> show.Place:
    """The warehouse in the arguments. Raises `UsageError` unless it is empty and safe."""
    section = warehouse_config(args).config.catalogs[NAMELESS]
    catalog = open_section(section, Registries(), zone=None)
    storage = catalog.warehouse_storage
    if storage is None:
        raise UsageError(f"metastore {section.metastore} has no folder for the demo's tables")
    _refuse_used(storage, catalog.warehouse)
    registration = catalog.registration()
    if registration is not None:
        registration.add(())
    catalog.check_commits()

    def register(tables: Sequence[TableRef]) -> None:
        if registration is not None:
            registration.add(tables)

    return show.Place(
        storage=storage,
        warehouse=catalog.warehouse,
        section={
            "warehouse": section.warehouse,
            "metastore": section.metastore,
            "options": dict(section.options),
            "unlocked_writers": section.unlocked_writers.value,
        },
        register=register,
        next_step=next_step,
    )


def _refuse_used(storage: Storage, warehouse: str) -> None:
    status = storage.status(warehouse)
    if status is not None and not status.is_folder:
        raise UsageError(f"--warehouse {warehouse} is not a folder")
    if storage.folder_exists(warehouse) and any(True for _ in storage.list(warehouse)):
        raise UsageError(f"--warehouse {warehouse} is not empty: name an empty or a new folder")


def _seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) <= _SECONDS_MAX):
        raise UsageError(f"--seconds {text}: not a number from 1 to {_SECONDS_MAX}")
    return int(text)
