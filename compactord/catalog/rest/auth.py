"""How requests to the server say who asks: a token, or a signature of Aliyun's DLF.

Sources: rest/auth/{BearTokenAuthProvider,DLFAuthProvider,DLFAuthProviderFactory}.java, and the
token loaders beside them. Credentials that are references are read again once they are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

from compactord import ids
from compactord.catalog.rest.http import AnswerRefused, Http, NoAnswer
from compactord.catalog.rest.renewing import Lent, Renewing
from compactord.catalog.rest.signing import DlfKeys, Request, default_headers, openapi_headers
from compactord.clock import Clock
from compactord.errors import CatalogOptionInvalid, CatalogUnavailable
from compactord.paimon.schema import parse_json
from compactord.text import resolve

_ECS = "http://100.100.100.200/latest/meta-data/Ram/security-credentials/"
_REGION = re.compile(r"(?:pre-)?([a-z]+-[a-z]+(?:-\d+)?)")
# Of a file of keys, and of what the machine's metadata answer.
_TOKEN_BYTES_MAX = 64 << 10
_EXPIRATION = "%Y-%m-%dT%H:%M:%SZ"
_KEY_ID, _SECRET, _TOKEN = "dlf.access-key-id", "dlf.access-key-secret", "dlf.security-token"


class Auth(Protocol):
    """Any number of threads may ask."""

    def headers(self, request: Request) -> Mapping[str, str]:
        """What a request is sent with. Raises where a credential cannot be had."""
        ...

    def is_renewed(self) -> bool:
        """Whether the credential that was just refused has been replaced: worth another try."""
        ...


class BearerAuth:
    """A token."""

    def __init__(self, text: str, clock: Clock) -> None:
        self._token = Renewing(lambda: Lent(resolve(text), None), clock)
        self.is_renewed = self._token.is_renewed

    def headers(self, request: Request) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self._token.value()}"}


class DlfAuth:
    """Keys that sign each request."""

    def __init__(
        self,
        keys: Callable[[], Lent[DlfKeys]],
        sign: Callable[[Request, DlfKeys, datetime], Mapping[str, str]],
        clock: Clock,
    ) -> None:
        self._keys = Renewing(keys, clock)
        self._sign = sign
        self._clock = clock
        self.is_renewed = self._keys.is_renewed

    def headers(self, request: Request) -> Mapping[str, str]:
        now = datetime.fromtimestamp(self._clock.now_ms() // 1000, timezone.utc)
        return self._sign(request, self._keys.value(), now)


def auth_of(options: Mapping[str, str], values: Mapping[str, str], clock: Clock) -> Auth:
    """What the options, as they are written, and their values ask for.

    Raises `CatalogOptionInvalid`.
    """
    provider = values.get("token.provider", "")
    if provider == "bear":
        if not values.get("token"):
            raise CatalogOptionInvalid("token", "the token that the server knows")
        return BearerAuth(options["token"], clock)
    if provider == "dlf":
        return DlfAuth(_keys(options, values, clock), _signer(values), clock)
    raise CatalogOptionInvalid("token.provider", "bear or dlf")


def _signer(
    values: Mapping[str, str],
) -> Callable[[Request, DlfKeys, datetime], Mapping[str, str]]:
    uri = values["uri"]
    found = _REGION.search(uri)
    region = values.get("dlf.region") or (found[1] if found else "")
    if not region:
        raise CatalogOptionInvalid("dlf.region", "the region of the server")
    by_uri = "openapi" if "dlfnext" in uri.lower() else "default"
    algorithm = values.get("dlf.signing-algorithm", by_uri)
    if algorithm == "default":
        return partial(default_headers, region=region)
    if algorithm == "openapi":
        host = urlsplit(uri if "://" in uri else f"https://{uri}").netloc
        return lambda request, keys, now: openapi_headers(
            request, keys, now, host=host, nonce=ids.random_uuid()
        )
    raise CatalogOptionInvalid("dlf.signing-algorithm", "default or openapi")


def _keys(
    options: Mapping[str, str], values: Mapping[str, str], clock: Clock
) -> Callable[[], Lent[DlfKeys]]:
    loader = values.get("dlf.token-loader") or ("local_file" if "dlf.token-path" in values else "")
    if loader == "local_file":
        path = values.get("dlf.token-path")
        if not path:
            raise CatalogOptionInvalid("dlf.token-path", "the file that holds the token")
        return partial(_from_file, path)
    if loader == "ecs":
        url = values.get("dlf.token-ecs-metadata-url", _ECS)
        return partial(_from_ecs, Http(url, clock), url, values.get("dlf.token-ecs-role-name", ""))
    if loader:
        raise CatalogOptionInvalid("dlf.token-loader", "ecs or local_file")
    for key in (_KEY_ID, _SECRET):
        if not values.get(key):
            raise CatalogOptionInvalid(key, "a key, unless dlf.token-loader or -path finds one")

    def given() -> Lent[DlfKeys]:
        key_id, secret, token = (
            resolve(options.get(key, "")) for key in (_KEY_ID, _SECRET, _TOKEN)
        )
        return Lent(DlfKeys(key_id=key_id, secret=secret, token=token), None)

    return given


def _from_file(path: str) -> Lent[DlfKeys]:
    try:
        with open(path, "rb") as file:
            return _parsed(file.read(_TOKEN_BYTES_MAX), path)
    except OSError as error:
        raise CatalogUnavailable(path, f"the token cannot be read ({error.strerror})") from None


def _from_ecs(http: Http, url: str, role: str) -> Lent[DlfKeys]:
    """The role's name is asked for where it is not given."""
    role = role or _fetched(http, url).decode(errors="replace").strip()
    return _parsed(_fetched(http, f"{url}{role}"), url)


def _fetched(http: Http, url: str) -> bytes:
    try:
        status, answer = http.send("GET", url, {}, bytes_max=_TOKEN_BYTES_MAX)
    except (NoAnswer, AnswerRefused) as error:
        raise CatalogUnavailable(url, str(error)) from None
    if status != 200:
        raise CatalogUnavailable(url, f"the metadata of the machine answered {status}")
    return answer


def _parsed(data: bytes, source: str) -> Lent[DlfKeys]:
    """Raises `CatalogUnavailable`, which says nothing of the content."""
    try:
        found = parse_json(data)
        expiration = found.get("Expiration")
        expires_ms = None
        if expiration is not None:
            parsed = datetime.strptime(expiration, _EXPIRATION).replace(tzinfo=timezone.utc)
            expires_ms = int(parsed.timestamp() * 1000)
        keys = DlfKeys(
            key_id=str(found["AccessKeyId"]),
            secret=str(found["AccessKeySecret"]),
            token=str(found.get("SecurityToken") or ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CatalogUnavailable(source, "what is there is no token of DLF") from None
    return Lent(keys, expires_ms)
