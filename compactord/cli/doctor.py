"""`compactord doctor`: whether compactord can work here; one line for each thing that it needs."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from compactord import __version__
from compactord.catalog.base import Catalog
from compactord.catalog.check import Check, Verdict
from compactord.cli import checks
from compactord.cli.catalog_checks import catalog_checks, option_checks
from compactord.cli.loading import load_usable, open_configured
from compactord.cli.running import FAILED, OK, tell
from compactord.cli.serve import local_zone
from compactord.clock import SystemClock
from compactord.config.load import config_of_warehouse
from compactord.config.model import ServiceConfig
from compactord.config.warehouse import NAMELESS, refuse_catalog_arguments, warehouse_config
from compactord.engine.jre import find_java
from compactord.errors import UsageError
from compactord.rewrite.pipeline import usable_cores
from compactord.service.codec import plain_fields
from compactord.table.report import columns_text

_PACKAGES = ("pyarrow", "numpy", "fastavro", "pyspark")


def doctor(args: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    found = list(_checks(args))
    failed = sum(check.verdict is Verdict.FAILED for check in found)
    warnings = sum(check.verdict is Verdict.WARNING for check in found)
    if args.json:
        answer = {
            "version": __version__,
            "checks": [_json(check) for check in found],
            "failed": failed,
            "warnings": warnings,
        }
        print(json.dumps(answer))
    else:
        for line in _text(found):
            tell(line)
    return FAILED if failed else OK


def _checks(args: argparse.Namespace) -> Iterator[Check]:
    config, catalogs = _configured(args)
    versions = {name: _version(name) for name in _PACKAGES}
    found = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    python = f"compactord {__version__}, Python {platform.python_version()}, {found}"
    yield Check(name="python", verdict=Verdict.OK, found=python)
    master, spark = config.spark.master or "local", versions["pyspark"]
    is_connect = master.startswith("sc://")
    yield checks.spark_check(spark, not is_connect or importlib.util.find_spec("grpc") is not None)
    if spark is not None and not is_connect:
        with tempfile.TemporaryDirectory(prefix="compactord-") as scratch:
            yield checks.java_check(partial(find_java, spark, os.environ, Path(scratch)))
    reached = checks.master_check(master)
    if reached is not None:
        yield reached
    yield checks.cores_check(usable_cores(), config)
    yield checks.memory_check(config)
    yield checks.scratch_check(tempfile.gettempdir())
    yield checks.zone_check(lambda: config.service.zone or local_zone())
    yield from option_checks(config, catalogs)
    yield from catalog_checks(catalogs, SystemClock(), config)


def _configured(args: argparse.Namespace) -> tuple[ServiceConfig, dict[str, Catalog]]:
    """The configuration, the defaults without one, and the catalogs that were named."""
    if args.config is None and args.config_overrides:
        raise UsageError("--set needs --config")
    if args.warehouse is None:
        refuse_catalog_arguments(args)
        if args.config is None:
            return config_of_warehouse(NAMELESS, ".").config, {}
        config = load_usable(args.config, args.config_overrides).config
    else:
        config = warehouse_config(args).config
    return config, {name: open_configured(config, name) for name in config.catalogs}


def _version(package: str) -> str | None:
    """Of the installed package, which is not imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _json(check: Check) -> dict[str, Any]:
    return {"check": check.name, **plain_fields(("verdict", "found", "advice"), check)}


def _text(checks: Sequence[Check]) -> Iterator[str]:
    rows = []
    for check in checks:
        verdict = check.verdict.value
        verdict = verdict if check.verdict is Verdict.OK else verdict.upper()
        advice = f" -> {check.advice}" if check.advice else ""
        rows.append((verdict, check.name, f"{check.found}{advice}"))
    yield from columns_text(rows)
