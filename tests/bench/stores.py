"""A table on an S3 server of this machine: what the store costs beside local files, and a delay.

The same compaction in turns: on local files, in the store, and in the store through a proxy, first
as it is, then with 10 ms added to each request. The server (MinIO, or moto where MinIO is missing)
and the proxy are processes of their own on the same cores; their CPU is not counted.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from compactord.engine.base import Engine
from compactord.paimon.schema import TableRef
from compactord.storage.base import Storage
from compactord.storage.open import STORES
from tests.bench.ours import OurRun, OurSide
from tests.bench.peers import CorePeer
from tests.bench.tables import SHAPES, Shape, fresh_copy, make_table
from tests.store_servers import StoreServer, minio, moto
from tests.tools.store_proxy import ProxyProcess
from tests.tools.workbench import ToolError

STORE_CASES = {f"{case}-s3": SHAPES[case] for case in ("pk", "small", "lookup", "lookup-small")}
_DELAY_MS = 10
_COPY_THREADS = 4
_COPY_BYTES = 8 << 20
_MIB = 1 << 20


def in_store(
    folder: Path, shape: Shape, engine: Engine, repetitions: int, warm_ups: int
) -> dict[str, Any]:
    """Make the table below `folder`, compact copies of it, and remove it."""
    table = folder / "bench.db" / "table"
    with (
        CorePeer() as core,
        _server() as server,
        ProxyProcess(("127.0.0.1", server.port)) as proxy,
    ):
        make_table(core, table, shape)
        sides = _Sides(engine, table, server, proxy, full=shape.is_full)
        for number in range(-warm_ups, repetitions):
            sides.run(is_measured=number >= 0)
        found = sides.figures()
        found["same_rows_as_local"] = sides.same_rows(core, folder / "fetched.db" / "table")
    return {**found, "lines": [found]}


@contextlib.contextmanager
def _server() -> Iterator[StoreServer]:
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(minio())
        except ToolError:
            server = stack.enter_context(moto())
        yield server


def _with_references(options: Mapping[str, str], folder: Path) -> Mapping[str, str]:
    """The keys in files: the workers were started before, and have our environment of that time."""
    found = dict(options)
    for key in ("s3.access-key", "s3.secret-key"):
        file = folder / key
        file.write_text(options[key])
        found[key] = f"${{file:{file}}}"
    return found


class _Sides:
    """The compactions of one table, each with the runs so far."""

    def __init__(
        self, engine: Engine, table: Path, server: StoreServer, proxy: ProxyProcess, *, full: bool
    ) -> None:
        self._table = table
        self._full = full
        self._proxy = proxy
        self._ours = OurSide(engine)
        warehouse = f"{server.root}/bench"
        options = _with_references(server.options, table.parent.parent)
        delayed = {**options, "s3.endpoint": proxy.url}
        self._stores = {
            "s3": STORES.open(warehouse, options)[0],
            "proxied": STORES.open(warehouse, delayed)[0],
        }
        self._warehouse = warehouse
        self._copies = 0
        self.runs: dict[str, list[OurRun]] = {}
        self.requests: list[dict[str, int]] = []
        self._copy_s: list[float] = []
        self.last: TableRef | None = None

    def run(self, *, is_measured: bool) -> None:
        """Each side once."""
        found: dict[str, OurRun] = {}
        with fresh_copy(self._table, "ours") as copy:
            found["local"] = self._ours.compact(copy, full=self._full)
        for name, store, delay_ms in (
            ("s3", "s3", 0),
            ("proxied", "proxied", 0),
            ("delayed", "proxied", _DELAY_MS),
        ):
            ref = self._uploaded()
            self._proxy.delay(delay_ms)
            counts: dict[str, Mapping[str, int]] = {}
            watch = self._watch(counts)
            found[name] = self._ours.compact_in(
                self._stores[store], ref, full=self._full, watch=watch
            )
            self._proxy.delay(0)
            self.last = ref
        self.requests.append(
            {
                kind: counts["published"][kind] - counts["planned"].get(kind, 0)
                for kind in counts["published"]
            }
        )
        if is_measured:
            for name, run in found.items():
                self.runs.setdefault(name, []).append(run)
            self._copy_s.append(self._plain_copy(found["s3"].bytes_out))

    def figures(self) -> dict[str, Any]:
        """Medians over the runs; seconds."""
        found: dict[str, Any] = {
            "mb_in": round(self.runs["s3"][0].bytes_in / 1e6, 1),
            "mb_out": round(self.runs["s3"][0].bytes_out / 1e6, 1),
        }
        for name, runs in self.runs.items():
            found[f"{name}_wall_s"] = _median(run.wall_s for run in runs)
            found[f"{name}_cpu_s"] = _median(run.worker_cpu_s + run.driver_cpu_s for run in runs)
            found[f"{name}_from_plan_s"] = _median(run.work_s + run.commit_s for run in runs)
        found["plain_copy_s"] = _median(self._copy_s)
        found["s3_cpu_ratio"] = round(found["s3_cpu_s"] / found["local_cpu_s"], 3)
        found["delayed_wall_ratio"] = round(found["delayed_wall_s"] / found["proxied_wall_s"], 3)
        found["delayed_local_ratio"] = round(found["delayed_wall_s"] / found["local_wall_s"], 3)
        found["requests"] = max(sum(each.values()) for each in self.requests)
        found["requests_by_kind"] = {k: n for k, n in self.requests[-1].items() if n}
        peak = max(run.peak_rss_bytes for runs in self.runs.values() for run in runs)
        found["peak_rss_mib"] = round(peak / _MIB)
        return found

    def same_rows(self, core: CorePeer, path: Path) -> bool:
        """Whether Java reads the same rows from the last result in the store as from a disk's."""
        assert self.last is not None, "it has run"
        store = self._stores["s3"]
        for location in _objects(store, self.last.location):
            target = path / location.removeprefix(f"{self.last.location}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(store.read(location))
        with fresh_copy(self._table, "ours") as copy:
            self._ours.compact(copy, full=self._full)
            return core.read_checksum(copy) == core.read_checksum(path)

    def _uploaded(self) -> TableRef:
        """A fresh copy of the table in the store."""
        self._copies += 1
        location = f"{self._warehouse}/bench.db/t{self._copies}"
        store = self._stores["s3"]
        files = [path for path in self._table.rglob("*") if path.is_file()]
        with ThreadPoolExecutor(_COPY_THREADS) as pool:
            done = pool.map(
                lambda path: store.write_new(
                    f"{location}/{path.relative_to(self._table)}", path.read_bytes()
                ),
                files,
            )
            list(done)
        return TableRef(database="bench", name=f"t{self._copies}", location=location)

    def _watch(self, counts: dict[str, Mapping[str, int]]) -> Callable[[str], None]:
        """Notes the proxy's counts at the first plan and the last snapshot."""
        self._proxy.reset()

        def watch(step: str) -> None:
            if step == "published" or step not in counts:
                counts[step] = self._proxy.counts

        return watch

    def _plain_copy(self, bytes_out: int) -> float:
        """Seconds to read the inputs from the store and to write as much as the output."""
        store, ref = self._stores["s3"], self._uploaded()
        inputs = [path for path in _objects(store, ref.location) if "/bucket-" in path]
        piece = b"\0" * _COPY_BYTES
        start = time.perf_counter()
        with ThreadPoolExecutor(_COPY_THREADS) as pool:
            list(pool.map(store.read, inputs))
        with store.open_output(f"{ref.location}/copy") as stream:
            for written in range(0, bytes_out, _COPY_BYTES):
                stream.write(piece[: bytes_out - written])
        return time.perf_counter() - start


def _objects(store: Storage, folder: str) -> Iterator[str]:
    for status in store.list(folder):
        path = f"{folder}/{status.name}"
        if status.is_folder:
            yield from _objects(store, path)
        else:
            yield path


def _median(values: Iterator[float] | list[float]) -> float:
    return round(statistics.median(values), 3)
