"""Signatures of Aliyun's DLF: pure. Sources: rest/auth/{DLFDefaultSigner,DLFOpenApiSigner}.java."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import format_datetime
from urllib.parse import quote_plus, unquote_plus

_JSON = "application/json"
_PRODUCT, _REQUEST, _ALGORITHM = "DlfNext", "aliyun_v4_request", "DLF4-HMAC-SHA256"
_UNSIGNED = "UNSIGNED-PAYLOAD"
_API_VERSION = "2026-01-18"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is signed: the path below the server's address, as it is sent; `query` unescaped."""

    method: str
    path: str
    query: Mapping[str, str]
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DlfKeys:
    """A pair of keys; `token` is that of a session, empty without one."""

    key_id: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)


def form_encoded(text: str) -> str:
    """As Java's URLEncoder: a blank is `+`."""
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
    """The headers of the algorithm `openapi`; `now` is in UTC, `nonce` used once."""
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
    """Sorted; a name without a value stands alone."""
    return "&".join(f"{key}={text}" if text else key for key, text in sorted(query.items()))
