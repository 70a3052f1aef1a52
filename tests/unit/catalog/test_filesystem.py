from __future__ import annotations

from pathlib import Path

import pytest

from compactord.catalog.filesystem import FilesystemCatalog
from compactord.catalog.open import open_catalog
from compactord.errors import AccessDenied, NotAWarehouse, TableNotFound, UsageError
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from compactord.storage.objects.options import INSTALL_STORES
from tests.storages import Fault, FaultyStorage, MemoryStorage, RecordingStorage

WAREHOUSE = "/w"


def _storage(*objects: str) -> MemoryStorage:
    return MemoryStorage({f"{WAREHOUSE}/{name}": b"" for name in objects})


def _catalog(storage: Storage) -> FilesystemCatalog:
    return FilesystemCatalog(storage, WAREHOUSE)


def test_a_table_is_found_by_its_folder_and_its_schema() -> None:
    table = _catalog(_storage("sales.db/orders/schema/schema-0")).find_table("sales.orders")
    assert (table.database, table.name) == ("sales", "orders")
    assert (table.full_name, table.location) == ("sales.orders", "/w/sales.db/orders")


def test_a_dot_in_the_table_name_belongs_to_the_table() -> None:
    table = _catalog(_storage("a.db/b.c/schema/schema-3")).find_table("a.b.c")
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
        _catalog(_storage()).find_table(name)


def test_a_table_whose_name_looks_like_a_system_table_s_is_found() -> None:
    catalog = _catalog(_storage("sales.db/t$x/schema/schema-0"))
    (listed,) = catalog.list_tables().tables
    assert catalog.find_table("sales.t$x") == listed


@pytest.mark.parametrize("name", ["sales.orders$snapshots", "sales.orders$branch_dev$files"])
def test_system_tables_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is a system table"):
        _catalog(_storage("sales.db/orders/schema/schema-0")).find_table(name)


def test_a_branch_has_the_location_of_its_table_and_metadata_of_its_own() -> None:
    branch = "sales.db/orders/branch/branch-dev/schema/schema-0"
    catalog = _catalog(_storage("sales.db/orders/schema/schema-0", branch))
    found = catalog.find_table("sales.orders$branch_dev")
    assert found.full_name == "sales.orders$branch_dev"
    assert (found.name, found.branch) == ("orders$branch_dev", "dev")
    assert found.location == "/w/sales.db/orders"
    assert found.root == "/w/sales.db/orders/branch/branch-dev"
    assert catalog.find_table("sales.orders$branch_main") == catalog.find_table("sales.orders")
    with pytest.raises(TableNotFound, match=r"has no branch x; its branches are main, dev"):
        catalog.find_table("sales.orders$branch_x")
    with pytest.raises(UsageError, match=r"database\.table"):
        catalog.find_table("sales.orders$branch_")


@pytest.mark.parametrize(
    ("objects", "what"),
    [
        ((), "database sales of warehouse /w does not exist"),
        (("other.db/x/schema/schema-0",), "database sales of warehouse /w does not exist"),
        (("sales.db/x/schema/schema-0",), "table sales.orders of warehouse /w does not exist"),
        (("sales.db/orders/data",), "is not a Paimon table"),
        (("sales.db/orders/schema/other",), "is not a Paimon table"),
        (("sales.db/orders/schema/schema-new",), "is not a Paimon table"),
        (("sales.db/orders",), "table sales.orders of warehouse /w does not exist"),
    ],
)
def test_what_is_missing_is_named(objects: tuple[str, ...], what: str) -> None:
    with pytest.raises(TableNotFound, match=what):
        _catalog(_storage(*objects)).find_table("sales.orders")


def test_a_prefix_without_an_object_is_an_empty_warehouse() -> None:
    catalog = _catalog(_storage())
    catalog.check_access()
    assert catalog.list_tables().tables == ()


def test_a_folder_that_is_missing_is_made_only_if_it_may_be(tmp_path: Path) -> None:
    root = tmp_path / "mnt" / "lake"
    with pytest.raises(TableNotFound, match="warehouse does not exist"):
        open_catalog(str(root)).list_tables()
    with pytest.raises(TableNotFound, match="warehouse does not exist"):
        open_catalog(str(root)).check_access()
    catalog = open_catalog(str(root), creates_root=True)
    catalog.check_access()
    assert catalog.list_tables().tables == ()
    assert not root.exists(), "reading makes nothing"
    catalog.check_commits()
    assert list(root.iterdir()) == []
    open_catalog(str(root)).check_access()


_TABLE = ("sales.db/orders/schema/schema-0", "sales.db/orders/snapshot/snapshot-1")


_OUTSIDE = ("orders/schema/schema-0", "orders/snapshot/snapshot-1")


@pytest.mark.parametrize(
    ("folder", "objects", "what", "warehouse"),
    [
        ("/w/sales.db", _TABLE, "database sales", "/w"),
        ("/w/sales.db/orders", _TABLE, "table orders", "/w"),
        ("/w/orders", _OUTSIDE, "table orders", "the folder of its database's folder"),
    ],
)
def test_a_folder_within_a_warehouse_is_refused(
    folder: str, objects: tuple[str, ...], what: str, warehouse: str
) -> None:
    catalog = FilesystemCatalog(_storage(*objects), folder)
    expected = f"^{folder} is the folder of {what}; its warehouse is {warehouse}$"
    for read in (catalog.check_access, catalog.list_tables, lambda: catalog.find_table("a.b")):
        with pytest.raises(NotAWarehouse, match=expected):
            read()


@pytest.mark.parametrize(
    ("folder", "objects", "tables"),
    [
        ("/w", _TABLE, ["sales.orders"]),
        ("/w/lake.db", ("lake.db/sales.db/orders/schema/schema-0",), ["sales.orders"]),
        ("/w/lake.db", ("lake.db/other/file",), []),
        ("/w/empty", ("empty/schema/file",), []),
    ],
)
def test_a_warehouse_may_have_any_name_and_be_empty(
    folder: str, objects: tuple[str, ...], tables: list[str]
) -> None:
    catalog = FilesystemCatalog(_storage(*objects), folder)
    catalog.check_access()
    assert [table.full_name for table in catalog.list_tables().tables] == tables


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sales.order", "; did you mean sales.orders?"),
        ("Sales.Orders", "; did you mean sales.orders?"),
        ("sale.orders", "; did you mean sales.orders?"),
        ("dwd.orders", "; did you mean sales.orders?"),
        ("orders", "; did you mean sales.orders?"),
        ("sales.click", "; did you mean sales.clicks?"),
        ("hr.payroll", ""),
    ],
)
def test_a_mistyped_table_gets_the_nearest_names(name: str, hint: str) -> None:
    catalog = _catalog(
        _storage("sales.db/orders/schema/schema-0", "sales.db/clicks/schema/schema-0", "x.db/y/z")
    )
    with pytest.raises((TableNotFound, UsageError)) as refused:
        catalog.find_table(name)
    assert str(refused.value).partition(";")[2] == hint.removeprefix(";")


@pytest.mark.parametrize("refused", ["/schema", "/schema/schema-0"])
def test_a_table_whose_schemas_cannot_be_listed_is_found_and_its_own_error_says_why(
    refused: str,
) -> None:
    storage = FaultyStorage(
        _storage("sales.db/orders/schema/schema-3"),
        Fault(at=1, error=AccessDenied, concerns=lambda call: call.path.endswith(refused)),
    )
    assert _catalog(storage).find_table("sales.orders").name == "orders"
    assert len(storage.failed) == 1


def test_the_schemas_of_a_table_that_has_its_first_one_are_not_listed() -> None:
    places = ("a/schema/schema-0", "a/schema/schema-1", "b/schema/schema-3", "c/x")
    storage = RecordingStorage(_storage(*(f"sales.db/{place}" for place in places)))
    assert [table.name for table in _catalog(storage).list_tables().tables] == ["a", "b"]
    listed = [call.path for call in storage.log if call.method == "list"]
    assert "/w/sales.db/a/schema" not in listed
    assert {"/w/sales.db/b/schema", "/w/sales.db/c/schema"} <= set(listed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "viewfs://bucket/w",
            "warehouse viewfs://bucket/w: scheme viewfs:// is not supported yet; "
            "local and mounted file systems are, and "
            "s3://, s3a://, s3n://, gs://, abfs://, abfss://, wasb://, wasbs://, oss://, hdfs://, "
            f"and the schemes of fsspec if it is installed ({INSTALL_STORES})",
        ),
        ("file:w", "warehouse file:w: a file: URI needs an absolute path, as in file:///data/wh"),
    ],
)
def test_a_place_that_cannot_be_opened_is_refused_as_a_warehouse(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        open_catalog(text)
    assert str(refused.value) == message


def test_folders_that_only_look_like_tables_are_passed_over(tmp_path: Path) -> None:
    database = tmp_path / "d.db"
    (database / "hollow" / "schema").mkdir(parents=True)
    (database / "flat").mkdir()
    (database / "flat" / "schema").write_text("no folder")
    (database / "strange" / "schema" / "schema-0").mkdir(parents=True)
    (database / "loop").symlink_to("loop")
    (database / "nowhere").symlink_to("nothing")
    assert FilesystemCatalog(LocalStorage(), str(tmp_path)).list_tables().tables == ()
