"""Copies of one table in a store, each compacted by a process whose requests fail."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compactord.errors import CompactordError
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import snapshot_ids
from compactord.plan.table import Strategy
from compactord.state.table_state import load_state
from compactord.storage.base import Storage
from compactord.storage.calls import RetryPolicy
from compactord.storage.objects.store import ObjectStorage
from compactord.table.jobs import CompactTotals
from tests import builders
from tests.builders import FIRST, SECOND, VirtualClock
from tests.storages import WatchedStorage
from tests.store_servers import StoreServer, s3
from tests.tools.store_faults import Decide, Fault, Request
from tests.tools.store_proxy import StoreProxy


class Trials:
    """A table of several runs whose compaction makes one snapshot; trials are run on copies.

    `proxy` stands before the server, `direct` passes by it.
    """

    def __init__(self, server: StoreServer, proxy: StoreProxy) -> None:
        self.proxy = proxy
        self.direct = server.spec.open()
        self._spec = s3(proxy.port).spec
        self._folder = f"{server.root}/trials-{proxy.port}"
        self._numbers = itertools.count()
        # Of the last trial: requests that failed, and whether any asked for a change.
        self.failed: list[Request] = []
        self.has_changed = False
        table = self.make(f"{self._folder}/template")
        self.rows = self.read(table)
        self._commits = len(snapshot_ids(self.direct, table.location))
        self._objects = _objects(self.direct, table.location)

    def make(self, location: str) -> TableRef:
        """The table that trials get copies of."""
        table = builders.keyed_table(self.direct, location, buckets=1)
        builders.fill_keyed(builders.writer(self.direct, table), commits=3, keys=20)
        return table

    def read(self, table: TableRef) -> object:
        """Its rows, to be compared."""
        return builders.read_keyed(self.direct, table)

    @property
    def next_snapshot(self) -> int:
        """The id of what a compaction of a copy publishes."""
        return self._commits + 1

    def copy(self) -> TableRef:
        """The table as no trial has seen it."""
        location = f"{self._folder}/{next(self._numbers)}"
        for name, data in self._objects.items():
            self.direct.write_new(f"{location}/{name}", data)
        return TableRef(database="db", name="t", location=location)

    def compact(
        self,
        table: TableRef,
        decide: Decide | None,
        *,
        attempts: int | None = None,
        timeout_s: float = 30,
    ) -> CompactTotals | CompactordError:
        """A first process, while requests fail as decided; a call is tried `attempts` times.

        Pauses between attempts take no time. `timeout_s` is that of a request.
        """
        policy = RetryPolicy(clock=VirtualClock())
        if attempts is not None:
            policy = replace(policy, attempts_max=attempts)
        spec = replace(self._spec, timeout_s=timeout_s)
        # Its workers use it as it is, too.
        storage = WatchedStorage(ObjectStorage(spec, policy=policy))
        self.proxy.reset()
        self.proxy.fail(decide)
        try:
            return builders.compact(storage, table, owner=FIRST, strategy=Strategy.FULL)
        except CompactordError as error:
            return error
        finally:
            self.proxy.fail(None)
            self.failed = list(self.proxy.failed)
            self.has_changed = any(request.is_mutation for request in self.proxy.log)

    def check_whole(self, table: TableRef, what: str) -> None:
        """As it was or compacted, with the rows that it had."""
        assert self.read(table) == self.rows, what
        builders.check_chain(self.direct, table)
        count = len(snapshot_ids(self.direct, table.location))
        assert count in (self._commits, self.next_snapshot), what

    def check_healed(self, table: TableRef, what: str) -> None:
        """A second process sweeps and compacts what is left, and nothing else is there then."""
        builders.remove_leftovers(self.direct, table, myself=SECOND)
        totals = builders.compact(self.direct, table, owner=SECOND, strategy=Strategy.FULL)
        assert (totals.failures, totals.lost_snapshots) == ([], []), what
        self.check_whole(table, what)
        assert builders.leftovers(self.direct, table, [FIRST, SECOND]) == set(), what
        assert self.unfinished(table) == [], what
        state = load_state(self.direct, table)
        assert [state.files.summary(b).file_count for b in state.files.bucket_ids()] == [1], what

    def unfinished(self, table: TableRef) -> list[str]:
        """Paths of uploads that somebody has begun and nobody ended."""
        return [upload.path for upload in self.direct.unfinished_uploads(table.location)]


class LargeTrials(Trials):
    """An append table whose files, compacted, are uploaded in several parts."""

    def make(self, location: str) -> TableRef:
        table = builders.append_table(self.direct, location)
        target = builders.writer(self.direct, table)
        random = np.random.default_rng(0)
        for _ in range(6):
            keys, values = random.integers(-(1 << 62), 1 << 62, (2, 130_000))
            columns = {"k": keys, "v": values}
            target.write(pa.table(columns, builders.rows_of([(0, 0)]).schema))
        return table

    def read(self, table: TableRef) -> object:
        state = load_state(self.direct, table)
        parts = [
            pq.read_table(pa.BufferReader(self.direct.read(path)))
            for path in builders.live_paths(self.direct, table, state)
        ]
        return pa.concat_tables(parts).combine_chunks().sort_by("k")


def each_once(fault: Fault, *, stride: int, at: int, concerns: Callable[[Request], bool]) -> Decide:
    """Of the requests that come, every `stride`-th from the `at`-th on fails, a first time only.

    A request that is repeated is the same one.
    """
    seen: dict[tuple[str, str], int] = {}

    def decide(request: Request) -> Fault | None:
        identity = (request.method, request.target)
        if identity in seen or not concerns(request):
            return None
        seen[identity] = len(seen)
        return fault if seen[identity] % stride == at else None

    return decide


def _objects(storage: Storage, location: str) -> dict[str, bytes]:
    """All objects of a table by their name in it."""
    found: dict[str, bytes] = {}
    folders = [location]
    with contextlib.suppress(IndexError):
        while True:
            folder = folders.pop()
            for child in storage.list(folder):
                path = f"{folder}/{child.name}"
                if child.is_folder:
                    folders.append(path)
                else:
                    found[path.removeprefix(f"{location}/")] = storage.read(path)
    return found
