"""The Hive catalog against a metastore in a thread: tables, addresses, errors."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TMessageType

from compactord.catalog.base import Catalog
from compactord.catalog.hive import wire
from compactord.catalog.hive.catalog import INPUT, OUTPUT
from compactord.catalog.hive.client import HiveClient
from compactord.catalog.hive.options import Security
from compactord.catalog.open import open_catalog
from compactord.cli.registries import Registries
from compactord.cli.serve import check_online, load_usable
from compactord.clock import SystemClock
from compactord.commit.publish import LockedPublisher
from compactord.errors import (
    CatalogDown,
    CatalogOptionInvalid,
    CatalogUnavailable,
    TableNotFound,
    UnsupportedTable,
)
from compactord.paimon.schema import TableRef
from compactord.storage.local import LocalStorage
from compactord.table.opening import open_table
from tests.builders import append_table
from tests.store_servers import free_port
from tests.unit.catalog.metastore import Metastore, Stream, listening, running, table
from tests.unit.catalog.rest_server import FakeServer, FakeTable, serving
from tests.unit.cli.warehouses import answered, configuration, keyed

_S3 = {"s3.region": "r"}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as open_things:
        yield open_things


def _catalog(uri: str, warehouse: str = "/wh", **options: str) -> Catalog:
    return open_catalog(warehouse, metastore="hive", options={"uri": uri, **options})


def test_tables_are_listed_in_batches_and_others_passed_by(stack: ExitStack) -> None:
    names = [f"t{number}" for number in range(7)]
    foreign = {
        "hive": ("org.apache.hadoop.mapred.TextInputFormat", "o"),
        "half": (INPUT, "org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat"),
        "other_half": ("i", OUTPUT),
        "view": (None, None),
    }
    metastore = Metastore(
        *(table("a", name, f"file:/x/{name}") for name in names),
        *(table("a", name, "file:/x", formats=formats) for name, formats in foreign.items()),
        table("b", "t", "file:/y"),
    )
    given = {"hive.metastore.batch.retrieve.max": "3"}
    catalog = _catalog(stack.enter_context(running(metastore)), **given)
    found = catalog.list_tables()
    assert [each.full_name for each in found.tables] == [*(f"a.{name}" for name in names), "b.t"]
    assert found.tables[-1] == TableRef(database="b", name="t", location="/y", identity="b.t.7")
    batches = [given[1] for name, given in metastore.calls if name.endswith("by_name")]
    assert [len(batch) for batch in batches] == [3, 3, 3, 2, 1]


def test_a_database_that_cannot_be_listed_is_named(stack: ExitStack) -> None:
    metastore = Metastore(table("a", "t", "file:/x"))
    metastore.broken.add("get_all_tables")
    catalog = _catalog(stack.enter_context(running(metastore)))
    found = catalog.list_tables()
    assert found.tables == ()
    assert "MetaException: out of order" in str(found.unreadable["a"])


@pytest.mark.parametrize(
    ("location", "parameters", "options", "expected"),
    [
        ("file:/x/t", {}, {}, "/x/t"),
        ("s3a://b/t", {}, _S3, "s3a://b/t"),
        ("file:/x/t", {"paimon_location": "file:/y"}, {}, "/x/t"),
        ("file:/x/t", {"paimon_location": "file:/y"}, {"location-in-properties": "true"}, "/y"),
        ("file:/x/t", {}, {"location-in-properties": "true"}, "/x/t"),
        (None, None, {}, "/wh/d.db/t"),
        ("/x/t", {}, {}, "/x/t"),
        ("/x/t", {}, {"fs.defaultFS": "s3a://b", **_S3}, "s3a://b/x/t"),
    ],
)
def test_where_a_table_lies(
    stack: ExitStack,
    location: str | None,
    parameters: dict[str, str] | None,
    options: dict[str, str],
    expected: str,
) -> None:
    metastore = Metastore(table("d", "t", location, parameters=parameters))
    options = {"lock.enabled": "true", **options}
    catalog = _catalog(stack.enter_context(running(metastore)), **options)
    ref = catalog.find_table("d.t")
    assert ref == catalog.list_tables().tables[0] == catalog.open(ref).ref
    assert (ref.location, ref.identity) == (expected, "d.t.7")
    branch = catalog.find_table("d.t$branch_b")
    assert catalog.open(branch).ref.root == f"{expected}/branch/branch-b"


def test_a_table_that_was_made_again_has_another_identity(stack: ExitStack) -> None:
    metastore = Metastore(table("d", "t", "file:/x"))
    catalog = _catalog(stack.enter_context(running(metastore)))
    ref = catalog.find_table("d.t")
    metastore.tables = [table("d", "t", "file:/y", created_s=8)]
    again = catalog.open(ref).ref
    assert (again.location, again.identity) == ("/y", "d.t.8")


def test_a_table_whose_location_disappeared_is_named_and_the_next_one_is_read(
    stack: ExitStack, tmp_path: Path
) -> None:
    for name in ("t", "u"):
        append_table(LocalStorage(), f"{tmp_path}/{name}")
    metastore = Metastore(*(table("d", name, f"file:{tmp_path}/{name}") for name in ("t", "u")))
    catalog = _catalog(stack.enter_context(running(metastore)))
    gone, there = catalog.list_tables().tables
    shutil.rmtree(gone.location)
    with pytest.raises(TableNotFound, match=f"{tmp_path}/t has no schema"):
        open_table(catalog.open(gone), {})
    assert open_table(catalog.open(there), {}).ref == there


@pytest.mark.parametrize(
    ("warehouse", "location", "options", "outcome"),
    [
        ("/wh", "file:/x", {}, "unlocked"),
        ("/wh", "s3://b/t", {}, "without a lock"),
        ("/wh", "s3://b/t", {"lock.enabled": "true"}, "locked"),
        ("s3://b/wh", "s3://b/t", {}, "locked"),
        ("s3://b/wh", "s3://b/t", {"lock.enabled": "false"}, "without a lock"),
        ("s3://b/wh", "file:/x", {}, "locked"),
        ("/wh", "viewfs://nn/x", {}, "scheme viewfs:// is not supported yet"),
        ("viewfs://nn/wh", None, {}, "viewfs://nn/wh/d.db/t: scheme viewfs:// is not supported"),
        ("viewfs://nn/wh", "file:/x", {}, "unlocked"),
        ("viewfs://nn/wh", "file:/x", {"lock.enabled": "true"}, "locked"),
        ("viewfs://nn/wh", "s3://b/t", {}, "without a lock"),
    ],
)
def test_the_lock_follows_the_warehouse_and_safety_the_table(
    stack: ExitStack, warehouse: str, location: str | None, options: dict[str, str], outcome: str
) -> None:
    metastore = Metastore(table("d", "t", location), table("d", "u", "file:/u"))
    uri = stack.enter_context(running(metastore))
    catalog = open_catalog(
        warehouse,
        metastore="hive",
        options={"uri": uri, **_S3, **options},
        allow_schemes=["file"],
    )
    catalog.check_access()
    catalog.check_commits()
    ref, other = catalog.list_tables().tables
    if outcome.endswith("locked"):
        publisher = catalog.open(ref).publisher
        assert isinstance(publisher, LockedPublisher) == (outcome == "locked")
    else:
        with pytest.raises(UnsupportedTable, match=f"d.t is refused: .*{outcome}"):
            catalog.open(ref)
    assert catalog.open(other).ref.location == "/u"


def test_names_that_are_no_tables(stack: ExitStack) -> None:
    metastore = Metastore(table("d", "t", "file:/x"), table("d", "v", None, formats=("i", "o")))
    catalog = _catalog(stack.enter_context(running(metastore)))
    with pytest.raises(TableNotFound, match=r"d.tt does not exist in thrift.* mean d.t\?"):
        catalog.find_table("d.tt")
    with pytest.raises(TableNotFound, match=r"d\.v is not a Paimon table"):
        catalog.find_table("d.v")


def test_another_table_than_the_one_that_was_asked_for_is_nonsense(stack: ExitStack) -> None:
    class Confused(Metastore):
        def _get_table_objects_by_name(
            self, database: str, names: list[str]
        ) -> list[wire.HiveTable]:
            return self.tables

    metastore = Confused(table("d", "t", "file:/x"), table("e", "u", "file:/y"))
    catalog = _catalog(stack.enter_context(running(metastore)))
    listed = catalog.list_tables().tables
    assert [ref.full_name for ref in listed] == ["d.t", "e.u"]
    assert catalog.find_table("D.T").full_name == "d.t"
    with pytest.raises(CatalogUnavailable, match=r"with another table than e\.u"):
        catalog.open(listed[1])


def test_an_answer_to_another_call_ends_no_lock(stack: ExitStack) -> None:
    """Whose lock was robbed would believe in it."""

    def answer(connection: socket.socket) -> None:
        protocol = TBinaryProtocol(Stream(connection), strictRead=True)
        protocol.readMessageBegin()
        protocol.writeMessageBegin("unlock", TMessageType.REPLY, 0)
        wire.CALLS["unlock"].result().write(protocol)
        protocol.trans.flush()

    uri = stack.enter_context(listening(answer))
    address = ("127.0.0.1", int(uri.rpartition(":")[2]))
    client = HiveClient([address], uri, SystemClock(), Security())
    with pytest.raises(CatalogUnavailable, match="it answered heartbeat with something else"):
        client.heartbeat(1)


def test_a_dead_address_is_passed_over() -> None:
    metastore = Metastore(table("d", "t", "file:/x"))
    dead = f"thrift://127.0.0.1:{free_port()}"
    with running(metastore) as alive:
        catalog = _catalog(f"{dead}, {alive}")
        assert len(catalog.list_tables().tables) == 1
    catalog = _catalog(dead)
    with pytest.raises(
        CatalogDown, match=r"no answer \(127.0.0.1:\d+: Connection refused\)"
    ) as got:
        catalog.list_tables()
    assert catalog.advice(got.value).startswith("correct uri or the options of TLS and login")


def test_a_connection_that_the_server_closed_is_replaced(stack: ExitStack) -> None:
    connections: list[socket.socket] = []

    def once(connection: socket.socket) -> None:
        connections.append(connection)
        connection.recv(1 << 16)
        connection.sendall(_ANSWER)

    catalog = _catalog(stack.enter_context(listening(once)))
    for _ in range(3):
        catalog.check_access()
    assert len(connections) == 3


# What get_all_databases answers without any.
_ANSWER = b"\x80\x01\0\x02\0\0\0\x11get_all_databases\0\0\0\0\x0f\0\0\x0b\0\0\0\0\0"
_UNKNOWN = b"\x80\x01\0\x03\0\0\0\x11get_all_databases\0\0\0\0\x08\0\x02\0\0\0\x01\0"


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", CatalogUnavailable, "this is not a metastore"),
        (b"\x15\x03\x01\0\x02\x02\x16", CatalogUnavailable, "this is not a metastore"),
        (_ANSWER[:28] + b"\x0b\0\0\0\0\0\x01\xff\0", CatalogUnavailable, "this is not a metastore"),
        (_ANSWER.replace(b"_all_", b"_our_"), CatalogUnavailable, "with something else"),
        (_ANSWER[:-5] + b"\x7f\xff\xff\xff", CatalogUnavailable, "has more than 200,000 items"),
        (_UNKNOWN, CatalogUnavailable, "it does not know get_all_databases"),
        (_ANSWER[:-1], CatalogDown, "the connection was closed"),
        (b"", CatalogDown, "no answer"),
    ],
)
def test_nonsense(stack: ExitStack, said: bytes, error: type[Exception], text: str) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(said)

    catalog = _catalog(stack.enter_context(listening(answer)))
    with pytest.raises(error, match=text) as got:
        catalog.check_access()
    assert type(got.value) is error


_SITE = """<configuration>
<property><name>hive.metastore.uris</name><value>{uri}</value></property>
<property><name>location-in-properties</name><value>true</value></property>
</configuration>"""


@pytest.mark.parametrize("by", ["option", "environment"])
def test_hive_site_is_read_below_the_options(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    metastore = Metastore(table("d", "t", "file:/x", parameters={"paimon_location": "file:/y"}))
    (tmp_path / "hive-site.xml").write_text(
        _SITE.format(uri=stack.enter_context(running(metastore)))
    )
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    options = {"hadoop-conf-dir": str(tmp_path)}
    if by == "option":
        options["hive-conf-dir"] = str(tmp_path)
    else:
        monkeypatch.setenv("HIVE_CONF_DIR", str(tmp_path))
    catalog = open_catalog("/wh", metastore="hive", options=options)
    assert catalog.find_table("d.t").location == "/y"
    options["location-in-properties"] = "false"
    catalog = open_catalog("/wh", metastore="hive", options=options)
    assert catalog.find_table("d.t").location == "/x"


@pytest.mark.parametrize(
    ("options", "key", "text"),
    [
        ({}, "uri", "or hive.metastore.uris in hive-site.xml"),
        ({"uri": "http://h:1"}, "uri", "thrift://host:9083"),
        ({"uri": "thrift://h"}, "uri", "thrift://host:9083"),
        ({"uri": "thrift://u:p@h:1"}, "uri", "thrift://host:9083"),
        ({"metastore.client.class": "x.Glue"}, "metastore.client.class", "others are not served"),
        ({"lock.type": "zk"}, "lock.type", "hive"),
        ({"hive-conf-dir": "/nowhere"}, "hive-conf-dir", "a folder with hive-site.xml"),
        ({"hive.txn.timeout": "0s"}, "hive.txn.timeout", "a time above 0"),
        ({"jdbc.user": "u"}, "jdbc.user", "unless metastore is jdbc"),
    ],
)
def test_options_that_are_refused(options: dict[str, str], key: str, text: str) -> None:
    given = {"uri": "h:1", **options} if options else {}
    with pytest.raises(CatalogOptionInvalid, match=text) as got:
        open_catalog("/wh", metastore="hive", options=given)
    assert got.value.key == key


@pytest.mark.parametrize("warehouse", ["", "viewfs://nn/wh"])
def test_doctor_tries_the_lock_and_names_what_is_refused(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str], warehouse: str
) -> None:
    keyed(tmp_path, "d.t", commits=1)
    metastore = Metastore(
        table("d", "t", f"file:{tmp_path}/d.db/t"), table("d", "u", "viewfs://nn/x")
    )
    uri = stack.enter_context(running(metastore))
    options = [f"--catalog-option=uri={uri}", "--catalog-option=lock.enabled=true"]
    warehouse = warehouse or str(tmp_path)
    place = ("--warehouse", warehouse, "--allow-scheme", "file", "--metastore", "hive")
    found = answered(capsys, "doctor", *place, *options)
    checks = {each["check"]: each for each in found["checks"]}
    assert checks["warehouse: lock"]["verdict"] == checks["warehouse: tables"]["verdict"] == "ok"
    refused = checks["warehouse: refused"]
    assert refused["verdict"] == "warning"
    assert refused["found"].startswith(
        "1 table refused, first: table d.u is refused: viewfs://nn/x"
    )
    assert metastore.held == set()


@pytest.mark.parametrize(
    "command",
    [
        "tables",
        "inspect --table d.t",
        "plan --table d.t",
        "why d.t",
        "expire --all --dry-run",
        "orphans --all --dry-run",
        "orphans --all --foreign --dry-run",
        "maintain --all --dry-run",
        "verify --table d.t",
        "top --once",
    ],
)
@pytest.mark.parametrize("kind", ["hive", "rest"])
def test_every_command_takes_the_tables_of_a_server(
    stack: ExitStack,
    kind: str,
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ref = keyed(tmp_path, "d.t", commits=3)
    if kind == "hive":
        metastore = Metastore(table("d", "t", f"file:{ref.location}"))
        options, warehouse = {"uri": stack.enter_context(running(metastore))}, str(tmp_path)
    else:
        server = stack.enter_context(serving(FakeServer()))
        server.tables["d.t"] = FakeTable(path=ref.location, id="x")
        options, warehouse = server.options, "the lake"
        command += " --allow-scheme file"
    place = [f"--catalog-option={key}={text}" for key, text in options.items()]
    found = answered(
        capsys, *command.split(), "--warehouse", warehouse, "--metastore", kind, *place
    )
    named = found.get("tables", [found])
    assert [_full_name(each) for each in named] == ["d.t"]


def _full_name(found: Mapping[str, Any]) -> str:
    """The name of a table in any command's JSON."""
    name = found.get("table", found.get("name"))
    return f"{name['database']}.{name['table']}" if isinstance(name, dict) else name


def test_a_check_online_asks_the_metastore(stack: ExitStack, tmp_path: Path) -> None:
    metastore = Metastore()
    uri = stack.enter_context(running(metastore))
    text = f"catalogs: {{h: {{metastore: hive, warehouse: {tmp_path}, options: {{uri: '{uri}'}}}}}}"
    loaded = load_usable(configuration(tmp_path, text), (), Registries())
    assert check_online(loaded, SystemClock(), Registries()) == []
    metastore.is_gone = True
    ((trouble, problem),) = check_online(loaded, SystemClock(), Registries())
    assert (problem.key, trouble.may_pass) == ("catalogs.h.options.uri", True)
