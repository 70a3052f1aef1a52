from __future__ import annotations

import threading
from pathlib import Path

import pytest

from compactord.catalog.filesystem import FilesystemCatalog
from compactord.catalog.open import open_catalog
from compactord.catalog.trouble import check_catalogs
from compactord.clock import SystemClock
from compactord.errors import AccessDenied, StorageError, TableNotFound, TransientStorageError
from compactord.storage.local import LocalStorage
from tests.storages import Call, HookedStorage, MemoryStorage
from tests.unit.catalog import metastore


def _catalog(before: object = None) -> FilesystemCatalog:
    def nothing(call: Call) -> None: ...

    storage = MemoryStorage({"/w/a.db/t/schema/schema-0": b""})
    hook = before if callable(before) else nothing
    return FilesystemCatalog(HookedStorage(storage, before=hook), "/w")


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (TransientStorageError("/w", "stale handle"), True),
        (StorageError("/w", "an odd answer"), True),
        (AccessDenied("/w", "list failed"), False),
        (TableNotFound("warehouse does not exist: /w"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_what_may_pass_by_itself_may_heal(error: Exception, may_pass: bool) -> None:
    def fail(call: Call) -> None:
        raise error

    (trouble,) = check_catalogs({"good": _catalog(), "bad": _catalog(fail)}, SystemClock())
    assert (trouble.catalog, trouble.error, trouble.may_pass) == ("bad", error, may_pass)


def test_a_folder_that_is_not_there_is_trouble_and_an_empty_folder_or_prefix_is_none(
    tmp_path: Path,
) -> None:
    catalogs = {
        "a": FilesystemCatalog(LocalStorage(), str(tmp_path)),
        "b": FilesystemCatalog(LocalStorage(), f"{tmp_path}/none"),
        "c": FilesystemCatalog(MemoryStorage(), "/none"),
    }
    (trouble,) = check_catalogs(catalogs, SystemClock())
    assert (trouble.catalog, type(trouble.error)) == ("b", TableNotFound)


def test_a_store_that_hangs_is_not_waited_for_and_may_heal() -> None:
    freed = threading.Event()

    def hang(call: Call | None = None) -> None:
        freed.wait(60)

    with metastore.listening(lambda _: hang()) as uri:
        hive = open_catalog("/w", metastore="hive", options={"uri": uri})
        catalogs = {"slow": _catalog(hang), "quick": _catalog(), "hive": hive}
        found = {
            each.catalog: each for each in check_catalogs(catalogs, SystemClock(), seconds_max=0.2)
        }
        freed.set()
    assert {name: each.may_pass for name, each in found.items()} == {"slow": True, "hive": True}
    assert str(found["slow"].error) == "no answer within 0 s: /w"
    # Its warehouse was not asked.
    assert str(found["hive"].error) == f"no answer within 0 s: {uri}"
    assert found["hive"].advice.startswith("correct uri")
