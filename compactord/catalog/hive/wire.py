"""The calls of a Hive metastore that are used, and one connection to it.

Field numbers are those of hive_metastore.thrift (Apache Hive 2.3 to 4), of which this is a small
part: Thrift skips fields that are not named here.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.Thrift import TApplicationException, TException, TMessageType, TType
from thrift.transport.TTransport import TBufferedTransport, TFramedTransport

from compactord.catalog.hive.login import NoLogin, Security, log_in
from compactord.clock import Clock

CONNECT_SECONDS_MAX = 5.0
# Of TLS and login together, and of a call, from its first byte to the last one of the answer.
CALL_SECONDS_MAX = 30.0
_STRING_BYTES_MAX = 64 << 20
_ITEMS_MAX = 10_000_000
_READ_BYTES = 1 << 16

EXCLUSIVE, TABLE_LEVEL = 3, 2
ACQUIRED, WAITING = 1, 2
# What marks a partition as done (`PartitionEventType.LOAD_DONE`).
LOAD_DONE = 1

_TEXT, _NUMBER, _ENUM = (TType.STRING, "UTF8"), (TType.I64, None), (TType.I32, None)
_FLAG = (TType.BOOL, None)
_TEXTS = (TType.LIST, (TType.STRING, "UTF8", False))
_TEXTS_BY_TEXT = (TType.MAP, (TType.STRING, "UTF8", TType.STRING, "UTF8", False))


def _spec(*fields: tuple[int, str, tuple[int, Any]]) -> tuple[Any, ...]:
    """What Thrift's protocols read and write a struct by: a field at the place of its number."""
    found: list[Any] = [None] * (max((number for number, _, _ in fields), default=-1) + 1)
    for number, name, (kind, of) in fields:
        found[number] = (number, kind, name, of, None)
    return tuple(found)


class Struct:
    """Values by the names of the fields; None where one is not there."""

    thrift_spec: ClassVar[tuple[Any, ...]] = ()

    def __init__(self, **values: object) -> None:
        for field in filter(None, self.thrift_spec):
            setattr(self, field[2], values.get(field[2]))

    def read(self, protocol: Any) -> None:
        if protocol._fast_decode is None:
            protocol.readStruct(self, self.thrift_spec)
        else:
            protocol._fast_decode(self, protocol, [type(self), self.thrift_spec])

    def write(self, protocol: Any) -> None:
        protocol.writeStruct(self, self.thrift_spec)


def _of(kind: type[Struct]) -> tuple[int, Any]:
    return TType.STRUCT, [kind, kind.thrift_spec]


def _list_of(kind: type[Struct]) -> tuple[int, Any]:
    return TType.LIST, (TType.STRUCT, [kind, kind.thrift_spec], False)


class Fault(Struct):
    thrift_spec = _spec((1, "message", _TEXT))


class StorageDescriptor(Struct):
    location: str | None
    input: str | None
    output: str | None
    thrift_spec = _spec((2, "location", _TEXT), (3, "input", _TEXT), (4, "output", _TEXT))


class Column(Struct):
    thrift_spec = _spec((1, "name", _TEXT), (2, "type", _TEXT), (3, "comment", _TEXT))


class Order(Struct):
    thrift_spec = _spec((1, "column", _TEXT), (2, "order", _ENUM))


class Serde(Struct):
    thrift_spec = _spec(
        (1, "name", _TEXT), (2, "library", _TEXT), (3, "parameters", _TEXTS_BY_TEXT)
    )


class WholeDescriptor(StorageDescriptor):
    """What a partition's is a copy of. Without skewed values, which Paimon's tables have not."""

    thrift_spec = _spec(
        (1, "columns", _list_of(Column)),
        (2, "location", _TEXT),
        (3, "input", _TEXT),
        (4, "output", _TEXT),
        (5, "compressed", _FLAG),
        (6, "buckets", _ENUM),
        (7, "serde", _of(Serde)),
        (8, "bucket_columns", _TEXTS),
        (9, "sort_columns", _list_of(Order)),
        (10, "parameters", _TEXTS_BY_TEXT),
        (12, "in_folders", _FLAG),
    )


class HiveTable(Struct):
    name: str
    database: str
    created_s: int
    sd: StorageDescriptor | None
    parameters: Mapping[str, str] | None
    thrift_spec = _spec(
        (1, "name", _TEXT),
        (2, "database", _TEXT),
        (4, "created_s", _ENUM),
        (7, "sd", _of(StorageDescriptor)),
        (9, "parameters", _TEXTS_BY_TEXT),
    )


class WholeTable(HiveTable):
    sd: WholeDescriptor | None
    thrift_spec = _spec(
        (1, "name", _TEXT),
        (2, "database", _TEXT),
        (4, "created_s", _ENUM),
        (7, "sd", _of(WholeDescriptor)),
        (9, "parameters", _TEXTS_BY_TEXT),
    )


class HivePartition(Struct):
    """An entry; the metastore says by its own clock when it was made."""

    values: Sequence[str]
    created_s: int
    sd: WholeDescriptor | None
    thrift_spec = _spec(
        (1, "values", _TEXTS),
        (2, "database", _TEXT),
        (3, "table", _TEXT),
        (4, "created_s", _ENUM),
        (5, "used_s", _ENUM),
        (6, "sd", _of(WholeDescriptor)),
        (7, "parameters", _TEXTS_BY_TEXT),
    )


class NewPartitions(Struct):
    """A request that entries be added. `wants_answer`: the answer is to have them."""

    thrift_spec = _spec(
        (1, "database", _TEXT),
        (2, "table", _TEXT),
        (3, "partitions", _list_of(HivePartition)),
        (4, "skips_known", _FLAG),
        (5, "wants_answer", _FLAG),
    )


class AddedPartitions(Struct):
    """Nothing that is looked at."""


class LockComponent(Struct):
    """Without an operation's type, as in Java."""

    thrift_spec = _spec(
        (1, "type", _ENUM), (2, "level", _ENUM), (3, "database", _TEXT), (4, "table", _TEXT)
    )


class LockRequest(Struct):
    thrift_spec = _spec(
        (1, "components", _list_of(LockComponent)), (3, "user", _TEXT), (4, "host", _TEXT)
    )


class LockResponse(Struct):
    lock_id: int
    state: int
    thrift_spec = _spec((1, "lock_id", _NUMBER), (2, "state", _ENUM))


class LockId(Struct):
    """What asks about a lock, prolongs it and gives it back."""

    thrift_spec = _spec((1, "lock_id", _NUMBER))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """`faults` are the exceptions that are declared, from number 1 on."""

    arguments: tuple[Any, ...]
    result: type[Struct]
    has_value: bool
    faults: tuple[str, ...]


def _call(
    arguments: Sequence[tuple[int, Any]], value: tuple[int, Any] | None, *faults: str
) -> _Call:
    fields = [(number, f"fault{number}", _of(Fault)) for number in range(1, len(faults) + 1)]
    if value is not None:
        fields.append((0, "value", value))
    return _Call(
        arguments=_spec(*((n, f"argument{n}", kind) for n, kind in enumerate(arguments, start=1))),
        result=type("Result", (Struct,), {"thrift_spec": _spec(*fields)}),
        has_value=value is not None,
        faults=faults,
    )


NO_OBJECT, NO_DATABASE = "NoSuchObjectException", "UnknownDBException"
NO_LOCK = "NoSuchLockException"
_META, _NO_TXN, _ABORTED = "MetaException", "NoSuchTxnException", "TxnAbortedException"
_PARTITION = (_TEXT, _TEXT, _TEXTS)
_EVENT = (_TEXT, _TEXT, _TEXTS_BY_TEXT, _ENUM)
_OF_EVENTS = (
    *(_META, NO_OBJECT, NO_DATABASE, "UnknownTableException"),
    *("UnknownPartitionException", "InvalidPartitionException"),
)
CALLS: Mapping[str, _Call] = {
    "get_all_databases": _call((), _TEXTS, _META),
    "get_all_tables": _call((_TEXT,), _TEXTS, _META),
    "get_table": _call((_TEXT, _TEXT), _of(WholeTable), _META, NO_OBJECT),
    "get_table_objects_by_name": _call(
        (_TEXT, _TEXTS), _list_of(HiveTable), _META, "InvalidOperationException", NO_DATABASE
    ),
    "add_partitions_req": _call(
        (_of(NewPartitions),),
        _of(AddedPartitions),
        *("InvalidObjectException", "AlreadyExistsException", _META),
    ),
    "drop_partition": _call((*_PARTITION, _FLAG), _FLAG, NO_OBJECT, _META),
    "get_partition": _call(_PARTITION, _of(HivePartition), _META, NO_OBJECT),
    "markPartitionForEvent": _call(_EVENT, None, *_OF_EVENTS),
    "isPartitionMarkedForEvent": _call(_EVENT, _FLAG, *_OF_EVENTS),
    "lock": _call((_of(LockRequest),), _of(LockResponse), _NO_TXN, _ABORTED),
    "check_lock": _call((_of(LockId),), _of(LockResponse), _NO_TXN, _ABORTED, NO_LOCK),
    "heartbeat": _call((_of(LockId),), None, NO_LOCK, _NO_TXN, _ABORTED),
    "unlock": _call((_of(LockId),), None, NO_LOCK, "TxnOpenException"),
}


# What Thrift raises for bytes that are no answer, in C and in Python.
_DECODING = (TException, ArithmeticError, ValueError, TypeError, MemoryError, RecursionError)


class MetastoreFault(Exception):
    """The metastore's own answer that it will not; `kind` is the name of its exception."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {message}" if message else kind)


class Nonsense(Exception):
    """An answer that is not one of a metastore."""


class _Socket:
    """What Thrift reads from and writes to. Raises OSError, of which EOFError and time-outs."""

    def __init__(self, host: str, port: int, clock: Clock, tls: ssl.SSLContext | None) -> None:
        self._clock = clock
        self._socket = socket.create_connection((host, port), timeout=CONNECT_SECONDS_MAX)
        self.begin()
        if tls is not None:
            self._socket.settimeout(self._left_s())
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)

    def begin(self) -> None:
        """From now on everything together takes at most `CALL_SECONDS_MAX`."""
        self._deadline_s = self._clock.monotonic_s() + CALL_SECONDS_MAX

    def read(self, size: int) -> bytes:
        self._socket.settimeout(self._left_s())
        found = self._socket.recv(min(size, _READ_BYTES))
        if not found:
            raise ConnectionError("the connection was closed")
        return found

    def readAll(self, size: int) -> bytes:  # noqa: N802 - Thrift's name
        found = bytearray()
        while len(found) < size:
            found += self.read(min(size - len(found), _READ_BYTES))
        return bytes(found)

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            # With TLS each `send` of a `sendall` would have that time.
            self._socket.settimeout(self._left_s())
            left = left[self._socket.send(left) :]

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._socket.close()

    def is_open(self) -> bool:
        """Whether the other side has neither closed it nor said anything."""
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
    """One connection, for one thread at a time. After any error but `MetastoreFault` close it."""

    def __init__(self, host: str, port: int, clock: Clock, security: Security) -> None:
        """Raises OSError, `LoginRefused` and `Nonsense`."""
        self._socket = _Socket(host, port, clock, security.tls)
        transport = TBufferedTransport(self._socket, _READ_BYTES)
        if security.login is not None:
            # All that follows a login is in frames, as Thrift's framed messages are.
            transport = TFramedTransport(self._socket)
            try:
                log_in(self._socket, security.login, host)
            except NoLogin as error:
                self.close()
                raise Nonsense(str(error)) from None
            except BaseException:
                self.close()
                raise
        self._protocol = TBinaryProtocolAccelerated(
            transport,
            strictRead=True,
            string_length_limit=_STRING_BYTES_MAX,
            container_length_limit=_ITEMS_MAX,
        )

    def call(self, name: str, arguments: Sequence[object]) -> Any:
        """What a call returns. Raises OSError, `MetastoreFault` and `Nonsense`."""
        self._socket.begin()
        call = CALLS[name]
        try:
            self._send(name, call, arguments)
            return self._received(name, call)
        except TApplicationException as error:
            raise Nonsense(f"it does not know {name} ({error})") from None
        except _DECODING as error:
            raise Nonsense(f"{type(error).__name__} in the answer to {name}") from None

    def _send(self, name: str, call: _Call, arguments: Sequence[object]) -> None:
        sent = Struct()
        for number, value in enumerate(arguments, start=1):
            setattr(sent, f"argument{number}", value)
        self._protocol.writeMessageBegin(name, TMessageType.CALL, 0)
        self._protocol.writeStruct(sent, call.arguments)
        self._protocol.writeMessageEnd()
        self._protocol.trans.flush()

    def _received(self, name: str, call: _Call) -> Any:
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
                raise MetastoreFault(fault, said.message or "")
        if answered != name or (call.has_value and found.value is None):
            raise Nonsense(f"it answered {name} with something else")
        return found.value if call.has_value else None

    def is_open(self) -> bool:
        return self._socket.is_open()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()
