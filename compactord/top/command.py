"""`compactord top`: what its arguments mean."""

from __future__ import annotations

import argparse
import threading

from compactord.catalog.open import open_catalog
from compactord.clock import SystemClock
from compactord.config.amounts import duration_ms, duration_text
from compactord.config.choices import UnlockedWriters
from compactord.config.warehouse import NAMELESS, refuse_catalog_arguments, warehouse_config
from compactord.errors import UsageError
from compactord.top.daemon import DaemonSource
from compactord.top.status import Source
from compactord.top.warehouse import WarehouseSource
from compactord.top.watch import run

_LEAST_INTERVAL_MS, _MOST_INTERVAL_MS = 200, 3_600_000
_LEAST_WIDTH = 40


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
        as_json=args.json,
    )
    return 0


def _source(args: argparse.Namespace, stop: threading.Event) -> Source:
    if args.url is not None:
        refuse_catalog_arguments(args)
        return DaemonSource(args.url)
    loaded = warehouse_config(args)
    one = loaded.config.catalogs[NAMELESS]
    catalog = open_catalog(
        one.warehouse,
        metastore=one.metastore,
        options=one.options,
        is_guarded=one.unlocked_writers is UnlockedWriters.GUARDED,
    )
    return WarehouseSource(catalog, loaded, clock=SystemClock(), stop=stop)


def _interval_s(text: str) -> float:
    try:
        interval_ms = duration_ms(text)
    except ValueError as error:
        raise UsageError(f"--interval {text!r}: expected {error}") from None
    if not _LEAST_INTERVAL_MS <= interval_ms <= _MOST_INTERVAL_MS:
        raise UsageError(
            f"--interval {text!r}: expected {duration_text(_LEAST_INTERVAL_MS)} to "
            f"{duration_text(_MOST_INTERVAL_MS)}"
        )
    return interval_ms / 1000
