"""How connections to a metastore are protected: TLS, and logins by SASL in Thrift's frames.

Sources: Thrift's TSaslTransport.java and TSaslClientTransport.java; RFC 4616 (PLAIN), RFC 4752
(GSSAPI). What follows a login is neither signed nor encrypted but by TLS (`auth` in Hadoop).
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

_START, _OK, _BAD, _ERROR, _COMPLETE = range(1, 6)
_HEADER = struct.Struct("!BI")
_SAID_BYTES_MAX = 1 << 20
# Four bytes: the layers that are chosen, none, and the size of their messages.
_WITHOUT_LAYERS = b"\x01\0\0\0"

Responses = Generator[bytes, bytes, None]


class LoginRefused(Exception):
    """The metastore, or Kerberos, does not let us in; the text says why."""


class NoLogin(Exception):
    """What came is no part of a login."""


class Stream(Protocol):
    """One connection; both raise OSError."""

    def readAll(self, size: int) -> bytes: ...  # noqa: N802 - Thrift's name

    def write(self, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """`mechanism` is its name in SASL.

    `responses` gets the host. It yields what is sent first, then an answer to each challenge.
    """

    mechanism: str
    responses: Callable[[str], Responses] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What a connection begins with."""

    tls: ssl.SSLContext | None = None
    login: Login | None = None


def log_in(stream: Stream, login: Login, host: str) -> None:
    """Raises `LoginRefused`, `NoLogin` and OSError."""
    responses = login.responses(host)
    first = next(responses)
    _send(stream, _START, login.mechanism.encode())
    _send(stream, _OK, first)
    while True:
        status, said = _received(stream)
        response = _response(responses, said)
        # A login that ends early has not shown who the metastore is.
        if (status == _COMPLETE) != (response is None):
            raise NoLogin(f"{login.mechanism} ended too early or too late")
        if response is None:
            return
        _send(stream, _OK, response)


def plain(user: str, password: str) -> Login:
    """By a password, which only TLS hides."""

    def responses(host: str) -> Responses:
        del host
        yield f"\0{user}\0{password}".encode()

    return Login(mechanism="PLAIN", responses=responses)


def kerberos(principal: str, gssapi: Any) -> Login:
    """By the process's ticket; `gssapi` is the package of this name.

    `principal` is the metastore's, `hive/_HOST@REALM`, with `_HOST` for the host of its address.
    """

    def responses(host: str) -> Responses:
        name = principal.replace("_HOST", host.lower())
        try:
            context = gssapi.SecurityContext(
                name=gssapi.Name(name, gssapi.NameType.kerberos_principal),
                mech=gssapi.MechType.kerberos,
                usage="initiate",
            )
            yield from _without_layers(context)
        except gssapi.exceptions.GSSError as error:
            raise LoginRefused(f"{name}: {error}") from None

    return Login(mechanism="GSSAPI", responses=responses)


def _without_layers(context: Any) -> Responses:
    challenge: bytes | None = None
    while not context.complete:
        challenge = yield context.step(challenge) or b""
    layers = context.unwrap(challenge).message
    if not layers or not layers[0] & 1:
        raise LoginRefused("it demands integrity or privacy (hadoop.rpc.protection), not served")
    yield context.wrap(_WITHOUT_LAYERS, False).message


def _response(responses: Responses, challenge: bytes) -> bytes | None:
    """None: there was nothing more to say."""
    try:
        return responses.send(challenge)
    except StopIteration:
        return None


def _send(stream: Stream, status: int, said: bytes) -> None:
    stream.write(_HEADER.pack(status, len(said)) + said)


def _received(stream: Stream) -> tuple[int, bytes]:
    status, size = _HEADER.unpack(stream.readAll(_HEADER.size))
    if not _OK <= status <= _COMPLETE or size > _SAID_BYTES_MAX:
        raise NoLogin("it does not know SASL")
    said = stream.readAll(size)
    if status in (_BAD, _ERROR):
        raise LoginRefused(said.decode(errors="replace") or "without a reason")
    return status, said
