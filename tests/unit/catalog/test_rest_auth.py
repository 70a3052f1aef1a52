"""Who asks a REST server: signatures of DLF, where keys come from, when they are renewed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path

import pytest

from compactord.catalog.rest.auth import (
    Auth,
    DlfKeys,
    Expiring,
    RefreshingCredential,
    Request,
    auth_of,
    default_headers,
    openapi_headers,
)
from compactord.errors import CatalogOptionInvalid, CatalogUnavailable, CompactordError
from tests.builders import VirtualClock
from tests.unit.catalog.rest_server import Answer, Asked, FakeServer, serving

_NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
_TABLES = "/v1/p/databases"
# Method, path, query, body, token of the session, and what DLFDefaultSigner and DLFOpenApiSigner of
# release 2.0.0 make of it.
_SIGNED = [
    (
        ("GET", _TABLES, {"pageToken": "a b/ü", "maxResults": ""}, "", ""),
        "857eb5250923ef8a7421d29e9fd0a86a945f26b9747e742b42da49f9703fca17",
        "Oor+jWGVQTH+huYp7d+LuOz7V3E=",
    ),
    (
        ("GET", "/v1/a+%24/databases/db/tables/t%24branch_b/snapshot", {}, "", "sts"),
        "fc4db8e725d2749b69b9edabeb1c5e29b5845d35d3f04a04f34af262b71a8682",
        "PEydbYyhzlizJWdxKhGizLzoBoM=",
    ),
    (
        ("POST", f"{_TABLES}/db/tables/t/commit", {}, '{"tableId": "ü"}', "sts"),
        "320a0efa41fc3dbf044c38a4ada03333d1fe852973412365e0cbda8d348b7806",
        "ThiNJBbyj1b55ZGRhyWuAPpTzPM=",
    ),
]


@pytest.mark.parametrize(("given", "default", "openapi"), _SIGNED)
def test_requests_are_signed_as_java_signs_them(
    given: tuple[str, str, Mapping[str, str], str, str], default: str, openapi: str
) -> None:
    method, path, query, body, token = given
    request = Request(method=method, path=path, query=query, body=body)
    keys = DlfKeys(key_id="id", secret="secret", token=token)
    of_body = {"Content-Type": "application/json", "Content-MD5": "NEDZKI8Jdy2jtNmKMKu9uw=="}
    scope = "id/20260102/cn-hangzhou/DlfNext/aliyun_v4_request"
    assert default_headers(request, keys, _NOW, region="cn-hangzhou") == {
        "x-dlf-date": "20260102T030405Z",
        "x-dlf-version": "v1",
        "x-dlf-content-sha256": "UNSIGNED-PAYLOAD",
        **({"x-dlf-security-token": token} if token else {}),
        **(of_body if body else {}),
        "Authorization": f"DLF4-HMAC-SHA256 Credential={scope},Signature={default}",
    }
    assert openapi_headers(request, keys, _NOW, host="host:1", nonce="once") == {
        "Accept": "application/json",
        "Host": "host:1",
        "Date": "Fri, 02 Jan 2026 03:04:05 GMT",
        "x-acs-signature-version": "1.0",
        "x-acs-signature-method": "HMAC-SHA1",
        "x-acs-version": "2026-01-18",
        "x-acs-signature-nonce": "once",
        **({"x-acs-security-token": token} if token else {}),
        **(of_body if body else {}),
        "Authorization": f"acs id:{openapi}",
    }


def _token(key_id: str, **more: str) -> str:
    return json.dumps({"AccessKeyId": key_id, "AccessKeySecret": "s", **more})


def _auth(**options: str) -> Auth:
    given = {"uri": "http://cn-hangzhou-vpc.example", "token.provider": "dlf"}
    given |= {f"dlf.{key.replace('_', '-')}": text for key, text in options.items()}
    return auth_of(given, {**given}, VirtualClock())


def _signer(auth: Auth) -> tuple[str, str]:
    """The key and region, or the key and no region, of a signature."""
    found = auth.headers(Request(method="GET", path="/v1/config", query={}, body=""))
    credential = found["Authorization"]
    if credential.startswith("acs "):
        return credential[4:].partition(":")[0], ""
    key, _, region, *_ = credential.partition("Credential=")[2].split("/")
    return key, region


def test_keys_are_given_or_lie_in_a_file_or_come_from_the_machine(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(_token("of-file"))
    roles = {"/": b"role", "/role": _token("of-role").encode(), "/mine": _token("mine").encode()}

    def metadata(asked: Asked) -> Answer:
        return 200, roles[asked.raw_path]

    with serving(FakeServer(fault=metadata)) as server:
        ecs = {"token_loader": "ecs", "token_ecs_metadata_url": f"{server.uri}/"}
        for options, expected in (
            ({"access_key_id": "k", "access_key_secret": "s"}, ("k", "cn-hangzhou")),
            ({"token_path": str(file)}, ("of-file", "cn-hangzhou")),
            ({"token_path": str(file), "token_loader": "local_file"}, ("of-file", "cn-hangzhou")),
            ({"token_path": str(file), "region": "x-y"}, ("of-file", "x-y")),
            ({"token_path": str(file), "signing_algorithm": "openapi"}, ("of-file", "")),
            (ecs, ("of-role", "cn-hangzhou")),
            ({**ecs, "token_ecs_role_name": "mine"}, ("mine", "cn-hangzhou")),
        ):
            assert _signer(_auth(**options)) == expected
    assert _signer(auth_of(_dlfnext(), _dlfnext(), VirtualClock())) == ("k", "")


def _dlfnext() -> dict[str, str]:
    keys = {"dlf.access-key-id": "k", "dlf.access-key-secret": "s"}
    return {"uri": "https://DlfNext.cn-x.example", "token.provider": "dlf", **keys}


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({}, "access-key-id"),
        ({"access_key_id": "k"}, "access-key-secret"),
        ({"token_loader": "local_file"}, "token-path"),
        ({"token_loader": "custom"}, "token-loader"),
        ({"token_path": "/x", "signing_algorithm": "v9"}, "signing-algorithm"),
    ],
)
def test_options_of_dlf_without_a_meaning_are_refused(options: dict[str, str], key: str) -> None:
    with pytest.raises(CatalogOptionInvalid) as caught:
        _auth(**options)
    assert caught.value.key == f"dlf.{key}"


@pytest.mark.parametrize("text", ["", "[]", "{}", _token("k", Expiration="tomorrow")])
def test_a_file_without_a_token_is_an_error_that_shows_nothing_of_it(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "token"
    auth = _auth(token_path=str(file))
    with pytest.raises(CatalogUnavailable, match="the token cannot be read"):
        _signer(auth)
    file.write_text(text)
    with pytest.raises(CatalogUnavailable, match=r"not a token of DLF: .*token$"):
        _signer(auth)


def test_keys_that_were_refused_are_read_again(
    tmp_path: Path,
) -> None:
    file = tmp_path / "token"
    file.write_text(_token("old"))
    (tmp_path / "id").write_text("old")
    given = {"access_key_id": f"${{file:{tmp_path}/id}}", "access_key_secret": "s"}
    for options, replace in (
        ({"token_path": str(file)}, lambda: file.write_text(_token("new"))),
        (given, lambda: (tmp_path / "id").write_text("new")),
    ):
        auth = _auth(**options)
        assert _signer(auth)[0] == "old"
        assert not auth.is_renewed()
        replace()
        assert _signer(auth)[0] == "old"
        assert auth.is_renewed()
        assert _signer(auth)[0] == "new"
    os.remove(file)
    assert not auth.is_renewed()


@pytest.mark.parametrize(
    ("life_s", "calls"),
    [
        # Every ten minutes for two hours, how often one is fetched.
        (None, 1),
        (4 * 3600, 1),
        (90 * 60, 3),
        (30 * 60, 6),
        (5 * 60, 12),
    ],
)
def test_a_credential_is_used_for_a_part_of_its_life(life_s: int | None, calls: int) -> None:
    clock = VirtualClock()
    fetched: list[int] = []

    def load() -> Expiring[int]:
        fetched.append(clock.now_ms())
        return Expiring(len(fetched), None if life_s is None else clock.now_ms() + life_s * 1000)

    renewing = RefreshingCredential(load, clock)
    for _ in range(12):
        assert renewing.value() == renewing.value() == len(fetched)
        clock.sleep(600)
    assert len(fetched) == calls


def test_the_old_credential_is_used_as_long_as_it_holds() -> None:
    clock = VirtualClock()
    answers: list[Callable[[], Expiring[str]]] = [
        lambda: Expiring("first", clock.now_ms() + 600_000),
        _fail,
        _fail,
    ]
    renewing = RefreshingCredential(lambda: answers.pop(0)(), clock)
    assert renewing.value() == "first"
    clock.sleep(301)
    assert renewing.value() == "first"
    clock.sleep(30)
    assert (renewing.value(), len(answers)) == ("first", 1)
    clock.sleep(300)
    with pytest.raises(CompactordError, match="down"):
        renewing.value()


def _fail() -> Expiring[str]:
    raise CatalogUnavailable("http://x", "down")
