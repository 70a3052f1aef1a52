"""Addresses of databases as JDBC users write them: `jdbc:postgresql://host:5432/paimon?user=…`."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from compactord.errors import CatalogOptionInvalid
from compactord.text import redact_text

FORMS = "jdbc:sqlite:/path/of/file, jdbc:postgresql://host/database or jdbc:mysql://host/database"
_PROTOCOL = re.compile(r"jdbc:([^:]+):(.*)", re.DOTALL)

# Properties of the Java drivers that say nothing about a connection of ours.
_WITHOUT_EFFECT = frozenset(
    name.lower()
    for name in (
        *("ApplicationName", "autoReconnect", "cachePrepStmts", "characterEncoding"),
        *("connectionTimeZone", "connectTimeout", "failOverReadOnly", "loginTimeout"),
        *("prepareThreshold", "prepStmtCacheSize", "reWriteBatchedInserts"),
        *("rewriteBatchedStatements", "serverTimezone", "socketTimeout", "stringtype"),
        *("tcpKeepAlive", "useServerPrepStmts", "useUnicode", "zeroDateTimeBehavior"),
        *("allowPublicKeyRetrieval", "busy_timeout", "journal_mode"),
    )
)
_POSTGRESQL = {"sslmode", "sslrootcert", "sslcert", "sslkey", "currentschema", "ssl"}
_MYSQL = {"sslmode", "usessl", "requiressl", "verifyservercertificate"}


class Dialect(enum.Enum):
    """The databases, by the names of SQLAlchemy's dialects."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    MYSQL = "mysql"


@dataclass(frozen=True, slots=True, kw_only=True)
class JdbcAddress:
    """Where a database is; `shown` is for people. `database` is the file's path in SQLite.

    `is_mariadb`: the address names MariaDB's driver. `properties` are the driver's that have a
    meaning for us, by lower-case name.
    """

    dialect: Dialect
    is_mariadb: bool
    shown: str
    host: str
    port: int | None
    database: str
    user: str | None
    password: str | None = field(repr=False)
    properties: Mapping[str, str] = field(repr=False)


def jdbc_address(uri: str, properties: Mapping[str, str]) -> JdbcAddress:
    """The address in `uri` with the driver's properties, `jdbc.user` without its `jdbc.`.

    Raises `CatalogOptionInvalid` for what cannot be understood, properties included.
    """
    found = _PROTOCOL.fullmatch(uri)
    protocol, rest = (found[1].lower(), found[2]) if found is not None else ("", "")
    if protocol == "sqlite":
        return _sqlite(rest, properties)
    dialects = {
        "postgresql": Dialect.POSTGRESQL,
        "mysql": Dialect.MYSQL,
        "mariadb": Dialect.MYSQL,
    }
    if protocol not in dialects or not rest.startswith("//"):
        raise CatalogOptionInvalid("uri", FORMS)
    parts = urlsplit(rest)
    if "," in parts.netloc:
        raise CatalogOptionInvalid("uri", "one host, not several")
    try:
        host, port = parts.hostname or "localhost", parts.port
    except ValueError:
        raise CatalogOptionInvalid("uri", FORMS) from None
    database = unquote(parts.path.removeprefix("/"))
    # A password may have a slash.
    if not database or "@" in parts.netloc + parts.path:
        raise CatalogOptionInvalid("uri", f"{FORMS}; the user is given as jdbc.user")
    dialect = dialects[protocol]
    given = _merged(dict(parse_qsl(parts.query, keep_blank_values=True)), properties)
    known = _POSTGRESQL if dialect is Dialect.POSTGRESQL else _MYSQL
    user, password = given.pop("user", None), given.pop("password", None)
    return JdbcAddress(
        dialect=dialect,
        is_mariadb=protocol == "mariadb",
        shown=redact_text(f"jdbc:{protocol}://{parts.netloc}/{database}"),
        host=host,
        port=port,
        database=database,
        user=user,
        password=password,
        properties=_understood(given, known),
    )


def _sqlite(rest: str, properties: Mapping[str, str]) -> JdbcAddress:
    path, _, query = rest.removeprefix("file:").partition("?")
    if path in ("", ":memory:"):
        raise CatalogOptionInvalid("uri", "a file of SQLite: a database in memory has one process")
    given = _merged(dict(parse_qsl(query)), properties)
    return JdbcAddress(
        dialect=Dialect.SQLITE,
        is_mariadb=False,
        shown=f"jdbc:sqlite:{path}",
        host="",
        port=None,
        database=path,
        user=given.pop("user", None),
        password=given.pop("password", None),
        properties=_understood(given, set()),
    )


def _merged(in_uri: Mapping[str, str], properties: Mapping[str, str]) -> dict[str, str]:
    """By lower-case name; which of two values a driver takes differs between drivers."""
    found = {key.lower(): value for key, value in in_uri.items()}
    for key, value in properties.items():
        if found.setdefault(key.lower(), value) != value:
            raise CatalogOptionInvalid(f"jdbc.{key}", "the value in uri, or none there")
    return found


def _understood(given: Mapping[str, str], known: set[str]) -> dict[str, str]:
    kept = {key: value for key, value in given.items() if key not in _WITHOUT_EFFECT}
    for key in kept:
        if key not in known:
            raise CatalogOptionInvalid(
                "uri",
                f"no property {key}, which compactord does not know; remove it here or from jdbc.*"
                + (f" (known: user, password, {', '.join(sorted(known))})" if known else ""),
            )
    return kept
