"""Options of a Hive catalog, and the TLS and SASL settings of its connections.

Sources: hive/HiveCatalog.java (`createHiveConf`), Thrift's TSaslTransport.java and
TSaslClientTransport.java; RFC 4616 (PLAIN), RFC 4752 (GSSAPI). Messages after a login are signed or
encrypted only by TLS (`auth` in Hadoop).
"""

from __future__ import annotations

import importlib
import os
import re
import ssl
import struct
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from compactord.catalog.hive.wire import BATCH, BATCH_MAX
from compactord.catalog.kinds import read_option
from compactord.errors import CatalogOptionInvalid
from compactord.paimon.options.values import boolean, duration_ms, integer
from compactord.storage.hadoop import default_fs, site_properties
from compactord.text import has_credentials

_START, _OK, _BAD, _ERROR, _COMPLETE = range(1, 6)
_HEADER = struct.Struct("!BI")
_PAYLOAD_BYTES_MAX = 1 << 20
# Four bytes: the chosen layers, none, and the maximum size of their messages.
_WITHOUT_LAYERS = b"\x01\0\0\0"

Responses = Generator[bytes, bytes, None]


class LoginRefused(Exception):
    """The metastore or Kerberos refuses the login, for the reason in the text."""


class NoLogin(Exception):
    """An answer that does not belong to a login."""


class Stream(Protocol):
    """One connection; both methods raise OSError."""

    def readAll(self, size: int) -> bytes: ...  # noqa: N802 - Thrift's name

    def write(self, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A login; `mechanism` is its name in SASL.

    `responses` gets the host. It yields the first message, then a response to each challenge.
    """

    mechanism: str
    responses: Callable[[str], Responses] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """TLS and login at the start of a connection."""

    tls: ssl.SSLContext | None = None
    login: Login | None = None


def log_in(stream: Stream, login: Login, host: str) -> None:
    """Log in. Raises `LoginRefused`, `NoLogin` and OSError."""
    responses = login.responses(host)
    first = next(responses)
    _send(stream, _START, login.mechanism.encode())
    _send(stream, _OK, first)
    while True:
        status, payload = _received(stream)
        response = _response(responses, payload)
        # A login that ends early has not authenticated the metastore.
        if (status == _COMPLETE) != (response is None):
            raise NoLogin(f"{login.mechanism} ended too early or too late")
        if response is None:
            return
        _send(stream, _OK, response)


def plain(user: str, password: str) -> Login:
    """A login by password, which only TLS protects."""

    def responses(host: str) -> Responses:
        del host
        yield f"\0{user}\0{password}".encode()

    return Login(mechanism="PLAIN", responses=responses)


def kerberos(principal: str, gssapi: Any) -> Login:
    """A login by the process's ticket; `gssapi` is the Python package.

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
    """The next response, or None at the end."""
    try:
        return responses.send(challenge)
    except StopIteration:
        return None


def _send(stream: Stream, status: int, payload: bytes) -> None:
    stream.write(_HEADER.pack(status, len(payload)) + payload)


def _received(stream: Stream) -> tuple[int, bytes]:
    status, size = _HEADER.unpack(stream.readAll(_HEADER.size))
    if not _OK <= status <= _COMPLETE or size > _PAYLOAD_BYTES_MAX:
        raise NoLogin("it does not know SASL")
    payload = stream.readAll(size)
    if status in (_BAD, _ERROR):
        raise LoginRefused(payload.decode(errors="replace") or "without a reason")
    return status, payload


_ADDRESS = re.compile(r"(?:thrift://)?(?:\[([^]/@]+)\]|([^:/@,\[\]]+)):([0-9]{1,5})/?")
_FORMS = "thrift://host:9083, or several with commas"
_CLIENT = "org.apache.hadoop.hive.metastore.HiveMetaStoreClient"
_PRINCIPALS = re.compile(r"[^\s/@]+/[^\s/@]+@[^\s/@]+")
_GSSAPI = "pip install 'gssapi>=1.8,<2'"
_BATCH_DEFAULT = 300
_DEFAULT_FS = "fs.defaultFS"
# Unsupported transports of metastores, by the option that enables them.
_UNSERVED = {
    "hive.metastore.thrift.framed.transport.enabled": "framed messages are not served",
    "hive.metastore.thrift.compact.protocol.enabled": "the compact protocol is not served",
}
_TLS, _CERTIFICATES = "hive.metastore.use.SSL", "hive.metastore.truststore.path"
_SASL, _PRINCIPAL = "hive.metastore.sasl.enabled", "hive.metastore.kerberos.principal"
_TOKENS = "hive.metastore.token.signature"
_MODE = "hive.metastore.client.auth.mode"
_USER, _PASSWORD = "hive.metastore.client.plain.username", "hive.metastore.client.plain.password"
Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class HiveOptions:
    """Parsed options of a Hive catalog.

    `default_fs` is the store of locations without a scheme; empty for the local file system.
    `forget_ms` is the time after which the metastore drops a lock that is not prolonged.
    """

    addresses: tuple[Address, ...]
    location_in_properties: bool
    batch_size: int
    default_fs: str
    is_locked: bool
    lock_sleep_max_ms: int
    lock_timeout_ms: int
    forget_ms: int
    security: Security

    @property
    def shown(self) -> str:
        return ",".join(f"thrift://{host}:{port}" for host, port in self.addresses)


def hive_options(
    options: Mapping[str, str],
    store_options: Mapping[str, str],
    environment: Mapping[str, str] = os.environ,
    *,
    is_locked: bool,
) -> HiveOptions:
    """The options of a Hive catalog. `is_locked` is the default for its lock.

    Raises `CatalogOptionInvalid`.
    """
    site = _hive_site(options, environment)
    merged = {**site, **options}
    for key, why in _UNSERVED.items():
        if read_option(merged, key, boolean, False):
            where = "" if key in options else " (it is true in hive-site.xml)"
            raise CatalogOptionInvalid(key, f"false: {why}{where}")
    if merged.get("metastore.client.class", _CLIENT) != _CLIENT:
        raise CatalogOptionInvalid("metastore.client.class", f"{_CLIENT}: others are not served")
    if options.get("lock.type", "hive") != "hive":
        raise CatalogOptionInvalid("lock.type", "hive, the only lock that is supported here")
    given_fs = store_options.get(f"hadoop.{_DEFAULT_FS}", store_options.get(_DEFAULT_FS))
    batch_size = read_option(merged, BATCH, integer, _BATCH_DEFAULT)
    return HiveOptions(
        addresses=_addresses(options.get("uri") or merged.get("hive.metastore.uris", "")),
        location_in_properties=read_option(merged, "location-in-properties", boolean, False),
        batch_size=min(batch_size, BATCH_MAX) if batch_size > 0 else _BATCH_DEFAULT,
        default_fs=given_fs or site.get(_DEFAULT_FS) or default_fs(store_options, environment),
        is_locked=read_option(options, "lock.enabled", boolean, is_locked),
        lock_sleep_max_ms=read_option(merged, "lock-check-max-sleep", duration_ms, 8_000),
        lock_timeout_ms=read_option(merged, "lock-acquire-timeout", duration_ms, 8 * 60_000),
        forget_ms=read_option(merged, "hive.txn.timeout", _hive_duration_ms, 300_000),
        security=Security(tls=_tls(merged), login=_login(merged)),
    )


def _tls(merged: Mapping[str, str]) -> ssl.SSLContext | None:
    if not read_option(merged, _TLS, boolean, False):
        return None
    try:
        return ssl.create_default_context(cafile=merged.get(_CERTIFICATES) or None)
    except OSError:
        raise CatalogOptionInvalid(
            _CERTIFICATES,
            "a file of certificates in PEM, or nothing for the system's. Java's key stores are not "
            "read: keytool -exportcert -rfc writes PEM",
        ) from None


def _login(merged: Mapping[str, str]) -> Login | None:
    """As in Java, Kerberos takes precedence over a password."""
    if read_option(merged, _SASL, boolean, False):
        if merged.get(_TOKENS):
            raise CatalogOptionInvalid(_TOKENS, "nothing: delegation tokens are not served")
        principal = merged.get(_PRINCIPAL, "")
        if _PRINCIPALS.fullmatch(principal) is None:
            raise CatalogOptionInvalid(_PRINCIPAL, "the metastore's, such as hive/_HOST@REALM")
        try:
            return kerberos(principal, importlib.import_module("gssapi"))
        except ImportError:
            raise CatalogOptionInvalid(_SASL, f"false, unless gssapi is there: {_GSSAPI}") from None
    mode = merged.get(_MODE, "NOSASL").upper()
    if mode == "PLAIN":
        for key in (_USER, _PASSWORD):
            if not merged.get(key) or "\0" in merged[key]:
                raise CatalogOptionInvalid(key, f"what {_MODE}=PLAIN needs")
        return plain(merged[_USER], merged[_PASSWORD])
    if mode != "NOSASL":
        raise CatalogOptionInvalid(_MODE, "NOSASL or PLAIN: others are not served")
    return None


def _hive_duration_ms(text: str) -> int:
    """A duration; in seconds if it has no unit."""
    found_ms = int(text) * 1000 if text.isdecimal() else duration_ms(text)
    if found_ms <= 0:
        raise ValueError("a time above 0")
    return found_ms


def _addresses(uris: str) -> tuple[Address, ...]:
    found = []
    for uri in filter(None, map(str.strip, uris.split(","))):
        parts = _ADDRESS.fullmatch(uri)
        if parts is None or has_credentials(uri):
            raise CatalogOptionInvalid("uri", _FORMS)
        found.append((parts[1] or parts[2], int(parts[3])))
    if not found:
        raise CatalogOptionInvalid("uri", f"{_FORMS}; or hive.metastore.uris in hive-site.xml")
    return tuple(found)


def _hive_site(options: Mapping[str, str], environment: Mapping[str, str]) -> Mapping[str, str]:
    folder = options.get("hive-conf-dir") or environment.get("HIVE_CONF_DIR")
    return site_properties(Path(folder) / "hive-site.xml", "hive-conf-dir") if folder else {}
