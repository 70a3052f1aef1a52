from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactord.redaction import redact_text, redacted

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
        ("disc://h/;a", "disc://h/;a"),
        ("a/b?c", "a/b?c"),
        ("/data/wh at 12:00, x=1", "/data/wh at 12:00, x=1"),
    ],
)
def test_credentials_inside_texts_are_hidden(text: str, shown: str) -> None:
    assert redact_text(text) == shown


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
