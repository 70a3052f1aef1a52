"""Servers of catalogs for what is measured, in threads of this process, each request delayed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from compactord.storage.base import Storage
from tests.bench.bench_polls import DELAY_MS
from tests.unit.catalog import metastore, rest_server


class Requests:
    """Every request, whoever is asked: what it is, and when it is answered."""

    def __init__(self) -> None:
        self.log: list[tuple[str, float]] = []

    def ask(self, what: str) -> None:
        time.sleep(DELAY_MS / 1000)
        self.log.append((what, time.perf_counter()))

    def taken(self) -> list[tuple[str, float]]:
        """Those since the last time."""
        found, self.log = self.log, []
        return found


@dataclass(slots=True)
class _RestServer(rest_server.FakeServer):
    """Schemas stay as they are: each is read once."""

    read: dict[str, dict[str, Any]] = field(default_factory=dict)

    def _details(self, name: str) -> dict[str, Any]:
        table = self.tables[name]
        if table.path not in self.read:
            self.read[table.path] = rest_server.FakeServer._details(self, name)
        own = {"id": table.id, "name": name.partition(".")[2], "path": table.shown}
        return {**self.read[table.path], **own}


class _Metastore(metastore.Metastore):
    def __init__(self, requests: Requests) -> None:
        super().__init__()
        self._requests = requests

    def answer(self, name: str, arguments: Sequence[Any]) -> Any:
        self._requests.ask(name)
        return super().answer(name, arguments)


@contextlib.contextmanager
def rest_options(
    paths: Mapping[str, str], storage: Storage, scheme: str, requests: Requests
) -> Iterator[dict[str, str]]:
    """A client's options for a server of tables, by full names, at paths of the store."""
    server = _RestServer(storage=storage)
    server.fault = lambda asked: requests.ask(f"{asked.method} {asked.raw_path}")
    for name, path in paths.items():
        shown = f"{scheme}{path}"
        server.tables[name] = rest_server.FakeTable(path=path, shown=shown, id=f"uuid of {name}")
    with rest_server.serving(server):
        yield server.options


@contextlib.contextmanager
def hive_options(
    paths: Mapping[str, str], storage: Storage, scheme: str, requests: Requests
) -> Iterator[dict[str, str]]:
    """As `rest_options`, for a metastore, which needs no store."""
    del storage
    running = _Metastore(requests)
    for name, path in paths.items():
        database, _, table = name.partition(".")
        running.tables.append(metastore.table(database, table, f"{scheme}{path}"))
    with metastore.running(running) as uri:
        yield {"uri": uri}


# By the name of the metastore in a configuration.
OPTIONS: Mapping[
    str,
    Callable[[Mapping[str, str], Storage, str, Requests], AbstractContextManager[dict[str, str]]],
] = {"rest": rest_options, "hive": hive_options}
