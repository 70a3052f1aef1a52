"""The daemon beside what is promised of it: quiet, waiting, loaded, and how soon it answers.

    python -m tests.bench.service idle     # CPU and polls of 200 quiet tables of 50 buckets
    python -m tests.bench.service memory   # of the driver, for each bucket
    python -m tests.bench.service latency  # from a commit to the COMPACT snapshot
    python -m tests.bench.service load     # a commit a second over 200 tables of 50 buckets
    python -m tests.bench.service fleet    # 5,000 quiet tables of a REST server and a metastore

One line of JSON. `compactord serve` is a process of its own, with its own settings but for what is
named here; all that it does to the machine is read from outside.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.storage.local import LocalStorage
from tests.bench.catalog_servers import OPTIONS, Requests
from tests.bench.service_process import (
    Daemons,
    daemons,
    quantile_bound,
    rise,
    rss_mib,
    spent,
    usage,
)
from tests.bench.service_tables import Job, Metadata, create, many_tables, table_ref
from tests.service.daemon_process import Scrape, Service

# Paimon's defaults: a bucket is due at five runs; a table is polled every ten seconds.
_TRIGGER = 5
_LOOP = {"loop": "dispatcher"}


def idle(started: Daemons, warehouse: Path, quick: bool) -> dict[str, Any]:
    """CPU of a daemon none of whose tables changes, once the first expiries are done."""
    tables, buckets, seconds = (3, 2, 2.0) if quick else (200, 50, 60.0)
    many_tables(warehouse, buckets=buckets, runs=[1] * tables)
    service = started.start(warehouse)
    service.wait_until(
        lambda: service.metrics().sum("expire_duration_seconds_count") >= tables,
        "every table has been looked at for expiry",
        180,
    )
    time.sleep(0 if quick else 15)
    before, cpu = service.metrics(), usage(service)
    time.sleep(seconds)
    shares, after = spent(cpu, usage(service)), service.metrics()
    polls = rise(before, after, "poll_duration_seconds_count")
    return {
        "idle_cpu_percent": 100 * shares.driver,
        "jvm_cpu_percent": 100 * shares.jvm,
        "poll_ms": 1000 * rise(before, after, "poll_duration_seconds_sum") / max(1, polls),
        "polls_per_s": polls / shares.seconds,
        "cpu_ms_per_poll": 1000 * shares.driver * shares.seconds / max(1, polls),
        "driver_mib": rss_mib(service.pid),
    }


def memory(started: Daemons, warehouse: Path, quick: bool) -> dict[str, Any]:
    """The driver's memory with tables of few and many buckets, all of them due and none begun."""
    few, many, tables = (10, 200, 4) if quick else (100, 10_000, 200)
    found = {}
    shapes = {"few": [few], "one_table": [many], "many_tables": [many // tables] * tables}
    for name, shape in shapes.items():
        scheduler = [
            Metadata(table_ref(warehouse / name, f"t{number:03}"), buckets)
            for number, buckets in enumerate(shape)
        ]
        for table in scheduler:
            for _ in range(_TRIGGER):
                table.commit()
        service = started.start(warehouse / name, {"defaults": {"mode": "paused"}})
        _wait_planned(service, sum(shape))
        found[name] = _settled_mib(service, quick)
        # What is planned anew again and again must not pile up.
        for _ in range(_TRIGGER):
            for table in scheduler:
                table.commit()
            time.sleep(0 if quick else 10)
        found[f"{name}_planned_often"] = _settled_mib(service, quick)
        assert service.stop() == 0
    per_bucket = {
        name: 1024 * (mib - found["few"]) / (many - few)
        for name, mib in found.items()
        if not name.startswith("few")
    }
    return {
        "kib_per_bucket": max(per_bucket.values()),
        **{f"{name}_kib_per_bucket": value for name, value in per_bucket.items()},
        **{f"{name}_mib": value for name, value in found.items()},
    }


def latency(started: Daemons, warehouse: Path, quick: bool) -> dict[str, Any]:
    """Seconds from the commit that makes a small table due to the COMPACT snapshot, by interval."""
    figures: dict[str, Any] = {}
    plan = {1: 2} if quick else {1: 25, 5: 10}
    for interval_s, repetitions in plan.items():
        folder = warehouse / str(interval_s)
        refs = [table_ref(folder, f"t{number}") for number in range(1 if quick else 4)]
        for ref in refs:
            create(ref, 1, {"continuous.discovery-interval": f"{interval_s} s"})
        service = started.start(folder)
        service.wait_settled(*(ref.name for ref in refs))
        with ThreadPoolExecutor(len(refs)) as jobs:
            found = jobs.map(partial(_waits, repetitions, interval_s), refs)
        waits = [wait for of_table in found for wait in of_table]
        assert len(waits) == repetitions * len(refs), "a table was not compacted"
        assert service.stop() == 0
        ordered = sorted(waits)
        figures |= {
            f"latency_{interval_s}s_median_s": statistics.median(ordered),
            f"latency_{interval_s}s_p95_s": ordered[int(0.95 * (len(ordered) - 1))],
            f"latency_{interval_s}s_max_s": ordered[-1],
            f"latency_{interval_s}s_least_s": ordered[0],
        }
    return figures


def _waits(repetitions: int, interval_s: float, ref: TableRef) -> list[float]:
    job, chance = Job(ref, 1), random.Random(ref.name)
    found = []
    for repetition in range(repetitions):
        # The output of the last compaction is a run as well.
        for _ in range(_TRIGGER - 1 - (repetition > 0)):
            job.commit()
        time.sleep(chance.random() * interval_s)
        snapshot = job.commit()
        committed_s = time.monotonic()
        compacted = Path(paths.snapshot_path(ref.location, snapshot + 1))
        while not compacted.exists():
            if time.monotonic() > committed_s + 60:
                return found
            time.sleep(0.002)
        found.append(time.monotonic() - committed_s)
    return found


def load(started: Daemons, warehouse: Path, quick: bool) -> dict[str, Any]:
    """A commit a second; every table is one to five commits away from being due."""
    tables, buckets, seconds = (5, 2, 6) if quick else (200, 50, 120)
    # Something must be compacted in a few seconds, too: the first commit makes a table due.
    runs = [number % _TRIGGER for number in range(_TRIGGER - 1, _TRIGGER - 1 + tables)]
    refs = many_tables(warehouse, buckets=buckets, runs=runs)
    often = {"defaults": {"discovery_interval": "1 s"}}
    service = started.start(warehouse, often if quick else None)
    names = [ref.name for ref in refs]
    service.wait_settled(*names, seconds=180)
    job_of = {name: Job(ref, buckets) for name, ref in zip(names, refs, strict=True)}
    before, cpu, mib = service.metrics(), usage(service), rss_mib(service.pid)
    queued: list[float] = []
    ages: list[float] = []
    start_s = time.monotonic()
    for second in range(seconds):
        time.sleep(max(0.0, start_s + second - time.monotonic()))
        job_of[names[second % tables]].commit()
        now = service.metrics()
        queued.append(now.sum("tasks_queued") + now.one("tasks_running"))
        ages.append(_oldest_s(now))
    shares, after = spent(cpu, usage(service)), service.metrics()
    grown_mib = rss_mib(service.pid) - mib
    service.wait_settled(*names, seconds=120)
    half = len(queued) // 2
    slots = after.one("task_slots") * shares.seconds
    return {
        "loop_overruns": rise(before, after, "loop_overruns_total", **_LOOP),
        "loop_p99_s": quantile_bound(before, after, "loop_duration_seconds", 0.99, **_LOOP),
        "driver_cores": shares.driver,
        "jvm_cores": shares.jvm,
        "worker_cores": shares.workers,
        "compactions_per_s": rise(before, after, "compactions_total", outcome="committed")
        / shares.seconds,
        "slot_share": rise(before, after, "slot_busy_seconds_total") / slots,
        "backlog_max": max(queued),
        "backlog_growth": statistics.mean(queued[half:]) - statistics.mean(queued[:half]),
        "backlog_age_max_s": max(ages),
        "driver_mib": mib + grown_mib,
        "driver_growth_kib_per_bucket": 1024 * grown_mib / (tables * buckets),
    }


def fleet(started: Daemons, warehouse: Path, quick: bool) -> dict[str, Any]:
    """Quiet tables, half of a REST server, half of a metastore, polled ever more rarely."""
    tables, longest_s, seconds = (6, 0.0, 2.0) if quick else (5000, 300.0, 150.0)
    refs = many_tables(warehouse, buckets=1, runs=[1] * tables)
    requests, half = Requests(), len(refs) // 2
    with contextlib.ExitStack() as stack:
        catalogs: dict[str, Any] = {}
        for name, kind, own in (("lake", "rest", refs[:half]), ("hive", "hive", refs[half:])):
            paths = {ref.full_name: ref.location for ref in own}
            options = stack.enter_context(OPTIONS[kind](paths, LocalStorage(), "file:", requests))
            catalogs[name] = {
                "metastore": kind,
                "warehouse": str(warehouse),
                "options": options,
                "allow_schemes": ["file"],
            }
        rarely = {"max_quiet_interval": "5 min"}
        # All of them have series, so that their intervals are seen.
        seen = {"max_tables": tables}
        sections = {"catalogs": catalogs, "defaults": rarely, "metrics": seen}
        service = started.start(warehouse, sections)
        # Until every table has been looked at for expiry, and is polled as rarely as it will be.
        while not _is_settled(before := service.metrics(), tables, longest_s):
            # Scrapes of so many tables take time: not too many of them.
            time.sleep(0.2 if quick else 10)
        cpu = usage(service)
        requests.taken()
        time.sleep(seconds)
        shares, after = spent(cpu, usage(service)), service.metrics()
        asked = len(requests.taken())
        stored = rise(before, after, "storage_requests_total")
    return {
        "fleet_cpu_percent": 100 * shares.driver,
        "jvm_cpu_percent": 100 * shares.jvm,
        "requests_per_s": (asked + stored) / shares.seconds,
        "catalog_requests_per_s": asked / shares.seconds,
        "polls_per_s": rise(before, after, "poll_duration_seconds_count") / shares.seconds,
        "driver_mib": rss_mib(service.pid),
    }


def _is_settled(scrape: Scrape, tables: int, longest_s: float) -> bool:
    intervals = scrape.all("table_discovery_interval_seconds")
    expired = scrape.sum("expire_duration_seconds_count")
    return expired >= tables and min(intervals) >= longest_s


def _oldest_s(scrape: Scrape) -> float:
    """How long the oldest due has waited."""
    since = [at for at in scrape.all("table_backlog_oldest_timestamp_seconds") if at > 0]
    return max(0.0, time.time() - min(since)) if since else 0.0


def _wait_planned(service: Service, buckets: int) -> None:
    service.wait_until(
        lambda: service.metrics().sum("table_backlog_tasks") >= buckets, "all is planned", 180
    )


def _settled_mib(service: Service, quick: bool) -> float:
    """The largest of some seconds: what a scrape takes counts as well."""
    seen = []
    for _ in range(1 if quick else 15):
        service.metrics()
        time.sleep(0 if quick else 1)
        seen.append(rss_mib(service.pid))
    return max(seen)


_CASES: dict[str, Callable[[Daemons, Path, bool], dict[str, Any]]] = {
    "idle": idle,
    "memory": memory,
    "latency": latency,
    "load": load,
    "fleet": fleet,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", choices=_CASES)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="compactord-bench-", dir=given.folder) as warehouse,
        daemons() as started,
    ):
        found = _CASES[given.case](started, Path(warehouse), given.quick)
    print(json.dumps({name: round(value, 4) for name, value in found.items()}))


if __name__ == "__main__":
    main()
