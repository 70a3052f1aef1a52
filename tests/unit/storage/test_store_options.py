"""Options of object stores: Paimon's and Hadoop's names, and what opendal is told."""

from __future__ import annotations

import os

import opendal
import pytest

from compactord.errors import CatalogOptionInvalid, UsageError
from compactord.storage.objects.spec import ObjectSpec
from compactord.storage.open import STORES
from compactord.text import resolve

_KEYS = {"s3.access-key": "AK", "s3.secret-key": "SK"}
_OPENED_KEYS = {"access_key_id": "AK", "secret_access_key": "SK"}
_VIRTUAL = {"enable_virtual_host_style": "true"}
_DFS = "acc.dfs.core.windows.net"
_OAUTH = "fs.azure.account.oauth"


def _spec(scheme: str, authority: str, options: dict[str, str]) -> ObjectSpec:
    spec = STORES.located(f"{scheme}://{authority}/wh", options).spec
    assert isinstance(spec, ObjectSpec)
    return spec


def _told(values: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """What opendal is told, where references are resolved."""
    environ = {**os.environ, "SECRET": "${env:SECRET}"}
    return {name: resolve(text, environ) for name, text in values}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, _VIRTUAL),
        (_KEYS, {**_OPENED_KEYS, **_VIRTUAL}),
        ({"fs.s3a.access.key": "AK", "s3a.secret-key": "SK"}, {**_OPENED_KEYS, **_VIRTUAL}),
        ({"hadoop.fs.s3a.endpoint.region": "eu-west-1"}, {"region": "eu-west-1", **_VIRTUAL}),
        (
            {**_KEYS, "s3.session.token": "T"},
            {**_OPENED_KEYS, "session_token": "T", **_VIRTUAL},
        ),
        (
            {"s3.endpoint": "minio:9000", "s3.path.style.access": "true"},
            {"endpoint": "https://minio:9000", "region": "us-east-1"},
        ),
        (
            {"s3.endpoint": "minio:9000", "fs.s3a.connection.ssl.enabled": "false"},
            {"endpoint": "http://minio:9000", "region": "us-east-1", **_VIRTUAL},
        ),
        (
            {"s3.endpoint": "http://127.0.0.1:9000/"},
            {"endpoint": "http://127.0.0.1:9000", "region": "us-east-1"},
        ),
        (
            {"s3.endpoint": "s3.eu-central-1.amazonaws.com"},
            {
                "endpoint": "https://s3.eu-central-1.amazonaws.com",
                "region": "eu-central-1",
                **_VIRTUAL,
            },
        ),
        (
            {"s3.endpoint": "minio:9000", "s3.region": "r1"},
            {"endpoint": "https://minio:9000", "region": "r1", **_VIRTUAL},
        ),
        (
            {"fs.s3a.bucket.lake.endpoint.region": "r1", "s3.region": "r2"},
            {"region": "r1", **_VIRTUAL},
        ),
        ({"fs.s3a.bucket.other.endpoint.region": "r1"}, _VIRTUAL),
        (
            {**_KEYS, "fs.s3a.aws.credentials.provider": "org.x.SimpleAWSCredentialsProvider"},
            {**_OPENED_KEYS, **_VIRTUAL},
        ),
        (
            {**_KEYS, "fs.s3a.aws.credentials.provider": "org.x.IAMInstanceCredentialsProvider"},
            _VIRTUAL,
        ),
        (
            {"fs.s3a.aws.credentials.provider": "a.AnonymousAWSCredentialsProvider"},
            {"skip_signature": "true", **_VIRTUAL},
        ),
        (
            {
                **_KEYS,
                "fs.s3a.aws.credentials.provider": "a.auth.AssumedRoleCredentialProvider",
                "fs.s3a.assumed.role.arn": "arn:aws:iam::1:role/r",
                "fs.s3a.assumed.role.session.duration": "30m",
            },
            {
                **_OPENED_KEYS,
                "role_arn": "arn:aws:iam::1:role/r",
                "assume_role_duration_seconds": "1800",
                **_VIRTUAL,
            },
        ),
        (
            {
                "fs.s3a.server-side-encryption-algorithm": "SSE-KMS",
                "fs.s3a.encryption.key": "arn:k",
            },
            {
                "server_side_encryption": "aws:kms",
                "server_side_encryption_aws_kms_key_id": "arn:k",
                **_VIRTUAL,
            },
        ),
        (
            {
                "fs.s3a.acl.default": "BucketOwnerFullControl",
                "fs.s3a.create.storage.class": "intelligent_tiering",
                "fs.s3a.requester.pays.enabled": "true",
                "fs.s3a.list.version": "1",
            },
            {
                "default_acl": "bucket-owner-full-control",
                "default_storage_class": "INTELLIGENT_TIERING",
                "enable_request_payer": "true",
                "disable_list_objects_v2": "true",
                **_VIRTUAL,
            },
        ),
        ({"fs.s3a.connection.maximum": "1000", "fs.oss.endpoint": "e", "lock.type": "x"}, _VIRTUAL),
    ],
)
def test_s3(options: dict[str, str], expected: dict[str, str]) -> None:
    found = _spec("s3a", "lake", options)
    assert (found.service, _told(found.options)) == ("s3", {"bucket": "lake", **expected})
    opendal.Operator("s3", **{"region": "r", **_told(found.options)})


def test_a_bucket_whose_name_no_host_can_begin_with_is_a_folder() -> None:
    for bucket in ("my.lake", "Lake", "my_lake"):
        assert "enable_virtual_host_style" not in dict(_spec("s3", bucket, {}).options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"fs.gs.project.id": "p", "gs.auth.type": "APPLICATION_DEFAULT"}, {}),
        (
            {
                "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
                "fs.gs.auth.service.account.json.keyfile": "/k.json",
            },
            {"credential_path": "/k.json"},
        ),
        ({"fs.gs.auth.service.account.json.keyfile": "/k.json"}, {"credential_path": "/k.json"}),
        (
            {
                "fs.gs.storage.root.url": "http://127.0.0.1:4443/",
                "fs.gs.auth.type": "UNAUTHENTICATED",
            },
            {"endpoint": "http://127.0.0.1:4443", "skip_signature": "true"},
        ),
        ({"fs.gs.inputstream.fadvise": "RANDOM", "fs.gs.working.dir": "/"}, {}),
    ],
)
def test_gcs(options: dict[str, str], expected: dict[str, str]) -> None:
    found = _spec("gs", "lake", options)
    assert (found.service, _told(found.options)) == ("gcs", {"bucket": "lake", **expected})
    opendal.Operator("gcs", **_told(found.options))


_CLIENT = {
    f"{_OAUTH}.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider",
    "fs.azure.account.auth.type": "OAuth",
    f"{_OAUTH}2.client.endpoint": "https://login.microsoftonline.com/tenant/oauth2/token",
    f"{_OAUTH}2.client.id": "id",
    f"{_OAUTH}2.client.secret": "${env:SECRET}",
}


@pytest.mark.parametrize(
    ("options", "expected", "environment"),
    [
        ({}, {}, {}),
        ({f"fs.azure.account.key.{_DFS}": "a2V5"}, {"account_key": "a2V5"}, {}),
        ({"azure.account.key.acc.blob.core.windows.net": "a2V5"}, {"account_key": "a2V5"}, {}),
        ({"fs.azure.account.key": "a2V5"}, {"account_key": "a2V5"}, {}),
        (
            {"fs.azure.account.key.other.dfs.core.windows.net": "a", "fs.azure.io.retry.max": "1"},
            {},
            {},
        ),
        (
            {
                f"fs.azure.account.auth.type.{_DFS}": "SAS",
                f"fs.azure.sas.fixed.token.{_DFS}": "sv=1",
            },
            {"sas_token": "sv=1"},
            {},
        ),
        ({"fs.azure.sas.box.acc.blob.core.windows.net": "sv=1"}, {"sas_token": "sv=1"}, {}),
        (
            _CLIENT,
            {},
            {
                "AZURE_CLIENT_ID": "id",
                "AZURE_CLIENT_SECRET": "${env:SECRET}",
                "AZURE_TENANT_ID": "tenant",
            },
        ),
        (
            {
                "fs.azure.account.auth.type": "OAuth",
                f"{_OAUTH}.provider.type.{_DFS}": "x.MsiTokenProvider",
                f"{_OAUTH}2.client.id": "id",
            },
            {},
            {"AZURE_CLIENT_ID": "id"},
        ),
    ],
)
def test_azure(
    options: dict[str, str], expected: dict[str, str], environment: dict[str, str]
) -> None:
    found = _spec("abfss", f"box@{_DFS}", options)
    place = {
        "container": "box",
        "account_name": "acc",
        "endpoint": "https://acc.blob.core.windows.net",
    }
    assert (found.service, _told(found.options)) == ("azblob", {**place, **expected})
    assert _told(found.environment) == environment
    opendal.Operator("azblob", **_told(found.options))


@pytest.mark.parametrize(
    ("scheme", "options", "endpoint"),
    [
        ("abfs", {}, "https://acc.blob.core.windows.net"),
        ("wasb", {"fs.azure.always.use.https": "false"}, "http://acc.blob.core.windows.net"),
        ("abfs", {"fs.azure.abfs.endpoint": "127.0.0.1:10000"}, "http://127.0.0.1:10000/acc"),
    ],
)
def test_endpoints_of_azure(scheme: str, options: dict[str, str], endpoint: str) -> None:
    found = _spec(scheme, "box@acc.blob.core.windows.net", options)
    assert _told(found.options)["endpoint"] == endpoint


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"fs.oss.endpoint": "oss-cn-hangzhou.aliyuncs.com"},
            {"endpoint": "https://oss-cn-hangzhou.aliyuncs.com"},
        ),
        (
            {
                "fs.oss.endpoint": "http://127.0.0.1:8000",
                "fs.oss.accessKeyId": "AK",
                "fs.oss.accesskeysecret": "SK",
                "fs.oss.securityToken": "T",
            },
            {
                "endpoint": "http://127.0.0.1:8000",
                "addressing_style": "path",
                "access_key_id": "AK",
                "access_key_secret": "SK",
                "security_token": "T",
            },
        ),
        (
            {"fs.oss.endpoint": "e", "fs.oss.server-side-encryption-key-id": "k"},
            {
                "endpoint": "https://e",
                "server_side_encryption": "KMS",
                "server_side_encryption_key_id": "k",
            },
        ),
    ],
)
def test_oss(options: dict[str, str], expected: dict[str, str]) -> None:
    found = _spec("oss", "lake", options)
    assert (found.service, _told(found.options)) == ("oss", {"bucket": "lake", **expected})
    opendal.Operator("oss", **_told(found.options))


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("s3", {"s3.endpoint": "http://h:port"}, "s3.endpoint: expected a host"),
        ("s3", {"s3.endpoint": "https://me:pw@h"}, "s3.endpoint: expected a host"),
        ("s3", {"s3.path.style.access": "yes"}, "expected true or false"),
        ("s3", {"s3.access-key": "x"}, "s3.access-key: expected fs.s3a.secret.key as well"),
        ("s3", {**_KEYS, "fs.s3a.access.key": "y"}, "the value of s3.access-key"),
        ("s3", {"fs.s3a.proxy.host": "p"}, "HTTPS_PROXY"),
        ("s3", {"fs.s3a.encryption.algorithm": "CSE-KMS"}, "SSE-S3 or SSE-KMS"),
        ("s3", {"fs.s3a.aws.credentials.provider": "com.me.Mine"}, "such as com.me.Mine"),
        (
            "s3",
            {"fs.s3a.aws.credentials.provider": "x.AssumedRoleCredentialProvider"},
            "fs.s3a.assumed.role.arn as well",
        ),
        ("s3", {"s3.region": "${env:NOT_THERE_AT_ALL}"}, "NOT_THERE_AT_ALL to be set"),
        ("gs", {"fs.gs.auth.type": "USER_CREDENTIALS"}, "APPLICATION_DEFAULT"),
        ("gs", {"fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE"}, "json.keyfile as well"),
        ("gs", {"fs.gs.encryption.key": "x"}, "Cloud KMS"),
        ("oss", {}, "fs.oss.endpoint: expected the endpoint"),
        ("oss", {"fs.oss.endpoint": "e", "fs.oss.accessKeyId": "x"}, "accessKeySecret as well"),
        ("abfs", {"fs.azure.account.auth.type": "Custom"}, "SharedKey, SAS or OAuth"),
        ("abfs", {"fs.azure.account.auth.type": "OAuth"}, "ClientCredsTokenProvider"),
        ("abfs", {**_CLIENT, f"{_OAUTH}2.client.endpoint": "x"}, "login.microsoftonline.com"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(
    scheme: str, options: dict[str, str], message: str
) -> None:
    authority = f"box@{_DFS}" if scheme == "abfs" else "lake"
    with pytest.raises(CatalogOptionInvalid, match=message):
        _spec(scheme, authority, options)


@pytest.mark.parametrize(
    ("location", "options", "shown"),
    [
        ("s3://lake", {"s3.acess-key": "x"}, ["s3.acess-key (did you mean s3.access-key?)"]),
        (
            "s3://lake",
            {"hadoop.fs.s3.endpoint": "x"},
            ["hadoop.fs.s3.endpoint (did you mean fs.s3a.endpoint?)"],
        ),
        ("s3://lake", {"fs.s3a.connection.maximum": "9"}, ["fs.s3a.connection.maximum"]),
        ("s3://lake", {"fs.s3a.bucket.other.endpoint": "x", "lock.type": "x"}, []),
        # Of another store, however like one of this it is.
        ("s3://lake", {"fs.oss.endpoint": "e"}, ["fs.oss.endpoint"]),
        ("gs://lake", {"fs.gs.auth.typ": "x"}, ["fs.gs.auth.typ (did you mean fs.gs.auth.type?)"]),
        ("gs://lake", {"fs.defaultFS": "x", "fsspec.any": "y"}, ["fs.defaultFS", "fsspec.any"]),
        ("gs://lake", {"fsspec.token": "x"}, ["fsspec.token"]),
        ("/data", {"s3.endpoint": "e", "cache-enabled": "true"}, ["s3.endpoint"]),
        ("ftp://h", {"fsspec.any": "1", "fs.a": "y"}, ["fs.a"]),
        ("ftp://h", {"fsspec.enabled": "true"}, ["fsspec.enabled (not needed any more)"]),
        ("s3://h", {"fsspec.enabled": "false"}, ["fsspec.enabled (not needed any more)"]),
        (
            f"abfs://box@{_DFS}",
            {"fs.azure.acount.key": "x", "fs.azure.account.key.other.dfs.core.windows.net": "y"},
            ["fs.azure.acount.key (did you mean fs.azure.account.key?)"],
        ),
    ],
)
def test_options_without_an_effect_are_known(
    location: str, options: dict[str, str], shown: list[str]
) -> None:
    assert list(STORES.without_effect(f"{location}/wh", options)) == shown


@pytest.mark.parametrize(
    "scheme", [scheme for store in STORES.known for scheme in store.schemes if store.prefixes]
)
def test_a_location_that_names_no_store_is_refused(scheme: str) -> None:
    with pytest.raises(UsageError, match=r"(bucket|name service) is missing"):
        _spec(scheme, "", {})


@pytest.mark.parametrize("authority", ["box", "box@acc", "@acc.dfs.core.windows.net"])
def test_a_location_of_azure_has_a_container_and_an_account(authority: str) -> None:
    with pytest.raises(UsageError, match="expected a container and an account"):
        _spec("abfss", authority, {})


@pytest.mark.parametrize(
    ("scheme", "options", "keys"),
    [
        ("s3", {}, ()),
        ("s3", _KEYS, ("s3.access-key", "s3.secret-key")),
        ("s3", {"s3.access-key": "${env:A}", "s3.secret-key": "${file:/b}"}, ()),
        ("s3", {"s3.access-key": "${env:A}", "s3.secret-key": "a$${b}"}, ("s3.secret-key",)),
        ("abfs", {f"fs.azure.account.key.{_DFS}": "x"}, (f"fs.azure.account.key.{_DFS}",)),
        ("abfs", _CLIENT, ()),
        ("gs", {"fs.gs.auth.service.account.json.keyfile": "/k"}, ()),
    ],
)
def test_secrets_that_stand_in_the_configuration_are_known(
    scheme: str, options: dict[str, str], keys: tuple[str, ...]
) -> None:
    authority = f"box@{_DFS}" if scheme == "abfs" else "lake"
    assert STORES.literal_secrets(f"{scheme}://{authority}/wh", options) == keys
