"""`compactord-demo`: parses the arguments and runs the demo on the terminal."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Sequence

from compactord import ids
from compactord.catalog.open import open_catalog
from compactord.cli.arguments import Parser
from compactord.cli.running import FAILED, OK, run, stop_on_signals
from compactord.clock import SystemClock
from compactord.errors import UsageError
from compactord.storage.base import Storage
from compactord_demo import show

_SECONDS, _SECONDS_MAX = "35", 3600
# Both tables are due by then, whatever the daemon left: a trigger is 5 runs, or 5 small files.
_BACKLOG_COMMITS = 6
_DESCRIPTION = """\
Fill two tables as write-only jobs do, with serve running beside the jobs, show runs and
files rise and fall, and compare the rows with those ingested.
"""
_EXAMPLES = """\
examples:
  compactord-demo
  compactord-demo --seconds 120
  compactord-demo --warehouse /tmp/wh   # keeps the tables
  compactord-demo --warehouse /tmp/wh --seconds 5 --keep-backlog   # something to compact

exit codes: 0 the rows are those ingested; 3 they are not, the daemon failed, or it was interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the result is the exit code."""
    return run(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="compactord-demo",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--warehouse", help="an empty folder to keep the tables in")
    parser.add_argument(
        "--seconds",
        default=_SECONDS,
        metavar="N",
        help=f"how long the jobs write (default {_SECONDS}); the demo takes about 20 s more",
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
    with contextlib.ExitStack() as closing:
        folder = args.warehouse
        if folder is None:
            folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="compactord-demo-"))
        if not folder:
            raise UsageError("--warehouse is empty")
        catalog = open_catalog(folder)
        _refuse_used(catalog.storage, catalog.warehouse)
        went_well = show.run(
            catalog.storage,
            catalog.warehouse,
            seconds=seconds,
            owner=ids.this_process(),
            clock=SystemClock(),
            stop=closing.enter_context(stop_on_signals()),
            backlog_commits=_BACKLOG_COMMITS if args.keep_backlog else 0,
        )
    return OK if went_well else FAILED


def _refuse_used(storage: Storage, warehouse: str) -> None:
    status = storage.status(warehouse)
    if status is not None and not status.is_folder:
        raise UsageError(f"--warehouse {warehouse} is not a folder")
    if status is not None and any(True for _ in storage.list(warehouse)):
        raise UsageError(
            f"--warehouse {warehouse} is not empty: give the demo an empty or a new folder"
        )


def _seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) <= _SECONDS_MAX):
        raise UsageError(f"--seconds {text}: not a number from 1 to {_SECONDS_MAX}")
    return int(text)
