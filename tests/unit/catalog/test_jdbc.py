"""The JDBC catalog on SQLite: which tables, where, and what is said when something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord.catalog.base import Catalog
from compactord.catalog.open import open_catalog
from compactord.commit.publish import LockedPublisher, StorePublisher
from compactord.errors import CatalogUnavailable, TableNotFound, UsageError
from compactord.paimon.schema import TableRef
from tests.databases import run_sql, sqlite_database


def _warehouse(folder: Path, *names: str) -> Path:
    for name in names:
        database, _, table = name.partition(".")
        schema = folder / "wh" / f"{database}.db" / table / "schema"
        schema.mkdir(parents=True)
        (schema / "schema-0").write_bytes(b"{}")
    (folder / "wh").mkdir(exist_ok=True)
    return folder / "wh"


def _open(folder: Path, uri: str, **options: str) -> Catalog:
    given = {key.replace("__", "-").replace("_", "."): text for key, text in options.items()}
    return open_catalog(str(folder / "wh"), metastore="jdbc", options={"uri": uri, **given})


def test_its_tables_are_those_of_its_database_and_lie_below_the_warehouse(tmp_path: Path) -> None:
    warehouse = _warehouse(tmp_path, "sales.orders", "sales.not_told")
    uri = sqlite_database(tmp_path / "c.db", ["sales.orders", "a.b.c"])
    catalog = _open(tmp_path, uri)
    catalog.check_access()
    listed = catalog.list_tables()
    assert [(t.database, t.name, t.location) for t in listed.tables] == [
        ("a", "b.c", f"{warehouse}/a.db/b.c"),
        ("sales", "orders", f"{warehouse}/sales.db/orders"),
    ]
    assert listed.unreadable == {}
    assert catalog.find_table("sales.orders") == listed.tables[1]


def test_a_catalog_key_has_tables_of_its_own(tmp_path: Path) -> None:
    _warehouse(tmp_path, "sales.orders")
    uri = sqlite_database(tmp_path / "c.db", ["sales.orders"], key="lake")
    assert _open(tmp_path, uri).list_tables().tables == ()
    listed = _open(tmp_path, uri, catalog__key="lake").list_tables()
    assert [table.full_name for table in listed.tables] == ["sales.orders"]


@pytest.mark.parametrize("name", ["..", "a/b", "a\\b", "", "n" * 256, "n" * (1 << 20)])
def test_a_row_that_is_no_name_of_a_folder_is_reported_and_not_followed(
    tmp_path: Path, name: str
) -> None:
    _warehouse(tmp_path, "sales.orders")
    uri = sqlite_database(tmp_path / "c.db", ["sales.orders", f"bad.{name}"])
    listed = _open(tmp_path, uri).list_tables()
    assert [table.full_name for table in listed.tables] == ["sales.orders"]
    assert list(listed.unreadable) == ["bad"]
    told = str(listed.unreadable["bad"])
    assert f"paimon_tables has a row for bad.{name[:256]}" in told
    assert len(told) < 1000


def test_more_rows_than_are_kept_are_refused(tmp_path: Path) -> None:
    _warehouse(tmp_path, "sales.orders")
    uri = sqlite_database(tmp_path / "c.db", (f"sales.t{number}" for number in range(200_001)))
    with pytest.raises(CatalogUnavailable, match=r"more than 200,000 rows, the most .*jdbc:sqlite"):
        _open(tmp_path, uri).list_tables()


@pytest.mark.parametrize(
    ("name", "error", "what"),
    [
        (
            "sales.gone",
            TableNotFound,
            "sales.gone does not exist in jdbc:sqlite:.*catalog-key jdbc",
        ),
        ("sales.listed", TableNotFound, "sales.db/listed is not a Paimon table: it has no schema"),
        ("sales.unlisted", TableNotFound, "sales.unlisted does not exist in jdbc:sqlite:"),
        ("orders", UsageError, r"database\.table"),
        ("sales.orders$snapshots", UsageError, "is a system table"),
        ("sales.unlisted$branch_x", TableNotFound, "sales.unlisted does not exist"),
    ],
)
def test_a_table_that_is_not_there_is_named(
    tmp_path: Path, name: str, error: type[Exception], what: str
) -> None:
    _warehouse(tmp_path, "sales.unlisted")
    catalog = _open(tmp_path, sqlite_database(tmp_path / "c.db", ["sales.listed"]))
    with pytest.raises(error, match=what):
        catalog.find_table(name)


def test_without_its_warehouse_it_cannot_be_used(tmp_path: Path) -> None:
    catalog = _open(tmp_path, sqlite_database(tmp_path / "c.db"))
    for ask in (catalog.check_access, catalog.list_tables, lambda: catalog.find_table("a.b")):
        with pytest.raises(TableNotFound, match="warehouse does not exist"):
            ask()


@pytest.mark.parametrize(
    ("arrange", "error", "what"),
    [
        pytest.param(lambda db: None, CatalogUnavailable, "unable to open", id="no file"),
        pytest.param(
            lambda db: db.write_bytes(b"no database" * 100),
            CatalogUnavailable,
            "file is not a database",
            id="another file",
        ),
        pytest.param(
            lambda db: run_sql(db, "CREATE TABLE other (a INT)"),
            CatalogUnavailable,
            "no table paimon_tables: no JDBC catalog",
            id="no catalog in it",
        ),
        pytest.param(
            lambda db: sqlite_database(db, locks=False),
            CatalogUnavailable,
            "lock.enabled is true, but the database has no table paimon_distributed_locks",
            id="no table of locks",
        ),
    ],
)
def test_a_database_that_cannot_be_used_is_named_with_the_reason(
    tmp_path: Path, arrange: object, error: type[Exception], what: str
) -> None:
    _warehouse(tmp_path)
    database = tmp_path / "c.db"
    arrange(database)  # type: ignore[operator]
    existed = database.exists()
    catalog = _open(tmp_path, f"jdbc:sqlite:{database}", lock_enabled="true")
    with pytest.raises(error, match=what) as raised:
        catalog.check_access()
    assert str(raised.value).endswith(f": jdbc:sqlite:{database}")
    assert database.exists() == existed, "nothing was created"


def test_a_lock_without_a_table_is_told_before_anything_is_committed(tmp_path: Path) -> None:
    _warehouse(tmp_path)
    uri = sqlite_database(tmp_path / "c.db", locks=False)
    with pytest.raises(CatalogUnavailable, match="no table paimon_distributed_locks"):
        _open(tmp_path, uri, lock_enabled="true").check_commits()
    _open(tmp_path, uri).check_commits()


@pytest.mark.parametrize(
    ("options", "publisher"),
    [
        ({}, StorePublisher),
        ({"lock_enabled": "false"}, StorePublisher),
        ({"lock_enabled": "true"}, LockedPublisher),
        ({"lock_enabled": "TRUE", "lock_type": "jdbc"}, LockedPublisher),
    ],
)
def test_its_lock_is_taken_when_the_options_say_so(
    tmp_path: Path, options: dict[str, str], publisher: type
) -> None:
    catalog = _open(tmp_path, sqlite_database(tmp_path / "c.db"), **options)
    table = TableRef(database="db", name="t", location=f"{tmp_path}/wh/db.db/t")
    assert type(catalog.open(table).publisher) is publisher
