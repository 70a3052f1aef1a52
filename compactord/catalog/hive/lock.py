"""The lock of a Hive catalog, compatible with Java's writers.

Source: hive/HiveCatalogLock.java. Java never prolongs its locks. Ours are prolonged, so a store
that hangs while a snapshot is published does not let other writers in.
"""

from __future__ import annotations

import getpass
import socket
import threading

import structlog

from compactord.catalog.hive.client import HiveClient, MetastoreFault
from compactord.catalog.hive.options import HiveOptions
from compactord.catalog.hive.wire import (
    ACQUIRED,
    EXCLUSIVE,
    NO_LOCK,
    TABLE_LEVEL,
    WAITING,
    LockComponent,
    LockRequest,
    LockResponse,
)
from compactord.clock import Clock
from compactord.commit.publish import release_attempts
from compactord.errors import CatalogUnavailable
from compactord.paimon.schema import TableRef
from compactord.text import age_text

_FIRST_SLEEP_MS = 50
_STATES = {3: "ABORT", 4: "NOT_ACQUIRED"}
_log = structlog.get_logger()


class HiveLock:
    def __init__(self, client: HiveClient, options: HiveOptions, clock: Clock) -> None:
        self.client, self.clock = client, clock
        self.heartbeat_s = options.forget_ms / 3000
        self._sleep_max_ms = options.lock_sleep_max_ms
        self._timeout_ms = options.lock_timeout_ms

    def acquire(self, table: TableRef) -> HeldHiveLock:
        """See `CatalogLock`."""
        component = LockComponent(
            type=EXCLUSIVE, level=TABLE_LEVEL, database=table.database, table=table.name
        )
        request = LockRequest(components=[component], user=_user(), host=socket.gethostname())
        start_s = self.clock.monotonic_s()
        held: HeldHiveLock | None = None
        try:
            answer = self.client.lock(request)
            held = HeldHiveLock(self, f"{table.full_name} ({answer.lock_id})", answer.lock_id)
            state = self._final_state(answer, start_s)
        except BaseException:
            if held is not None:
                held.release()
            raise
        if state == ACQUIRED:
            held.keep_alive()
            return held
        held.release()
        if state == WAITING:
            waited = age_text(self._timeout_ms)
            text = f"the lock of {table.full_name} was held by other writers for {waited}"
        else:
            text = f"the lock of {table.full_name} was refused: {_STATES.get(state, state)}"
        raise CatalogUnavailable(self.client.shown, text)

    def _final_state(self, answer: LockResponse, start_s: float) -> int:
        sleep_ms = _FIRST_SLEEP_MS
        while answer.state == WAITING:
            if (self.clock.monotonic_s() - start_s) * 1000 >= self._timeout_ms:
                break
            sleep_ms = min(2 * sleep_ms, self._sleep_max_ms)
            self.clock.sleep(sleep_ms / 1000)
            answer = self.client.check_lock(answer.lock_id)
        return answer.state


class HeldHiveLock:
    """A lock of ours, by its number."""

    def __init__(self, lock: HiveLock, name: str, lock_id: int) -> None:
        self._lock = lock
        self._name = name
        self.id = lock_id
        self._is_over = threading.Event()

    def keep_alive(self) -> None:
        """Prolong the lock, in a thread, until it is released."""
        threading.Thread(target=self._beat, name=f"hive-lock-{self.id}", daemon=True).start()

    def release(self) -> bool:
        """See `HeldLock`. Also False if the metastore does not answer."""
        self._is_over.set()
        for attempt in release_attempts(self._lock.clock):
            try:
                # A metastore reports an unknown lock here, but not in the answer to unlock.
                self._lock.client.heartbeat(self.id)
                self._lock.client.unlock(self.id)
            except MetastoreFault as error:
                # It timed out and may be another writer's, or a first attempt released it.
                if error.kind != NO_LOCK:
                    self._warn(attempt, error)
                return False
            except CatalogUnavailable as error:
                self._warn(attempt, error)
            else:
                return True
        return False

    def _beat(self) -> None:
        while not self._is_over.wait(self._lock.heartbeat_s):
            try:
                self._lock.client.heartbeat(self.id)
            except MetastoreFault:
                # The lock is lost, which `release` reports.
                return
            except CatalogUnavailable as error:
                _log.warning("catalog_lock_not_prolonged", lock=self._name, error=str(error))

    def _warn(self, attempt: int, error: Exception) -> None:
        _log.warning(
            "catalog_lock_not_released", lock=self._name, attempt=attempt, error=str(error)
        )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # Containers may run under a user id without a name.
        return "compactord"
