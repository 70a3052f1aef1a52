"""Options of Azure's Blob storage and ADLS, both accessed through the blob interface.

Names: Paimon's AzureFileIO.java, and Hadoop's ABFS, where a name may end with the account's host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from compactord.errors import CatalogOptionInvalid, UsageError
from compactord.storage.objects.options import Given, OptionNames, StoreService, given
from compactord.storage.objects.spec import object_store

_OAUTH = "account.oauth2."
_NAMES = OptionNames(
    prefixes=("fs.azure.", "azure.", "fs.wasb."),
    refused={
        "account.keyprovider": "give the key itself, as ${file:/path} or ${env:NAME}",
        "shellkeyprovider.script": "give the key itself, as ${file:/path} or ${env:NAME}",
        "sas.token.provider.type": "custom token providers are not supported; give "
        "fs.azure.sas.fixed.token",
        "encryption.encoded.client-provided-key": "keys of the client are not supported",
        "encryption.encoded.client-provided-key-sha": "keys of the client are not supported",
        "encryption.context.provider.type": "keys of the client are not supported",
        f"{_OAUTH}user.name": "give a client with its secret",
        f"{_OAUTH}user.password": "give a client with its secret",
        f"{_OAUTH}refresh.token": "give a client with its secret",
        f"{_OAUTH}refresh.token.endpoint": "give a client with its secret",
        f"{_OAUTH}msi.endpoint": "the machine's own endpoint is used",
    },
)
# Hosts of Azure accounts, in all clouds. Owners of an account never see keys of its callers.
_CLOUDS = (
    *(".core.windows.net", ".core.chinacloudapi.cn", ".core.usgovcloudapi.net"),
    *(".storage.azure.net", ".fabric.microsoft.com"),
)
_TYPES = {"sharedkey": "key", "oauth": "oauth", "sas": "sas"}
_PROVIDERS = {
    "clientcredstokenprovider": "client",
    "msitokenprovider": "machine",
    "workloadidentitytokenprovider": "workload",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """`container@account.dfs.core.windows.net`; `host` as written, `blob_host` for blobs."""

    container: str
    account: str
    host: str
    blob_host: str


def _service(scheme: str, authority: str, options: Mapping[str, str]) -> StoreService:
    """The service that opens a container."""
    place = _place(scheme, authority)

    def narrowed(name: str) -> tuple[str, bool] | None:
        """`account.key.HOST` applies to one account, `sas.CONTAINER.HOST` to one container."""
        for host in (place.host, place.blob_host):
            if name in (f"sas.{place.container}.{host}", f"sas.{place.container}.{place.account}"):
                return "sas", True
            if name.lower().endswith(f".{host}"):
                return name[: -len(host) - 1], True
        # Options of other accounts do not apply to this one.
        is_others = name.lower().startswith(("account.", "sas.")) and any(
            part in name for part in (".dfs.", ".blob.")
        )
        return None if is_others else (name, False)

    found = given(options, _NAMES, narrowed=narrowed)
    service = {"container": place.container, "account_name": place.account}
    is_plain = scheme in ("abfs", "wasb") and not found.flag("always.use.https", True)
    endpoint = found.text("abfs.endpoint").rstrip("/")
    if endpoint:
        # An emulator's accounts are folders.
        start = "" if "://" in endpoint else "http://" if scheme in ("abfs", "wasb") else "https://"
        service["endpoint"] = f"{start}{endpoint}/{place.account}"
    else:
        service["endpoint"] = f"{'http' if is_plain else 'https'}://{place.blob_host}"
    environment: dict[str, str] = {}
    _put_credentials(found, service, environment)
    return StoreService(
        service="azblob",
        given=found,
        options=service,
        environment=environment,
        names_host=not (endpoint or place.host.endswith(_CLOUDS)),
    )


def _place(scheme: str, authority: str) -> _Place:
    container, at, host = authority.partition("@")
    account, dot, _ = host.partition(".")
    if not (container and at and account and dot):
        raise UsageError(
            f"{scheme}://{authority}: expected a container and an account, as in "
            f"{scheme}://container@account.dfs.core.windows.net/wh"
        )
    host = host.lower()
    blob_host = host.replace(".dfs.", ".blob.", 1)
    return _Place(container=container, account=account.lower(), host=host, blob_host=blob_host)


def _put_credentials(found: Given, service: dict[str, str], environment: dict[str, str]) -> None:
    kind = found.choice("account.auth.type", _TYPES, "SharedKey, SAS or OAuth")
    token = next((name for name in ("sas", "sas.fixed.token") if name in found), None)
    if kind == "key" and "account.key" not in found:
        raise CatalogOptionInvalid(
            found.key("account.auth.type"), "fs.azure.account.key of the account as well"
        )
    if kind == "sas" and token is None:
        raise CatalogOptionInvalid(
            found.key("account.auth.type"), "fs.azure.sas.fixed.token as well"
        )
    if kind == "oauth":
        _put_oauth(found, environment)
    elif kind != "sas" and "account.key" in found:
        found.secret("account.key", "account_key", service)
    elif token is not None:
        found.secret(token, "sas_token", service)


def _put_oauth(found: Given, environment: dict[str, str]) -> None:
    """Sets identities as environment variables, where opendal's credential chain finds them."""
    name = "account.oauth.provider.type"
    text = found.text(name).rpartition(".")[2].lower()
    if text not in _PROVIDERS:
        key = found.key(name) if name in found else f"fs.azure.{name}"
        raise CatalogOptionInvalid(
            key, "ClientCredsTokenProvider, MsiTokenProvider or WorkloadIdentityTokenProvider"
        )
    kind = _PROVIDERS[text]
    found.plain(f"{_OAUTH}client.id", "AZURE_CLIENT_ID", environment)
    tenant = found.text(f"{_OAUTH}msi.tenant")
    if kind == "client":
        tenant = _tenant(found, environment)
        for each in ("client.id", "client.secret"):
            if f"{_OAUTH}{each}" not in found:
                raise CatalogOptionInvalid(found.key(name), f"fs.azure.{_OAUTH}{each} as well")
        found.secret(f"{_OAUTH}client.secret", "AZURE_CLIENT_SECRET", environment)
    if kind == "workload":
        found.plain(f"{_OAUTH}token.file", "AZURE_FEDERATED_TOKEN_FILE", environment)
    if tenant:
        environment["AZURE_TENANT_ID"] = tenant


def _tenant(found: Given, environment: dict[str, str]) -> str:
    """The tenant in `https://login.microsoftonline.com/TENANT/oauth2/token`."""
    name = f"{_OAUTH}client.endpoint"
    parts = urlsplit(found.text(name))
    tenant = parts.path.strip("/").partition("/")[0]
    if parts.scheme != "https" or not parts.hostname or not tenant:
        key = found.key(name) if name in found else f"fs.azure.{name}"
        raise CatalogOptionInvalid(key, "https://login.microsoftonline.com/TENANT/oauth2/token")
    if parts.hostname != "login.microsoftonline.com":
        environment["AZURE_AUTHORITY_HOST"] = f"https://{parts.netloc}"
    return tenant


AZURE = object_store(_NAMES, ("abfs", "abfss", "wasb", "wasbs"), _service)
