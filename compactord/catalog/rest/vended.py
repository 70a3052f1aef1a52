"""Stores with credentials from the server: its own, or lent for a table for some time.

Each process that opens such a store requests them itself, including workers: a task carries the
options of the server, and no secret. Source: rest/RESTTokenFileIO.java.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from compactord.catalog.base import Locate
from compactord.catalog.rest.auth import Expiring, RefreshingCredential, auth_of
from compactord.catalog.rest.client import TOKEN_BYTES_MAX, RestClient, option_texts
from compactord.catalog.rest.kind import REST
from compactord.clock import SystemClock
from compactord.errors import CatalogUnavailable, UsageError
from compactord.storage.base import Reconnects, Storage
from compactord.storage.calls import Breaker
from compactord.storage.objects.oss import ENDPOINT
from compactord.storage.open import STORES
from compactord.storage.requests import Report, reporting
from compactord.text import ReferenceMissing, forget, handed_over, is_secret_option, kept, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class VendedSpec:
    """A store with the server's credentials. `options` are the catalog's, secrets as references.

    `table` is the database and name of the table that they are vended for, or None.
    """

    location: str
    warehouse: str
    table: tuple[str, str] | None
    options: tuple[tuple[str, str], ...] = field(repr=False)

    def open(self) -> Storage:
        """The store; contacts the server. Raises its errors, and `UsageError`."""
        return self.opened(STORES.open)[0]

    def opened(self, locate: Locate, breaker: Breaker | None = None) -> tuple[Storage, str]:
        """The store, and the table's path in it. `locate` is like `Stores.open`.

        `breaker` is the server's.
        """
        tokens = _tokens_of(self)
        tokens.client.breaker = breaker or tokens.client.breaker
        options = tokens.options()
        inner, path = locate(self.location, options, tokens.served())
        return cast(Storage, _LentStorage(self, inner, tokens)), path


def without_secrets(options: Mapping[str, str]) -> Mapping[str, str]:
    """The options, with secrets moved to environment variables of this process.

    Call it before workers start: they inherit the environment.
    """
    return {key: handed_over(text) if _is_secret(key) else text for key, text in options.items()}


def client_of(options: Mapping[str, str], values: Mapping[str, str], warehouse: str) -> RestClient:
    """A client of a catalog's server. Raises `CatalogOptionInvalid`."""
    clock = SystemClock()
    auth = auth_of(options, values, clock)
    return RestClient(options, values, warehouse=warehouse, auth=auth, clock=clock)


def _is_secret(key: str) -> bool:
    return key in REST.credentials or key.startswith("header.") or is_secret_option(key)


def secrets_of(client: RestClient) -> Mapping[str, str]:
    """The secrets in the server's own options."""
    return {key: text for key, text in client.served.items() if _is_secret(key)}


_NOTHING: Expiring[Mapping[str, str]] = Expiring({}, None)


class _Tokens:
    """The credentials lent for one store, cached in this process; `client` is its server's."""

    def __init__(self, spec: VendedSpec, client: RestClient) -> None:
        self._spec = spec
        self.client = client
        self._references: dict[str, str] = {}
        weakref.finalize(self, _forget_all, self._references)
        self._count = 0
        self._lent = RefreshingCredential(self._fetch, SystemClock())

    def options(self) -> Mapping[str, str]:
        """The store's options, with the server's values as references."""
        self.number()
        found = {**self.client.options, **self._references}
        endpoint = found.get(_ENDPOINT) if self._spec.table else None
        return {**found, ENDPOINT: endpoint} if endpoint else found

    def served(self) -> Collection[str]:
        """The keys of `options` whose values come from the server."""
        keys = {*self.client.served, *self._references}
        if self._spec.table and self.client.options.get(_ENDPOINT):
            keys = (keys - {ENDPOINT}) | ({ENDPOINT} if _ENDPOINT in keys else set())
        return keys

    def number(self) -> int:
        """The number of the current token, which renewing changes. Raises as `RestClient`."""
        return self._lent.value()

    def _fetch(self) -> Expiring[int]:
        spec = self._spec
        token = _token_of(self.client, spec.table) if spec.table else _NOTHING
        before = {**self._references}
        self._references.clear()
        for key, text in {**secrets_of(self.client), **token.value}.items():
            # The name never changes: a connection identifies its keys by it.
            name = hashlib.sha256(repr((spec, spec.options, key)).encode()).hexdigest()
            self._references[key] = kept(name, text)
        _forget_all({key: text for key, text in before.items() if key not in self._references})
        self._count += 1
        return Expiring(self._count, token.expires_ms)


def _forget_all(references: Mapping[str, str]) -> None:
    for reference in references.values():
        forget(reference)


def _token_of(client: RestClient, table: tuple[str, str]) -> Expiring[Mapping[str, str]]:
    parts = ("databases", table[0], "tables", table[1], "token")
    found = client.get(*parts, bytes_max=TOKEN_BYTES_MAX)
    url = "/".join((client.uri, *parts))
    token, expires_ms = found.get("token"), found.get("expiresAtMillis")
    if not isinstance(token, dict) or type(expires_ms) is not int:
        raise CatalogUnavailable(url, "answered with something that is no token")
    return Expiring(option_texts(token, url), expires_ms)


# An option that overrides the token's own endpoint (rest/RESTTokenFileIO.java).
_ENDPOINT = "dlf.oss-endpoint"
# A server may return another location for a table at each request.
_RECENT_MAX = 5_000
_lock = threading.Lock()
_known: weakref.WeakValueDictionary[VendedSpec, _Tokens] = weakref.WeakValueDictionary()
# Also kept between two tasks of a worker.
_recent: deque[_Tokens] = deque(maxlen=_RECENT_MAX)
# By warehouse and options: thousands of tables share connections.
_clients: dict[tuple[str, tuple[tuple[str, str], ...]], RestClient] = {}


def _tokens_of(spec: VendedSpec) -> _Tokens:
    with _lock:
        found = _known.get(spec)
        if found is None:
            found = _known[spec] = _Tokens(spec, _shared_client(spec))
        _recent.append(found)
        return found


def _shared_client(spec: VendedSpec) -> RestClient:
    key = spec.warehouse, spec.options
    if key not in _clients:
        options = dict(spec.options)
        try:
            values = {name: resolve(text) for name, text in options.items()}
        except ReferenceMissing as error:
            raise UsageError(
                f"{spec.location}: workers request keys from the catalog's server, and need the "
                f"same options: give secrets as ${{file:/path}} that is there, too ({error})"
            ) from None
        _clients[key] = client_of(options, values, spec.warehouse)
    return _clients[key]


class _LentStorage:
    """A store that reconnects after its token was renewed."""

    def __init__(self, spec: VendedSpec, inner: Storage, tokens: _Tokens) -> None:
        self.spec = spec
        self._inner = inner
        self._tokens = tokens
        self._number = tokens.number()

    def reporting(self, report: Report) -> Storage:
        """See `ReportsItself`, if the inner store supports it."""
        inner = reporting(self._inner, report)
        return cast(Storage, _LentStorage(self.spec, inner, self._tokens))

    def __getattr__(self, name: str) -> Any:
        """All other methods of the store. Raises an error if a due token is not available."""
        number = self._tokens.number()
        if number != self._number and isinstance(self._inner, Reconnects):
            self._inner.reconnect()
        self._number = number
        return getattr(self._inner, name)
