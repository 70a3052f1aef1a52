"""Options of Google Cloud Storage.

Names: Paimon's GSFileIO.java, and Google's connector for Hadoop, which gets all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from compactord.errors import CatalogOptionInvalid
from compactord.storage.objects.options import Given, OptionNames, StoreService, given
from compactord.storage.objects.spec import object_store

_KEY_FILE = "give the path of a JSON key as fs.gs.auth.service.account.json.keyfile"
_TOKENS = "custom access token providers are not supported"
_CSEK = "customer-supplied keys are not supported; use keys of Cloud KMS"
_FEDERATION = "auth.workload.identity.federation.credential.config.file"
_NAMES = OptionNames(
    prefixes=("fs.gs.", "gs."),
    refused={
        "auth.service.account.email": _KEY_FILE,
        "auth.service.account.keyfile": _KEY_FILE,
        "auth.service.account.private.key": _KEY_FILE,
        "auth.service.account.private.key.id": _KEY_FILE,
        "auth.access.token.provider": _TOKENS,
        "auth.access.token.provider.impl": _TOKENS,
        "auth.impersonation.service.account": "give the account's own credentials",
        "encryption.algorithm": _CSEK,
        "encryption.key": _CSEK,
        "encryption.key.hash": _CSEK,
    },
)
_DEFAULT = "default"
_AUTH_TYPES = {
    "application_default": _DEFAULT,
    "compute_engine": _DEFAULT,
    "service_account_json_keyfile": "auth.service.account.json.keyfile",
    "workload_identity_federation_credential_config_file": _FEDERATION,
    "unauthenticated": "none",
}


def _service(scheme: str, bucket: str, options: Mapping[str, str]) -> StoreService:
    """The service that opens a bucket."""
    found = given(options, _NAMES)
    service = {"bucket": bucket}
    endpoint = found.text("storage.root.url").rstrip("/")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise CatalogOptionInvalid(found.key("storage.root.url"), "http(s)://host:port")
    if endpoint:
        service["endpoint"] = endpoint
    if found.text("requester.pays.mode").upper() not in ("", "DISABLED", "AUTO"):
        raise CatalogOptionInvalid(
            found.key("requester.pays.mode"), "DISABLED: requester pays is not supported"
        )
    _put_credentials(found, service)
    return StoreService(service="gcs", given=found, options=service)


def _put_credentials(found: Given, service: dict[str, str]) -> None:
    kind = found.choice(
        "auth.type",
        _AUTH_TYPES,
        "APPLICATION_DEFAULT, COMPUTE_ENGINE, SERVICE_ACCOUNT_JSON_KEYFILE, UNAUTHENTICATED or "
        "WORKLOAD_IDENTITY_FEDERATION_CREDENTIAL_CONFIG_FILE",
    )
    if kind == "none":
        service["skip_signature"] = "true"
        return
    files = ("auth.service.account.json.keyfile", _FEDERATION)
    if kind in files and kind not in found:
        raise CatalogOptionInvalid(found.key("auth.type"), f"fs.gs.{kind} as well")
    if kind == _DEFAULT:
        return
    name = kind or next((each for each in files if each in found), "")
    if name:
        # A path: the process that opens the store reads the file.
        found.plain(name, "credential_path", service)


GCS = object_store(_NAMES, ("gs",), _service)
