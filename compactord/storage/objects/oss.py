"""Options of Aliyun's OSS.

Names: Paimon's OSSFileIO.java, and Hadoop's client for OSS, which gets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from compactord.errors import CatalogOptionInvalid
from compactord.storage.base import Capabilities
from compactord.storage.objects.options import Given, OptionNames, StoreService, given, is_address
from compactord.storage.objects.spec import object_store

_PREFIX = "fs.oss."
ENDPOINT = f"{_PREFIX}endpoint"
_NAMES = OptionNames(
    prefixes=(_PREFIX,),
    refused={
        "credentials.provider": "give keys, or none to use variables and roles of the machine",
        "server-side-data-encryption": "SM4 within KMS is not supported yet",
    },
)
_KEYS = {name.lower(): name for name in ("accessKeyId", "accessKeySecret", "securityToken")}
_METHODS = {"aes256": "AES256", "kms": "KMS", "sm4": "SM4"}


def _service(scheme: str, bucket: str, options: Mapping[str, str]) -> StoreService:
    """The service that opens a bucket."""
    # Paimon accepts the names of the keys in any case.
    found = given(options, _NAMES, narrowed=lambda name: (_KEYS.get(name.lower(), name), False))
    service = {"bucket": bucket}
    endpoint = found.text("endpoint").rstrip("/")
    if not endpoint:
        raise CatalogOptionInvalid(
            ENDPOINT, "the endpoint of the bucket, such as oss-cn-hangzhou.aliyuncs.com"
        )
    if "://" not in endpoint:
        is_secure = found.flag("connection.secure.enabled", True)
        endpoint = f"{'https' if is_secure else 'http'}://{endpoint}"
    service["endpoint"] = endpoint
    if found.flag("sld.enabled", False) or is_address(urlsplit(endpoint).hostname or ""):
        service["addressing_style"] = "path"
    keys = {"accessKeyId": "access_key_id", "accessKeySecret": "access_key_secret"}
    found.pair(_PREFIX, keys, ("securityToken", "security_token"), service)
    found.plain("assumed.role.arn", "role_arn", service)
    found.plain("assumed.role.session.name", "role_session_name", service)
    _put_encryption(found, service)
    return StoreService(service="oss", given=found, options=service)


def _put_encryption(found: Given, service: dict[str, str]) -> None:
    expected = "AES256, KMS or SM4"
    method = found.choice("server-side-encryption", _METHODS, expected)
    has_key = "server-side-encryption-key-id" in found
    if has_key and method not in ("", "KMS"):
        raise CatalogOptionInvalid(
            found.key("server-side-encryption-key-id"), "fs.oss.server-side-encryption: KMS"
        )
    native = found.choice("server-side-encryption-algorithm", _METHODS, expected)
    method = method or ("KMS" if has_key else native)
    if method:
        service["server_side_encryption"] = method
    found.plain("server-side-encryption-key-id", "server_side_encryption_key_id", service)


# The only one of Java's object stores that creates a snapshot only if there is none.
OSS = object_store(_NAMES, ("oss",), _service, Capabilities(excludes_java_writers=True))
