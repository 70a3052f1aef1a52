"""A daemon that is measured: `compactord serve`, its CPU and memory read from /proc."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.targets import MIB
from tests.service.daemon_process import Scrape, Service, Services, configuration, merged

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """CPU seconds up to a moment: of the driver by thread, of everything below it."""

    at_s: float
    threads: Mapping[str, float]
    jvm_s: float
    workers_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """CPU per second of wall time between two moments; 1 is a whole core."""

    seconds: float
    driver: float
    jvm: float
    workers: float


@dataclass(slots=True)
class Daemons:
    """Starts daemons one after the other; `cores` None: on those of this process."""

    folder: Path
    cores: tuple[int, ...] | None = None
    _services: Services = field(init=False)

    def __post_init__(self) -> None:
        self._services = Services(self.folder, [])

    def start(self, warehouse: Path, sections: Mapping[str, Any] | None = None) -> Service:
        """One that is ready, with the service's own settings but for what `sections` says."""
        config = merged(_settings(warehouse), sections or {})
        cores = self.cores
        pinned = {"preexec_fn": lambda: os.sched_setaffinity(0, cores)} if cores else {}
        return self._services.start(config, **pinned).wait_started()

    def end(self) -> None:
        for service in self._services.started:
            service.kill_family()


@contextlib.contextmanager
def daemons(cores: tuple[int, ...] | None = None) -> Iterator[Daemons]:
    """Whatever was started has ended afterwards, and its folder is gone."""
    with tempfile.TemporaryDirectory(prefix="compactord-bench-") as folder:
        started = Daemons(Path(folder), cores)
        try:
            yield started
        finally:
            started.end()


def _settings(warehouse: Path) -> dict[str, Any]:
    """What tests make quick is as slow as it is for users."""
    config = configuration(warehouse)
    for section in ("discovery", "defaults", "retry", "reload", "shutdown"):
        del config[section]
    return config


def usage(service: Service) -> Usage:
    """CPU seconds so far."""
    jvm = service.jvm()
    others = service.family() - {service.pid, jvm}
    return Usage(
        at_s=time.monotonic(),
        threads=_thread_seconds(service.pid),
        jvm_s=_process_seconds(jvm),
        workers_s=sum(_process_seconds(pid) for pid in others),
    )


def spent(before: Usage, after: Usage) -> Spent:
    seconds = after.at_s - before.at_s
    threads = (total - before.threads.get(name, 0.0) for name, total in after.threads.items())
    return Spent(
        seconds=seconds,
        driver=sum(threads) / seconds,
        jvm=(after.jvm_s - before.jvm_s) / seconds,
        workers=max(0.0, after.workers_s - before.workers_s) / seconds,
    )


def rss_mib(pid: int) -> float:
    """Memory of one process; 0 when it has gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def rise(before: Scrape, after: Scrape, name: str, **labels: str) -> float:
    """By how much a counter grew."""
    return after.sum(name, **labels) - before.sum(name, **labels)


def quantile_bound(before: Scrape, after: Scrape, name: str, share: float, **labels: str) -> float:
    """The upper bound of a histogram's bucket that holds this share of what was observed."""
    bounds: dict[float, float] = {}
    for sample, found, value in after.samples:
        if sample == f"compactord_{name}_bucket" and labels.items() <= found.items():
            bounds[float(found["le"])] = value - before.one(f"{name}_bucket", **found)
    count = max(bounds.values())
    return min(bound for bound, below in bounds.items() if below >= share * count)


def _thread_seconds(pid: int) -> dict[str, float]:
    """Of each thread, in nanoseconds precisely: quiet daemons spend less than a tick."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def _process_seconds(pid: int) -> float:
    """With those of its children that have ended."""
    try:
        numbers = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(int(number) for number in numbers[11:15]) * _TICK_S
