"""The checks of `compactord doctor`, each a finding in one line with what to do about it."""

from __future__ import annotations

import enum
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from itertools import islice
from urllib.parse import urlsplit

from compactord import ids
from compactord.catalog.base import Catalog
from compactord.catalog.look import CatalogTrouble, look_at
from compactord.catalog.probe import probe
from compactord.cli.loading import is_of_database
from compactord.clock import Clock, age_text
from compactord.commit.locked import LockedPublisher
from compactord.config.model import ServiceConfig
from compactord.engine.jre import Java
from compactord.engine.masters import shown_master
from compactord.errors import AccessDenied, CompactordError, EngineUnavailable, UsageError
from compactord.paimon.schema import latest_schema
from compactord.paimon.table import TableRef
from compactord.service import admission
from compactord.table.report import count_text, size_text

# Merges that need several passes, and Spark, write there.
_SCRATCH_BYTES_MIN = 2 << 30
# Ages of left-over files are told by the store's clock; the shortest grace is ten minutes.
_SKEW_MS_MAX = 30_000
_CONNECT_SECONDS_MAX = 5.0
# A table may have a partition for every day of years; those of one have one owner.
_FOLDERS_MAX = 100
_PORTS = {"spark": 7077, "sc": 15002}
_PERMISSION = "give this user read and write permission there (docs/operations.md)"


class Verdict(enum.Enum):
    """FAILED: compactord cannot work so. WARNING: it can, but look at it."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was found; `advice` says what to do, empty where nothing is."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


def spark_check(version: str | None, connect: bool) -> Check:
    """Whether pyspark is installed; `connect`: with what Spark Connect needs."""
    if version is None:
        advice = "pip install pyspark"
        return _failed("spark", "no pyspark", advice)
    if not connect:
        advice = "pip install 'pyspark[connect]'"
        found = f"pyspark {version} without the packages of Spark Connect"
        return _failed("spark", found, advice)
    return Check(name="spark", verdict=Verdict.OK, found=f"pyspark {version}")


def java_check(find: Callable[[], Java]) -> Check:
    """`find` raises `EngineUnavailable` when no Java is suitable."""
    try:
        java = find()
    except EngineUnavailable as error:
        found, _, advice = str(error).rpartition(". ")
        return _failed("java", found, advice)
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
    return _failed("master", last, advice)


def cores_check(cores: int, config: ServiceConfig) -> Check:
    wanted = config.limits.task_slots
    found = f"{count_text(cores, 'core')} for this process"
    if not admission.is_embedded(config.spark.master) or wanted is None or wanted <= cores:
        return Check(name="cores", verdict=Verdict.OK, found=found)
    return Check(
        name="cores",
        verdict=Verdict.WARNING,
        found=f"{found}, limits.task_slots is {wanted}",
        advice=f"set limits.task_slots to {cores} or less, or give it more cores",
    )


def memory_check(config: ServiceConfig) -> Check:
    task_bytes = config.spark.task_memory_bytes
    one = f"{size_text(task_bytes)} and {size_text(admission.IDLE_WORKER_BYTES)} for its worker"
    try:
        budget = admission.memory_budget_bytes(
            config.limits,
            task_bytes,
            is_embedded=admission.is_embedded(config.spark.master),
        )
    except UsageError as error:
        found, _, advice = str(error).rpartition("; ")
        return _failed("memory", found, advice)
    if budget is None:
        found = f"executors have their own; a merge takes {one}"
        return Check(name="memory", verdict=Verdict.OK, found=found)
    count = budget // (task_bytes + admission.IDLE_WORKER_BYTES)
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
        return _failed("time zone", found, advice)
    found = f"{zone}: that of the writers? Off-peak hours and creation times are read in it"
    return Check(name="time zone", verdict=Verdict.OK, found=found)


def catalog_checks(catalogs: Mapping[str, Catalog], clock: Clock) -> Iterator[Check]:
    """Of each catalog: is it there, can its tables be read, are commits safe, do clocks agree."""
    troubles = {trouble.catalog: trouble for trouble in look_at(catalogs, clock)}
    for name, catalog in catalogs.items():
        if name in troubles:
            yield _trouble_check(name, troubles[name])
            continue
        yield from _table_checks(name, catalog)
        yield from _lock_checks(name, catalog)
        yield from _probe_checks(name, catalog, clock)


def _trouble_check(name: str, trouble: CatalogTrouble) -> Check:
    error = trouble.error
    if is_of_database(error):
        advice = "correct uri, jdbc.user, jdbc.password or lock.enabled, or repair the database"
        if isinstance(error, AccessDenied):
            advice = "correct jdbc.user and jdbc.password, or let them in (docs/operations.md)"
        return _failed(f"{name}: catalog", str(error), advice)
    advice = "repair the storage, or wait for it" if trouble.may_heal else _mend(error)
    return _failed(f"{name}: warehouse", str(error), advice)


def _lock_checks(name: str, catalog: Catalog) -> Iterator[Check]:
    """Whether the catalog's lock can be taken and given back, where it has one."""
    publisher = catalog.publisher
    if not isinstance(publisher, LockedPublisher):
        return
    # No table has such a name, so no writer waits.
    nothing = TableRef(database=".compactord-probe", name=ids.random_uuid(), location="")
    try:
        was_ours = publisher.lock.acquire(nothing).release()
    except CompactordError as error:
        advice = "let this user insert into and delete from paimon_distributed_locks"
        yield _failed(f"{name}: lock", str(error), advice)
        return
    if was_ours:
        found = "taken and given back; all writers of its tables must have lock.enabled, too"
        yield Check(name=f"{name}: lock", verdict=Verdict.OK, found=found)
    else:
        found = "a lock that was taken did not stay"
        advice = "compare lock-acquire-timeout and, with PostgreSQL, time zones with the writers'"
        yield _failed(f"{name}: lock", found, advice)


def _table_checks(name: str, catalog: Catalog) -> Iterator[Check]:
    """Whether every database can be listed, every table's schema read, every table written."""
    try:
        listed = catalog.list_tables()
    except CompactordError as error:
        yield _failed(f"{name}: tables", str(error), _mend(error))
        return
    unreadable: list[CompactordError] = list(listed.unreadable.values())
    closed: list[str] = []
    for ref in listed.tables:
        try:
            latest_schema(catalog.storage, ref.location)
            closed += _closed_folders(catalog, ref)
        except CompactordError as error:
            unreadable.append(error)
    count = count_text(len(listed.tables), "table")
    if unreadable:
        found = f"{count}; errors: {len(unreadable)}, first: {unreadable[0]}"
        yield _failed(f"{name}: tables", found, _mend(unreadable[0]))
    else:
        found = f"{count} in {catalog.warehouse}, all readable"
        yield Check(name=f"{name}: tables", verdict=Verdict.OK, found=found)
    if closed:
        found = (
            f"this user may not write in {count_text(len(closed), 'folder')}, first: {closed[0]}"
        )
        yield _failed(f"{name}: permissions", found, _PERMISSION)
    else:
        found = "this user may write in the tables' folders"
        yield Check(name=f"{name}: permissions", verdict=Verdict.OK, found=found)


def _closed_folders(catalog: Catalog, ref: TableRef) -> Iterator[str]:
    """Of the table's folder and those in it, those in which nothing may be created."""
    storage = catalog.storage
    children = (status for status in storage.list(ref.location) if status.is_folder)
    # compactord writes no schema.
    names = (status.name for status in children if status.name != "schema")
    for folder in (f"{ref.location}/{name}" for name in islice(names, _FOLDERS_MAX)):
        if storage.may_write(folder) is False:
            yield folder


def _failed(name: str, found: str, advice: str) -> Check:
    return Check(name=name, verdict=Verdict.FAILED, found=found, advice=advice)


def _probe_checks(name: str, catalog: Catalog, clock: Clock) -> Iterator[Check]:
    check = f"{name}: commits"
    before_ms = clock.now_ms()
    try:
        probed = probe(catalog.storage, catalog.warehouse)
    except AccessDenied:
        yield Check(
            name=check,
            verdict=Verdict.WARNING,
            found=f"not tried: this user may create nothing in {catalog.warehouse} itself",
            advice="nothing, if it may in the tables' folders: compactord writes only there",
        )
        return
    except CompactordError as error:
        yield _failed(check, str(error), _mend(error))
        return
    after_ms = clock.now_ms()
    if probed.is_exclusive:
        found = "of two creations of one name the second was refused, as commits need it"
        yield Check(name=check, verdict=Verdict.OK, found=found)
    else:
        found = "a second creation of one name replaced the first: snapshots would be lost"
        advice = "do not commit to this storage; use one with link(2), such as a local disk"
        yield _failed(check, found, advice)
    ahead_ms = max(probed.changed_ms - after_ms, before_ms - probed.changed_ms)
    if ahead_ms <= _SKEW_MS_MAX:
        yield Check(name=f"{name}: clock", verdict=Verdict.OK, found="the store's clock agrees")
        return
    where = "ahead of" if probed.changed_ms > after_ms else "behind"
    yield Check(
        name=f"{name}: clock",
        verdict=Verdict.WARNING,
        found=f"the store's clock is {age_text(ahead_ms)} {where} this machine's",
        advice="set both by NTP: ages of left-over files are told by the store's clock",
    )


def _mend(error: CompactordError) -> str:
    if isinstance(error, AccessDenied):
        return _PERMISSION
    return "create or mount it, or correct the path"
