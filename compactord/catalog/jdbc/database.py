"""The database of a JDBC catalog: its address, and statements through SQLAlchemy."""

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
from compactord.storage.calls import CALLS_AT_ONCE, Breaker, TimedCalls, call_once
from compactord.text import HIDDEN, redact_text

FORMS = "jdbc:sqlite:/path/of/file, jdbc:postgresql://host/database or jdbc:mysql://host/database"
_PROTOCOL = re.compile(r"jdbc:([^:]+):(.*)", re.DOTALL)

# Properties of the Java drivers that do not affect our connections.
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
    """Databases, by the names of SQLAlchemy's dialects."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    MYSQL = "mysql"


@dataclass(frozen=True, slots=True, kw_only=True)
class JdbcAddress:
    """The address of a database; `shown` is for messages. `database` is the file's path in SQLite.

    `is_mariadb`: the address names MariaDB's driver. `properties` are the driver's supported ones,
    by lower-case name.
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
    """The address in `uri` with the driver's properties: `jdbc.user` without its `jdbc.`.

    Raises `CatalogOptionInvalid` for an invalid address or property.
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
    # A password may contain a slash.
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
    """By lower-case name. Conflicting values are refused: drivers differ in which one wins."""
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
# Time limits for a connection and for an answer.
_CONNECT_SECONDS_MAX = 10
_ANSWER_SECONDS_MAX = 30
_DRIVERS = {Dialect.POSTGRESQL: "postgresql+psycopg", Dialect.MYSQL: "mysql+pymysql"}
# Connections beyond the pool's size are closed after their statement.
_MORE_CONNECTIONS = 20

_MISSING_TABLE = re.compile(
    r"no such table|relation .* does not exist|Table .* doesn't exist", re.DOTALL
)
# Servers report these only in words: psycopg has no code for a refused connection.
_DENIED = re.compile(
    r"authentication failed|permission denied|no pg_hba\.conf entry|no password supplied"
    r"|role .* does not exist|Access denied|command denied|readonly database",
    re.DOTALL | re.IGNORECASE,
)
# PostgreSQL's messages while it stops or starts (SQLSTATE 57P01 to 57P03). The same text may also
# contain a permanent refusal of libpq's second attempt without TLS.
_RESTARTS = re.compile(
    r"the database system is (starting up|shutting down|in recovery mode|not yet accepting|not acc)"
    r"|terminating connection (due to|because of)"
)
# Raised by drivers when a connection cannot be made or breaks, and when the server stops, starts,
# is full or locked; and by the pool when no connection becomes free.
_DOWN = (exc.OperationalError, exc.InterfaceError, exc.TimeoutError)


class _Limits(NamedTuple):
    """Time limits of a server for a connection, and for each answer."""

    connect_seconds: int
    answer_seconds: int


class MissingTable(CatalogUnavailable): ...


class Duplicate(Exception):
    """A row with this key exists already."""


class Database:
    """Statements to one database. Thread-safe; connections are opened on demand.

    Methods raise `CatalogUnavailable`, `CatalogDown` if a retry may succeed, `MissingTable` or
    `AccessDenied` with the address. `zone` is the time zone of PostgreSQL sessions, which
    determines its times without a zone. After a refusal, `replaced` returns the address with a new
    login, or None if the login has not changed. A `breaker` may block any statement with
    `CatalogDown`.
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
        # The engine's connections end with this object.
        weakref.finalize(self, self._engine.dispose)

    def rows(self, sql: str, **values: object) -> Sequence[tuple[Any, ...]]:
        return self._behind(
            lambda connection: [
                tuple(row) for row in connection.execute(sqlalchemy.text(sql), values)
            ]
        )

    def execute(self, sql: str, **values: object) -> int:
        """The number of changed rows. Raises `Duplicate` if the key exists."""
        return self._behind(_changing(sql, values))

    def execute_at_once(self, sql: str, **values: object) -> int:
        """The same as `execute`, but the breaker never blocks it."""
        return self._behind(_changing(sql, values), is_always_made=True)

    def _behind(
        self, ask: Callable[[sqlalchemy.Connection], T], *, is_always_made: bool = False
    ) -> T:
        return call_once(
            self.breaker,
            self.address.shown,
            partial(self._answer, ask),
            silent=CatalogDown,
            answers=(CatalogUnavailable, AccessDenied, Duplicate),
            is_always_made=is_always_made,
        )

    def _answer(self, ask: Callable[[sqlalchemy.Connection], T]) -> T:
        try:
            return self._run(ask)
        except exc.SQLAlchemyError as error:
            self._raise(error)

    def _run(self, ask: Callable[[sqlalchemy.Connection], T]) -> T:
        """The result of `ask`. After a refusal, it tries again with a new login."""
        engine = self._engine
        try:
            with engine.connect() as connection:
                return ask(connection)
        except exc.SQLAlchemyError as error:
            if not _is_refused(_message_of(error)) or not self._has_other_login(engine):
                raise
        with self._engine.connect() as connection:
            return ask(connection)

    def _has_other_login(self, refused: sqlalchemy.Engine) -> bool:
        """Whether the next connection uses another login than the refused engine."""
        with self._lock:
            if self._engine is refused and (address := self._replaced()) is not None:
                self._connect(address)
                refused.dispose()
            return self._engine is not refused

    def _raise(self, error: exc.SQLAlchemyError) -> NoReturn:
        """Raise the error as ours, without the statement, its values and the password."""
        if _is_duplicate(error):
            raise Duplicate from None
        message = _message_of(error)
        text, shown = self._redacted(" ".join(message.split())), self.address.shown
        if _MISSING_TABLE.search(message):
            raise MissingTable(shown, text) from None
        if _is_refused(message):
            raise AccessDenied(shown, f"the catalog's database refused: {text}") from None
        is_down = _RESTARTS.search(message) is not None or isinstance(error, _DOWN)
        kind = CatalogDown if is_down else CatalogUnavailable
        raise kind(shown, f"the catalog's database failed: {text}") from None

    def _redacted(self, text: str) -> str:
        password = self.address.password
        if password:
            # Only whole words: a short password is part of many words.
            text = re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", HIDDEN, text)
        return redact_text(text)


def _changing(sql: str, values: Mapping[str, object]) -> Callable[[sqlalchemy.Connection], int]:
    return lambda connection: int(connection.execute(sqlalchemy.text(sql), values).rowcount)


def _message_of(error: exc.SQLAlchemyError) -> str:
    return str(error.orig) if isinstance(error, exc.DBAPIError) else str(error)


def _is_refused(message: str) -> bool:
    return _RESTARTS.search(message) is None and _DENIED.search(message) is not None


def _is_duplicate(error: exc.SQLAlchemyError) -> bool:
    """Whether a key exists already, as opposed to other refusals of a row."""
    if not isinstance(error, exc.IntegrityError):
        return False
    cause = error.orig
    if getattr(cause, "sqlstate", None) == "23505":  # PostgreSQL
        return True
    if cause is not None and cause.args[:1] == (1062,):  # MySQL
        return True
    # SQLite reports only words before Python 3.11.
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
        """Limit the whole connect: drivers set no limit for name lookups and logins."""
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
    """Settings of each PostgreSQL session, made before its first statement."""

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
    """The IANA name of the zone, or of the machine's. Raises `UsageError` without one."""
    try:
        name = getattr(zone or tzlocal.get_localzone(), "key", None)
    except (LookupError, ValueError, OSError):
        name = None
    if name is None:
        raise UsageError(
            "a PostgreSQL catalog needs the writers' time zone by a name such as Continent/City, "
            "such as Europe/Berlin: set service.timezone, or TZ"
        )
    return str(name)


def _open_file(path: str) -> sqlite3.Connection:
    # A missing file is not created: a wrong path would look like an empty catalog.
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
        # The meaning of `ssl=true` in pgjdbc.
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
