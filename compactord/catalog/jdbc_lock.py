"""The lock of a JDBC catalog: a row for each table that is locked, as Java's writers keep it.

Sources: jdbc/JdbcCatalogLock.java, jdbc/JdbcUtils.java (`acquire`) and the lock dialects. The rows
name no owner, and one whose time is over may be deleted by anybody. So ours is known by when it was
made, and only ours is deleted at the end.
"""

from __future__ import annotations

import contextlib

import structlog

from compactord.catalog.database import Database, Duplicate, MissingTable
from compactord.catalog.jdbc_address import Dialect
from compactord.catalog.options import JdbcOptions
from compactord.clock import Clock, age_text
from compactord.errors import AccessDenied, CatalogOptionInvalid, CatalogUnavailable
from compactord.paimon.table import TableRef

_LOCKS = "paimon_distributed_locks"
# Seconds since the row was made, by the database's clock.
_AGE = {
    Dialect.SQLITE: "strftime('%s', 'now') - strftime('%s', acquired_at)",
    Dialect.POSTGRESQL: "EXTRACT(EPOCH FROM AGE(NOW(), acquired_at))",
    Dialect.MYSQL: "TIMESTAMPDIFF(SECOND, acquired_at, NOW())",
}
# When the row was made, as a text that stays the same.
_MADE = {
    Dialect.SQLITE: "acquired_at",
    Dialect.POSTGRESQL: "CAST(acquired_at AS VARCHAR)",
    Dialect.MYSQL: "CAST(acquired_at AS CHAR)",
}
_FIRST_SLEEP_MS = 50
# Failures of the database, one after the other, before a lock is given up.
_FAILURES_MAX = 3
# No row of a writer whose session has our time zone is younger than that.
_FUTURE_SECONDS_MAX = 60
_log = structlog.get_logger()


class JdbcLock:
    """Locks of the tables of one catalog."""

    def __init__(self, database: Database, options: JdbcOptions, clock: Clock) -> None:
        if database.address.is_mariadb:
            # As in Java, whose writers could not take it either.
            raise CatalogOptionInvalid("lock.enabled", "false: there is no lock on jdbc:mariadb:")
        self._database = database
        self._options = options
        self._clock = clock
        dialect = database.address.dialect
        self._age, self._made = _AGE[dialect], _MADE[dialect]

    def check(self) -> None:
        """Whether there is a table of locks: writers that lock have made it."""
        try:
            self._database.rows(f"SELECT lock_id FROM {_LOCKS} LIMIT 1")
        except MissingTable as error:
            raise MissingTable(
                error.path,
                f"lock.enabled is true, but the database has no table {_LOCKS}: no writer has "
                "locked yet. Set the option for all writers and let one open the catalog, or set "
                "it to false",
            ) from None

    def acquire(self, table: TableRef) -> HeldJdbcLock:
        """See `CatalogLock`."""
        lock_id = f"{self._options.catalog_key}.{table.database}.{table.name}"
        start_s = self._clock.monotonic_s()
        sleep_ms, failures = _FIRST_SLEEP_MS, 0
        while True:
            try:
                made = self._try(lock_id)
                failures = 0
            except MissingTable:
                self.check()
                raise
            except CatalogUnavailable:
                failures += 1
                if failures == _FAILURES_MAX:
                    raise
                made = None
            if made is not None:
                return HeldJdbcLock(self._database, lock_id, made, self._made)
            if (self._clock.monotonic_s() - start_s) * 1000 > self._options.lock_timeout_ms:
                raise self._timed_out(lock_id)
            sleep_ms = min(2 * sleep_ms, self._options.lock_sleep_max_ms)
            self._clock.sleep(sleep_ms / 1000)

    def _try(self, lock_id: str) -> str | None:
        """When our row was made; None while another has it."""
        database = self._database
        removed = database.execute(
            f"DELETE FROM {_LOCKS} WHERE {self._age} > expire_time_seconds and lock_id = :lock_id",
            lock_id=lock_id,
        )
        if removed:
            _log.warning("catalog_lock_expired", lock=lock_id)
        try:
            database.execute(
                f"INSERT INTO {_LOCKS} (lock_id, expire_time_seconds) VALUES (:lock_id, :expire)",
                lock_id=lock_id,
                expire=self._options.lock_timeout_ms // 1000,
            )
        except Duplicate:
            return None
        try:
            rows = database.rows(
                f"SELECT {self._made} FROM {_LOCKS} WHERE lock_id = :lock_id", lock_id=lock_id
            )
            return str(rows[0][0])
        except (CatalogUnavailable, AccessDenied, IndexError):
            with contextlib.suppress(CatalogUnavailable, AccessDenied):
                database.execute(f"DELETE FROM {_LOCKS} WHERE lock_id = :id", id=lock_id)
            raise CatalogUnavailable(
                database.address.shown, f"the lock {lock_id} could not be read back"
            ) from None

    def _timed_out(self, lock_id: str) -> CatalogUnavailable:
        waited = age_text(self._options.lock_timeout_ms)
        text = f"the lock {lock_id} was held by others for {waited}"
        rows = self._database.rows(
            f"SELECT {self._age}, {self._made} FROM {_LOCKS} WHERE lock_id = :lock_id",
            lock_id=lock_id,
        )
        if rows:
            text += f", now since {rows[0][1]}"
            if int(rows[0][0]) < -_FUTURE_SECONDS_MAX:
                text += (
                    ", which is in the future: the time zone of its writer's session is not "
                    "service.timezone"
                )
        return CatalogUnavailable(self._database.address.shown, text)


class HeldJdbcLock:
    """A row of ours."""

    def __init__(self, database: Database, lock_id: str, made: str, made_sql: str) -> None:
        self._database = database
        self._lock_id = lock_id
        self._made = made
        self._made_sql = made_sql

    def release(self) -> bool:
        """See `HeldLock`; False also when the database does not say."""
        for attempt in range(1, _FAILURES_MAX + 1):
            try:
                removed = self._database.execute(
                    f"DELETE FROM {_LOCKS} WHERE lock_id = :lock_id AND {self._made_sql} = :made",
                    lock_id=self._lock_id,
                    made=self._made,
                )
            except (CatalogUnavailable, AccessDenied) as error:
                # Other writers wait until its time is over.
                _log.warning(
                    "catalog_lock_not_released",
                    lock=self._lock_id,
                    attempt=attempt,
                    reason=str(error),
                )
            else:
                # A first attempt whose answer was lost may have removed it.
                return removed == 1
        return False
