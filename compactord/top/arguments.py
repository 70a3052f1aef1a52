"""The arguments of `compactord top`, as they are declared; quick to import, for `--help`."""

from __future__ import annotations

import argparse

from compactord.config.catalog_arguments import add_catalog_arguments


def add_top_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that `top` reads."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--url", help="the address of a running daemon")
    what.add_argument("--warehouse", help="a warehouse, read without a daemon")
    add_catalog_arguments(parser)
    parser.add_argument(
        "--interval",
        default="2 s",
        metavar="DURATION",
        help="time between two polls (default 2 s)",
    )
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    parser.add_argument(
        "--json", action="store_true", help="print each frame as one line of JSON, never live"
    )
    parser.add_argument(
        "--width", type=int, metavar="COLUMNS", help="width of frames (default: the terminal's)"
    )
