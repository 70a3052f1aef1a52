from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from compactord.catalog.filesystem import FilesystemCatalog
from compactord.config.model import Discovery
from compactord.errors import AccessDenied, StorageError
from compactord.model import TableName
from compactord.paimon.table import TableRef
from compactord.service.discovery import list_catalogs
from compactord.storage.base import Storage
from compactord_demo.writer import create_table
from tests.builders import FIELDS, VirtualClock
from tests.storages import Call, HookedStorage, MemoryStorage


def _warehouse(*tables: str) -> MemoryStorage:
    storage = MemoryStorage()
    for table in tables:
        database, name = table.split(".")
        ref = TableRef(database=database, name=name, location=f"/wh/{database}.db/{name}")
        create_table(storage, ref, FIELDS, options={"bucket": "-1"})
    return storage


def _catalog(storage: Storage) -> FilesystemCatalog:
    return FilesystemCatalog(storage, "/wh")


def _broken(error: Exception) -> Storage:
    def fail(call: Call) -> None:
        raise error

    return HookedStorage(_warehouse("a.x"), before=fail)


@pytest.mark.parametrize("error", [StorageError("/wh", "no answer"), ValueError("no answer")])
def test_the_trouble_of_one_catalog_is_not_that_of_another(error: Exception) -> None:
    catalogs = {"bad": _catalog(_broken(error)), "good": _catalog(_warehouse("a.x", "b.y"))}
    with capture_logs():
        bad, good = list_catalogs(catalogs, Discovery(), VirtualClock())
    assert sorted(good.found) == [TableName("good", "a", "x"), TableName("good", "b", "y")]
    assert good.error == ""
    assert bad.found == {}
    assert "no answer" in bad.error


def test_what_is_left_out_is_counted() -> None:
    catalogs = {"c": _catalog(_warehouse("a.x", "a.tmp_1", "b.y"))}
    discovery = Discovery(excluding_tables=r".*\.tmp_.*")
    (listing,) = list_catalogs(catalogs, discovery, VirtualClock())
    assert {name.table for name in listing.found} == {"x", "y"}
    assert listing.excluded == 1
    assert listing.found[TableName("c", "a", "x")].location == "/wh/a.db/x"


def test_a_database_that_cannot_be_listed_is_named_and_the_others_are_found() -> None:
    def fail(call: Call) -> None:
        if call.path == "/wh/a.db":
            raise AccessDenied("/wh/a.db", "list failed")

    storage = HookedStorage(_warehouse("a.x", "b.y"), before=fail)
    (listing,) = list_catalogs({"c": _catalog(storage)}, Discovery(), VirtualClock())
    assert list(listing.found) == [TableName("c", "b", "y")]
    assert (listing.is_listed, listing.unreadable) == (True, {"a"})
    assert listing.error == "list failed: /wh/a.db"
