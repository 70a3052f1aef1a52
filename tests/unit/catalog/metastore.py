"""A metastore in a thread: tables and locks in memory, answered through Thrift."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException, TMessageType
from thrift.transport.TTransport import TTransportBase

from compactord.catalog.hive import wire
from compactord.catalog.hive.catalog import INPUT, OUTPUT

NO_LOCK = wire.Fault(message="No such lock")


def table(
    database: str,
    name: str,
    location: str | None,
    *,
    parameters: Mapping[str, str] | None = None,
    formats: tuple[str | None, str | None] = (INPUT, OUTPUT),
    created_s: int = 7,
) -> wire.HiveTable:
    sd = wire.StorageDescriptor(location=location, input=formats[0], output=formats[1])
    return wire.HiveTable(
        name=name, database=database, created_s=created_s, sd=sd, parameters=parameters
    )


class Metastore:
    """Answers calls: a value, or (number, fault). `calls` are those that came, with arguments.

    `states` are what the next `lock` and `check_lock` answer, then ACQUIRED. Calls of names in
    `broken` fail, of those in `lost` the answer; one that `is_gone` hangs up. `entries` are those
    of all tables' partitions, by their values, and `marks` the events, each as often as it came.
    """

    def __init__(self, *tables: wire.HiveTable) -> None:
        self.tables = list(tables)
        self.calls: list[tuple[str, Sequence[Any]]] = []
        self.states: list[int] = []
        self.held: set[int] = set()
        self.broken: set[str] = set()
        self.lost: set[str] = set()
        self.entries: dict[tuple[str, ...], wire.HivePartition] = {}
        self.marks: list[dict[str, str]] = []
        self.is_gone = False
        self._numbers = iter(range(1, 1000))

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def answer(self, name: str, arguments: Sequence[Any]) -> Any:
        if self.is_gone:
            raise ConnectionError
        self.calls.append((name, arguments))
        if name in self.broken:
            return (1, wire.Fault(message="out of order"))
        handler: Callable[..., Any] = getattr(self, f"_{name}")
        found = handler(*arguments)
        if name in self.lost:
            raise ConnectionError
        return found

    def _get_all_databases(self) -> list[str]:
        return sorted({each.database for each in self.tables})

    def _get_all_tables(self, database: str) -> list[str]:
        return [each.name for each in self.tables if each.database == database]

    def _get_table_objects_by_name(self, database: str, names: list[str]) -> Any:
        wanted = set(names)
        return [each for each in self.tables if each.database == database and each.name in wanted]

    def _get_table(self, database: str, name: str) -> Any:
        found = self._get_table_objects_by_name(database, [name])
        return found[0] if found else (2, wire.Fault(message=f"{database}.{name}"))

    def _add_partitions_req(self, request: Any) -> wire.AddedPartitions:
        for each in request.partitions:
            each.created_s = int(time.time())
            self.entries.setdefault((request.database, request.table, *each.values), each)
        return wire.AddedPartitions()

    def _get_partition(self, database: str, name: str, values: list[str]) -> Any:
        found = self.entries.get((database, name, *values))
        return found if found is not None else (2, wire.Fault(message="no entry"))

    def _drop_partition(self, database: str, name: str, values: list[str], files: bool) -> Any:
        assert not files
        found = self.entries.pop((database, name, *values), None)
        return True if found is not None else (1, wire.Fault(message="no entry"))

    def _markPartitionForEvent(self, *asked: Any) -> None:  # noqa: N802 - the call's name
        assert asked[3] == wire.LOAD_DONE
        self.marks.append(asked[2])

    def _isPartitionMarkedForEvent(self, *asked: Any) -> bool:  # noqa: N802 - the call's name
        return asked[2] in self.marks

    def _lock(self, request: Any) -> wire.LockResponse:
        number = next(self._numbers)
        self.held.add(number)
        return self._state(number)

    def _check_lock(self, request: Any) -> Any:
        known = request.lock_id in self.held
        return self._state(request.lock_id) if known else (3, NO_LOCK)

    def _heartbeat(self, request: Any) -> Any:
        return None if request.lock_id in self.held else (1, NO_LOCK)

    def _unlock(self, request: Any) -> None:
        """As in Hive 2.3: one that is not there is no fault."""
        self.held.discard(request.lock_id)

    def _state(self, number: int) -> wire.LockResponse:
        state = self.states.pop(0) if self.states else wire.ACQUIRED
        return wire.LockResponse(lock_id=number, state=state)


class Stream(TTransportBase):  # type: ignore[misc]
    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rwb")

    def read(self, size: int) -> bytes:
        return self._file.read(size)

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def serve(metastore: Metastore, stream: TTransportBase) -> None:
    """Answer what comes until the client goes."""
    protocol = TBinaryProtocol(stream, strictRead=True)
    try:
        while True:
            name, _, number = protocol.readMessageBegin()
            call = wire.CALLS[name]
            asked = wire.Struct()
            for position in range(1, len(call.arguments)):
                setattr(asked, f"argument{position}", None)
            protocol.readStruct(asked, call.arguments)
            protocol.readMessageEnd()
            arguments = [
                getattr(asked, f"argument{position}") for position in range(1, len(call.arguments))
            ]
            answer = metastore.answer(name, arguments)
            result = call.result()
            kind = TMessageType.REPLY
            if isinstance(answer, TApplicationException):
                result, kind = answer, TMessageType.EXCEPTION
            elif isinstance(answer, tuple):
                setattr(result, f"fault{answer[0]}", answer[1])
            elif call.has_value:
                result.value = answer  # type: ignore[attr-defined]
            protocol.writeMessageBegin(name, kind, number)
            result.write(protocol)
            protocol.writeMessageEnd()
            stream.flush()
    except (EOFError, OSError):
        return
    finally:
        with contextlib.suppress(OSError):
            stream.close()


@contextlib.contextmanager
def listening(handle: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that hands each connection to `handle`."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            handle(self.request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"thrift://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def running(metastore: Metastore) -> contextlib.AbstractContextManager[str]:
    """The address of the metastore."""
    return listening(lambda connection: serve(metastore, Stream(connection)))
