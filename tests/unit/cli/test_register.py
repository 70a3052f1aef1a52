"""`catalog register`: what it prints and what it does are the same, once and for all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from compactord.catalog.open import open_catalog
from tests.databases import LOCKS_SQL, TABLES_SQL, run_sql
from tests.e2e.tables import digest
from tests.unit.cli.warehouses import answered, configuration, keyed, said


@pytest.fixture
def place(tmp_path: Path) -> tuple[str, ...]:
    """The arguments of a warehouse with three tables, whose database has nothing yet."""
    for name in ("sales.orders", "sales.o'brien", "logs.raw"):
        keyed(tmp_path / "wh", name, commits=1)
    sqlite3.connect(tmp_path / "c.db").close()
    # An empty file is an empty database.
    (tmp_path / "c.db").touch()
    warehouse = ("--warehouse", f"{tmp_path}/wh/", "--metastore", "jdbc")
    return (*warehouse, "--catalog-option", f"uri=jdbc:sqlite:{tmp_path}/c.db")


def _rows(database: Path) -> dict[str, list[tuple[object, ...]]]:
    return {
        name: sorted(run_sql(database, f"SELECT * FROM {name}"))  # type: ignore[type-var]
        for name in ("paimon_tables", "paimon_database_properties")
    }


def _expected(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    tables = (("logs", "raw"), ("sales", "o'brien"), ("sales", "orders"))
    return {
        "paimon_tables": [("jdbc", *table) for table in tables],
        "paimon_database_properties": [
            ("jdbc", database, *pair)
            for database in ("logs", "sales")
            for pair in (("exists", "true"), ("location", f"{folder}/wh/{database}.db"))
        ],
    }


def test_what_is_printed_makes_a_jdbc_catalog_of_a_warehouse_any_number_of_times(
    place: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, database = digest(tmp_path / "wh"), tmp_path / "c.db"
    lock = ("lock.enabled=true", "--catalog-option", "lock-key-max-length=300")
    script = said(capsys, "catalog", "register", "--all", *place, "--catalog-option", *lock)
    assert "paimon_distributed_locks (lock_id VARCHAR(300)" in script
    assert database.stat().st_size == 0, "nothing was executed"
    for _ in range(2):
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.executescript(script)
        assert _rows(database) == _expected(tmp_path)
    assert digest(tmp_path / "wh") == before
    options = {"uri": f"jdbc:sqlite:{database}", "lock.enabled": "true"}
    catalog = open_catalog(f"{tmp_path}/wh", metastore="jdbc", options=options)
    catalog.check_access()
    assert [t.full_name for t in catalog.list_tables().tables] == [
        "logs.raw",
        "sales.o'brien",
        "sales.orders",
    ]


def test_it_executes_the_same_and_a_second_time_nothing(
    place: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = digest(tmp_path / "wh")
    command = ("catalog", "register", "--all", *place, "--execute")
    found = answered(capsys, *command)
    names = ["logs.raw", "sales.o'brien", "sales.orders"]
    assert found == {
        "created": ["paimon_tables", "paimon_database_properties"],
        "registered": names,
        "known": [],
    }
    assert _rows(tmp_path / "c.db") == _expected(tmp_path)
    assert answered(capsys, *command) == {"created": [], "registered": [], "known": names}
    assert said(capsys, *command) == "3 tables: 0 registered, 3 known before\n"
    assert digest(tmp_path / "wh") == before


def test_tables_of_java_are_used_and_rows_of_others_stay(
    place: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_sql(tmp_path / "c.db", TABLES_SQL)
    run_sql(tmp_path / "c.db", LOCKS_SQL)
    run_sql(tmp_path / "c.db", "INSERT INTO paimon_tables VALUES ('jdbc', 'sales', 'gone')")
    command = ("catalog", "register", *place, "--execute")
    text = said(capsys, *command, "--database", "sales", "--catalog-option", "lock.enabled=true")
    assert "created paimon_database_properties\nregistered sales.o'brien" in text
    assert "paimon_distributed_locks" not in text
    rows = _rows(tmp_path / "c.db")["paimon_tables"]
    assert rows == [("jdbc", "sales", name) for name in ("gone", "o'brien", "orders")]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--warehouse", "WH"], "give --metastore jdbc"),
        (["--config", "FILE"], "give one of these catalogs by --catalog: a, b"),
        (["--config", "FILE", "--catalog", "files"], "give --metastore jdbc"),
        (["--config", "FILE", "--catalog", "x"], "it is one of files, a, b"),
    ],
)
def test_there_must_be_one_jdbc_catalog(
    arguments: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jdbc = "{warehouse: WH, metastore: jdbc, options: {uri: 'jdbc:sqlite:WH.db'}}"
    (tmp_path / "wh").mkdir()
    path = configuration(tmp_path, f"catalogs: {{files: {{warehouse: WH}}, a: {jdbc}, b: {jdbc}}}")
    given = [{"WH": f"{tmp_path}/wh", "FILE": path}.get(each, each) for each in arguments]
    assert expected in said(capsys, "catalog", "register", "--all", *given, code=2)


def test_a_database_that_cannot_be_asked_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path / "wh", "sales.orders")
    where = ("--warehouse", f"{tmp_path}/wh", "--metastore", "jdbc", "--execute")
    uri = f"uri=jdbc:sqlite:{tmp_path}/none/c.db"
    text = said(capsys, "catalog", "register", "--all", *where, "--catalog-option", uri, code=3)
    assert "unable to open database file" in text


def test_a_lock_without_a_table_ends_a_run_before_spark_starts(
    place: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path / "wh", "sales.busy", commits=6)
    answered(capsys, "catalog", "register", "--all", *place, "--execute")
    locked = ("--catalog-option", "lock.enabled=true", "--table", "sales.busy")
    text = said(capsys, "compact", "--verbose", *place, *locked, code=3)
    assert "the database has no table paimon_distributed_locks" in text
    assert "spark_starting" not in text
