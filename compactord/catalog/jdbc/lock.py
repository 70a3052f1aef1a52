"""The lock of a JDBC catalog: a row for each locked table, compatible with Java's writers.

Sources: jdbc/JdbcCatalogLock.java, jdbc/JdbcUtils.java (`acquire`) and the lock dialects. The rows
name no owner, and any writer may delete an expired one. So each of our rows has a time limit with
random last two minutes, and only a row with that limit is deleted as ours: at the end, and after a
lost answer, when it is unknown whether the row exists.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import NamedTuple

import structlog

from compactord.catalog.jdbc.database import Database, Dialect, Duplicate, MissingTable
from compactord.catalog.jdbc.options import JdbcOptions
from compactord.clock import Clock
from compactord.commit.publish import release_attempts
from compactord.errors import AccessDenied, CatalogOptionInvalid, CatalogUnavailable
from compactord.paimon.schema import TableRef
from compactord.text import age_text

_LOCKS = "paimon_distributed_locks"
# Seconds since the row was created, by the database's clock.
_AGE = {
    Dialect.SQLITE: "strftime('%s', 'now') - strftime('%s', acquired_at)",
    Dialect.POSTGRESQL: "EXTRACT(EPOCH FROM AGE(NOW(), acquired_at))",
    Dialect.MYSQL: "TIMESTAMPDIFF(SECOND, acquired_at, NOW())",
}
# Creation time of the row, as a stable text.
_MADE = {
    Dialect.SQLITE: "acquired_at",
    Dialect.POSTGRESQL: "CAST(acquired_at AS VARCHAR)",
    Dialect.MYSQL: "CAST(acquired_at AS CHAR)",
}
_FIRST_SLEEP_MS = 50
# Consecutive failures of the database before a lock is abandoned. The commit tries again.
_FAILURES_MAX = 3
# Added to the time limit of a row, at least one: Java's have none. A larger value would make all
# writers wait longer for an abandoned row.
_EXTRA_SECONDS_MAX = 120
# A row in doubt was created within this time after its INSERT was sent, or another writer owns it.
# A server executes a statement that it received even if its connection broke.
_LATE_SECONDS_MAX = 10
# No row of a writer whose session has our time zone is younger than this.
_FUTURE_SECONDS_MAX = 60
_log = structlog.get_logger()


class _Doubt(NamedTuple):
    """A row that may exist, and is ours if it does. `sent_s` is of the monotonic clock."""

    expire_s: int
    sent_s: float


class JdbcLock:
    """Locks of the tables of one catalog. Raises `CatalogOptionInvalid` if it supports none."""

    def __init__(
        self,
        database: Database,
        options: JdbcOptions,
        clock: Clock,
        jitter: random.Random | None = None,
    ) -> None:
        if database.address.is_mariadb:
            # As in Java, whose writers could not take it either.
            raise CatalogOptionInvalid("lock.enabled", "false: there is no lock on jdbc:mariadb:")
        self.database = database
        self.clock = clock
        self._options = options
        self._jitter = jitter or random.Random()
        self._doubts: defaultdict[str, list[_Doubt]] = defaultdict(list)
        dialect = database.address.dialect
        self._age, self.made_sql = _AGE[dialect], _MADE[dialect]

    def check(self) -> None:
        """Read the table of locks, which writers create. Raises `MissingTable`."""
        try:
            self.database.rows(f"SELECT lock_id FROM {_LOCKS} LIMIT 1")
        except MissingTable as error:
            raise MissingTable(
                error.path,
                f"lock.enabled is true, but the database has no table {_LOCKS}: no writer has "
                "locked yet. Set the option for all writers and let one open the catalog, or set "
                "it to false",
            ) from None

    def acquire(self, table: TableRef) -> HeldJdbcLock:
        lock_id = f"{self._options.catalog_key}.{table.database}.{table.name}"
        start_s = self.clock.monotonic_s()
        sleep_ms, failures = _FIRST_SLEEP_MS, 0
        while True:
            try:
                held = self._try(lock_id)
                failures = 0
            except MissingTable:
                self.check()
                raise
            except CatalogUnavailable:
                failures += 1
                if failures == _FAILURES_MAX:
                    raise
                held = None
            if held is not None:
                return held
            if (self.clock.monotonic_s() - start_s) * 1000 > self._options.lock_timeout_ms:
                raise self._timed_out(lock_id)
            sleep_ms = min(2 * sleep_ms, self._options.lock_sleep_max_ms)
            self.clock.sleep(sleep_ms / 1000)

    def note_doubt(self, lock_id: str, expire_s: int, sent_s: float) -> None:
        """Record that an abandoned row of ours may exist: the next `acquire` deletes it."""
        self._doubts[lock_id].append(_Doubt(expire_s, sent_s))

    def _try(self, lock_id: str) -> HeldJdbcLock | None:
        """Our row, or None while another writer holds one."""
        removed = self.database.execute(
            f"DELETE FROM {_LOCKS} WHERE {self._age} > expire_time_seconds and lock_id = :lock_id",
            lock_id=lock_id,
        )
        if removed:
            _log.warning("catalog_lock_expired", lock=lock_id)
        for doubt in tuple(self._doubts[lock_id]):
            self._remove(lock_id, doubt)
        extra_s = self._jitter.randint(1, _EXTRA_SECONDS_MAX)
        expire_s = self._options.lock_timeout_ms // 1000 + extra_s
        sent_s = self.clock.monotonic_s()
        try:
            self.database.execute(
                f"INSERT INTO {_LOCKS} (lock_id, expire_time_seconds) VALUES (:lock_id, :expire)",
                lock_id=lock_id,
                expire=expire_s,
            )
            rows = self.database.rows(
                f"SELECT {self.made_sql} FROM {_LOCKS} "
                "WHERE lock_id = :lock_id AND expire_time_seconds = :expire",
                lock_id=lock_id,
                expire=expire_s,
            )
        except Duplicate:
            return None
        except (CatalogUnavailable, AccessDenied):
            self.note_doubt(lock_id, expire_s, sent_s)
            raise
        if not rows:
            # Deleted manually, or expired while the database did not answer.
            return None
        # No row is in doubt any more.
        self._doubts.pop(lock_id, None)
        return HeldJdbcLock(self, lock_id, made=str(rows[0][0]), expire_s=expire_s, sent_s=sent_s)

    def _remove(self, lock_id: str, doubt: _Doubt) -> None:
        """Delete by time limit and age: another writer's row may have the same limit."""
        age_s = self.clock.monotonic_s() - doubt.sent_s
        removed = self.database.execute(
            f"DELETE FROM {_LOCKS} WHERE lock_id = :lock_id AND expire_time_seconds = :expire "
            f"AND {self._age} BETWEEN :least AND :most",
            lock_id=lock_id,
            expire=doubt.expire_s,
            least=int(age_s) - _LATE_SECONDS_MAX,
            most=int(age_s) + 2,
        )
        if removed:
            _log.warning("catalog_lock_found", lock=lock_id)

    def _timed_out(self, lock_id: str) -> CatalogUnavailable:
        waited = age_text(self._options.lock_timeout_ms)
        text = f"the lock {lock_id} was held by other writers for {waited}"
        rows = self.database.rows(
            f"SELECT {self._age}, {self.made_sql} FROM {_LOCKS} WHERE lock_id = :lock_id",
            lock_id=lock_id,
        )
        if rows:
            text += f", now since {rows[0][1]}"
            if int(rows[0][0]) < -_FUTURE_SECONDS_MAX:
                text += (
                    ", which is in the future: the time zone of its writer's session is not "
                    "service.timezone"
                )
        return CatalogUnavailable(self.database.address.shown, text)


class HeldJdbcLock:
    def __init__(
        self, lock: JdbcLock, lock_id: str, *, made: str, expire_s: int, sent_s: float
    ) -> None:
        self._lock = lock
        self._lock_id = lock_id
        self._made = made
        self._expire_s = expire_s
        self._sent_s = sent_s

    def release(self) -> bool:
        """See `HeldLock`. Also False if the database does not answer."""
        for attempt in release_attempts(self._lock.clock):
            try:
                removed = self._lock.database.execute_at_once(
                    f"DELETE FROM {_LOCKS} WHERE lock_id = :lock_id "
                    f"AND expire_time_seconds = :expire AND {self._lock.made_sql} = :made",
                    lock_id=self._lock_id,
                    expire=self._expire_s,
                    made=self._made,
                )
            except (CatalogUnavailable, AccessDenied) as error:
                _log.warning(
                    "catalog_lock_not_released",
                    lock=self._lock_id,
                    attempt=attempt,
                    error=str(error),
                )
            else:
                # A first attempt whose answer was lost may have removed it.
                return removed == 1
        # Other writers wait until the row expires.
        self._lock.note_doubt(self._lock_id, self._expire_s, self._sent_s)
        return False
