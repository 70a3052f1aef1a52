"""A small REST server in a thread, over tables in folders; faults by request."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlsplit

from compactord.paimon.paths import snapshot_path
from compactord.paimon.schema import latest_schema
from compactord.paimon.snapshot import latest_snapshot_id, read_snapshot, snapshot_json
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from compactord_demo.schema_files import schema_json

TOKEN = "hunter2"
Answer = tuple[int, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request: the parts of its path after `/v1`, decoded."""

    method: str
    parts: tuple[str, ...]
    raw_path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass(slots=True, kw_only=True)
class FakeTable:
    """`shown` is told in the place of the path."""

    path: str
    shown: str = ""
    id: str
    is_external: bool = False
    type: str = "table"


def missing(kind: str) -> Answer:
    return 404, {"resourceType": kind, "message": f"no {kind}", "code": 404}


@dataclass(slots=True)
class FakeServer:
    """Tables lie in `storage`.

    `fault` may answer in the server's place: what it returns, or by raising; None: go on. `after`
    is called once the answer is known; an exception of it closes the connection.
    """

    tables: dict[str, FakeTable] = field(default_factory=dict)
    storage: Storage = field(default_factory=LocalStorage)
    defaults: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    page_size: int = 100
    token: str = TOKEN
    fault: Callable[[Asked], Answer | None] = lambda _: None
    after: Callable[[Asked], Answer | None] = lambda _: None
    # What is lent of a table's store.
    lend: Callable[[str], dict[str, Any]] = lambda _: {}
    asked: list[Asked] = field(default_factory=list)
    # What the commits said of partitions, added up as a server does.
    sums: dict[str, dict[str, int]] = field(default_factory=dict)
    # The partitions that were marked done.
    marked: list[dict[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    uri: str = ""

    @property
    def options(self) -> dict[str, str]:
        return {"uri": self.uri, "token.provider": "bear", "token": self.token}

    def calls(self) -> list[str]:
        """What was asked since the last call, in short."""
        found = [f"{one.method} {'/'.join(one.parts[-2:])}" for one in self.asked]
        self.asked.clear()
        return found

    def answer(self, asked: Asked) -> Answer:
        with self.lock:
            self.asked.append(asked)
        found = self.fault(asked)
        if found is None:
            with self.lock:
                found = self._answer(asked)
            found = self.after(asked) or found
        return found

    def _answer(self, asked: Asked) -> Answer:
        if asked.headers.get("Authorization") != f"Bearer {self.token}":
            return 401, None
        prefix = self.overrides.get("prefix") or self.defaults.get("prefix")
        parts = asked.parts
        if parts == ("config",):
            return 200, {"defaults": self.defaults, "overrides": self.overrides}
        if prefix is not None and parts[0] != prefix:
            return 404, None
        match parts[1:] if prefix is not None else parts:
            case ("databases",):
                names = sorted({name.partition(".")[0] for name in self.tables})
                return 200, self._page(asked, "databases", names)
            case ("databases", database, "table-details"):
                names = sorted(name for name in self.tables if name.startswith(f"{database}."))
                page = self._page(asked, "tableDetails", names)
                return 200, {**page, "tableDetails": [*map(self._details, page["tableDetails"])]}
            case ("databases", database, "tables", table, *rest):
                name = f"{database}.{table}"
                if name not in self.tables:
                    return missing("TABLE")
                return self._of_table(name, tuple(rest), asked.body)
        return 404, None

    def _of_table(self, name: str, rest: tuple[str, ...], body: Any) -> Answer:
        table = self.tables[name]
        if rest == ():
            return 200, self._details(name)
        if rest == ("token",):
            return 200, self.lend(name)
        newest = latest_snapshot_id(self.storage, table.path)
        snapshot = read_snapshot(self.storage, table.path, newest) if newest else None
        if rest == ("snapshot",):
            if snapshot is None:
                return missing("SNAPSHOT")
            return 200, {"snapshot": {"snapshot": json.loads(snapshot_json(snapshot))}}
        if rest == ("partitions", "mark"):
            self.marked += body["specs"]
            return 200, None
        if rest == ("partitions", "list-by-names"):
            known = [{"spec": spec, "done": spec in self.marked} for spec in body["specs"]]
            return 200, {"partitions": known[::-1]}
        assert rest == ("commit",)
        if body["tableId"] != table.id:
            return missing("TABLE")
        if body["baseSnapshotUuid"] != (snapshot.uuid if snapshot else None):
            return 200, {"success": False}
        path = snapshot_path(table.path, body["snapshot"]["id"])
        self.storage.write_new(path, json.dumps(body["snapshot"]).encode())
        for one in body["statistics"]:
            sums = self.sums.setdefault(json.dumps(one.pop("spec")), {})
            for key, value in one.items():
                sums[key] = value if key in _NEWEST else sums.get(key, 0) + value
        return 200, {"success": True}

    def _details(self, name: str) -> dict[str, Any]:
        table, database = self.tables[name], name.partition(".")[0]
        schema: dict[str, Any] = {"fields": [], "options": {}}
        if table.type == "table":
            schema = json.loads(schema_json(latest_schema(self.storage, table.path)))
        return {
            "id": table.id,
            "database": database,
            "name": name.partition(".")[2],
            "path": table.shown or table.path,
            "isExternal": table.is_external,
            "schemaId": schema.pop("id", 0),
            "schema": {
                **{key: schema.get(key, []) for key in ("fields", "partitionKeys", "primaryKeys")},
                "options": {**schema["options"], "type": table.type},
            },
        }

    def _page(self, asked: Asked, key: str, items: list[Any]) -> dict[str, Any]:
        first = int(asked.query.get("pageToken", "0"))
        end = first + self.page_size
        page: dict[str, Any] = {key: items[first:end]}
        if end < len(items):
            page["nextPageToken"] = str(end)
        return page


_NEWEST = ("lastFileCreationTime", "totalBuckets")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HttpServer

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        parts = urlsplit(self.path)
        asked = Asked(
            method=self.command,
            parts=tuple(map(unquote_plus, parts.path.removeprefix("/v1/").split("/"))),
            raw_path=parts.path,
            query={key: values[0] for key, values in parse_qs(parts.query).items()},
            headers=dict(self.headers),
            body=json.loads(body) if body else None,
        )
        try:
            status, found = self.server.fake.answer(asked)
        except ConnectionError:
            self.close_connection = True
            return
        data = found if isinstance(found, bytes) else json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) if found is not None else 0))
        self.end_headers()
        self.wfile.write(data if found is not None else b"")

    do_GET = do_POST = _serve  # noqa: N815 - the names that http.server looks for

    def log_message(self, *_: object) -> None: ...


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    fake: FakeServer


@contextlib.contextmanager
def serving(fake: FakeServer) -> Iterator[FakeServer]:
    """The server at an address of its own."""
    with _HttpServer(("127.0.0.1", 0), _Handler) as server:
        server.fake = fake
        fake.uri = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
