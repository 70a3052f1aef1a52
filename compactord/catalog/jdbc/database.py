"""The database of a JDBC catalog: its address, and statements through SQLAlchemy.

`jdbc:postgresql://host:5432/paimon?user=…`.
"""

from __future__ import annotations

import enum
import os
import re
import sqlite3
import ssl
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import sqlalchemy
import tzlocal
from sqlalchemy import event, exc

from compactord.errors import (
    AccessDenied,
    CatalogDown,
    CatalogOptionInvalid,
    CatalogUnavailable,
    UsageError,
)
from compactord.storage.calls import CALLS_AT_ONCE, Breaker, TimedCalls, attempted
from compactord.text import HIDDEN, redact_text

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


T = TypeVar("T")
# Until a connection stands, and until an answer comes.
_CONNECT_SECONDS_MAX = 10
_ANSWER_SECONDS_MAX = 30
_DRIVERS = {Dialect.POSTGRESQL: "postgresql+psycopg", Dialect.MYSQL: "mysql+pymysql"}
# Connections beyond the pool's size live as long as their statement.
_MORE_CONNECTIONS = 20

_MISSING_TABLE = re.compile(
    r"no such table|relation .* does not exist|Table .* doesn't exist", re.DOTALL
)
# Servers tell these in words: of a connection that was refused psycopg has no code.
_DENIED = re.compile(
    r"authentication failed|permission denied|no pg_hba\.conf entry|no password supplied"
    r"|role .* does not exist|Access denied|command denied|readonly database",
    re.DOTALL | re.IGNORECASE,
)
# What PostgreSQL says while it stops or starts (SQLSTATE 57P01 to 57P03): beside it, in the same
# text, it may refuse a second attempt of libpq, without TLS, for good.
_RESTARTS = re.compile(
    r"the database system is (starting up|shutting down|in recovery mode|not yet accepting|not acc)"
    r"|terminating connection (due to|because of)"
)
# What drivers raise when a connection cannot be made or breaks, and servers when they stop, start,
# are full or locked; the pool when none of its connections became free.
_DOWN = (exc.OperationalError, exc.InterfaceError, exc.TimeoutError)


class _Limits(NamedTuple):
    """How long a server may take until a connection stands, and for each answer."""

    connect_seconds: int
    answer_seconds: int


class MissingTable(CatalogUnavailable):
    """The database has no such table."""


class Duplicate(Exception):
    """A row with this key is there already."""


class Database:
    """Any number of threads may ask; connections are made when they are needed.

    Everything raises `CatalogUnavailable`, `CatalogDown` where another try may succeed,
    `MissingTable` or `AccessDenied` with the address. The zone is that of sessions in PostgreSQL,
    whose times without a zone depend on it. After a refusal `replaced` is asked for the address
    with a login that was replaced meanwhile, None if none was. A `breaker` may refuse any statement
    with `CatalogDown`.
    """

    def __init__(
        self,
        address: JdbcAddress,
        *,
        pool_size: int,
        zone: tzinfo | None,
        connect_seconds: int = _CONNECT_SECONDS_MAX,
        answer_seconds: int = _ANSWER_SECONDS_MAX,
        replaced: Callable[[], JdbcAddress | None] = lambda: None,
    ) -> None:
        self._pool_size, self._zone, self._replaced = pool_size, zone, replaced
        self._limits = _Limits(connect_seconds, answer_seconds)
        self.breaker: Breaker | None = None
        self._lock = threading.Lock()
        self._connect(address)

    def _connect(self, address: JdbcAddress) -> None:
        self.address = address
        self._engine = _engine(address, self._limits, pool_size=self._pool_size, zone=self._zone)
        # Its connections end with it.
        weakref.finalize(self, self._engine.dispose)

    def rows(self, sql: str, **values: object) -> Sequence[tuple[Any, ...]]:
        return self._behind(
            lambda connection: [
                tuple(row) for row in connection.execute(sqlalchemy.text(sql), values)
            ]
        )

    def execute(self, sql: str, **values: object) -> int:
        """The number of rows that were changed. Raises `Duplicate` for a key that is there."""
        return self._behind(_changing(sql, values))

    def execute_at_once(self, sql: str, **values: object) -> int:
        """As `execute`, whatever the breaker says."""
        return self._behind(_changing(sql, values), is_always_made=True)

    def _behind(
        self, ask: Callable[[sqlalchemy.Connection], T], *, is_always_made: bool = False
    ) -> T:
        return attempted(
            self.breaker,
            self.address.shown,
            partial(self._answer, ask),
            silent=CatalogDown,
            answers=(CatalogUnavailable, AccessDenied, Duplicate),
            is_always_made=is_always_made,
        )

    def _answer(self, ask: Callable[[sqlalchemy.Connection], T]) -> T:
        try:
            return self._asked(ask)
        except exc.SQLAlchemyError as error:
            self._raise(error)

    def _asked(self, ask: Callable[[sqlalchemy.Connection], T]) -> T:
        """What `ask` returns. A refusal did nothing: with another login it is asked again."""
        engine = self._engine
        try:
            with engine.connect() as connection:
                return ask(connection)
        except exc.SQLAlchemyError as error:
            if not _is_refused(_said(error)) or not self._has_other_login(engine):
                raise
        with self._engine.connect() as connection:
            return ask(connection)

    def _has_other_login(self, refused: sqlalchemy.Engine) -> bool:
        """Whether the next connection has another login than the engine that was refused."""
        with self._lock:
            if self._engine is refused and (address := self._replaced()) is not None:
                self._connect(address)
                refused.dispose()
            return self._engine is not refused

    def _raise(self, error: exc.SQLAlchemyError) -> NoReturn:
        """As an error of ours, without the statement, its values and the password."""
        if _is_duplicate(error):
            raise Duplicate from None
        said = _said(error)
        text, shown = self._redacted(" ".join(said.split())), self.address.shown
        if _MISSING_TABLE.search(said):
            raise MissingTable(shown, text) from None
        if _is_refused(said):
            raise AccessDenied(shown, f"the catalog's database refuses: {text}") from None
        is_down = _RESTARTS.search(said) is not None or isinstance(error, _DOWN)
        kind = CatalogDown if is_down else CatalogUnavailable
        raise kind(shown, f"the catalog's database fails: {text}") from None

    def _redacted(self, text: str) -> str:
        password = self.address.password
        if password:
            # As a word: a short one is a part of many.
            text = re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", HIDDEN, text)
        return redact_text(text)


def _changing(sql: str, values: Mapping[str, object]) -> Callable[[sqlalchemy.Connection], int]:
    return lambda connection: int(connection.execute(sqlalchemy.text(sql), values).rowcount)


def _said(error: exc.SQLAlchemyError) -> str:
    return str(error.orig) if isinstance(error, exc.DBAPIError) else str(error)


def _is_refused(said: str) -> bool:
    return _RESTARTS.search(said) is None and _DENIED.search(said) is not None


def _is_duplicate(error: exc.SQLAlchemyError) -> bool:
    """Whether a key was there already, and not that a row was refused for another reason."""
    if not isinstance(error, exc.IntegrityError):
        return False
    cause = error.orig
    if getattr(cause, "sqlstate", None) == "23505":  # PostgreSQL
        return True
    if cause is not None and cause.args[:1] == (1062,):  # MySQL
        return True
    # SQLite: it has words alone before Python 3.11.
    return str(cause).startswith("UNIQUE constraint failed")


def _engine(
    address: JdbcAddress, limits: _Limits, *, pool_size: int, zone: tzinfo | None
) -> sqlalchemy.Engine:
    if address.dialect is Dialect.SQLITE:
        return sqlalchemy.create_engine(
            "sqlite://",
            creator=lambda: _open_file(address.database),
            poolclass=sqlalchemy.NullPool,
            isolation_level="AUTOCOMMIT",
        )
    url = sqlalchemy.URL.create(
        _DRIVERS[address.dialect],
        username=address.user,
        password=address.password,
        host=address.host,
        port=address.port,
        database=address.database,
    )
    is_postgresql = address.dialect is Dialect.POSTGRESQL
    arguments = (_postgresql_arguments if is_postgresql else _mysql_arguments)(address, limits)
    engine = sqlalchemy.create_engine(
        url,
        connect_args=arguments,
        pool_size=pool_size,
        max_overflow=_MORE_CONNECTIONS,
        pool_timeout=limits.answer_seconds,
        pool_pre_ping=True,
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,
    )
    calls, seconds = TimedCalls(CALLS_AT_ONCE), limits.connect_seconds + limits.answer_seconds

    @event.listens_for(engine, "do_connect")
    def timed(dialect: Any, record: object, args: Sequence[Any], given: dict[str, Any]) -> object:
        """Names are looked up, and logins take place, without a limit of the drivers as a whole."""
        del record
        connect = partial(dialect.connect, *args)
        if is_postgresql:
            from compactord.catalog.jdbc import postgresql

            connect = partial(postgresql.connect, limits.answer_seconds)
        try:
            return calls.within(seconds, partial(connect, **given))
        except TimeoutError as error:
            raise dialect.dbapi.OperationalError(str(error)) from None

    if is_postgresql:
        event.listen(engine, "connect", _Sessions(address, zone))
    return engine


class _Sessions:
    """Sets what every session of PostgreSQL needs before its first statement."""

    def __init__(self, address: JdbcAddress, zone: tzinfo | None) -> None:
        self._settings = {"TimeZone": zone_name(zone)}
        if "currentschema" in address.properties:
            self._settings["search_path"] = address.properties["currentschema"]

    def __call__(self, connection: Any, record: object) -> None:
        del record
        with connection.cursor() as cursor:
            for name, value in self._settings.items():
                cursor.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.commit()


def zone_name(zone: tzinfo | None) -> str:
    """The IANA name of the zone, None: the machine's. Raises `UsageError` for one without."""
    try:
        name = getattr(zone or tzlocal.get_localzone(), "key", None)
    except (LookupError, ValueError, OSError):
        name = None
    if name is None:
        raise UsageError(
            "a PostgreSQL catalog needs a time zone with a name of the form Continent/City, that "
            "of the writers: set service.timezone, or TZ"
        )
    return str(name)


def _open_file(path: str) -> sqlite3.Connection:
    # Not created when it is absent: a wrong path would look like an empty catalog.
    name = f"file:{quote(os.path.abspath(path))}?mode=rw"
    return sqlite3.connect(
        name, uri=True, timeout=_CONNECT_SECONDS_MAX, isolation_level=None, check_same_thread=False
    )


def _postgresql_arguments(address: JdbcAddress, limits: _Limits) -> dict[str, object]:
    properties = address.properties
    arguments: dict[str, object] = {
        "connect_timeout": limits.connect_seconds,
        "tcp_user_timeout": limits.answer_seconds * 1000,
        "application_name": "compactord",
    }
    for key in ("sslmode", "sslrootcert", "sslcert", "sslkey"):
        if key in properties:
            arguments[key] = properties[key]
    if _flag(properties, "ssl"):
        # As pgjdbc reads `ssl=true`.
        arguments.setdefault("sslmode", "verify-full")
        arguments.setdefault("sslrootcert", "system")
    return arguments


def _mysql_arguments(address: JdbcAddress, limits: _Limits) -> dict[str, object]:
    properties = address.properties
    arguments: dict[str, object] = {
        "connect_timeout": limits.connect_seconds,
        "read_timeout": limits.answer_seconds,
        "write_timeout": limits.answer_seconds,
    }
    mode = properties.get("sslmode", "").upper()
    if mode not in ("", "DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"):
        raise CatalogOptionInvalid("uri", "a mode of MySQL as sslMode, such as VERIFY_IDENTITY")
    if not mode and (_flag(properties, "usessl") or _flag(properties, "requiressl")):
        mode = "VERIFY_CA" if _flag(properties, "verifyservercertificate") else "REQUIRED"
    if mode in ("REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"):
        context = ssl.create_default_context()
        context.check_hostname = mode == "VERIFY_IDENTITY"
        context.verify_mode = ssl.CERT_NONE if mode == "REQUIRED" else ssl.CERT_REQUIRED
        arguments["ssl"] = context
    return arguments


def _flag(properties: Mapping[str, str], key: str) -> bool:
    return properties.get(key, "false").lower() == "true"
