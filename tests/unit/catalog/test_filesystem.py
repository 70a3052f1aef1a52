from __future__ import annotations

import os
from pathlib import Path

import pytest

from compactord.catalog.filesystem import find_table, open_warehouse
from compactord.errors import AccessDenied, TableNotFound, UsageError
from compactord.storage.local import LocalStorage
from tests.storages import Fault, FaultyStorage, MemoryStorage

WAREHOUSE = "/w"


def _storage(*objects: str) -> MemoryStorage:
    return MemoryStorage({f"{WAREHOUSE}/{name}": b"" for name in objects})


def test_a_table_is_found_by_its_folder_and_its_schema() -> None:
    table = find_table(_storage("sales.db/orders/schema/schema-0"), WAREHOUSE, "sales.orders")
    assert (table.database, table.name) == ("sales", "orders")
    assert (table.full_name, table.location) == ("sales.orders", "/w/sales.db/orders")


def test_a_dot_in_the_table_name_belongs_to_the_table() -> None:
    table = find_table(_storage("a.db/b.c/schema/schema-3"), WAREHOUSE, "a.b.c")
    assert (table.database, table.name) == ("a", "b.c")


@pytest.mark.parametrize(
    "name",
    [
        *("orders", ".orders", "sales.", "", "sales.a/b", "../x.y", "..", "a\\..\\b.c"),
        *("sales..", "sales...", "sales.a\\b", "sales.a\0b", "sales.a/../../../x"),
    ],
)
def test_a_name_without_two_parts_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"database\.table"):
        find_table(_storage(), WAREHOUSE, name)


@pytest.mark.parametrize("name", ["sales.orders$snapshots", "sales.orders$branch_dev"])
def test_system_tables_and_branches_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="not supported yet"):
        find_table(_storage("sales.db/orders/schema/schema-0"), WAREHOUSE, name)


@pytest.mark.parametrize(
    ("objects", "what"),
    [
        ((), "warehouse does not exist"),
        (("other.db/x/schema/schema-0",), "database sales of warehouse /w does not exist"),
        (("sales.db/x/schema/schema-0",), "table sales.orders of warehouse /w does not exist"),
        (("sales.db/orders/data",), "is no Paimon table"),
        (("sales.db/orders/schema/other",), "is no Paimon table"),
        (("sales.db/orders/schema/schema-new",), "is no Paimon table"),
        (("sales.db/orders",), "table sales.orders of warehouse /w does not exist"),
    ],
)
def test_what_is_missing_is_named(objects: tuple[str, ...], what: str) -> None:
    with pytest.raises(TableNotFound, match=what):
        find_table(_storage(*objects), WAREHOUSE, "sales.orders")


def test_a_table_whose_schemas_cannot_be_listed_is_found_and_its_own_error_says_why() -> None:
    storage = FaultyStorage(
        _storage("sales.db/orders/schema/schema-0"),
        Fault(at=1, error=AccessDenied, concerns=lambda call: call.path.endswith("/schema")),
    )
    assert find_table(storage, WAREHOUSE, "sales.orders").name == "orders"
    assert len(storage.failed) == 1


@pytest.mark.parametrize(
    "text",
    [
        "file:///data/w",
        "file:/data/w",
        "FILE:///data/w",
        "File:/data/x/../w/",
        "file://localhost/data/w",
        "file://LOCALHOST/data/w",
        "file:////data/w",
        "/data/w",
        "/data/x/../w/",
    ],
)
def test_local_warehouses_may_have_a_scheme(text: str) -> None:
    storage, path = open_warehouse(text)
    assert isinstance(storage, LocalStorage)
    assert path == "/data/w"


def test_a_relative_warehouse_is_below_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_warehouse("lake")[1] == os.path.join(str(tmp_path), "lake")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("file:w1", "absolute path"),
        ("file:", "absolute path"),
        ("file://", "absolute path"),
        ("file://localhost", "absolute path"),
        ("file://./w", "machine's name"),
        ("file://server/share", "server is taken for another machine's name"),
    ],
)
def test_a_file_uri_that_names_no_folder_of_this_machine_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        open_warehouse(text)


def test_a_percent_sign_of_a_uri_is_itself_as_in_java() -> None:
    assert open_warehouse("file:///data/a%20b")[1] == "/data/a%20b"


def test_a_name_with_a_colon_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_warehouse("lake:2")[1] == f"{tmp_path}/lake:2"


@pytest.mark.parametrize("text", ["s3://bucket/w", "hdfs://host:9000/w", "oss:/x"])
def test_other_schemes_are_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=text.split(":", maxsplit=1)[0]):
        open_warehouse(text)
