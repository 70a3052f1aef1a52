"""Which catalogs are refused because nothing excludes their writers, and which stores are."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord.catalog.filesystem import FilesystemCatalog
from compactord.catalog.open import open_catalog
from compactord.catalog.trouble import check_catalogs
from compactord.cli.running import exit_code
from compactord.commit.publish import LockedPublisher
from compactord.errors import AccessDenied, UnsafeStore, UnsupportedTable, UsageError
from compactord.paimon.schema import TableRef
from compactord.storage.base import Creation, Storage
from tests import builders
from tests.builders import VirtualClock
from tests.databases import sqlite_database
from tests.storages import Call, HookedStorage, MemoryStorage

_TABLE = TableRef(database="d", name="t", location="/wh/d.db/t")
_OSS = {"fs.oss.endpoint": "e"}


class Replacing(MemoryStorage):
    """Ignores the condition of a creation."""

    def create_if_absent(self, path: str, data: bytes, *, temporary: str) -> Creation:
        self.overwrite(path, data)
        return Creation.CREATED


def _stored(storage: Storage) -> FilesystemCatalog:
    return FilesystemCatalog(storage, "/wh")


@pytest.mark.parametrize(
    ("warehouse", "options", "is_guarded", "is_refused"),
    [
        ("s3://lake/wh", {}, False, True),
        ("gs://lake/wh", {}, False, True),
        ("abfss://box@acc.dfs.core.windows.net/wh", {}, False, True),
        ("S3A://lake/wh", {"lock.enabled": "false"}, False, True),
        ("s3://lake/wh", {}, True, False),
        ("oss://lake/wh", _OSS, False, False),
        ("/data/wh", {}, False, False),
        ("s3://lake/wh", {"uri": "jdbc:sqlite:"}, False, False),
        ("s3://lake/wh", {"uri": "jdbc:sqlite:", "lock.enabled": "false"}, False, True),
        ("s3://lake/wh", {"uri": "jdbc:sqlite:", "lock.enabled": "false"}, True, False),
        (
            "oss://b/w",
            {"fs.oss.endpoint": "e", "uri": "jdbc:sqlite:", "lock.enabled": "false"},
            False,
            False,
        ),
        ("/data/wh", {"uri": "jdbc:sqlite:"}, False, False),
    ],
)
def test_a_catalog_without_a_lock_is_refused_where_java_replaces(
    tmp_path: Path, warehouse: str, options: dict[str, str], is_guarded: bool, is_refused: bool
) -> None:
    is_jdbc = "uri" in options
    if is_jdbc:
        options = {**options, "uri": sqlite_database(tmp_path / "c.db")}
    region = {"s3.region": "r"} if warehouse.lower().startswith("s3") else {}
    catalog = open_catalog(
        warehouse,
        metastore="jdbc" if is_jdbc else "filesystem",
        options={**options, **region},
        is_guarded=is_guarded,
    )
    if is_refused:
        with pytest.raises(UnsupportedTable, match="is refused: without a lock"):
            catalog.open(_TABLE)
    else:
        assert catalog.open(_TABLE).publisher.settle_ms == (10_000 if is_guarded else 0)


def test_the_lock_of_a_jdbc_catalog_is_on_by_default_in_an_object_store(tmp_path: Path) -> None:
    options = {"uri": sqlite_database(tmp_path / "c.db"), "s3.region": "r"}
    catalog = open_catalog("s3://lake/wh", metastore="jdbc", options=options)
    assert isinstance(catalog.open(_TABLE).publisher, LockedPublisher)


def test_a_refused_catalog_says_what_to_do_and_does_not_heal() -> None:
    catalog = open_catalog("s3://lake/wh", options={"s3.region": "r"})
    (trouble,) = check_catalogs({"lake": catalog}, VirtualClock())
    assert (trouble.may_pass, exit_code(trouble.error)) == (False, 2)
    for use in (catalog.check_commits, catalog.list_tables, lambda: catalog.find_table("d.t")):
        with pytest.raises(UsageError, match=r"metastore jdbc .* guarded .*operations\.md"):
            use()


def test_a_store_that_replaces_is_found_out_before_anything_is_published() -> None:
    storage = Replacing({"/wh/d.db/x": b""})
    assert check_catalogs({"lake": _stored(storage)}, VirtualClock()) == ()
    (trouble,) = check_catalogs({"lake": _stored(storage)}, VirtualClock(), commits=True)
    assert (type(trouble.error), trouble.may_pass) == (UnsafeStore, False)
    assert exit_code(trouble.error) == 2
    assert list(storage.objects) == ["/wh/d.db/x"]


def test_a_store_is_tried_once() -> None:
    calls: list[Call] = []
    storage = HookedStorage(MemoryStorage(), before=calls.append)
    catalog = _stored(storage)
    catalog.check_commits()
    assert calls
    calls.clear()
    catalog.check_commits()
    # Another catalog of the same store.
    _stored(storage).check_commits()
    assert calls == []


def test_a_file_system_is_not_tried(tmp_path: Path) -> None:
    open_catalog(str(tmp_path)).check_commits()
    assert list(tmp_path.iterdir()) == []


def _closed(inner: MemoryStorage) -> HookedStorage:
    """Nothing may be created in the warehouse's own folder."""

    def deny(call: Call) -> None:
        if call.path.startswith("/wh/.compactord-probe"):
            raise AccessDenied(call.path, f"{call.method} failed (denied)")

    return HookedStorage(inner, before=deny)


def test_where_the_warehouse_itself_is_closed_the_first_commit_tries() -> None:
    inner = MemoryStorage()
    storage = _closed(inner)
    table = builders.keyed_table(storage, "/wh/d.db/t")
    builders.fill_keyed(builders.writer(storage, table), commits=6)
    catalog = _stored(storage)
    catalog.check_commits()
    totals = builders.compact(storage, table, publisher=catalog.open(table).publisher)
    assert totals.snapshots == [7]
    assert not any("probe" in path for path in inner.objects)


def test_a_store_that_is_found_out_by_the_first_commit_publishes_nothing() -> None:
    inner = Replacing()
    storage = _closed(inner)
    table = builders.keyed_table(storage, "/wh/d.db/t")
    builders.fill_keyed(builders.writer(storage, table), commits=6)
    catalog = _stored(storage)
    catalog.check_commits()
    with pytest.raises(UnsafeStore, match="no snapshot was published"):
        builders.compact(storage, table, publisher=catalog.open(table).publisher)
    assert "/wh/d.db/t/snapshot/snapshot-7" not in inner.objects
    assert not any("probe" in path for path in inner.objects)
