"""Calls to a metastore at one of several addresses, with idle connections kept."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from compactord.catalog.hive.connection import (
    CALL_SECONDS_MAX,
    CONNECT_SECONDS_MAX,
    AnswerTooLong,
    Connection,
    DeclaredFault,
    Nonsense,
)
from compactord.catalog.hive.login import LoginRefused, Security
from compactord.catalog.hive.options import Address
from compactord.catalog.hive.wire import (
    LOAD_DONE,
    NO_OBJECT,
    HivePartition,
    HiveTable,
    LockId,
    LockRequest,
    LockResponse,
    NewPartitions,
    WholeTable,
)
from compactord.clock import Clock
from compactord.errors import CatalogDown, CatalogUnavailable
from compactord.storage.calls import CALLS_AT_ONCE, Breaker, TimedCalls, attempted
from compactord.text import shown_text

_IDLE_MAX = 4
# Names, and the servers of Kerberos, are asked without a limit of their own.
_CONNECTION_SECONDS_MAX = CONNECT_SECONDS_MAX + CALL_SECONDS_MAX + 5.0
# Other writers wait until a lock that is held is given back.
_OF_HELD_LOCKS = ("heartbeat", "unlock")


class MetastoreFault(CatalogUnavailable):
    """The metastore's own answer that it will not; `kind` is the name of its exception."""

    def __init__(self, shown: str, answer: DeclaredFault) -> None:
        super().__init__(shown, f"the metastore answered {_shown(answer)}")
        self.kind = answer.kind


class HiveClient:
    """One metastore, or several over one database; any number of threads may ask.

    Each call raises `MetastoreFault` for the exceptions that it names, `CatalogDown` where no
    address answers or a `breaker` refuses, and `CatalogUnavailable` for everything else that is no
    answer. For a lock that is held the metastore is always asked.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        shown: str,
        clock: Clock,
        security: Security,
        *,
        connection_seconds_max: float = _CONNECTION_SECONDS_MAX,
    ) -> None:
        self.shown = shown
        self._calls = TimedCalls(CALLS_AT_ONCE)
        self._connection_seconds_max = connection_seconds_max
        self._security = security
        self._addresses = addresses
        self._clock = clock
        self.breaker: Breaker | None = None
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        weakref.finalize(self, _close_all, self._idle)
        # The address that answered last.
        self._first = 0

    def databases(self) -> Sequence[str]:
        found: Sequence[str] = self._call("get_all_databases")
        return found

    def table_names(self, database: str) -> Sequence[str]:
        found: Sequence[str] = self._call("get_all_tables", database)
        return found

    def table(self, database: str, name: str) -> WholeTable:
        """Raises a `MetastoreFault` of kind `NO_OBJECT` where it is not there."""
        found: WholeTable = self._call("get_table", database, name)
        return found

    def tables(self, database: str, names: Sequence[str]) -> Sequence[HiveTable]:
        """Those that are there."""
        found: Sequence[HiveTable] = self._call("get_table_objects_by_name", database, list(names))
        return found

    def add_partitions(
        self, database: str, table: str, partitions: Sequence[HivePartition]
    ) -> None:
        """Entries that are there stay as they are."""
        request = NewPartitions(
            database=database,
            table=table,
            partitions=list(partitions),
            skips_known=True,
            wants_answer=False,
        )
        self._call("add_partitions_req", request)

    def drop_partition(self, database: str, table: str, values: Sequence[str]) -> None:
        """The entry alone; none is as good. Its files stay."""
        with _passing_over_none():
            self._call("drop_partition", database, table, list(values), False)

    def partition(self, database: str, table: str, values: Sequence[str]) -> HivePartition | None:
        with _passing_over_none():
            found: HivePartition = self._call("get_partition", database, table, list(values))
            return found
        return None

    def mark_partition(self, database: str, table: str, spec: Mapping[str, str]) -> None:
        """Sent once: each call is an event. One that is not there is passed over, as in Java."""
        with _passing_over_none():
            self._call(
                *("markPartitionForEvent", database, table, dict(spec), LOAD_DONE),
                is_repeatable=False,
            )

    def is_marked(self, database: str, table: str, spec: Mapping[str, str]) -> bool:
        with _passing_over_none():
            found: bool = self._call(
                "isPartitionMarkedForEvent", database, table, dict(spec), LOAD_DONE
            )
            return found
        return False

    def lock(self, request: LockRequest) -> LockResponse:
        """Sent once: where the answer is lost, a lock may be left until it is forgotten."""
        found: LockResponse = self._call("lock", request, is_repeatable=False)
        return found

    def check_lock(self, lock_id: int) -> LockResponse:
        found: LockResponse = self._call("check_lock", LockId(lock_id=lock_id))
        return found

    def heartbeat(self, lock_id: int) -> None:
        self._call("heartbeat", LockId(lock_id=lock_id))

    def unlock(self, lock_id: int) -> None:
        self._call("unlock", LockId(lock_id=lock_id))

    def _no_metastore(self, error: Nonsense) -> CatalogUnavailable:
        if isinstance(error, AnswerTooLong):
            return CatalogUnavailable(self.shown, str(error))
        return CatalogUnavailable(self.shown, f"this is no metastore: {error}")

    def _call(self, name: str, *arguments: object, is_repeatable: bool = True) -> Any:
        return attempted(
            self.breaker,
            self.shown,
            partial(self._answer, name, arguments, is_repeatable=is_repeatable),
            silent=CatalogDown,
            answers=(CatalogUnavailable,),
            is_always_made=name in _OF_HELD_LOCKS,
        )

    def _answer(self, name: str, arguments: Sequence[object], *, is_repeatable: bool) -> Any:
        failures: list[str] = []
        for connection in self._connections(failures):
            try:
                found = connection.call(name, arguments)
            except DeclaredFault as error:
                self._keep(connection)
                raise MetastoreFault(self.shown, error) from None
            except Nonsense as error:
                connection.close()
                raise self._no_metastore(error) from None
            except OSError as error:
                connection.close()
                failures.append(_why(error))
                if not is_repeatable:
                    break
            except BaseException:
                connection.close()
                raise
            else:
                self._keep(connection)
                return found
        raise CatalogDown(self.shown, f"no answer ({'; '.join(failures)})")

    def _connections(self, failures: list[str]) -> Iterator[Connection]:
        """An idle one if there is any, then a new one to each address."""
        with self._lock:
            idle = self._idle.pop() if self._idle else None
            first = self._first
        if idle is not None:
            if idle.is_open():
                yield idle
            idle.close()
        for number in range(len(self._addresses)):
            position = (first + number) % len(self._addresses)
            host, port = self._addresses[position]
            try:
                connection = self._calls.within(
                    self._connection_seconds_max,
                    partial(Connection, host, port, self._clock, self._security),
                )
            except LoginRefused as error:
                why = f"the login is refused: {_shown(error)}"
                raise CatalogUnavailable(self.shown, why) from None
            except Nonsense as error:
                raise self._no_metastore(error) from None
            except (OSError, UnicodeError) as error:
                failures.append(f"{host}:{port}: {_why(error)}")
                continue
            self._first = position
            yield connection

    def _keep(self, connection: Connection) -> None:
        with self._lock:
            if len(self._idle) < _IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()


@contextlib.contextmanager
def _passing_over_none() -> Iterator[None]:
    """Nothing happens where there is no such thing."""
    try:
        yield
    except MetastoreFault as error:
        if error.kind != NO_OBJECT:
            raise


def _close_all(connections: Sequence[Connection]) -> None:
    for connection in connections:
        connection.close()


def _shown(error: Exception) -> str:
    """What others say, as far as it can be shown."""
    return shown_text(str(error))


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
