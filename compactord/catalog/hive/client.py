"""Calls to one of several metastore addresses over pooled connections."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.Thrift import TApplicationException, TException, TMessageType
from thrift.transport.TTransport import TBufferedTransport, TFramedTransport

from compactord.catalog.hive.options import Address, LoginRefused, NoLogin, Security, log_in
from compactord.catalog.hive.wire import (
    CALLS,
    LOAD_DONE,
    NO_OBJECT,
    Call,
    HivePartition,
    HiveTable,
    LockId,
    LockRequest,
    LockResponse,
    NewPartitions,
    Struct,
    WholeTable,
)
from compactord.clock import Clock
from compactord.errors import CatalogDown, CatalogUnavailable
from compactord.storage.calls import CALLS_AT_ONCE, Breaker, TimedCalls, call_once
from compactord.text import shown_text, size_text

CONNECT_SECONDS_MAX = 5.0
# Time limit for TLS and login together, and for a call until the last byte of its answer.
CALL_SECONDS_MAX = 30.0
# Limit for a login, whose messages have their own limits.
_LOGIN_BYTES_MAX = 8 << 20
_READ_BYTES = 1 << 16
# Raised by Thrift, in C and in Python, for bytes that are not an answer.
_DECODING = (TException, ArithmeticError, ValueError, TypeError, MemoryError, RecursionError)


class DeclaredFault(Exception):
    """An exception that the metastore declares; `kind` is its name."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {message}" if message else kind)


class Nonsense(Exception):
    """An answer that does not come from a metastore."""


class AnswerTooLong(Nonsense):
    """An answer exceeds the limit of bytes."""


class _Socket:
    """Thrift's transport. Raises OSError, including EOFError and timeouts.

    Reading raises `AnswerTooLong`.
    """

    def __init__(self, host: str, port: int, clock: Clock, tls: ssl.SSLContext | None) -> None:
        self._clock = clock
        self._socket = socket.create_connection((host, port), timeout=CONNECT_SECONDS_MAX)
        self.begin(_LOGIN_BYTES_MAX)
        if tls is not None:
            self._socket.settimeout(self._left_s())
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)

    def begin(self, bytes_max: int) -> None:
        """Start an exchange of at most `CALL_SECONDS_MAX` that reads at most `bytes_max`."""
        self._deadline_s = self._clock.monotonic_s() + CALL_SECONDS_MAX
        self._left_bytes = self._bytes_max = bytes_max

    def read(self, size: int) -> bytes:
        self._socket.settimeout(self._left_s())
        found = self._socket.recv(min(size, _READ_BYTES))
        if not found:
            raise ConnectionError("the connection was closed")
        self._left_bytes -= len(found)
        if self._left_bytes < 0:
            raise AnswerTooLong(f"more than {size_text(self._bytes_max)}")
        return found

    def readAll(self, size: int) -> bytes:  # noqa: N802 - Thrift's name
        found = bytearray()
        while len(found) < size:
            found += self.read(min(size - len(found), _READ_BYTES))
        return bytes(found)

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            # With TLS, each `send` of a `sendall` would have that time.
            self._socket.settimeout(self._left_s())
            left = left[self._socket.send(left) :]

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._socket.close()

    def is_open(self) -> bool:
        """Whether the peer has neither closed the connection nor sent unexpected bytes."""
        try:
            self._socket.settimeout(0)
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def _left_s(self) -> float:
        left_s = self._deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError(f"no answer within {CALL_SECONDS_MAX:.0f} s")
        return left_s


class Connection:
    """One connection, for one thread at a time. Close it after any error but `DeclaredFault`."""

    def __init__(self, host: str, port: int, clock: Clock, security: Security) -> None:
        """Raises OSError, `LoginRefused` and `Nonsense`."""
        self._socket = _Socket(host, port, clock, security.tls)
        transport = TBufferedTransport(self._socket, _READ_BYTES)
        if security.login is not None:
            # All messages after a login are in frames, like Thrift's framed messages.
            transport = TFramedTransport(self._socket)
            try:
                log_in(self._socket, security.login, host)
            except NoLogin as error:
                self.close()
                raise Nonsense(str(error)) from None
            except BaseException:
                self.close()
                raise
        self._protocol = TBinaryProtocolAccelerated(transport, strictRead=True)

    def call(self, name: str, arguments: Sequence[object]) -> Any:
        """The result of a call. Raises OSError, `DeclaredFault` and `Nonsense`."""
        call = CALLS[name]
        bytes_max, items_max = call.bound.bytes_max, call.bound.items_max
        self._socket.begin(bytes_max)
        # Thrift reads this limit at each container and text, in C as well.
        self._protocol.string_length_limit = bytes_max
        self._protocol.container_length_limit = items_max
        try:
            self._send(name, call, arguments)
            return self._received(name, call)
        except TApplicationException as error:
            raise Nonsense(f"it does not know {name} ({error})") from None
        except (AnswerTooLong, OverflowError):
            raise AnswerTooLong(
                f"the answer to {name} has more than {items_max:,} items in a list, or than "
                f"{size_text(bytes_max)}, the most that is read of it{call.bound.advice}"
            ) from None
        except _DECODING as error:
            raise Nonsense(f"{type(error).__name__} in the answer to {name}") from None

    def _send(self, name: str, call: Call, arguments: Sequence[object]) -> None:
        sent = Struct()
        for number, value in enumerate(arguments, start=1):
            setattr(sent, f"argument{number}", value)
        self._protocol.writeMessageBegin(name, TMessageType.CALL, 0)
        self._protocol.writeStruct(sent, call.arguments)
        self._protocol.writeMessageEnd()
        self._protocol.trans.flush()

    def _received(self, name: str, call: Call) -> Any:
        answered, kind, _ = self._protocol.readMessageBegin()
        if kind == TMessageType.EXCEPTION:
            error = TApplicationException()
            error.read(self._protocol)
            raise error
        found: Any = call.result()
        found.read(self._protocol)
        self._protocol.readMessageEnd()
        for number, fault in enumerate(call.faults, start=1):
            said = getattr(found, f"fault{number}")
            if said is not None:
                raise DeclaredFault(fault, said.message or "")
        if answered != name or (call.has_value and found.value is None):
            raise Nonsense(f"it answered {name} with something else")
        return found.value if call.has_value else None

    def is_open(self) -> bool:
        return self._socket.is_open()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


_IDLE_MAX = 4
# Name lookups and Kerberos servers have no time limit of their own.
_CONNECTION_SECONDS_MAX = CONNECT_SECONDS_MAX + CALL_SECONDS_MAX + 5.0
# Other writers wait until a held lock is released.
_OF_HELD_LOCKS = ("heartbeat", "unlock")


class MetastoreFault(CatalogUnavailable):
    """An exception that the metastore declares, for callers; `kind` is its name."""

    def __init__(self, shown: str, answer: DeclaredFault) -> None:
        super().__init__(shown, f"the metastore answered {_shown(answer)}")
        self.kind = answer.kind


class HiveClient:
    """One metastore, or several with one database. Thread-safe.

    Each call raises `MetastoreFault` for the exceptions that it declares, `CatalogDown` if no
    address answers or a `breaker` blocks it, and `CatalogUnavailable` for any other invalid answer.
    Calls for a held lock are never blocked.
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
        """The table. Raises a `MetastoreFault` of kind `NO_OBJECT` if it does not exist."""
        found: WholeTable = self._call("get_table", database, name)
        return found

    def tables(self, database: str, names: Sequence[str]) -> Sequence[HiveTable]:
        """The tables among these names that exist."""
        found: Sequence[HiveTable] = self._call("get_table_objects_by_name", database, list(names))
        return found

    def add_partitions(
        self, database: str, table: str, partitions: Sequence[HivePartition]
    ) -> None:
        """Add entries; existing ones stay unchanged."""
        request = NewPartitions(
            database=database,
            table=table,
            partitions=list(partitions),
            skips_known=True,
            wants_answer=False,
        )
        self._call("add_partitions_req", request)

    def drop_partition(self, database: str, table: str, values: Sequence[str]) -> None:
        """Drop an entry, if it exists. Its files stay."""
        with _passing_over_none():
            self._call("drop_partition", database, table, list(values), False)

    def partition(self, database: str, table: str, values: Sequence[str]) -> HivePartition | None:
        with _passing_over_none():
            found: HivePartition = self._call("get_partition", database, table, list(values))
            return found
        return None

    def mark_partition(self, database: str, table: str, spec: Mapping[str, str]) -> None:
        """Mark a partition, in one attempt: each call is an event. Skips missing ones, as Java."""
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
        """Request a lock, in one attempt. After a lost answer, it may stay until it times out."""
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
        return CatalogUnavailable(self.shown, f"this is not a metastore: {error}")

    def _call(self, name: str, *arguments: object, is_repeatable: bool = True) -> Any:
        return call_once(
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
        """An idle connection if there is one, then a new one to each address."""
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
    """Ignores errors about missing objects."""
    try:
        yield
    except MetastoreFault as error:
        if error.kind != NO_OBJECT:
            raise


def _close_all(connections: Sequence[Connection]) -> None:
    for connection in connections:
        connection.close()


def _shown(error: Exception) -> str:
    """The shown part of another program's message."""
    return shown_text(str(error))


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
