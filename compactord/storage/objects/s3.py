"""Options of S3 and of stores with its interface.

Names: Paimon's S3FileIO.java, and Hadoop's S3A, which gets all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from compactord.errors import CatalogOptionInvalid
from compactord.storage.objects.options import Given, OptionNames, StoreService, given, is_address
from compactord.storage.objects.spec import object_store

_KEY_STORE = "give keys as ${file:/path} or ${env:NAME}"
_NAMES = OptionNames(
    prefixes=("s3.", "s3a.", "fs.s3a."),
    aliases={
        "access-key": "access.key",
        "secret-key": "secret.key",
        "session-token": "session.token",
        "path-style-access": "path.style.access",
        "region": "endpoint.region",
        "server-side-encryption-algorithm": "encryption.algorithm",
        "server-side-encryption.key": "encryption.key",
    },
    refused={
        "security.credential.provider.path": _KEY_STORE,
        "assumed.role.policy": "limit the permissions of the role itself",
        "encryption.context": "set the key as the bucket's default encryption",
        "custom.signers": "only signature version 4 is supported",
        "encryption.cse.kms.region": "encryption by the client is not supported",
    },
)
_KEYS = ("simpleawscredentialsprovider", "temporaryawscredentialsprovider")
_ANONYMOUS = "anonymousawscredentialsprovider"
_ASSUMED = "assumedrolecredentialprovider"
# Everything in opendal's own chain: variables, profile, web identity, container, instance.
_CHAIN = frozenset(
    (
        *("environmentvariablecredentialsprovider", "defaultcredentialsprovider"),
        *("defaultawscredentialsproviderchain", "instanceprofilecredentialsprovider"),
        *("iaminstancecredentialsprovider", "containercredentialsprovider"),
        *("ec2containercredentialsproviderwrapper", "webidentitytokencredentialsprovider"),
        *("webidentitytokenfilecredentialsprovider", "profilecredentialsprovider"),
        *("profileawscredentialsprovider",),
    )
)
_ENCRYPTIONS = {
    "sse-s3": "AES256",
    "aes256": "AES256",
    "sse-kms": "aws:kms",
    "aws:kms": "aws:kms",
}
_DURATION = re.compile(r"([0-9]+)\s*(s|m|h)?")
_AWS_HOST = re.compile(r"s3[.-](?:dualstack\.)?([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
_DNS_NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")


def _service(scheme: str, bucket: str, options: Mapping[str, str]) -> StoreService:
    """The service that opens a bucket."""

    def narrowed(name: str) -> tuple[str, bool] | None:
        """`bucket.NAME.option` applies to one bucket, as in S3A."""
        if not name.startswith("bucket."):
            return name, False
        own = f"bucket.{bucket}."
        return (name.removeprefix(own), True) if name.startswith(own) else None

    found = given(options, _NAMES, narrowed=narrowed)
    service = {"bucket": bucket}
    _put_endpoint(found, bucket, service)
    _put_credentials(found, service)
    _put_encryption(found, service)
    if found.text("list.version") == "1":
        service["disable_list_objects_v2"] = "true"
    if found.flag("requester.pays.enabled", False):
        service["enable_request_payer"] = "true"
    found.plain("create.storage.class", "default_storage_class", service)
    if "default_storage_class" in service:
        service["default_storage_class"] = service["default_storage_class"].upper()
    # The Java SDK writes CannedAccessControlList in camel case.
    acl = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", found.text("acl.default")).lower()
    if acl:
        service["default_acl"] = acl
    if found.text("create.checksum.algorithm").upper() == "CRC32C":
        service["checksum_algorithm"] = "crc32c"
    return StoreService(service="s3", given=found, options=service)


def _put_endpoint(found: Given, bucket: str, service: dict[str, str]) -> None:
    secure = found.flag("connection.ssl.enabled", True)
    endpoint = found.text("endpoint").rstrip("/")
    if endpoint and "://" not in endpoint:
        endpoint = f"{'https' if secure else 'http'}://{endpoint}"
    host = _host(found, endpoint)
    region = found.text("endpoint.region")
    if endpoint:
        service["endpoint"] = endpoint
        aws = _AWS_HOST.fullmatch(host)
        if not region:
            # S3A also signs for this region if an endpoint names none.
            region = aws[1] if aws is not None else "us-east-1"
    if region:
        service["region"] = region
    is_path = found.flag("path.style.access", False) or not _is_virtual(bucket, endpoint, host)
    if not is_path:
        service["enable_virtual_host_style"] = "true"


def _host(found: Given, endpoint: str) -> str:
    if not endpoint:
        return ""
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https") or parts.query or "@" in parts.netloc:
        raise CatalogOptionInvalid(
            found.key("endpoint"), "a host, or http(s)://host:port, without credentials"
        )
    return host


def _is_virtual(bucket: str, endpoint: str, host: str) -> bool:
    """Whether the bucket's name can be prepended to the host, as in the Java SDK."""
    # A dot would not match the store's certificate.
    labels = bucket.split(".") if endpoint.startswith("http:") else [bucket]
    return not is_address(host) and all(_DNS_NAME.fullmatch(label) for label in labels)


def _put_credentials(found: Given, service: dict[str, str]) -> None:
    providers = _providers(found, "aws.credentials.provider")
    base = _providers(found, "assumed.role.credentials.provider")
    if _ANONYMOUS in providers:
        service["skip_signature"] = "true"
        return
    # Only some providers read keys from the options; a role has its own providers.
    takes_keys = not providers or any(name in (*_KEYS, _ASSUMED) for name in providers)
    if takes_keys and (not base or any(name in _KEYS for name in base)):
        keys = {"access.key": "access_key_id", "secret.key": "secret_access_key"}
        found.pair("fs.s3a.", keys, ("session.token", "session_token"), service)
    if not providers or _ASSUMED in providers:
        found.plain("assumed.role.arn", "role_arn", service)
    if _ASSUMED in providers and "role_arn" not in service:
        raise CatalogOptionInvalid(
            found.key("aws.credentials.provider"), "fs.s3a.assumed.role.arn as well"
        )
    if "role_arn" in service:
        found.plain("assumed.role.session.name", "role_session_name", service)
        found.plain("assumed.role.external.id", "external_id", service)
        _put_duration(found, service)


def _providers(found: Given, name: str) -> Sequence[str]:
    """The class names in a list of providers, in lower case and without packages."""
    named = [part.strip() for part in found.text(name).split(",") if part.strip()]
    short = [part.rpartition(".")[2].rpartition("$")[2].lower() for part in named]
    for full, each in zip(named, short, strict=True):
        if each not in (*_KEYS, _ANONYMOUS, _ASSUMED, *_CHAIN):
            raise CatalogOptionInvalid(
                found.key(name),
                f"no custom provider such as {full}: SimpleAWSCredentialsProvider with "
                "keys, AssumedRoleCredentialProvider, AnonymousAWSCredentialsProvider, or none of "
                "them for variables, profile, web identity and instance",
            )
    return short


def _put_duration(found: Given, service: dict[str, str]) -> None:
    text = found.text("assumed.role.session.duration")
    if not text:
        return
    amount = _DURATION.fullmatch(text)
    if amount is None:
        raise CatalogOptionInvalid(
            found.key("assumed.role.session.duration"), "a duration such as 30m or 1h"
        )
    seconds = int(amount[1]) * {"s": 1, "m": 60, "h": 3600}[amount[2] or "s"]
    service["assume_role_duration_seconds"] = str(seconds)


def _put_encryption(found: Given, service: dict[str, str]) -> None:
    kind = found.choice(
        "encryption.algorithm",
        _ENCRYPTIONS,
        "SSE-S3 or SSE-KMS: SSE-C, DSSE-KMS and encryption by the client are not supported",
    )
    if kind:
        service["server_side_encryption"] = kind
    if kind == "aws:kms":
        found.plain("encryption.key", "server_side_encryption_aws_kms_key_id", service)


S3 = object_store(_NAMES, ("s3", "s3a", "s3n"), _service)
