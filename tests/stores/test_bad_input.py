"""What is wrong with a store is one error: the store, what failed, what to do, and no key."""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from compactord.cli.command import main
from tests.store_servers import ACCESS_KEY, SECRET_KEY

_WAREHOUSE = "s3://lake/wh"


@contextlib.contextmanager
def answering(status: int, code: str, *, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """The endpoint of a store that gives one answer to everything."""
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.handle_any)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _arguments(endpoint: str) -> list[str]:
    options = {"s3.endpoint": endpoint, "s3.access-key": ACCESS_KEY, "s3.secret-key": SECRET_KEY}
    given = [text for pair in options.items() for text in ("--catalog-option", "=".join(pair))]
    return ["--warehouse", _WAREHOUSE, "--unlocked-writers", "guarded", *given]


def _doctor(endpoint: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The line that failed."""
    assert main(["doctor", *_arguments(endpoint), "--json"]) == 3
    shown = "".join(capsys.readouterr())
    assert ACCESS_KEY not in shown
    assert SECRET_KEY not in shown
    checks = json.loads(shown)["checks"]
    (found,) = [check for check in checks if check["verdict"] == "failed"]
    assert found["check"] == "warehouse: warehouse"
    assert _WAREHOUSE in found["found"]
    return dict(found)


@pytest.mark.parametrize(
    ("status", "code", "found", "advice", "exit_code"),
    [
        (403, "AccessDenied", "AccessDenied", "permissions of docs/operations.md", 77),
        (403, "InvalidAccessKeyId", "does not know the access key", "correct the credentials", 77),
        (403, "SignatureDoesNotMatch", "the secret key does not fit", "the credentials", 77),
        (403, "RequestTimeTooSkewed", "clock differs from the store's", "the credentials", 77),
        (404, "NoSuchBucket", "there is no such bucket", "correct the bucket", 2),
        (301, "PermanentRedirect", "in another region: set the region", "correct the endpoint", 3),
    ],
)
def test_a_refusal_says_why_and_what_to_do(
    capsys: pytest.CaptureFixture[str],
    *,
    status: int,
    code: str,
    found: str,
    advice: str,
    exit_code: int,
) -> None:
    with answering(status, code) as endpoint:
        line = _doctor(endpoint, capsys)
        assert found in line["found"]
        assert advice in line["advice"]
        assert main(["config", "check", "--online", *_arguments(endpoint)]) == exit_code
    said = capsys.readouterr().err
    assert f"catalogs.warehouse.warehouse is {_WAREHOUSE}: expected" in said
    assert found in said
    assert SECRET_KEY not in said


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """A server's side of TLS, and the certificate of the authority that nobody else knows."""
    folder = tmp_path_factory.mktemp("tls")

    def make(name: str, subject: str, *more: str | Path) -> tuple[Path, Path]:
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        made = ("-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", certificate)
        command = ("openssl", "req", "-x509", *made, "-subj", subject, *more)
        subprocess.run(command, check=True, capture_output=True)
        return certificate, key

    authority = make("authority", "/CN=authority")
    by = ("-CA", authority[0], "-CAkey", authority[1])
    extensions = ("subjectAltName=IP:127.0.0.1", "basicConstraints=critical,CA:FALSE")
    added = [text for extension in extensions for text in ("-addext", extension)]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make("server", "/CN=127.0.0.1", *by, *added))
    return context, authority[0]


def test_a_certificate_that_is_not_trusted_is_named(
    capsys: pytest.CaptureFixture[str], secured: tuple[ssl.SSLContext, Path]
) -> None:
    with answering(200, "none", context=secured[0]) as endpoint:
        line = _doctor(endpoint, capsys)
    assert "certificate" in line["found"]
    assert "correct the endpoint" in line["advice"]


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_an_authority_of_ones_own_is_trusted(
    variable: str, secured: tuple[ssl.SSLContext, Path]
) -> None:
    context, authority = secured
    # The machine may have its own.
    others = {name: text for name, text in os.environ.items() if name != "SSL_CERT_FILE"}
    with answering(404, "NoSuchBucket", context=context) as endpoint:
        asked = subprocess.run(
            [sys.executable, "-m", "compactord", "tables", *_arguments(endpoint)],
            env={**others, variable: str(authority)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (asked.returncode, "no such bucket" in asked.stderr) == (2, True), asked.stderr


def test_without_the_extra_the_command_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['opendal'] = None\n"
        "from compactord.cli.command import main\n"
        f"sys.exit(main(['tables', *{_arguments('http://127.0.0.1:1')!r}]))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert asked.returncode == 2
    assert "pip install 'botocore" in asked.stderr
    assert "Traceback" not in asked.stderr
    assert SECRET_KEY not in asked.stderr


_IDENTITY = {
    "fs.azure.account.auth.type": "OAuth",
    "fs.azure.account.oauth.provider.type": "MsiTokenProvider",
}


def test_an_identity_behind_a_reference_may_change(tmp_path: Path) -> None:
    """A secret that was renewed is used once the old one has expired."""
    program = """
import os, pathlib, sys
from compactord.storage.objects.connection import connection_of, forget
from compactord.storage.open import STORES

secret = pathlib.Path(sys.argv[1])
names = ("client.id", "client.secret", "client.endpoint")
values = ("me", f"${{file:{secret}}}", "https://login.microsoftonline.com/tenant/oauth2/token")
options = {
    "fs.azure.account.auth.type": "OAuth",
    "fs.azure.account.oauth.provider.type": "ClientCredsTokenProvider",
    **{f"fs.azure.account.oauth2.{n}": v for n, v in zip(names, values, strict=True)},
}
for text in ("old", "new"):
    secret.write_text(text)
    storage, _ = STORES.open("abfss://box@acc.dfs.core.windows.net/wh", options)
    assert os.environ["AZURE_CLIENT_SECRET"] == text
    forget(storage.spec, connection_of(storage.spec))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "secret")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("warehouse", "options", "environment", "expected"),
    [
        ("s3://lake/wh", {}, {}, "region of the bucket is not known: set s3.endpoint.region"),
        (
            "abfss://box@acc.dfs.core.windows.net/wh",
            {**_IDENTITY, "fs.azure.account.oauth2.client.id": "mine"},
            {"AZURE_CLIENT_ID": "another"},
            "AZURE_CLIENT_ID of the environment differs from the catalog's",
        ),
    ],
)
def test_what_the_environment_lacks_or_contradicts_is_told(
    warehouse: str, options: dict[str, str], environment: dict[str, str], expected: str
) -> None:
    given = [text for pair in options.items() for text in ("--catalog-option", "=".join(pair))]
    others = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    asked = subprocess.run(
        [sys.executable, "-m", "compactord", "tables", "--warehouse", warehouse, *given],
        env={**others, "AWS_EC2_METADATA_DISABLED": "true", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (asked.returncode, expected in asked.stderr) == (2, True), asked.stderr
