"""The checks of `compactord doctor`, each a finding in one line with what to do about it."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from datetime import tzinfo
from urllib.parse import urlsplit

from compactord.catalog.check import Check, Verdict, failed_check
from compactord.config.model import ServiceConfig
from compactord.engine.jre import Java
from compactord.engine.masters import shown_master
from compactord.errors import EngineUnavailable, UsageError
from compactord.service import capacity
from compactord.table.report import count_text, size_text

# Merges that need several passes, and Spark, write there.
_SCRATCH_BYTES_MIN = 2 << 30
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
    if not capacity.is_embedded(config.spark.master) or wanted is None or wanted <= cores:
        return Check(name="cores", verdict=Verdict.OK, found=found)
    return Check(
        name="cores",
        verdict=Verdict.WARNING,
        found=f"{found}, limits.task_slots is {wanted}",
        advice=f"set limits.task_slots to {cores} or less, or give it more cores",
    )


def memory_check(config: ServiceConfig) -> Check:
    task_bytes = config.spark.task_memory_bytes
    one = f"{size_text(task_bytes)} and {size_text(capacity.IDLE_WORKER_BYTES)} for its worker"
    try:
        budget = capacity.memory_budget_bytes(config.limits, task_bytes, config.spark.master)
    except UsageError as error:
        found, _, advice = str(error).rpartition("; ")
        return failed_check("memory", found, advice)
    if budget is None:
        found = f"executors have their own; a merge takes {one}"
        return Check(name="memory", verdict=Verdict.OK, found=found)
    count = budget // (task_bytes + capacity.IDLE_WORKER_BYTES)
    found = f"{size_text(budget)}: room for {count_text(count, 'merge')} of {one}"
    return Check(name="memory", verdict=Verdict.OK, found=found)


def scratch_check(folder: str, *, least_bytes: int = _SCRATCH_BYTES_MIN) -> Check:
    free = shutil.disk_usage(folder).free
    found = f"{size_text(free)} free in {folder}"
    if free >= least_bytes:
        return Check(name="scratch", verdict=Verdict.OK, found=found)
    advice = f"make room, or set TMPDIR to a folder with {size_text(least_bytes)} or more"
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
