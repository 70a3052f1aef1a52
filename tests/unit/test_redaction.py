from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactord.text import has_credentials, printable, printable_lines, redact_text, redacted

SECRET = "s3same"


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "jdbc.password",
        "fs.s3a.secret.key",
        "s3.access-key",
        "fs.oss.accessKeyId",
        "TOKEN",
        "sas",
        "X-Amz-Signature",
        "aws_credentials",
        "fs.azure.account.key.me",
        "Authorization",
        "fs.s3a.encryption.key",
        "ldap.pwd",
        "spark.ssl.keyPassword",
        "fs.azure.sas.container.account",
        "fsspec.auth",
        "fsspec.headers",
        "catalogs.lake.options.fsspec.key",
        "fsspec.whatever",
        "headers",
        "login",
        "connect_args",
        "spark.executorEnv.PGPASS",
        "spark.executorEnv.ANY",
        "spark.yarn.appMasterEnv.ANY",
        "spark.kubernetes.driverEnv.ANY",
        "DB_PASS",
        "db.pass",
    ],
)
def test_values_under_secret_keys_are_hidden_at_any_depth(key: str) -> None:
    for value in (SECRET, {"a": SECRET}, [SECRET], SECRET.encode(), 5):
        found = json.dumps(redacted({"x": [{key: value}]}))
        assert SECRET not in found
        assert '"***"' in found


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://me:s3same@bucket/wh", "s3://***@bucket/wh"),
        ("s3://me:p@s3same@bucket/wh", "s3://***@bucket/wh"),
        ("see jdbc:mysql://h/db?user=u&password=s3same now", "see jdbc:mysql://h/db?*** now"),
        ("at abfss://box@a.dfs.core.windows.net/wh", "at abfss://box@a.dfs.core.windows.net/wh"),
        ("https://h/x?sig=s3same#a", "https://h/x?***"),
        ("bad password=s3same", "bad password=***"),
        ("conf {'fs.secret.key': 's3same', 'a': 1}", "conf {'fs.secret.key': ***, 'a': 1}"),
        ('{"token": "s3same x"}', '{"token": ***}'),
        ("Authorization: Bearer s3same", "Authorization: ***"),
        ("at sc://h:15002/;user_id=me;x-org=s3same now", "at sc://h:15002/;*** now"),
        ("{'sc://h;token=a@s3same'}", "{'sc://h;***'}"),
        ("-Dldap.pwd=s3same -Dx=1", "-Dldap.pwd=*** -Dx=1"),
        ("s3://KEY:s3same/x@b/path", "s3://***@b/path"),
        ("s3://KEY:s3same/x@b/path@2026", "s3://***@2026"),
        ("s3://KEY:a/b?s3same@b/path", "s3://***"),
        ("see jdbc:mysql://root:PW/s3same@h/db now", "see jdbc:mysql://***@h/db now"),
        ("jdbc:mysql://h:3306/db?password=p@s3same", "jdbc:mysql://h:3306/db?***"),
        ("abfss://me:s3same@a.dfs.core.windows.net/wh", "abfss://***@a.dfs.core.windows.net/wh"),
        ("aws_secret_access_key = s3same", "aws_secret_access_key = ***"),
        ("secret: s3same", "secret: ***"),
        ("password: sesame for all", "password: *** for all"),
        ("AccessKeyId: AKIAIOSFODNN", "AccessKeyId: ***"),
        ("InvalidAccessKeyId: AKIA3SAME is unknown", "InvalidAccessKeyId: *** is unknown"),
        ("Authorization: Token open sesame", "Authorization: *** sesame"),
        (r"{\"token\": \"s3same x\"}", r"{\"token\": ***}"),
        (r'"token": "a\"s3same", "b": 1', '"token": ***, "b": 1'),
        ("fsspec.headers={'a': 's3same', 'b': 1} x", "fsspec.headers=*** x"),
        ("spark.executorEnv.PGPASS=s3same", "spark.executorEnv.PGPASS=***"),
        ("disc://h/;a", "disc://h/;a"),
        ("a/b?c", "a/b?c"),
        ("/data/wh at 12:00, x=1", "/data/wh at 12:00, x=1"),
    ],
)
def test_credentials_inside_texts_are_hidden(text: str, shown: str) -> None:
    assert redact_text(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "InvalidAccessKeyId: the store does not know the access key",
        "InvalidAccessKeyId: The AWS Access Key Id you provided does not exist",
        "SignatureDoesNotMatch: The request signature we calculated does not match",
        "ExpiredToken: The provided token has expired.",
        "InvalidToken: expired",
        "AuthorizationPermissionMismatch: This request is not authorized",
        "cannot load credentials: no provider has any",
        "Unauthorized: the token: it is gone",
        "fsspec.auth: expected a mapping",
        "catalog option s3.secret-key: expected ${file:/path} or ${env:NAME}",
        "jdbc.password: expected the value in uri",
        "with the option fsspec.enabled: true",
        "s3://bucket/user@example/x",
        "http://minio:9000/bucket/wh",
        "read of s3://bucket/x failed: ask me@example.org",
        "the first pass reads 3 files",
    ],
)
def test_words_and_plain_paths_stay(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("jdbc:postgresql://h:5432/paimon?user=u&x=s3same", "jdbc:postgresql://h:5432/paimon?***"),
        ("jdbc:postgresql://a:5432,b:5433/db", "jdbc:postgresql://a:5432,b:5433/db"),
        ("jdbc:mysql://root:12/s3same@h/db", "jdbc:mysql://***@h/db"),
        ("jdbc:mysql://root:p w s3same@[::1]:3306/db", "jdbc:mysql://***@[::1]:3306/db"),
        ("jdbc:mysql://root:p?s3same@h/db", "jdbc:mysql://***"),
        ("jdbc:mysql://(host=h,password=s3same)/db", "jdbc:mysql://***"),
        ("jdbc:sqlserver://h:1433;password=s3same", "jdbc:sqlserver://h:1433;***"),
        ("jdbc:oracle:thin:scott/s3same@h", "jdbc:oracle:***"),
        ("jdbc:sqlite:/data/catalog.db?key=s3same", "jdbc:sqlite:/data/catalog.db?***"),
        ("http://rest:8080/api/s3same", "http://rest:8080/api/***"),
        ("s3same", "***"),
    ],
)
def test_of_a_database_only_its_address_is_shown(uri: str, shown: str) -> None:
    assert redacted({"uri": uri}) == {"uri": shown}
    assert redacted(uri, key="catalogs.lake.options.uri") == shown


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3://KEY:SECRET@bucket/wh", True),
        ("s3://KEY:SECRET/x@bucket/wh", True),
        ("sftp://me:1234@host/wh", True),
        ("sftp://me@host/wh", False),
        ("hdfs://name:8020/user@example/wh", False),
        ("s3://bucket/a:b/c@d", False),
        ("abfss://box@account.dfs.core.windows.net/wh", False),
        ("/data/a:b@c", False),
    ],
)
def test_a_location_with_a_password_is_recognised(location: str, expected: bool) -> None:
    assert has_credentials(location) is expected


def test_what_is_not_secret_stays() -> None:
    value = {"bytes": 5, "wait_s": 0.5, "ok": True, "none": None, "path": "/a", "list": [1, "b"]}
    assert redacted(value) == value
    assert redacted({"password": None, "token_given": True}) == {
        "password": None,
        "token_given": True,
    }


def test_objects_become_their_redacted_text() -> None:
    class Client:
        def __repr__(self) -> str:
            return "Client(password='s3same')"

    assert redacted([Client(), ValueError("token=s3same"), b"x"]) == [
        "Client(password=***)",
        "token=***",
        "b'x'",
    ]


@pytest.mark.parametrize(
    ("key", "is_hidden"),
    [
        ("catalogs.lake.options.s3.endpoint", False),
        ("catalogs.lake.options.fs.s3a.endpoint.region", False),
        ("catalogs.lake.options.jdbc.user", False),
        ("catalogs.lake.options.lock-check-max-sleep", False),
        ("catalogs.lake.options.fsspec.enabled", False),
        ("catalogs.my-token.options.s3.endpoint", False),
        ("catalogs.my-token.warehouse", False),
        ("catalogs.lake.options.whatever", True),
        ("catalogs.lake.options.jdbc.pin", True),
        ("catalogs.lake.options.fs.gs.storage.http.headers.X-Any", True),
        ("catalogs.lake.options.s3.access-key", True),
        ("catalogs.lake.options.fsspec.region", True),
    ],
)
def test_options_of_catalogs_are_hidden_unless_they_are_known(key: str, is_hidden: bool) -> None:
    assert redacted("value", key=key) == ("***" if is_hidden else "value")
    assert redacted("true", key=key) == "true"


def test_a_value_that_contains_itself_ends() -> None:
    loop: list[object] = []
    loop.append(loop)
    assert "…" in json.dumps(redacted(loop), ensure_ascii=False)


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    )
)
def test_whatever_goes_in_is_json_when_it_comes_out(value: object) -> None:
    json.dumps(redacted(value), allow_nan=False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb\r\u202ec", r"a\x1b[2Jb\r\u202ec"),
        ("\x00\x07\x7f\x9b", r"\x00\x07\x7f\x9b"),
        ("\n\t", r"\n\t"),
        ("\u202a\u202b\u202c\u202d\u2066\u2067\u2068\u2069", None),
        ("\u200e\u200f\u061c\u200b\u200c\u200d\u2060\ufeff\u2028\u2029\udc80", None),
        ("\U000e0001", r"\U000e0001"),
        ("größer, 表, العربية, 🎈, a b\\c", "größer, 表, العربية, 🎈, a b\\c"),
    ],
)
def test_what_controls_a_terminal_is_escaped(text: str, shown: str | None) -> None:
    expected = "".join(rf"\u{ord(sign):04x}" for sign in text)
    assert printable(text) == (expected if shown is None else shown)
    assert printable_lines(f"{text}\nb") == "\n".join(map(printable, text.split("\n"))) + "\nb"


@pytest.mark.parametrize("text", ["secret." * 14_000, "sc://" * 20_000], ids=["names", "masters"])
def test_a_long_text_is_redacted_in_time(text: str) -> None:
    start_s = time.process_time()
    assert redact_text(text) == text
    assert time.process_time() - start_s < 3


def test_the_signature_of_a_sas_is_hidden_outside_urls() -> None:
    assert "s3same" not in redact_text("SharedAccessSignature=sv=1&se=2&sig=s3same")
