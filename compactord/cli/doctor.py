"""`compactord doctor`: whether compactord can work here; one line for each thing that it needs."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import tzinfo
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from compactord import __version__
from compactord.catalog.base import Catalog
from compactord.catalog.check import Check, Verdict, failed_check
from compactord.cli.catalog_checks import catalog_checks, option_checks
from compactord.cli.loading import load_usable, open_configured
from compactord.cli.registries import registries_of
from compactord.cli.running import FAILED, OK, answer
from compactord.cli.serve import local_zone
from compactord.clock import SystemClock
from compactord.config.model import ServiceConfig
from compactord.config.policy import (
    config_of_warehouse,
    refuse_catalog_arguments,
    warehouse_config,
)
from compactord.engine.jvm import Java, find_java
from compactord.engine.masters import is_embedded, shown_master
from compactord.errors import EngineUnavailable, UsageError
from compactord.rewrite.pipeline import usable_cores
from compactord.service import settings
from compactord.service.codec import plain_fields
from compactord.table.report import columns_text
from compactord.text import count_text, size_text

_PACKAGES = ("pyarrow", "numpy", "fastavro", "pyspark")


def doctor(args: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    found = list(_checks(args))
    failed = sum(check.verdict is Verdict.FAILED for check in found)
    warnings = sum(check.verdict is Verdict.WARNING for check in found)
    checks = [_json(check) for check in found]
    told = {"version": __version__, "checks": checks, "failed": failed, "warnings": warnings}
    answer(args, told, _text(found))
    return FAILED if failed else OK


def _checks(args: argparse.Namespace) -> Iterator[Check]:
    config, catalogs = _configured(args)
    versions = {name: _version(name) for name in _PACKAGES}
    found = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    python = f"compactord {__version__}, Python {platform.python_version()}, {found}"
    yield Check(name="python", verdict=Verdict.OK, found=python)
    master, spark = config.spark.master or "local", versions["pyspark"]
    is_connect = master.startswith("sc://")
    yield spark_check(spark, not is_connect or importlib.util.find_spec("grpc") is not None)
    if spark is not None and not is_connect:
        with tempfile.TemporaryDirectory(prefix="compactord-") as scratch:
            yield java_check(partial(find_java, spark, os.environ, Path(scratch)))
    reached = master_check(master)
    if reached is not None:
        yield reached
    yield cores_check(usable_cores(), config)
    yield memory_check(config)
    yield scratch_check(tempfile.gettempdir(), os.environ.get(_SCRATCH_LIMIT, ""))
    yield zone_check(lambda: config.service.zone or local_zone())
    yield from option_checks(config, catalogs, registries_of(args).stores)
    yield from catalog_checks(catalogs, SystemClock(), config)


def _configured(args: argparse.Namespace) -> tuple[ServiceConfig, dict[str, Catalog]]:
    """The configuration, the defaults without one, and the catalogs that were named."""
    registries = registries_of(args)
    if args.config is None and args.config_overrides:
        raise UsageError("--set needs --config")
    if args.warehouse is None:
        refuse_catalog_arguments(args)
        if args.config is None:
            return config_of_warehouse(".").config, {}
        config = load_usable(args.config, args.config_overrides, registries).config
    else:
        config = warehouse_config(args, registries).config
    return config, {name: open_configured(config, name, registries) for name in config.catalogs}


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


# Merges that need several passes, and Spark, write there.
_SCRATCH_BYTES_MIN = 2 << 30
# In bytes; set by the chart, whose pod is evicted when it has more on the node's disk.
_SCRATCH_LIMIT = "SCRATCH_LIMIT_BYTES"
_CONNECT_SECONDS_MAX = 5.0
_PORTS = {"spark": 7077, "sc": 15002}


def spark_check(version: str | None, connect: bool) -> Check:
    """Whether pyspark is installed; `connect`: with what Spark Connect needs."""
    if version is None:
        advice = "pip install pyspark"
        return failed_check("spark", "no pyspark", advice)
    if not connect:
        advice = "pip install 'pyspark[connect]'"
        found = f"pyspark {version} without the packages of Spark Connect"
        return failed_check("spark", found, advice)
    return Check(name="spark", verdict=Verdict.OK, found=f"pyspark {version}")


def java_check(find: Callable[[], Java]) -> Check:
    """`find` raises `EngineUnavailable` when no Java is suitable."""
    try:
        java = find()
    except EngineUnavailable as error:
        found, _, advice = str(error).rpartition(". ")
        return failed_check("java", found, advice)
    return Check(name="java", verdict=Verdict.OK, found=f"Java {java.version}, {java.home}")


def master_check(master: str) -> Check | None:
    """Whether something listens where the master is said to be; None: it has no such address."""
    scheme, _, rest = master.partition("://")
    if scheme not in _PORTS or not rest:
        return None
    reached, last = "", ""
    for one in rest.split("/")[0].partition(";")[0].split(","):
        parts = urlsplit(f"//{one}")
        host, port = parts.hostname or "", parts.port or _PORTS[scheme]
        try:
            with socket.create_connection((host, port), timeout=_CONNECT_SECONDS_MAX):
                reached = f"{host}:{port} answers"
        except OSError as error:
            last = f"{host}:{port} does not answer ({error.strerror or error})"
    if reached:
        return Check(name="master", verdict=Verdict.OK, found=reached)
    advice = f"start {shown_master(master)}, correct spark.master, or open the way to it"
    return failed_check("master", last, advice)


def cores_check(cores: int, config: ServiceConfig) -> Check:
    wanted = config.limits.task_slots
    found = f"{count_text(cores, 'core')} for this process"
    if not is_embedded(config.spark.master) or wanted is None or wanted <= cores:
        return Check(name="cores", verdict=Verdict.OK, found=found)
    found = f"{found}, limits.task_slots is {wanted}"
    advice = f"set limits.task_slots to {cores} or less, or give it more cores"
    return Check(name="cores", verdict=Verdict.WARNING, found=found, advice=advice)


def memory_check(config: ServiceConfig) -> Check:
    task_bytes = config.spark.task_memory_bytes
    one = f"{size_text(task_bytes)} and {size_text(settings.IDLE_WORKER_BYTES)} for its worker"
    try:
        budget = settings.memory_budget_bytes(config.limits, task_bytes, config.spark.master)
    except UsageError as error:
        found, _, advice = str(error).rpartition("; ")
        return failed_check("memory", found, advice)
    if budget is None:
        found = f"executors have their own; a merge takes {one}"
        return Check(name="memory", verdict=Verdict.OK, found=found)
    count = budget // (task_bytes + settings.IDLE_WORKER_BYTES)
    found = f"{size_text(budget)}: room for {count_text(count, 'merge')} of {one}"
    return Check(name="memory", verdict=Verdict.OK, found=found)


def scratch_check(folder: str, limit: str = "", *, least_bytes: int = _SCRATCH_BYTES_MIN) -> Check:
    """Room for temporary files; `limit` is how many bytes a pod may have there, as digits."""
    free = shutil.disk_usage(folder).free
    found = f"{size_text(free)} free in {folder}"
    advice = f"make room, or set TMPDIR to a folder with {size_text(least_bytes)} or more"
    if limit.isdecimal() and int(limit) < free:
        free = int(limit)
        found = f"{found}, of which this pod may use {size_text(free)}"
        advice = f"set the chart's scratchSize to {size_text(least_bytes)} or more"
    if free >= least_bytes:
        return Check(name="scratch", verdict=Verdict.OK, found=found)
    return Check(name="scratch", verdict=Verdict.WARNING, found=found, advice=advice)


def zone_check(zone_of: Callable[[], tzinfo]) -> Check:
    """`zone_of` raises `UsageError` where the machine's zone has no name."""
    try:
        zone = zone_of()
    except UsageError as error:
        found, _, advice = str(error).partition(": ")
        return failed_check("time zone", found, advice)
    found = f"{zone}: that of the writers? Off-peak hours and creation times are read in it"
    return Check(name="time zone", verdict=Verdict.OK, found=found)
