"""One connection to a Hive metastore."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Sequence
from typing import Any

from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.Thrift import TApplicationException, TException, TMessageType
from thrift.transport.TTransport import TBufferedTransport, TFramedTransport

from compactord.catalog.hive.login import NoLogin, Security, log_in
from compactord.catalog.hive.wire import CALLS, Call, Struct
from compactord.clock import Clock
from compactord.text import size_text

CONNECT_SECONDS_MAX = 5.0
# Of TLS and login together, and of a call, from its first byte to the last one of the answer.
CALL_SECONDS_MAX = 30.0
# Of a login, whose messages have bounds of their own.
_LOGIN_BYTES_MAX = 8 << 20
_READ_BYTES = 1 << 16
# What Thrift raises for bytes that are no answer, in C and in Python.
_DECODING = (TException, ArithmeticError, ValueError, TypeError, MemoryError, RecursionError)


class DeclaredFault(Exception):
    """The metastore's own answer that it will not; `kind` is the name of its exception."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {message}" if message else kind)


class Nonsense(Exception):
    """An answer that is not one of a metastore."""


class AnswerTooLong(Nonsense):
    """More bytes came than are read of an answer."""


class _Socket:
    """What Thrift reads from and writes to. Raises OSError, of which EOFError and time-outs.

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
        """From now on everything takes at most `CALL_SECONDS_MAX`, and so many bytes are read."""
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
    """One connection, for one thread at a time. After any error but `DeclaredFault` close it."""

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
        self._protocol = TBinaryProtocolAccelerated(transport, strictRead=True)

    def call(self, name: str, arguments: Sequence[object]) -> Any:
        """What a call returns. Raises OSError, `DeclaredFault` and `Nonsense`."""
        call = CALLS[name]
        bytes_max, items_max = call.bound.bytes_max, call.bound.items_max
        self._socket.begin(bytes_max)
        # Read by Thrift at each container and text, in C as well.
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
