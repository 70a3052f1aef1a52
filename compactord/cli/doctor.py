"""`compactord doctor`: checks this machine, the catalogs and their stores."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from compactord import __version__, ids
from compactord.catalog.access import TableAccess
from compactord.catalog.base import Catalog, Check, Verdict, failed_check
from compactord.catalog.publishing import probe
from compactord.catalog.trouble import CatalogTrouble, check_catalogs
from compactord.cli.argument_values import warehouse_config
from compactord.cli.catalog_arguments import refuse_catalog_arguments
from compactord.cli.registries import registries_of
from compactord.cli.running import FAILED, OK, answer
from compactord.cli.serve import load_usable, local_zone, open_configured, without_effect
from compactord.clock import Clock, SystemClock
from compactord.config.model import ServiceConfig
from compactord.config.policy import config_of_warehouse, policy_for
from compactord.engine.jvm import Java, find_java
from compactord.engine.masters import is_embedded, shown_master
from compactord.engine.worker import IDLE_WORKER_BYTES
from compactord.errors import (
    AccessDenied,
    CompactordError,
    EngineUnavailable,
    NotAWarehouse,
    StoreMissing,
    UnsupportedTable,
    UsageError,
)
from compactord.model import TableName
from compactord.paimon.options.table_options import (
    DISCOVERY_INTERVAL_MS,
    TableOptions,
    parse_options,
)
from compactord.paimon.schema import TableRef
from compactord.rewrite.pipeline import usable_cores
from compactord.service import settings
from compactord.service.codec import plain_fields
from compactord.storage.base import Storage
from compactord.storage.open import Stores
from compactord.text import age_text, columns_text, count_text, size_text

# The store's clock measures ages of left-over files; the shortest grace is ten minutes.
_SKEW_MS_MAX = 30_000
# A table may have a partition for every day of years; all have one owner.
_FOLDERS_MAX = 100
_PERMISSION = "give this user read and write permission there (docs/operations.md)"
_STORE_PERMISSION = (
    "correct the credentials, or give them the permissions of docs/operations.md on this bucket"
)
# A commit waits for about 20 small requests, one after the other.
_LATENCY_REQUESTS = 5
# Requests of a poll without news; the interval of polls for a fleet; and the requests a second that
# are worth a warning: a store bills them at $3 a day.
_POLL_REQUESTS = 3
_LONG_MS = 300_000
_REQUESTS_MAX = 100
_LATENCY_MS_MAX = 200


def catalog_checks(
    catalogs: Mapping[str, Catalog], clock: Clock, config: ServiceConfig
) -> Iterator[Check]:
    """Checks each catalog: reachable, tables readable, commits safe, clocks in sync."""
    troubles = {trouble.catalog: trouble for trouble in check_catalogs(catalogs, clock)}
    for name, catalog in catalogs.items():
        if name in troubles:
            trouble = troubles[name]
            what = "catalog" if trouble.advice else "warehouse"
            advice = trouble.advice or _advice(catalog, trouble)
            yield failed_check(f"{name}: {what}", str(trouble.error), advice)
            continue
        yield from _table_checks(name, catalog, config)
        for check in catalog.checks():
            yield replace(check, name=f"{name}: {check.name}")
        storage = catalog.warehouse_storage
        if storage is None:
            continue
        yield from _probe_checks(name, catalog.warehouse, storage, clock)
        if storage.capabilities.behind_network:
            yield _latency_check(name, catalog.warehouse, storage, clock)


def option_checks(
    config: ServiceConfig, catalogs: Iterable[str], stores: Stores
) -> Iterator[Check]:
    """A warning for each catalog with options that its warehouse's store does not know."""
    for name, options in without_effect(config, catalogs, stores):
        found = f"no effect on this store: {', '.join(options)}"
        advice = "correct their names, or keep them if writers need them"
        yield Check(name=f"{name}: options", verdict=Verdict.WARNING, found=found, advice=advice)


def _advice(catalog: Catalog, trouble: CatalogTrouble) -> str:
    error = trouble.error
    is_url = _is_url(catalog)
    match error:
        case StoreMissing():
            return "correct the bucket or container, the account, or the endpoint"
        case NotAWarehouse():
            return f"give the warehouse {error.warehouse}"
        case UsageError():
            return "choose one of the two; both are in docs/operations.md"
        case _ if not trouble.may_pass:
            return _mend(error, is_url=is_url)
        case _ if is_url:
            return "correct the endpoint, open the network to it, or wait until it answers"
    return "repair the storage, or wait until it answers"


def poll_check(
    catalog: str, tables: Mapping[TableRef, TableOptions | None], config: ServiceConfig
) -> Check:
    """Checks the rate of requests for polls without news, and how many can be saved.

    `tables` maps each table to its options, or None if these cannot be read.
    """
    now, longer = 0.0, 0.0
    for table, options in tables.items():
        policy = policy_for(config, TableName(catalog, table.database, table.name))
        own_ms = options.discovery_interval_ms if options else DISCOVERY_INTERVAL_MS
        interval_ms = policy.discovery_interval_ms or own_ms
        # Tables whose readers wait for compactions are polled at full rate even when quiet.
        is_awaited = options is not None and options.compaction.waiting_level is not None
        quiet_ms = max(interval_ms, 0 if is_awaited else policy.max_quiet_interval_ms or 0)
        now += _POLL_REQUESTS * 1000 / quiet_ms
        longer += _POLL_REQUESTS * 1000 / (quiet_ms if is_awaited else max(quiet_ms, _LONG_MS))
    found = f"while nothing changes, polls take {now:,.1f} requests a second"
    if now < _REQUESTS_MAX or now == longer:
        return Check(name=f"{catalog}: polls", verdict=Verdict.OK, found=found)
    advice = f"set max_quiet_interval: 5 min, which saves {now - longer:,.1f} of them"
    return Check(name=f"{catalog}: polls", verdict=Verdict.WARNING, found=found, advice=advice)


def _table_checks(name: str, catalog: Catalog, config: ServiceConfig) -> Iterator[Check]:
    """Checks that every database can be listed, and every table read and written."""
    mend = partial(_mend, is_url=_is_url(catalog))
    try:
        listed = catalog.list_tables()
    except CompactordError as error:
        yield failed_check(f"{name}: tables", str(error), mend(error))
        return
    unreadable: list[CompactordError] = list(listed.unreadable.values())
    refused: list[str] = []
    open_for: dict[str, bool | None] = {}
    options: dict[TableRef, TableOptions | None] = dict.fromkeys(listed.tables)
    for ref in listed.tables:
        try:
            access = catalog.open(ref)
            overrides = policy_for(config, TableName(name, ref.database, ref.name)).options
            options[ref] = parse_options(access.newest_schema(), overrides)
            open_for.update(_folders(access))
        except UnsupportedTable as error:
            refused.append(str(error))
        except CompactordError as error:
            unreadable.append(error)
    count = count_text(len(listed.tables) - len(refused), "table")
    if unreadable:
        found = f"{count}; errors: {len(unreadable)}, first: {unreadable[0]}"
        yield failed_check(f"{name}: tables", found, mend(unreadable[0]))
    else:
        found = f"{count} in {catalog.warehouse}, with readable schemas"
        if not listed.tables:
            found = f"no tables yet in {catalog.warehouse}"
        yield Check(name=f"{name}: tables", verdict=Verdict.OK, found=found)
    if refused:
        found = f"{count_text(len(refused), 'table')} refused, first: {refused[0]}"
        advice = "no action needed if its writers compact it"
        yield Check(name=f"{name}: refused", verdict=Verdict.WARNING, found=found, advice=advice)
    yield poll_check(name, options, config)
    closed = [folder for folder, may_write in open_for.items() if may_write is False]
    if closed:
        folders = count_text(len(closed), "folder")
        found = f"this user may not write in {folders}, first: {closed[0]}"
        yield failed_check(f"{name}: permissions", found, _PERMISSION)
    elif None not in open_for.values():
        # If only an attempt can show it, the check of commits does.
        found = "this user may write in the tables' folders"
        yield Check(name=f"{name}: permissions", verdict=Verdict.OK, found=found)


def _folders(access: TableAccess) -> Iterator[tuple[str, bool | None]]:
    """Folders of the table, each with whether this user may create files there."""
    storage, ref = access.storage, access.ref
    children = (status for status in storage.list(ref.location) if status.is_folder)
    # compactord writes no schemas.
    names = (status.name for status in children if status.name != "schema")
    for folder in (f"{ref.location}/{name}" for name in islice(names, _FOLDERS_MAX)):
        yield folder, storage.may_write(folder)


def _is_url(catalog: Catalog) -> bool:
    storage = catalog.warehouse_storage
    return storage is not None and not storage.capabilities.has_folders


def _probe_checks(name: str, warehouse: str, storage: Storage, clock: Clock) -> Iterator[Check]:
    check = f"{name}: commits"
    before_ms = clock.now_ms()
    try:
        probed = probe(storage, warehouse)
    except AccessDenied:
        found = f"not tried: this user may create nothing in {warehouse} itself"
        advice = "no action needed if it may in the tables' folders: compactord writes only there"
        yield Check(name=check, verdict=Verdict.WARNING, found=found, advice=advice)
        return
    except CompactordError as error:
        is_url = not storage.capabilities.has_folders
        yield failed_check(check, str(error), _mend(error, is_url=is_url))
        return
    after_ms = clock.now_ms()
    if probed.is_exclusive:
        found = "the store refused a second creation of one name, as commits need it"
        yield Check(name=check, verdict=Verdict.OK, found=found)
    else:
        found = "a second creation of one name replaced the first: commits would lose snapshots"
        advice = "do not commit to this storage; use one with link(2), such as a local disk"
        if not storage.capabilities.creates_exclusively:
            advice = (
                "do not commit to this store; use one, or a release, that honours the condition"
            )
        yield failed_check(check, found, advice)
    ahead_ms = max(probed.changed_ms - after_ms, before_ms - probed.changed_ms)
    if ahead_ms <= _SKEW_MS_MAX:
        yield Check(name=f"{name}: clock", verdict=Verdict.OK, found="the store's clock agrees")
        return
    where = "ahead of" if probed.changed_ms > after_ms else "behind"
    found = f"the store's clock is {age_text(ahead_ms)} {where} this machine's"
    advice = "set both by NTP: ages of left-over files are measured by the store's clock"
    yield Check(name=f"{name}: clock", verdict=Verdict.WARNING, found=found, advice=advice)


def _latency_check(name: str, warehouse: str, storage: Storage, clock: Clock) -> Check:
    """The median time of a request for an absent object, which has the shortest answer."""
    absent = f"{warehouse}/.compactord-probe-{ids.random_uuid()}"
    taken_ms = []
    try:
        for _ in range(_LATENCY_REQUESTS):
            start_s = clock.monotonic_s()
            storage.status(absent)
            taken_ms.append((clock.monotonic_s() - start_s) * 1000)
    except CompactordError as error:
        return failed_check(f"{name}: latency", str(error), _mend(error, is_url=True))
    median_ms = statistics.median(taken_ms)
    found = f"{median_ms:.0f} ms for a small request (median of {_LATENCY_REQUESTS})"
    if median_ms <= _LATENCY_MS_MAX:
        return Check(name=f"{name}: latency", verdict=Verdict.OK, found=found)
    advice = "run compactord in the region of the store: each commit waits for about 20 of them"
    return Check(name=f"{name}: latency", verdict=Verdict.WARNING, found=found, advice=advice)


def _mend(error: CompactordError, *, is_url: bool = False) -> str:
    if isinstance(error, AccessDenied):
        return _STORE_PERMISSION if is_url else _PERMISSION
    return "correct the path" if is_url else "create or mount it, or correct the path"


_PACKAGES = ("pyarrow", "numpy", "fastavro", "pyspark")


def doctor(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    found = list(_checks(args))
    failed = sum(check.verdict is Verdict.FAILED for check in found)
    warnings = sum(check.verdict is Verdict.WARNING for check in found)
    checks = [_json(check) for check in found]
    told = {"version": __version__, "checks": checks, "failed": failed, "warnings": warnings}
    answer(args, told, _text(found))
    return FAILED if failed else OK


def _checks(args: argparse.Namespace) -> Iterator[Check]:
    # Java fails without /proc as well: its check would blame it.
    ids.this_process()
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
    """The configuration (or the defaults) and the named catalogs."""
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
    """The version of an installed package, without importing it."""
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
# In bytes, set by the chart: a pod that uses more of the node's disk is evicted.
_SCRATCH_LIMIT = "SCRATCH_LIMIT_BYTES"
_CONNECT_SECONDS_MAX = 5.0
_PORTS = {"spark": 7077, "sc": 15002}


def spark_check(version: str | None, connect: bool) -> Check:
    """Checks that pyspark is installed, with `connect` also the packages of Spark Connect."""
    if version is None:
        advice = "pip install pyspark"
        return failed_check("spark", "no pyspark", advice)
    if not connect:
        advice = "pip install 'pyspark[connect]'"
        found = f"pyspark {version} without the packages of Spark Connect"
        return failed_check("spark", found, advice)
    return Check(name="spark", verdict=Verdict.OK, found=f"pyspark {version}")


def java_check(find: Callable[[], Java]) -> Check:
    """Checks Java; `find` raises `EngineUnavailable` if none is suitable."""
    try:
        java = find()
    except EngineUnavailable as error:
        found, _, advice = str(error).rpartition(". ")
        return failed_check("java", found, advice)
    return Check(name="java", verdict=Verdict.OK, found=f"Java {java.version}, {java.home}")


def master_check(master: str) -> Check | None:
    """Checks that a server listens at the master's address; None if it has no address."""
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
    advice = f"start {shown_master(master)}, correct spark.master, or open the network to it"
    return failed_check("master", last, advice)


def cores_check(cores: int, config: ServiceConfig) -> Check:
    wanted = config.limits.task_slots
    found = f"{count_text(cores, 'core')} for this process"
    if not is_embedded(config.spark.master) or wanted is None or wanted <= cores:
        return Check(name="cores", verdict=Verdict.OK, found=found)
    found = f"{found}, limits.task_slots is {wanted}"
    advice = f"set limits.task_slots to {cores} or less, or give the process more cores"
    return Check(name="cores", verdict=Verdict.WARNING, found=found, advice=advice)


def memory_check(config: ServiceConfig) -> Check:
    task_bytes = config.spark.task_memory_bytes
    one = f"{size_text(task_bytes)} and {size_text(IDLE_WORKER_BYTES)} for its worker"
    try:
        budget = settings.memory_budget_bytes(config.limits, task_bytes, config.spark.master)
    except UsageError as error:
        found, _, advice = str(error).rpartition("; ")
        return failed_check("memory", found, advice)
    if budget is None:
        found = f"executors have their own; a merge takes {one}"
        return Check(name="memory", verdict=Verdict.OK, found=found)
    count = budget // (task_bytes + IDLE_WORKER_BYTES)
    found = f"{size_text(budget)}: room for {count_text(count, 'merge')} of {one}"
    return Check(name="memory", verdict=Verdict.OK, found=found)


def scratch_check(folder: str, limit: str = "", *, least_bytes: int = _SCRATCH_BYTES_MIN) -> Check:
    """Checks space for temporary files; `limit` is the pod's limit in bytes, as digits."""
    free = shutil.disk_usage(folder).free
    found = f"{size_text(free)} free in {folder}"
    advice = f"make room, or set TMPDIR to a folder with {size_text(least_bytes)} or more"
    if limit.isdecimal() and int(limit) < free:
        free = int(limit)
        found = f"{found}; this pod may use {size_text(free)}"
        advice = f"set the chart's scratchSize to {size_text(least_bytes)} or more"
    if free >= least_bytes:
        return Check(name="scratch", verdict=Verdict.OK, found=found)
    return Check(name="scratch", verdict=Verdict.WARNING, found=found, advice=advice)


def zone_check(zone_of: Callable[[], tzinfo]) -> Check:
    """Checks the time zone; `zone_of` raises `UsageError` if the machine's zone has no name."""
    try:
        zone = zone_of()
    except UsageError as error:
        found, _, advice = str(error).partition(": ")
        return failed_check("time zone", found, advice)
    found = f"{zone}: off-peak hours and creation times use it; it must be the writers' zone"
    return Check(name="time zone", verdict=Verdict.OK, found=found)
