"""The arguments of `compactord top` and what they mean."""

from __future__ import annotations

import argparse
import math
import threading

from compactord.catalog.open import open_catalog
from compactord.clock import SystemClock
from compactord.errors import UsageError
from compactord.top.daemon import DaemonSource
from compactord.top.look import Source
from compactord.top.warehouse import WarehouseSource
from compactord.top.watch import run

TOP_EXAMPLES = """\
examples:
  compactord top --url http://daemon:9464
  compactord top --warehouse /data/wh --interval 5
  compactord top --url http://daemon:9464 --once

on a terminal, q ends it; otherwise it prints plain frames
"""
_LEAST_INTERVAL_S, _MOST_INTERVAL_S = 0.2, 3600.0
_LEAST_WIDTH = 40


def add_top_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that `top` reads."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--url", help="the address of a running daemon")
    what.add_argument("--warehouse", help="root folder of a warehouse, read without a daemon")
    parser.add_argument(
        "--interval",
        default="2",
        metavar="SECONDS",
        help="time between two polls (default 2)",
    )
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    parser.add_argument(
        "--width", type=int, metavar="COLUMNS", help="width of frames (default: the terminal's)"
    )


def top(args: argparse.Namespace, stop: threading.Event) -> int:
    """Run it until `stop` is set; the exit code. Raises `UsageError` and `TableNotFound`."""
    interval_s = _interval_s(args.interval)
    if args.width is not None and args.width < _LEAST_WIDTH:
        raise UsageError(f"--width {args.width}: a frame needs {_LEAST_WIDTH} columns or more")
    run(
        _source(args, stop),
        interval_s=interval_s,
        once=args.once,
        stop=stop,
        width=args.width,
    )
    return 0


def _source(args: argparse.Namespace, stop: threading.Event) -> Source:
    if args.url is not None:
        return DaemonSource(args.url)
    if not args.warehouse:
        raise UsageError("--warehouse is empty")
    return WarehouseSource(open_catalog(args.warehouse), clock=SystemClock(), stop=stop)


def _interval_s(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not _LEAST_INTERVAL_S <= seconds <= _MOST_INTERVAL_S:
        raise UsageError(
            f"--interval {text}: not a number of seconds from {_LEAST_INTERVAL_S} to "
            f"{_MOST_INTERVAL_S:.0f}"
        )
    return seconds
