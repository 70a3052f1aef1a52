"""Metastores behind TLS and logins: by a password, by Kerberos with a library that is none."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from thrift.transport.TTransport import TFramedTransport

from compactord.catalog.base import Catalog
from compactord.catalog.hive.client import HiveClient
from compactord.catalog.hive.options import (
    Login,
    LoginRefused,
    NoLogin,
    Responses,
    Security,
    kerberos,
    log_in,
)
from compactord.catalog.hive.options import plain as by_password
from compactord.catalog.open import open_catalog
from compactord.clock import SystemClock
from compactord.errors import CatalogDown, CatalogOptionInvalid, CatalogUnavailable
from tests.builders import VirtualClock
from tests.unit.catalog.metastore import Metastore, Stream, listening, serve, table

_START, _OK, _BAD, _ERROR, _COMPLETE = range(1, 6)
_TLS, _CERTIFICATES = "hive.metastore.use.SSL", "hive.metastore.truststore.path"
_SASL, _PRINCIPAL = "hive.metastore.sasl.enabled", "hive.metastore.kerberos.principal"
_MODE = "hive.metastore.client.auth.mode"
_USER, _PASSWORD = "hive.metastore.client.plain.username", "hive.metastore.client.plain.password"
_PLAIN = {_MODE: "plain", _USER: "me", _PASSWORD: "p\u00e4ss"}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as open_things:
        yield open_things


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with the key and the certificate of 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "metastore")])
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = tmp_path_factory.mktemp("tls") / "metastore.pem"
    path.write_bytes(secret + signed.public_bytes(pem))
    return str(path)


@dataclass
class _Protected:
    """A metastore behind TLS, where it has a `certificate`, and a login, where it has a password.

    `connections` are those that were let in.
    """

    certificate: str = ""
    password: str = ""
    connections: int = 0
    metastore: Metastore = field(
        default_factory=lambda: Metastore(
            table("d", "t", "file:/x"), *(table("d", f"{n}" * 120, "file:/x") for n in range(9))
        )
    )

    def handle(self, connection: socket.socket) -> None:
        if not self.certificate:
            self._serve(connection)
            return
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self.certificate)
        with (
            contextlib.suppress(OSError, EOFError),
            tls.wrap_socket(connection, server_side=True) as encrypted,
        ):
            self._serve(encrypted)

    def _serve(self, connection: socket.socket) -> None:
        stream: Any = Stream(connection)
        if self.password:
            if not self._is_let_in(stream):
                return
            stream = TFramedTransport(stream)
        self.connections += 1
        serve(self.metastore, stream)

    def _is_let_in(self, stream: Stream) -> bool:
        assert _message(stream) == (_START, b"PLAIN")
        status, said = _message(stream)
        assert status == _OK
        is_known = said == f"\0me\0{self.password}".encode()
        answer = _said(_COMPLETE, b"") if is_known else _said(_BAD, b"no such user")
        stream.write(answer)
        stream.flush()
        return is_known


def _message(stream: Stream) -> tuple[int, bytes]:
    head = stream.readAll(5)
    return head[0], stream.readAll(int.from_bytes(head[1:], "big"))


def _said(status: int, text: bytes) -> bytes:
    return bytes([status]) + len(text).to_bytes(4, "big") + text


def _catalog(uri: str, **options: str) -> Catalog:
    return open_catalog("/wh", metastore="hive", options={"uri": uri, **options})


@pytest.mark.parametrize("password", ["", "p\u00e4ss"])
@pytest.mark.parametrize("is_encrypted", [False, True])
def test_tls_and_a_password_from_end_to_end(
    stack: ExitStack, certificate: str, is_encrypted: bool, password: str
) -> None:
    server = _Protected(certificate if is_encrypted else "", password)
    options = {_TLS: "true", _CERTIFICATES: certificate} if is_encrypted else {}
    options |= _PLAIN if password else {}
    catalog = _catalog(stack.enter_context(listening(server.handle)), **options)
    for _ in range(3):
        assert len(catalog.list_tables().tables) == 10
    assert server.connections == 1


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({_TLS: "true", **_PLAIN}, CatalogDown, "certificate verify failed"),
        (_PLAIN, CatalogDown, "no answer"),
        (
            {_TLS: "true", _CERTIFICATES: "-", **_PLAIN, _PASSWORD: "x"},
            CatalogUnavailable,
            "the login is refused: no such user",
        ),
    ],
)
def test_what_is_said_of_a_metastore_that_lets_nobody_in(
    stack: ExitStack, certificate: str, options: dict[str, str], error: type[Exception], text: str
) -> None:
    server = _Protected(certificate, "p\u00e4ss")
    given = {key: certificate if value == "-" else value for key, value in options.items()}
    catalog = _catalog(stack.enter_context(listening(server.handle)), **given)
    with pytest.raises(error, match=text) as got:
        catalog.check_access()
    assert type(got.value) is error
    assert server.connections == 0


class _Hurried(VirtualClock):
    """Nearly all of the time of a call has gone at its second look."""

    def monotonic_s(self) -> float:
        self.sleep(29.9)
        return super().monotonic_s()


@pytest.mark.parametrize(
    "security",
    [Security(tls=ssl.create_default_context()), Security(login=by_password("u", "p"))],
    ids=["TLS", "login"],
)
def test_what_precedes_a_call_has_a_deadline(stack: ExitStack, security: Security) -> None:
    def silent(connection: socket.socket) -> None:
        while connection.recv(1 << 16):
            pass

    uri = stack.enter_context(listening(silent))
    address = ("127.0.0.1", int(uri.rpartition(":")[2]))
    client = HiveClient([address], uri, _Hurried(), security)
    with pytest.raises(CatalogDown, match=r"timed out|no answer within"):
        client.databases()


def test_what_has_no_deadline_of_its_own_has_that_of_the_connection(stack: ExitStack) -> None:
    """As the look-up of a name, or a ticket of Kerberos."""
    goes_on = threading.Event()

    def responses(host: str) -> Responses:
        del host
        goes_on.wait(60)
        raise LoginRefused("too late")
        yield b""

    uri = stack.enter_context(listening(lambda _: None))
    stack.callback(goes_on.set)
    client = HiveClient(
        [("127.0.0.1", int(uri.rpartition(":")[2]))],
        uri,
        SystemClock(),
        Security(login=Login(mechanism="GSSAPI", responses=responses)),
        connection_seconds_max=0.2,
    )
    with pytest.raises(CatalogDown, match=r"no answer within 0 s"):
        client.databases()


class _GssError(Exception):
    pass


@dataclass
class _Context:
    """Of a Kerberos that is none: `tokens` are what each step says."""

    tokens: list[bytes | None]
    name: str

    @property
    def complete(self) -> bool:
        return not self.tokens

    def step(self, challenge: bytes | None) -> bytes | None:
        if challenge == b"broken":
            raise _GssError("a broken token")
        return self.tokens.pop(0)

    def unwrap(self, data: bytes) -> Any:
        return SimpleNamespace(message=data.removeprefix(b"wrapped "))

    def wrap(self, data: bytes, encrypt: bool) -> Any:
        assert not encrypt
        return SimpleNamespace(message=b"wrapped " + data)


def _kerberos(*tokens: bytes | None) -> Login:
    def context(*, name: str, mech: str, usage: str) -> _Context:
        assert (name, mech, usage) == ("hive/meta.example@REALM", "kerberos", "initiate")
        return _Context([*tokens], name)

    gssapi = SimpleNamespace(
        Name=lambda name, kind: name,
        NameType=SimpleNamespace(kerberos_principal=1),
        MechType=SimpleNamespace(kerberos="kerberos"),
        SecurityContext=context,
        exceptions=SimpleNamespace(GSSError=_GssError),
    )
    return kerberos("hive/_HOST@REALM", gssapi)


@dataclass
class _Script:
    """What a server says, and what it was told."""

    said: bytes
    told: bytes = b""

    def readAll(self, size: int) -> bytes:  # noqa: N802 - Thrift's name
        if size > len(self.said):
            raise ConnectionError("the connection was closed")
        found, self.said = self.said[:size], self.said[size:]
        return found

    def write(self, data: bytes) -> None:
        self.told += data


_PASSWORD_LOGIN = by_password("u", "p")
_ONLY_AUTH, _PRIVACY = b"wrapped \x01\0\0\0", b"wrapped \x04\0\xff\xff"
_CHOSEN = b"wrapped \x01\0\0\0"


@pytest.mark.parametrize(
    ("login", "script", "told"),
    [
        (_PASSWORD_LOGIN, [(_COMPLETE, b"")], [b"PLAIN", b"\0u\0p"]),
        (
            _kerberos(b"ask", None),
            [(_OK, b"proof"), (_OK, _ONLY_AUTH), (_COMPLETE, b"")],
            [b"GSSAPI", b"ask", b"", _CHOSEN],
        ),
        (
            _kerberos(b"ask", b"more"),
            [(_OK, b"proof"), (_OK, b"wrapped \x07\0\xff\xff"), (_COMPLETE, b"")],
            [b"GSSAPI", b"ask", b"more", _CHOSEN],
        ),
    ],
)
def test_a_login_says_what_its_mechanism_says(
    login: Login, script: list[tuple[int, bytes]], told: list[bytes]
) -> None:
    stream = _Script(b"".join(_said(*each) for each in script))
    log_in(stream, login, "Meta.example")
    statuses = [_START, *[_OK] * (len(told) - 1)]
    assert stream.told == b"".join(map(_said, statuses, told))
    assert stream.said == b""


@pytest.mark.parametrize(
    ("login", "script", "error", "text"),
    [
        (_PASSWORD_LOGIN, _said(_BAD, b"who?"), LoginRefused, "who\\?"),
        (_PASSWORD_LOGIN, _said(_ERROR, b""), LoginRefused, "without a reason"),
        (_PASSWORD_LOGIN, _said(_OK, b"go on"), NoLogin, "too early or too late"),
        (_PASSWORD_LOGIN, _said(9, b""), NoLogin, "does not know SASL"),
        (_PASSWORD_LOGIN, b"\x02\x7f\xff\xff\xff", NoLogin, "does not know SASL"),
        (_PASSWORD_LOGIN, b"", ConnectionError, "closed"),
        (_kerberos(b"ask", None), _said(_COMPLETE, b""), NoLogin, "too early or too late"),
        (_kerberos(b"ask", None), _said(_OK, b"broken"), LoginRefused, "@REALM: a broken token"),
        (_kerberos(b"ask"), _said(_OK, _PRIVACY), LoginRefused, "hadoop.rpc.protection"),
        (_kerberos(b"ask"), _said(_OK, b""), LoginRefused, "hadoop.rpc.protection"),
    ],
)
def test_a_login_that_fails_says_why(
    login: Login, script: bytes, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        log_in(_Script(script), login, "meta.example")


@pytest.mark.parametrize(
    ("options", "key", "text"),
    [
        ({_SASL: "true"}, _PRINCIPAL, "hive/_HOST@REALM"),
        ({_SASL: "true", _PRINCIPAL: "hive@REALM"}, _PRINCIPAL, "hive/_HOST@REALM"),
        (
            {_SASL: "true", "hive.metastore.token.signature": "x"},
            "hive.metastore.token.signature",
            "delegation tokens",
        ),
        ({_MODE: "JWT"}, _MODE, "NOSASL or PLAIN"),
        ({_MODE: "PLAIN", _USER: "u"}, _PASSWORD, "PLAIN needs"),
        ({_MODE: "PLAIN", _PASSWORD: "p"}, _USER, "PLAIN needs"),
        ({_TLS: "true", _CERTIFICATES: "/nowhere"}, _CERTIFICATES, "keytool"),
    ],
)
def test_options_of_protection_that_are_refused(
    options: dict[str, str], key: str, text: str
) -> None:
    with pytest.raises(CatalogOptionInvalid, match=text) as got:
        _catalog("h:1", **options)
    assert got.value.key == key


def test_a_key_store_of_java_is_no_file_of_certificates(tmp_path: Path) -> None:
    (tmp_path / "trust.jks").write_bytes(b"\xfe\xed\xfe\xed\0\0\0\x02")
    given = {_TLS: "true", _CERTIFICATES: str(tmp_path / "trust.jks")}
    with pytest.raises(CatalogOptionInvalid, match="in PEM, or nothing for the system's"):
        _catalog("h:1", **given)
