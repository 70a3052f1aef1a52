"""Authentication of REST requests: bearer tokens and signatures of Aliyun's DLF.

Sources: rest/auth/{BearTokenAuthProvider,DLFAuthProvider,DLFAuthProviderFactory,
DLFDefaultSigner,DLFOpenApiSigner}.java, and the token loaders in that package. References to
credentials are resolved again after a refusal.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import format_datetime
from functools import partial
from typing import Generic, Protocol, TypeVar
from urllib.parse import quote_plus, unquote_plus, urlsplit

import structlog

from compactord import ids
from compactord.catalog.rest.http import AnswerRefused, Http, NoAnswer
from compactord.clock import Clock
from compactord.errors import CatalogOptionInvalid, CatalogUnavailable, CompactordError
from compactord.paimon.schema import parse_json
from compactord.text import resolve

_JSON = "application/json"
_PRODUCT, _REQUEST, _ALGORITHM = "DlfNext", "aliyun_v4_request", "DLF4-HMAC-SHA256"
_UNSIGNED = "UNSIGNED-PAYLOAD"
_API_VERSION = "2026-01-18"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The signed parts of a request: `path` below the server's address, unescaped `query`."""

    method: str
    path: str
    query: Mapping[str, str]
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DlfKeys:
    """A pair of keys. `token` is a session's, or empty."""

    key_id: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)


def form_encoded(text: str) -> str:
    """Encoded as by Java's URLEncoder: a blank is `+`."""
    return quote_plus(text, safe="*").replace("~", "%7E")


def default_headers(
    request: Request, keys: DlfKeys, now: datetime, *, region: str
) -> dict[str, str]:
    """The headers of the algorithm `default`; `now` is in UTC."""
    time = now.strftime("%Y%m%dT%H%M%SZ")
    headers = {"x-dlf-date": time, "x-dlf-content-sha256": _UNSIGNED, "x-dlf-version": "v1"}
    headers |= _of_body(request.body)
    if keys.token:
        headers["x-dlf-security-token"] = keys.token
    signed = sorted((name.lower(), value.strip()) for name, value in headers.items())
    encoded = {key: form_encoded(text) for key, text in request.query.items()}
    canonical = [request.method, request.path, _query(encoded)]
    canonical += [f"{name}:{value}" for name, value in signed]
    digest = hashlib.sha256("\n".join([*canonical, _UNSIGNED]).encode()).hexdigest()
    scope = f"{time[:8]}/{region}/{_PRODUCT}/{_REQUEST}"
    key = f"aliyun_v4{keys.secret}".encode()
    for part in (time[:8], region, _PRODUCT, _REQUEST):
        key = hmac.digest(key, part.encode(), "sha256")
    text = "\n".join((_ALGORITHM, time, scope, digest))
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"{_ALGORITHM} Credential={keys.key_id}/{scope}"
    return {**headers, "Authorization": f"{credential},Signature={signature}"}


def openapi_headers(
    request: Request, keys: DlfKeys, now: datetime, *, host: str, nonce: str
) -> dict[str, str]:
    """The headers of the algorithm `openapi`; `now` is in UTC, `nonce` is used once."""
    acs = {
        "x-acs-signature-method": "HMAC-SHA1",
        "x-acs-signature-nonce": nonce,
        "x-acs-signature-version": "1.0",
        "x-acs-version": _API_VERSION,
    }
    if keys.token:
        acs["x-acs-security-token"] = keys.token
    date, body = format_datetime(now, usegmt=True), _of_body(request.body)
    lines = [request.method, _JSON, body.get("Content-MD5", ""), body.get("Content-Type", ""), date]
    lines += [f"{name}:{value.strip()}" for name, value in sorted(acs.items())]
    path = unquote_plus(request.path)
    if request.query:
        path += "?" + _query(request.query)
    text = "\n".join([*lines, path])
    digest = hmac.digest(keys.secret.encode(), text.encode(), "sha1")
    authorization = f"acs {keys.key_id}:{base64.b64encode(digest).decode()}"
    plain = {"Date": date, "Accept": _JSON, "Host": host, **body}
    return {**plain, **acs, "Authorization": authorization}


def _of_body(body: str) -> dict[str, str]:
    if not body:
        return {}
    digest = hashlib.md5(body.encode(), usedforsecurity=False).digest()
    return {"Content-Type": _JSON, "Content-MD5": base64.b64encode(digest).decode()}


def _query(query: Mapping[str, str]) -> str:
    """The sorted query; a name without a value has no `=`."""
    return "&".join(f"{key}={text}" if text else key for key, text in sorted(query.items()))


T = TypeVar("T")
_log = structlog.get_logger()
# As in Java, which renews a token with less time left (rest/auth/DLFAuthProvider.java).
_LEFT_MS = 3_600_000
# Between two attempts while the old token is valid, and for a token that arrived old.
_AGAIN_MS, _AT_LEAST_MS = 60_000, 1_000


@dataclass(frozen=True, slots=True)
class Expiring(Generic[T]):
    """A value and the time it expires, since the epoch, or None."""

    value: T
    expires_ms: int | None


class RefreshingCredential(Generic[T]):
    """A value that is renewed before it expires; `load` fetches it for all threads. Thread-safe."""

    def __init__(self, load: Callable[[], Expiring[T]], clock: Clock) -> None:
        self._load = load
        self._clock = clock
        self._lock = threading.Lock()
        self._current: Expiring[T] | None = None
        self._renew_ms = 0

    def value(self) -> T:
        """A value with at least an hour, or half of its lifetime, left. Raises as `load`.

        If renewing fails, it returns the old value until that expires.
        """
        with self._lock:
            now_ms = self._clock.now_ms()
            current = self._current
            if current is None or (current.expires_ms is not None and now_ms >= self._renew_ms):
                current = self._renewed(current, now_ms)
            return current.value

    def is_renewed(self) -> bool:
        """Whether the value that was just refused has been replaced."""
        with self._lock:
            before, now_ms = self._current, self._clock.now_ms()
            try:
                return self._renewed(None, now_ms).value != (before and before.value)
            except CompactordError:
                return False

    def _renewed(self, old: Expiring[T] | None, now_ms: int) -> Expiring[T]:
        try:
            current = self._current = self._load()
        except CompactordError as error:
            if old is None or old.expires_ms is None or now_ms >= old.expires_ms:
                raise
            _log.warning("credential_not_renewed", error=str(error))
            self._renew_ms = now_ms + _AGAIN_MS
            return old
        if current.expires_ms is not None:
            left_ms = min(_LEFT_MS, (current.expires_ms - now_ms) // 2)
            self._renew_ms = max(current.expires_ms - left_ms, now_ms + _AT_LEAST_MS)
        return current


_ECS = "http://100.100.100.200/latest/meta-data/Ram/security-credentials/"
_REGION = re.compile(r"(?:pre-)?([a-z]+-[a-z]+(?:-\d+)?)")
# Limit for a file of keys, and for an answer of the machine's metadata.
_TOKEN_BYTES_MAX = 64 << 10
_EXPIRATION = "%Y-%m-%dT%H:%M:%SZ"
_KEY_ID, _SECRET, _TOKEN = "dlf.access-key-id", "dlf.access-key-secret", "dlf.security-token"


class Auth(Protocol):
    """Credentials of requests. Thread-safe."""

    def headers(self, request: Request) -> Mapping[str, str]:
        """The headers of a request. Raises an error if a credential is not available."""
        ...

    def is_renewed(self) -> bool:
        """Whether the credential that was just refused has been replaced: worth a retry."""
        ...


class BearerAuth:
    def __init__(self, text: str, clock: Clock) -> None:
        self._token = RefreshingCredential(lambda: Expiring(resolve(text), None), clock)
        self.is_renewed = self._token.is_renewed

    def headers(self, request: Request) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self._token.value()}"}


class DlfAuth:
    def __init__(
        self,
        keys: Callable[[], Expiring[DlfKeys]],
        sign: Callable[[Request, DlfKeys, datetime], Mapping[str, str]],
        clock: Clock,
    ) -> None:
        self._keys = RefreshingCredential(keys, clock)
        self._sign = sign
        self._clock = clock
        self.is_renewed = self._keys.is_renewed

    def headers(self, request: Request) -> Mapping[str, str]:
        now = datetime.fromtimestamp(self._clock.now_ms() // 1000, timezone.utc)
        return self._sign(request, self._keys.value(), now)


def auth_of(options: Mapping[str, str], values: Mapping[str, str], clock: Clock) -> Auth:
    """The authentication that the options configure; `options` as written, `values` resolved.

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
) -> Callable[[], Expiring[DlfKeys]]:
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

    def given() -> Expiring[DlfKeys]:
        key_id, secret, token = (
            resolve(options.get(key, "")) for key in (_KEY_ID, _SECRET, _TOKEN)
        )
        return Expiring(DlfKeys(key_id=key_id, secret=secret, token=token), None)

    return given


def _from_file(path: str) -> Expiring[DlfKeys]:
    try:
        with open(path, "rb") as file:
            return _parsed(file.read(_TOKEN_BYTES_MAX), path)
    except OSError as error:
        raise CatalogUnavailable(path, f"the token cannot be read ({error.strerror})") from None


def _from_ecs(http: Http, url: str, role: str) -> Expiring[DlfKeys]:
    """Keys from the machine's metadata, which also name the role if it is not configured."""
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


def _parsed(data: bytes, source: str) -> Expiring[DlfKeys]:
    """The keys in `data`. Raises `CatalogUnavailable` without showing the content."""
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
        raise CatalogUnavailable(source, "the content is not a token of DLF") from None
    return Expiring(keys, expires_ms)
