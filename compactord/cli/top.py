"""Arguments of `compactord top`. A module of its own, as `top` does not know the command line."""

from __future__ import annotations

import argparse
import threading

from compactord.cli.amounts import amount_of
from compactord.cli.catalog_arguments import refuse_catalog_arguments
from compactord.cli.running import OK, stop_on_signals
from compactord.errors import UsageError
from compactord.top.daemon import DaemonSource
from compactord.top.status import Source
from compactord.top.top import run

_LEAST_WIDTH = 40


def top(args: argparse.Namespace) -> int:
    """Run it until a signal ends it; the exit code. Raises `UsageError` and `TableNotFound`."""
    interval_ms = amount_of(args, "interval", 0)
    if args.width is not None and args.width < _LEAST_WIDTH:
        raise UsageError(f"--width {args.width}: a frame needs {_LEAST_WIDTH} columns or more")
    with stop_on_signals() as stop:
        run(
            _source(args, stop),
            interval_s=interval_ms / 1000,
            once=args.once,
            stop=stop,
            width=args.width,
            as_json=args.json,
        )
    return OK


def _source(args: argparse.Namespace, stop: threading.Event) -> Source:
    if args.url is not None:
        refuse_catalog_arguments(args)
        return DaemonSource(args.url)
    # Slow to import, and not needed to query a service.
    from compactord.cli.argument_values import warehouse_config
    from compactord.cli.registries import registries_of
    from compactord.cli.serve import open_configured
    from compactord.clock import SystemClock
    from compactord.config.policy import NAMELESS
    from compactord.top.warehouse import WarehouseSource

    registries = registries_of(args)
    loaded = warehouse_config(args, registries)
    catalog = open_configured(loaded.config, NAMELESS, registries)
    return WarehouseSource(catalog, loaded, clock=SystemClock(), stop=stop, registries=registries)
