"""Catalogs that a server keeps: quiet polls, a small compaction, a long list of tables.

    python -m tests.bench.bench_catalogs                                # 50 tables, 1,000 listed
    python -m tests.bench.bench_catalogs --tables 1000 --listed 10000

A JSON line for each kind of catalog. Its server is a small one of the tests, the store is in
memory; both are in this process, and each request to either of them takes 10 ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from compactord.catalog.open import open_catalog
from compactord.commit.changes import Committed
from compactord.service.jobs import JOBS_MAX
from compactord.storage.base import Capabilities, Storage, Store, StoreLocation
from compactord.storage.open import STORES
from compactord.table.compactor import TableCompactor
from tests.bench.bench_polls import SKIP, compactor_of, poll
from tests.bench.catalog_servers import OPTIONS, Requests
from tests.storages import MemoryStorage, WatchedStorage
from tests.unit.table.compacting import outcome_of
from tests.unit.table.test_requests import LOCATION, small_table

T = TypeVar("T")
_SCHEME = "mem://"
_COMMITS = 3
# With which request a commit is over.
_LAST = {"rest": "POST ", "hive": "unlock"}


class _Delayed(WatchedStorage):
    """A store as if it were an object store; its calls do not wait for each other."""

    def __init__(self, inner: Storage, requests: Requests) -> None:
        super().__init__(inner)
        self._requests = requests

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(creates_exclusively=True)

    def _watch(self, method: str, path: str, effect: Callable[[], T]) -> T:
        # A stream is one request, when it is closed.
        if method != "open_output":
            self._requests.ask(f"{method} {path}")
        return effect()

    def locate(self, location: str, options: Mapping[str, str]) -> StoreLocation:
        del options
        return StoreLocation(spec=self, path=location.removeprefix(_SCHEME))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--listed", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for kind in OPTIONS:
        print(json.dumps(_measured(kind, arguments)), flush=True)


def _measured(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    memory, requests = MemoryStorage(), Requests()
    # Those beyond the first are only listed.
    paths = {f"db.t{n:05}": f"/w/{n % arguments.tables}" for n in range(arguments.listed)}
    _make_tables(memory, set(paths.values()))
    store = Store(schemes=("mem",), locate=_Delayed(memory, requests).locate)
    stores = replace(STORES, known=(*STORES.known, store))
    with OPTIONS[kind](paths, memory, _SCHEME, requests) as options:
        catalog = open_catalog(f"{_SCHEME}/w", stores, metastore=kind, options=options)
        start_s = time.perf_counter()
        listed = catalog.list_tables().tables
        found: dict[str, Any] = {
            "catalog": kind,
            "listed": len(listed),
            "list_s": time.perf_counter() - start_s,
            "list_requests": len(requests.taken()),
        }
        with ThreadPoolExecutor(JOBS_MAX) as pool:
            refs = listed[: arguments.tables]
            compactors = list(pool.map(lambda ref: compactor_of(catalog.open(ref)), refs))
            assert all(pool.map(poll, compactors)), "a table was not read"
            found["open_requests"] = len(requests.taken()) / len(refs)
            found |= _quiet(compactors, pool, requests, arguments.rounds)
        return found | _commits(compactors[:_COMMITS], requests, _LAST[kind])


def _make_tables(memory: MemoryStorage, paths: set[str]) -> None:
    """Copies of one table: no metadata names the table that it is of."""
    model = MemoryStorage()
    small_table(model)
    for path in paths:
        for name, data in model.objects.items():
            memory.objects[path + name.removeprefix(LOCATION)] = data


def _quiet(
    compactors: Sequence[TableCompactor], pool: ThreadPoolExecutor, requests: Requests, rounds: int
) -> dict[str, float]:
    """Polls of all tables, in which nothing is new: the median round, the last one's requests."""
    seconds = []
    for _ in range(rounds):
        requests.taken()
        start_s = time.perf_counter()
        assert not any(pool.map(poll, compactors)), "a table is not quiet"
        seconds.append(time.perf_counter() - start_s)
    asked = [what for what, _ in requests.taken()]
    return {
        "tables": len(compactors),
        "polls_s": statistics.median(seconds),
        "requests_per_poll": len(asked) / len(compactors),
        "listings": sum(what.startswith("list ") for what in asked),
    }


def _commits(
    compactors: Sequence[TableCompactor], requests: Requests, last: str
) -> dict[str, float]:
    """Five small files of a table are compacted: from the plan to the end of the commit."""
    counts, seconds = [], []
    for compactor in compactors:
        assert compactor.last_plan is not None, "it was polled"
        (bucket,) = compactor.last_plan.state.files.bucket_ids()
        requests.taken()
        start_s = time.perf_counter()
        dispatch = compactor.dispatch(bucket, compaction_id=1, free_slots=1)
        assert dispatch is not None, "it is due"
        settled = compactor.cycle([outcome_of(dispatch)], SKIP).commit
        assert isinstance(settled, Committed)
        asked = requests.taken()
        position = max(n for n, (what, _) in enumerate(asked) if what.startswith(last))
        counts.append(position + 1)
        seconds.append(asked[position][1] - start_s)
    return {"commit_requests": max(counts), "commit_s": statistics.median(seconds)}


if __name__ == "__main__":
    main()
