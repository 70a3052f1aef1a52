"""Servers of catalogs that lie: nothing of this process leaves it, and nothing of it is opened."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from compactord.catalog.open import open_catalog
from compactord.cli.registries import Registries
from compactord.cli.serve import load_usable
from compactord.config.problems import ConfigInvalid
from compactord.errors import CatalogOptionInvalid, CompactordError, UnsupportedTable, UsageError
from compactord.storage.local import LocalStorage
from compactord.storage.open import STORES
from compactord.text import escaped, resolve
from tests.builders import keyed_table
from tests.unit.catalog import metastore as hive
from tests.unit.catalog.rest_server import FakeServer, FakeTable, serving
from tests.unit.cli.warehouses import configuration

_SECRET = "the secret of the operator"
_KEYS = {"s3.access-key": f"id of {_SECRET}", "s3.secret-key": _SECRET}
_LENT = {"s3.access-key": "lent", "s3.secret-key": "lent", "s3.region": "r"}
_OPERATORS = {**_KEYS, "s3.session-token": _SECRET, "s3.region": "r"}


@dataclass(slots=True)
class _Recorder:
    """A store of the liar's, which keeps all that it is sent."""

    url: str = ""
    heard: bytes = b""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            said = connection.recv(1 << 16)
            with self.lock:
                self.heard += said
            connection.sendall(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@pytest.fixture
def store() -> Iterator[_Recorder]:
    recorder = _Recorder()
    with hive.listening(recorder.answer) as uri:
        recorder.url = uri.replace("thrift", "http")
        yield recorder


@pytest.fixture(autouse=True)
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A variable, the machine's own keys, and a file that a server would like to have."""
    for name in ("LIAR_WANTS", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, _SECRET)
    path = tmp_path / "wanted"
    path.write_text(_SECRET)
    return path


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """The place of a table whose schema the REST server tells."""
    return keyed_table(LocalStorage(), str(tmp_path / "t")).location


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lie:
    """What a server answers for the table db.t, and the error of the table; empty: any, or none.

    `ENV`, `FILE`, `PATH` and `STORE` stand for references to the secret, its path and the liar.
    """

    location: str = "s3://b/t"
    defaults: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    token: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    is_asked: bool = False


_SIDES = "supplies no keys for the store"
_LIES = {
    "a variable in an option": _Lie(
        overrides={**_LENT, "s3.endpoint": "STORE", "s3.access-key": "ENV"}, is_asked=True
    ),
    "a file in an option": _Lie(
        defaults={**_LENT, "s3.endpoint": "STORE", "s3.access-key": "FILE"}, is_asked=True
    ),
    "a variable in an address": _Lie(
        overrides={**_LENT, "s3.endpoint": "STORE/ENV"}, is_asked=True
    ),
    "a variable in a key that is lent": _Lie(
        token={**_LENT, "s3.endpoint": "STORE", "s3.access-key": "ENV"}, is_asked=True
    ),
    "a file in a token that is lent": _Lie(
        token={**_LENT, "s3.endpoint": "STORE", "s3.session-token": "FILE"}, is_asked=True
    ),
    "a variable in a header": _Lie(defaults={"header.X-Leak": "ENV"}, location="file:/x"),
    "a file in the prefix": _Lie(overrides={"prefix": "FILE"}, location="file:/x"),
    "a variable in a location": _Lie(
        location="s3://ENV/t", error="the bucket's name has other characters"
    ),
    "a file as a location": _Lie(location="FILE", error="does not open file: locations"),
    "another server": _Lie(overrides={"uri": "STORE", "token": "x"}, location="file:/x"),
    "local files": _Lie(location="file:///etc", error="does not open file: locations"),
    "local files by a path": _Lie(location="/etc", error="does not open file: locations"),
    "fsspec": _Lie(
        overrides={"fsspec.enabled": "true", "fsspec.host": "ENV"},
        location="memory://b/t",
        error="does not open memory: locations",
    ),
    "fsspec's local files": _Lie(
        location="local:///etc",
        error="does not open local: locations",
    ),
    "another scheme of fsspec's": _Lie(location="ftp://b/t", error="allow_schemes"),
    "an address for the operator's keys": _Lie(
        own=_OPERATORS, overrides={"s3.endpoint": "STORE"}, error=f"s3.endpoint but {_SIDES}"
    ),
    "a default address for the operator's keys": _Lie(
        own=_OPERATORS, defaults={"s3.endpoint": "STORE"}, error=_SIDES
    ),
    "an address for the machine's keys": _Lie(
        overrides={"s3.endpoint": "STORE", "s3.region": "r"}, error=_SIDES
    ),
    "an address lent for the operator's keys": _Lie(
        own=_OPERATORS, token={"s3.endpoint": "STORE"}, error=_SIDES
    ),
    "a region that is an address": _Lie(
        own=_KEYS, overrides={"s3.region": "evil.example/"}, error=_SIDES
    ),
    "a role for the operator's keys": _Lie(
        own=_OPERATORS, overrides={"s3.assumed.role.arn": "arn:x"}, error=_SIDES
    ),
    "keys of which one is the operator's": _Lie(
        own=_OPERATORS, overrides={**_LENT, "s3.endpoint": "STORE"}, error=_SIDES
    ),
    "a provider of the machine's keys": _Lie(
        overrides={
            **_LENT,
            "s3.endpoint": "STORE",
            "s3.aws.credentials.provider": "EnvironmentVariableCredentialsProvider",
        },
        error=_SIDES,
    ),
    "a proxy": _Lie(own=_OPERATORS, overrides={"s3.proxy.host": "STORE"}, error="no such option"),
    "a path of a key of Google's": _Lie(
        location="gs://b/t",
        overrides={
            "fs.gs.auth.service.account.json.keyfile": "PATH",
            "fs.gs.storage.root.url": "STORE",
        },
        error=_SIDES,
    ),
    "a host in a location for a signature of Azure's": _Lie(
        location="abfss://c@account.evil.example/t",
        own={"fs.azure.sas.fixed.token": f"sig={_SECRET}"},
        error="send the catalog's key to account.evil.example",
    ),
    "a host that looks like one of Azure's": _Lie(
        location="abfss://c@evil.example#.dfs.core.windows.net/t",
        own={"fs.azure.account.key": _SECRET},
        error="the bucket's name has other characters",
    ),
    "a host and an option that names it": _Lie(
        location="abfss://c@account.evil.example/t",
        own={"fs.azure.account.key": _SECRET},
        overrides={"fs.azure.x.account.evil.example": "y"},
        error="send the catalog's key to account.evil.example",
    ),
    "an address for a key of Azure's": _Lie(
        location="abfss://c@account.dfs.core.windows.net/t",
        own={"fs.azure.account.key": _SECRET},
        overrides={"fs.azure.abfs.endpoint": "STORE"},
        error=_SIDES,
    ),
    "an identity of Azure's for the whole process": _Lie(
        location="abfss://c@account.dfs.core.windows.net/t",
        overrides={
            "fs.azure.account.auth.type": "OAuth",
            "fs.azure.account.oauth.provider.type": "ClientCredsTokenProvider",
            "fs.azure.account.oauth2.client.endpoint": "https://evil.example/tenant/oauth2/token",
            "fs.azure.account.oauth2.client.id": "x",
            "fs.azure.account.oauth2.client.secret": "x",
        },
        error=_SIDES,
    ),
    "a token's file of Azure's": _Lie(
        location="abfss://c@account.dfs.core.windows.net/t",
        token={
            "fs.azure.account.auth.type": "OAuth",
            "fs.azure.account.oauth.provider.type": "WorkloadIdentityTokenProvider",
            "fs.azure.account.oauth2.token.file": "PATH",
        },
        error=_SIDES,
    ),
    "an address for the machine's keys of OSS": _Lie(
        location="oss://b/t", overrides={"fs.oss.endpoint": "STORE"}, error=_SIDES
    ),
    "a NUL": _Lie(overrides={"s3.endpoint": "a\0b"}, error="an option 's3.endpoint' that is no"),
    "half a sign": _Lie(token={"s3.access-key": "\ud800"}, error="an option 's3.access-key' that"),
}


@pytest.mark.parametrize("name", _LIES)
def test_a_lie_of_a_rest_server_ends_in_an_error_by_name(
    name: str, store: _Recorder, secret: Path, lake: str
) -> None:
    lie, known = _LIES[name], {"FILE": f"${{file:{secret}}}", "ENV": "${env:LIAR_WANTS}"}
    known |= {"PATH": str(secret), "STORE": store.url}

    def told(text: str) -> str:
        for word, meant in known.items():
            text = text.replace(word, meant)
        return text

    def options(given: Mapping[str, str]) -> dict[str, Any]:
        return {key: told(text) for key, text in given.items()}

    with serving(FakeServer()) as server:
        server.tables["db.t"] = FakeTable(path=lake, shown=told(lie.location), id="x")
        server.defaults, server.overrides = options(lie.defaults), options(lie.overrides)
        if lie.token:
            server.overrides["data-token.enabled"] = "true"
            server.lend = lambda _: {"token": options(lie.token), "expiresAtMillis": 1 << 60}
        found: list[str] = []
        try:
            given = {**server.options, **lie.own}
            catalog = open_catalog("lake", metastore="rest", options=given, is_guarded=True)
            catalog.list_tables()
            catalog.open(catalog.find_table("db.t")).newest_schema()
        except CompactordError as error:
            found = [str(error)]
        assert found, "there is no table"
        assert lie.error in found[0]
        heard = (repr(server.asked).encode() + store.heard).replace(b"%20", b" ")
        assert _SECRET.encode() not in heard
        assert _SECRET not in found[0]
        assert (store.heard != b"") == lie.is_asked


@pytest.mark.parametrize(
    ("warehouse", "location", "own", "error"),
    [
        ("s3://b/wh", "s3://${env:LIAR_WANTS}/t", {}, "the bucket's name has other characters"),
        ("s3://b/wh", "file:/etc", {}, "does not open file: locations"),
        ("s3://b/wh", "/etc", {}, "does not open file: locations"),
        ("s3://b/wh", "${file:/etc/passwd}", {}, "does not open file: locations"),
        ("/wh", "memory://b/t", {}, "does not open memory: locations"),
        ("memory://h/wh", "local://b/etc", {}, "does not open local: locations"),
        (
            "/wh",
            "abfss://c@a.evil.example/t",
            {"fs.azure.account.key": _SECRET},
            "send the catalog's key to a.evil.example",
        ),
    ],
)
def test_a_lie_of_a_metastore_ends_in_an_error_by_name(
    warehouse: str, location: str, own: dict[str, str], error: str
) -> None:
    """Its other tables are opened, and what it says in parameters of tables opens nothing."""
    parameters = {"s3.endpoint": "${env:LIAR_WANTS}", "fsspec.enabled": "true"}
    good = f"{warehouse}/d.db/u"
    lies = hive.Metastore(
        hive.table("d", "t", location, parameters=parameters),
        hive.table("d", "u", good, parameters=parameters),
    )
    given = {"s3.region": "r", "s3.endpoint": "http://127.0.0.1:9", **own}
    with hive.running(lies) as uri:
        options = {"uri": uri, "lock.enabled": "true", **given}
        catalog = open_catalog(warehouse, metastore="hive", options=options)
        first, second = catalog.list_tables().tables
        with pytest.raises(UnsupportedTable) as caught:
            catalog.open(first)
        assert error in str(caught.value)
        assert _SECRET not in str(caught.value)
        assert catalog.open(second).ref.location == good


def test_the_options_of_a_table_are_texts(lake: str) -> None:
    """Whatever they look like: any writer of the table sets them, and so does the server."""
    path = Path(lake, "schema", "schema-0")
    schema = json.loads(path.read_text())
    schema["options"] |= {"owner": "${env:LIAR_WANTS}", "s3.endpoint": "${env:LIAR_WANTS}"}
    path.write_text(json.dumps(schema))
    with serving(FakeServer()) as server:
        server.tables["db.t"] = FakeTable(path=lake, id="x")
        catalog = open_catalog(
            "lake", metastore="rest", options=server.options, allow_schemes=["file"]
        )
        access = catalog.open(catalog.find_table("db.t"))
        assert access.newest_schema().options["owner"] == "${env:LIAR_WANTS}"
        assert _SECRET not in repr(server.asked)


@pytest.mark.parametrize("text", ["${env:HOME}", "$${env:HOME}", "a$${", "$", "${", "$$${x}}", ""])
def test_an_escaped_text_stands_for_itself(text: str) -> None:
    assert resolve(escaped(text)) == text


def test_a_servers_folder_of_hadoops_files_is_not_read() -> None:
    key = "hadoop-conf-dir"
    found = STORES.located("hdfs://nn/t", {key: "/nowhere"}, {key})
    assert found.path == "hdfs://nn/t"
    with pytest.raises(CatalogOptionInvalid):
        STORES.located("hdfs://nn/t", {key: "/nowhere"}, set())


@pytest.mark.parametrize(
    ("options", "served", "is_opened"),
    [
        ({"fs.azure.account.key": "k"}, (), False),
        ({"fs.azure.account.key": "k"}, ("fs.azure.account.key",), True),
        ({"fs.azure.account.key.a.private.example": "k"}, (), True),
        ({"fs.azure.account.key": "k", "fs.azure.abfs.endpoint": "https://h"}, (), True),
    ],
)
def test_a_host_of_ones_own_needs_a_key_by_name(
    options: dict[str, str], served: tuple[str, ...], *, is_opened: bool
) -> None:
    location = "abfss://c@a.private.example/t"
    refused = pytest.raises(UsageError, match="refusing to send")
    with contextlib.nullcontext() if is_opened else refused:
        STORES.located(location, options, served)
    own = STORES.limited(["abfss://other@a.private.example/wh"], ())
    assert own.located(location, options, served).path == location


@pytest.mark.parametrize(
    ("uri", "asked"),
    [
        ("http://catalog.example.com", None),
        ("HTTP://catalog.example.com", None),
        ("http://127.0.0.1.example.com", None),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://[::1]:8080/", "http://[::1]:8080"),
        ("http://localhost", "http://localhost"),
        ("https://catalog.example.com/", "https://catalog.example.com"),
        ("catalog.example.com:8443", "https://catalog.example.com:8443"),
        ("localhost:8080", "https://localhost:8080"),
    ],
)
def test_a_server_elsewhere_is_asked_with_tls(uri: str, asked: str | None, tmp_path: Path) -> None:
    options = {"uri": uri, "token.provider": "bear", "token": "x"}
    section = f"metastore: rest, warehouse: lake, options: {json.dumps(options)}"
    path = configuration(tmp_path, f"catalogs: {{p: {{{section}}}}}")
    if asked is None:
        with pytest.raises(CatalogOptionInvalid, match="allow_http: true"):
            open_catalog("lake", metastore="rest", options=options)
        with pytest.raises(ConfigInvalid, match=r"catalogs\.p\.options\.uri.*\n?.*allow_http"):
            load_usable(path, (), Registries())
    else:
        assert open_catalog("lake", metastore="rest", options=options).warehouse == asked
    allowing = load_usable(path, ["catalogs.p.allow_http=true"], Registries())
    assert allowing.config.catalogs["p"].allow_http
    catalog = open_catalog("lake", metastore="rest", options=options, allow_http=True)
    assert catalog.warehouse.lower() == (asked or uri).lower()
    assert [check.name for check in catalog.checks()] == ([] if asked else ["TLS"])
