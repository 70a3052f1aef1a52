"""Options of catalogs: Paimon's names, and one clear error for each that cannot be used."""

from __future__ import annotations

import pytest

from compactord.catalog.jdbc.database import Dialect, jdbc_address
from compactord.catalog.jdbc.options import jdbc_options
from compactord.catalog.open import open_catalog
from compactord.errors import CatalogOptionInvalid

_SQLITE = "jdbc:sqlite:/data/c.db"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "catalog option uri: expected jdbc:sqlite:"),
        ({"uri": _SQLITE, "catalogkey": "x"}, "catalogkey: .*did you mean catalog-key"),
        ({"uri": _SQLITE, "lock.enabled": "yes"}, "lock.enabled: expected true or false"),
        ({"uri": _SQLITE, "lock.type": "hive"}, "lock.type: expected jdbc"),
        ({"uri": _SQLITE, "lock-acquire-timeout": "999 ms"}, "lock-acquire-timeout: .*1 s or more"),
        ({"uri": _SQLITE, "lock-check-max-sleep": "soon"}, "lock-check-max-sleep: expected"),
        ({"uri": _SQLITE, "client-pool-size": "0"}, "client-pool-size: expected a whole number"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(CatalogOptionInvalid, match=message):
        open_catalog("/wh", metastore="jdbc", options=options)


def test_the_defaults_are_those_of_paimon() -> None:
    given = {"uri": _SQLITE, "cache-enabled": "false", "table-default.bucket": "1"}
    open_catalog("/wh", metastore="jdbc", options=given)
    found = jdbc_options(given)
    assert (found.catalog_key, found.pool_size, found.is_locked) == ("jdbc", 2, False)
    assert (found.lock_sleep_max_ms, found.lock_timeout_ms) == (8_000, 480_000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"uri": _SQLITE}, "uri: expected no such option, unless metastore is jdbc"),
        ({"jdbc.user": "u"}, "jdbc.user: expected no such option, unless metastore is jdbc"),
        ({"lock.enabled": "true"}, "lock.enabled: expected false"),
        ({"nonsense": "1"}, "nonsense: expected a catalog option of Paimon"),
    ],
)
def test_what_a_filesystem_catalog_cannot_do_is_refused(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(CatalogOptionInvalid, match=message):
        open_catalog("/wh", options=options)


def test_a_filesystem_catalog_takes_the_options_of_its_writers() -> None:
    open_catalog("/wh", options={"lock.enabled": "false", "cache-enabled": "true"})


@pytest.mark.parametrize(
    ("uri", "properties", "expected"),
    [
        (_SQLITE, {}, (Dialect.SQLITE, "", None, "/data/c.db", None, None)),
        (
            "jdbc:sqlite:file:/c.db?journal_mode=WAL",
            {},
            (Dialect.SQLITE, "", None, "/c.db", None, None),
        ),
        (
            "jdbc:postgresql://h:5433/p?user=u&password=a%26b",
            {},
            (Dialect.POSTGRESQL, "h", 5433, "p", "u", "a&b"),
        ),
        (
            "jdbc:mysql://h/p?useSSL=false&serverTimezone=UTC",
            {"user": "u", "password": "s"},
            (Dialect.MYSQL, "h", None, "p", "u", "s"),
        ),
        ("jdbc:mariadb://h/p", {}, (Dialect.MYSQL, "h", None, "p", None, None)),
        ("jdbc:POSTGRESQL://[::1]:5/p", {}, (Dialect.POSTGRESQL, "::1", 5, "p", None, None)),
    ],
)
def test_addresses_are_read_as_jdbc_users_write_them(
    uri: str, properties: dict[str, str], expected: tuple[object, ...]
) -> None:
    found = jdbc_address(uri, properties)
    read = (found.dialect, found.host, found.port, found.database, found.user, found.password)
    assert read == expected


@pytest.mark.parametrize(
    ("uri", "properties", "message"),
    [
        ("postgresql://h/p", {}, "uri: expected jdbc:sqlite"),
        ("jdbc:oracle:thin:@h", {}, "uri: expected jdbc:sqlite"),
        ("jdbc:postgresql:p", {}, "uri: expected jdbc:sqlite"),
        ("jdbc:postgresql://h:x/p", {}, "uri: expected jdbc:sqlite"),
        ("jdbc:postgresql://h", {}, "uri: expected jdbc:sqlite"),
        ("jdbc:mysql://u:hunter2@h/p", {}, "the user is given as jdbc.user"),
        ("jdbc:postgresql://a,b/p", {}, "one host, not several"),
        ("jdbc:sqlite::memory:", {}, "a file of SQLite"),
        ("jdbc:mysql://h/p?profileSQL=true", {}, "no property profilesql"),
        ("jdbc:mysql://h/p?password=hunter2", {"password": "other"}, "jdbc.password: expected"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_password(
    uri: str, properties: dict[str, str], message: str
) -> None:
    with pytest.raises(CatalogOptionInvalid, match=message) as refused:
        jdbc_address(uri, properties)
    assert "hunter2" not in str(refused.value)


def test_the_password_is_in_no_text_of_an_address_or_of_options() -> None:
    uri = "jdbc:postgresql://h/p?password=hunter2"
    options = jdbc_options({"uri": uri, "jdbc.password": "hunter2"})
    address = jdbc_address(options.uri, options.properties)
    assert address.password == "hunter2"
    assert "hunter2" not in f"{options!r} {address!r} {address.shown}"


def test_as_in_java_there_is_no_lock_on_mariadbs_own_addresses() -> None:
    options = {"uri": "jdbc:mariadb://h/p", "lock.enabled": "true"}
    with pytest.raises(CatalogOptionInvalid, match="no lock on jdbc:mariadb:"):
        open_catalog("/wh", metastore="jdbc", options=options)
