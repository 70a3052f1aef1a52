"""Polls of quiet tables in an object store: how soon all are done, and what that takes.

    python -m tests.bench.bench_polls                    # 50 tables
    python -m tests.bench.bench_polls --tables 1000

One JSON line. The store is MinIO behind a proxy that delays every request; both have all cores, we
have what this process was given. A poll is a cycle of the service; as many run at once as in it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from compactord import ids
from compactord.catalog.access import TableAccess, table_in_folder
from compactord.clock import SystemClock
from compactord.paimon.schema import TableRef
from compactord.service.jobs import JOBS_MAX
from compactord.storage.base import Storage
from compactord.table.backlog import DispatchFilter
from compactord.table.compactor import TableCompactor
from compactord.table.planning import CompactRequest
from compactord.table.subcompactions import WorkerSpec
from tests import builders
from tests.storages import MemoryStorage
from tests.store_servers import StoreServer, minio, s3
from tests.tools.store_proxy import ProxyProcess
from tests.tools.workbench import ToolError

DELAY_MS = 10
SKIP = DispatchFilter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=JOBS_MAX)
    arguments = parser.parse_args()
    try:
        with _servers() as (store, proxy):
            print(json.dumps(polls(store, proxy, arguments)), flush=True)
    except ToolError as error:
        print(f"polls are left out: {error}", file=sys.stderr)


@contextlib.contextmanager
def _servers() -> Iterator[tuple[StoreServer, ProxyProcess]]:
    """On any core, so that what we do has its own for itself."""
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with minio() as store, ProxyProcess(("127.0.0.1", store.port)) as proxy:
        os.sched_setaffinity(0, ours)
        yield store, proxy


def polls(
    store: StoreServer, proxy: ProxyProcess, arguments: argparse.Namespace
) -> dict[str, float]:
    """Seconds to poll all tables once, of each round; CPU seconds and requests of one round."""
    location = f"{store.root}/db.db"
    refs = _tables(store.spec.open(), location, arguments.tables)
    storage = s3(proxy.port).spec.open()
    seconds, cpu = [], []
    with ThreadPoolExecutor(arguments.threads) as pool:
        compactors = list(pool.map(lambda ref: compactor_of(table_in_folder(storage, ref)), refs))
        first = list(pool.map(poll, compactors))
        assert all(first), "a table was not read"
        proxy.delay(DELAY_MS)
        for _ in range(arguments.rounds):
            proxy.reset()
            start_s, start_cpu_s = time.perf_counter(), time.process_time()
            is_new = list(pool.map(poll, compactors))
            seconds.append(time.perf_counter() - start_s)
            cpu.append(time.process_time() - start_cpu_s)
            assert not any(is_new), "a table is not quiet"
            requests = sum(proxy.counts.values())
    return {
        "tables": len(refs),
        "threads": arguments.threads,
        "polls_s": statistics.median(seconds),
        "polls_s_max": max(seconds),
        "polls_cpu_s": statistics.median(cpu),
        "requests_per_poll": requests / len(refs),
    }


def _tables(storage: Storage, folder: str, count: int) -> Sequence[TableRef]:
    """Copies of one table: no metadata names the table that it is of."""
    model = MemoryStorage()
    made = builders.keyed_table(model, "/model")
    builders.fill_keyed(builders.writer(model, made), commits=2)
    refs = [
        TableRef(database="db", name=f"t{number}", location=f"{folder}/t{number}")
        for number in range(count)
    ]

    def copy(ref: TableRef) -> None:
        for path, data in model.objects.items():
            storage.overwrite(ref.location + path.removeprefix("/model"), data)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(copy, refs))
    return refs


def compactor_of(access: TableAccess) -> TableCompactor:
    """Of a table, as the service makes it."""
    clock = SystemClock()
    return TableCompactor(
        access,
        CompactRequest(),
        clock=clock,
        worker=WorkerSpec(owner=ids.this_process(), memory_bytes=64 << 20, zone=clock.time_zone),
    )


def poll(compactor: TableCompactor) -> bool:
    """Whether there was something new."""
    cycle = compactor.cycle((), SKIP)
    assert cycle.error is None, cycle.error
    return cycle.planned is not None


if __name__ == "__main__":
    main()
