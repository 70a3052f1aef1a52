"""Answers of catalogs' servers that are larger than what they are for, or swell when they are read.

What a catalog's name costs is measured in a process of its own: the worst that is within bounds.
"""

from __future__ import annotations

import gzip
import itertools
import json
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compactord.catalog.base import Catalog, TableList
from compactord.catalog.hive.client import HiveClient
from compactord.catalog.hive.options import Security
from compactord.catalog.hive.wire import CALLS
from compactord.catalog.open import open_catalog
from compactord.catalog.rest.access import TableOnServer
from compactord.catalog.rest.client import (
    PAGE_BYTES_MAX,
    SMALL_BYTES_MAX,
    TABLE_BYTES_MAX,
    TOKEN_BYTES_MAX,
)
from compactord.catalog.rest.vended import VendedSpec, client_of
from compactord.clock import SystemClock
from compactord.errors import AccessDenied, CatalogUnavailable, TransientStorageError
from compactord.paimon.schema import TableRef
from compactord.text import shown_text
from tests.storages import MemoryStorage
from tests.unit.catalog import metastore as hive
from tests.unit.catalog.rest_server import Answer, Asked, FakeServer, serving

# The whole process may grow by so much at one answer.
_GROWTH_MIB = 192


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving(FakeServer()) as running:
        yield running


def _catalog(server: FakeServer) -> Catalog:
    return open_catalog("lake", metastore="rest", options=server.options)


def _padded(found: object, size: int) -> bytes:
    """The JSON of an object, with blanks after it."""
    return json.dumps(found).encode().ljust(size)


_TABLE = {"id": "x", "name": "t", "path": "s3://b/t", "isExternal": False, "schemaId": 0}
_REF = TableRef(database="db", name="t", location="s3://b/t")
# The end of a path, its bound, a good answer, and what asks for it.
_CALLS: dict[str, tuple[int, Any, Callable[[FakeServer], object]]] = {
    "config": (SMALL_BYTES_MAX, {}, lambda server: _catalog(server).check_access()),
    "databases": (
        PAGE_BYTES_MAX,
        {"databases": []},
        lambda server: _catalog(server).list_tables(),
    ),
    "tables/t": (
        TABLE_BYTES_MAX,
        {**_TABLE, "schema": {}},
        lambda server: _catalog(server).find_table("db.t"),
    ),
    "t/snapshot": (
        SMALL_BYTES_MAX,
        {"snapshot": {"snapshot": {}}},
        lambda server: _on_server(server).newest_snapshot(),
    ),
    "t/token": (
        TOKEN_BYTES_MAX,
        {"token": {}, "expiresAtMillis": 1 << 60},
        lambda server: _lent(server).opened(lambda *_: (MemoryStorage(), "")),
    ),
    "t/commit": (SMALL_BYTES_MAX, {}, lambda server: _on_server(server).commit({})),
    "partitions/list-by-names": (
        PAGE_BYTES_MAX,
        {"partitions": []},
        lambda server: _on_server(server).are_done([{"p": "1"}]),
    ),
}


_locations = itertools.count()


def _lent(server: FakeServer) -> VendedSpec:
    """Each for the first time: what was lent is known."""
    return VendedSpec(
        location=f"s3://b/{next(_locations)}",
        warehouse="lake",
        table=("db", "t"),
        options=tuple(server.options.items()),
    )


def _on_server(server: FakeServer) -> TableOnServer:
    return TableOnServer(client_of(server.options, server.options, "lake"), "db", "t")


@pytest.mark.parametrize("end", _CALLS)
def test_an_answer_of_a_rest_server_has_a_bound_by_what_it_is_for(
    server: FakeServer, end: str
) -> None:
    bytes_max, good, ask = _CALLS[end]
    size = bytes_max

    def fault(asked: Asked) -> Answer | None:
        return (200, _padded(good, size)) if "/".join(asked.parts).endswith(end) else None

    server.fault = fault
    if end != "t/snapshot":
        ask(server)
    size += 1
    is_sent = end in ("t/commit", "partitions/list-by-names")
    error = TransientStorageError if is_sent else CatalogUnavailable
    with pytest.raises(error, match=r"longer than .* the most that is read.*: http.*" + end):
        ask(server)


def test_a_page_that_is_too_large_is_asked_for_with_fewer_items(server: FakeServer) -> None:
    sizes: list[str] = []

    def fault(asked: Asked) -> Answer | None:
        if asked.parts[-1] != "databases":
            return None
        sizes.append(asked.query["maxResults"])
        is_large = int(sizes[-1]) > 10
        page = {"databases": [], "nextPageToken": None if len(sizes) == 3 else "next"}
        return 200, _padded(page, PAGE_BYTES_MAX + 1 if is_large else 0)

    server.fault = fault
    assert _catalog(server).list_tables() == TableList(tables=(), unreadable={})
    assert sizes == ["100", "10", "10"]


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ({"databases": ["d" * 5000]}, "answered with a database 'dddd"),
        ({"databases": [{"d": "d" * 5000}]}, "answered with a database {'d'"),
        ({"databases": [], "nextPageToken": "x" * 5000}, "its pages lead back"),
    ],
)
def test_names_and_places_have_bounds_too(server: FakeServer, page: Any, text: str) -> None:
    server.fault = lambda asked: (200, page) if asked.parts[-1] == "databases" else None
    try:
        (error,) = _catalog(server).list_tables().unreadable.values()
    except CatalogUnavailable as raised:
        error = raised
    assert text in str(error)
    assert len(str(error)) < 1000


def test_options_that_are_kept_have_a_bound(server: FakeServer) -> None:
    table = {**_TABLE, "schema": {"options": {"owner": "x" * (256 << 10)}}}
    server.fault = lambda asked: (200, table) if asked.parts[-1] == "t" else None
    with pytest.raises(CatalogUnavailable, match="options of more than 262,144 bytes"):
        _catalog(server).find_table("db.t")


def test_an_error_of_any_size_is_that_error(server: FakeServer) -> None:
    body = {"message": "no " * (1 << 20)}
    server.fault = lambda asked: (403, body) if asked.parts[-1] == "databases" else None
    with pytest.raises(AccessDenied) as caught:
        _catalog(server).check_access()
    assert str(caught.value) == f"the server answered 403: {server.uri}/v1/databases"
    body["message"] = "no " * (1 << 10)
    with pytest.raises(AccessDenied, match="the server answered 403: no no"):
        _catalog(server).check_access()


def test_a_text_of_another_program_is_cut_beside_its_secrets() -> None:
    assert shown_text("no " * 5000) == ("no " * 100)
    cut = "x " + "y" * 2950 + " https://host/?" + "a" * 20 + "password=hunter2 " * 9
    assert "hunter2" not in shown_text(cut)
    assert shown_text("a\nb") == "a\\nb"


def test_what_was_packed_is_not_unpacked() -> None:
    """A few bytes could be any number of them."""
    body = gzip.compress(b'{"databases": []}' + bytes(100 << 20))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)

    def answer(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(head + body)

    with hive.listening(answer) as uri:
        options = {"uri": uri.replace("thrift", "http"), "token.provider": "bear", "token": "x"}
        with pytest.raises(CatalogUnavailable, match=r"compressed its answer \('gzip'\) unasked"):
            open_catalog("lake", metastore="rest", options=options).check_access()


def test_a_list_of_tables_without_an_end_ends() -> None:
    endless = (
        TableRef(database="db", name=f"t{number}", location="x" * 500)
        for number in itertools.count()
    )
    with pytest.raises(CatalogUnavailable, match=r"names more than 1,04\d tables"):
        TableList.of(["db"], lambda _: endless, bytes_max=1 << 20)
    databases = (f"db{number}" for number in itertools.count())
    with pytest.raises(CatalogUnavailable, match="names more than 0 tables"):
        TableList.of(databases, lambda _: (), bytes_max=1 << 20)


# Messages of Thrift: a reply, and the field of its value.
def _reply(name: str, body: bytes) -> bytes:
    head = b"\x80\x01\0\x02" + struct.pack("!i", len(name)) + name.encode() + b"\0\0\0\0"
    return head + body


def _list_of(kind: bytes, count: int, items: bytes = b"") -> bytes:
    return b"\x0f\0\0" + kind + struct.pack("!i", count) + items


_TEXT, _STRUCT = b"\x0b", b"\x0c"
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "get_all_databases": (),
    "get_all_tables": ("d",),
    "get_table": ("d", "t"),
    "get_table_objects_by_name": ("d", ["t"]),
    "get_partition": ("d", "t", ["1"]),
    "drop_partition": ("d", "t", ["1"], False),
}


def _lying(answer: bytes) -> Any:
    def said(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        try:
            for start in range(0, len(answer), 1 << 20):
                connection.sendall(answer[start : start + (1 << 20)])
        except OSError:
            return

    return hive.listening(said)


def _call(uri: str, name: str) -> object:
    address = ("127.0.0.1", int(uri.rpartition(":")[2]))
    client = HiveClient([address], uri, SystemClock(), Security())
    return client._call(name, *_ARGUMENTS[name])


_LISTS = ("get_all_databases", "get_all_tables", "get_table_objects_by_name")


@pytest.mark.parametrize(
    ("way", "name"),
    [
        *(("bytes", name) for name in _ARGUMENTS),
        *(("items", name) for name in _LISTS),
        *(("text", name) for name in _LISTS[:2]),
    ],
)
def test_a_call_of_a_metastore_has_a_bound_by_what_it_is_for(way: str, name: str) -> None:
    """By what is sent, fields that are not looked at included, and by what is announced."""
    bound = CALLS[name].bound
    half = bound.bytes_max // 2
    body = {
        "bytes": (b"\x0b\0\x63" + struct.pack("!i", half) + bytes(half)) * 2,
        "items": _list_of(_STRUCT if name == _LISTS[2] else _TEXT, bound.items_max + 1),
        "text": _list_of(_TEXT, 1, struct.pack("!i", bound.bytes_max + 1)),
    }[way]
    with _lying(_reply(name, body)) as uri, pytest.raises(CatalogUnavailable) as caught:
        _call(uri, name)
    text = f"the answer to {name} has more than {bound.items_max:,} items in a list, or than"
    assert text in str(caught.value)


def test_a_batch_of_tables_that_is_too_large_says_what_to_do() -> None:
    advice = r"a lower hive\.metastore\.batch\.retrieve"
    with (
        _lying(_reply("get_table_objects_by_name", _list_of(_STRUCT, 3000))) as uri,
        pytest.raises(CatalogUnavailable, match=advice),
    ):
        _call(uri, "get_table_objects_by_name")


_NESTED = {
    "structs": b"\x0c\0\x63" * 1_000_000,
    "lists": b"\x0f\0\x63" + b"\x0f\0\0\0\1" * 1_000_000,
}


@pytest.mark.parametrize("kind", _NESTED)
def test_what_is_nested_without_an_end_is_no_answer(kind: str) -> None:
    """It ended the process, by a signal, with Thrift before 0.25."""
    with (
        _lying(_reply("get_all_databases", _NESTED[kind])) as uri,
        pytest.raises(CatalogUnavailable, match="this is not a metastore"),
    ):
        _call(uri, "get_all_databases")


_MEASURED = """
import re, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.unit.catalog import test_swelling_answers as swelling
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
swelling.warm()
before = peak()
swelling.ask({kind!r}, {uri!r}, {name!r})
print(peak() - before)
"""


def warm() -> None:
    """Import what a call needs."""
    for kind in ("rest", "hive"):
        ask(kind, "http://127.0.0.1:1", "get_all_databases")


def ask(kind: str, uri: str, name: str) -> None:
    """One call, whatever becomes of it."""
    try:
        if kind == "hive":
            _call(uri, name)
        else:
            options = {"uri": uri, "token.provider": "bear", "token": "hunter2"}
            catalog = open_catalog("lake", metastore="rest", options=options)
            catalog.list_tables() if name == "databases" else catalog.find_table("db.t")
    except CatalogUnavailable as error:
        print(str(error)[:200], file=sys.stderr)


def _filled(piece: str, size: int) -> str:
    return ",".join([piece] * (size // (len(piece) + 1)))


_JSON: dict[str, Callable[[int], str]] = {
    "mappings": lambda size: _filled('{"":{}}', size),
    "keys": lambda size: "{" + ",".join(f'"{n:x}":0' for n in range(size // 10)) + "}",
    "texts": lambda size: _filled('"\u0100"', size * 4 // 5),
    "one wide text": lambda size: '"\U0001f600' + "a" * (size - 100) + '"',
}


def _growth(kind: str, uri: str, name: str) -> float:
    root = str(Path(__file__).parents[3])
    code = _MEASURED.format(root=root, kind=kind, uri=uri, name=name)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=170
    )
    print(f"{name}: {float(done.stdout):.0f} MiB, {done.stderr.splitlines()[-1:]}")
    return float(done.stdout)


@pytest.mark.parametrize("shape", _JSON)
def test_the_worst_answer_of_a_rest_server_is_within_bounds(server: FakeServer, shape: str) -> None:
    for end, room, bytes_max in (
        ("databases", '{"databases": [], "x": [%s]}', PAGE_BYTES_MAX),
        ("t", '{"id": 1, "schema": [%s]}', TABLE_BYTES_MAX),
    ):
        found = (room % _JSON[shape](bytes_max - 100)).encode()
        assert bytes_max * 0.7 < len(found) <= bytes_max
        server.fault = lambda asked, end=end, found=found: (
            (200, found) if asked.parts[-1] == end else None
        )
        assert _growth("rest", server.uri, end) < _GROWTH_MIB


def _distinct(count: int) -> bytes:
    return b"".join(b"\0\0\0\3" + f"{n:03x}".encode()[-3:] + b"\0\0\0\0" for n in range(count))


def _worst(name: str) -> bytes:
    """As many objects as the bounds of the call let through."""
    bound = CALLS[name].bound
    mapping = b"\x0d\0%c\x0b\x0b" + struct.pack("!i", 2000) + _distinct(2000)
    column = b"\x0b\0\1\0\0\0\0\0"
    if name == "get_table_objects_by_name":
        one = mapping % 9 + b"\0"
        count = min(bound.items_max, (bound.bytes_max - 1000) // len(one))
        return _list_of(_STRUCT, count, one * count) + b"\0"
    if name == "get_table":
        count = min(bound.items_max, bound.bytes_max // len(column) // 3)
        columns = b"".join(
            b"\x0f\0%c\x0c" % field + struct.pack("!i", count) + column * count for field in (1, 9)
        )
        return b"\x0c\0\0" + b"\x0c\0\7" + columns + b"\0\0\0"
    texts = b"".join(b"\0\0\0\5" + f"{n:05x}".encode() for n in range(bound.items_max))
    return _list_of(_TEXT, bound.items_max, texts) + b"\0"


@pytest.mark.parametrize(
    "name", ["get_all_databases", "get_all_tables", "get_table", "get_table_objects_by_name"]
)
def test_the_worst_answer_of_a_metastore_is_within_bounds(name: str) -> None:
    with _lying(_reply(name, _worst(name))) as uri:
        assert _growth("hive", uri, name) < _GROWTH_MIB
