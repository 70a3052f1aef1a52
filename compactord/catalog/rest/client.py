"""Requests to the server of a REST catalog: paths, pages, deadlines, errors.

Sources: rest/{RESTApi,ResourcePaths,RESTUtil,HttpClient,DefaultErrorHandler}.java. Java repeats
every request that is answered with 429 or 503, including commits; this client only repeats reads.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlencode

from compactord.catalog.rest.auth import Auth, Request, form_encoded
from compactord.catalog.rest.http import READ_SECONDS_MAX, AnswerRefused, Http, NoAnswer
from compactord.clock import Clock
from compactord.errors import (
    AccessDenied,
    CatalogDown,
    CatalogUnavailable,
    ObjectNotFound,
    TransientStorageError,
)
from compactord.paimon.schema import parse_json
from compactord.storage.calls import Breaker, RetryPolicy, call_once
from compactord.text import escaped, shown_text

Json = dict[str, Any]
_ATTEMPTS_MAX = 4
_PAGES_MAX = 10_000
_NAME_MAX = _PAGE_TOKEN_MAX = 4096
# Limits of bytes read of an answer. As Python objects they are up to 45 times as large.
TOKEN_BYTES_MAX, SMALL_BYTES_MAX = 64 << 10, 512 << 10
TABLE_BYTES_MAX, PAGE_BYTES_MAX = 2 << 20, 4 << 20
# Requested items per page; fewer after a page was too large.
_PAGE_ITEMS = (100, 10, 1)
# Only one thread at a time parses a large answer, for the memory that takes.
_LARGE_BYTES = 64 << 10
_parsing_large = threading.Lock()
_MESSAGE_MAX = 300
_HEADER = "header."
# Answers of an overloaded server, or of a gateway in front of it.
_BUSY = (429, 502, 503, 504)


def url_of(uri: str) -> str:
    """The server's address. Without a scheme, TLS is used."""
    text = uri.rstrip("/")
    return text if text.lower().startswith(("http://", "https://")) else f"https://{text}"


def is_text(found: object) -> bool:
    """Whether it can be a name or a location: not empty, at most 4,096 characters, valid UTF-8.

    JSON may contain half a surrogate pair, which cannot be encoded.
    """
    return isinstance(found, str) and 0 < len(found) <= _NAME_MAX and is_utf8(found)


def is_utf8(text: str) -> bool:
    try:
        return text.encode() is not None
    except UnicodeEncodeError:
        return False


class AnswerTooLarge(CatalogUnavailable):
    """An answer exceeds the limit of bytes."""


class NoSuchResource(ObjectNotFound):
    """The server reports that a resource does not exist; `kind` is its word for it."""

    kind = ""


class RestClient:
    """One server. Thread-safe.

    `options` are the client's own, including `uri`; `values` resolves references in options that
    are sent. The server's own options are fetched before the first request. A `breaker` may
    block any request with `CatalogDown`.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        values: Mapping[str, str],
        *,
        warehouse: str,
        auth: Auth,
        clock: Clock,
        read_seconds_max: float = READ_SECONDS_MAX,
    ) -> None:
        self.uri = url_of(values["uri"])
        self._given, self._values = options, values
        self._warehouse = warehouse
        self._auth = auth
        self._clock = clock
        self.breaker: Breaker | None = None
        self._http = Http(self.uri, clock, read_seconds_max=read_seconds_max)
        self._lock = threading.Lock()
        self._options: Mapping[str, str] | None = None
        self._served: Mapping[str, str] = {}
        self._headers = _headers(values)
        self._prefix: tuple[str, ...] = ()

    @property
    def options(self) -> Mapping[str, str]:
        """The merged options: the server's defaults, the client's options, the server's overrides.

        Fetched once (rest/responses/ConfigResponse.java, `merge`). Only the client's options may
        contain references; similar text from the server is taken literally. Raises as `get`.
        """
        with self._lock:
            if self._options is None:
                query = {"warehouse": self._warehouse} if self._warehouse else {}
                found = self._get(("config",), query, SMALL_BYTES_MAX)
                url = self._url(("config",))
                defaults, overrides = (
                    option_texts(found.get(key), url) for key in ("defaults", "overrides")
                )
                self._headers |= _headers({**defaults, **self._values, **overrides})
                prefix = {**defaults, **self._values, **overrides}.get("prefix", "")
                self._prefix = (prefix,) if prefix else ()
                self._served = {
                    key: text
                    for key, text in {**defaults, **overrides}.items()
                    if text != self._given.get(key) and (key in overrides or key not in self._given)
                }
                literal = {key: escaped(text) for key, text in self._served.items()}
                self._options = {**self._given, **literal}
            return self._options

    @property
    def served(self) -> Mapping[str, str]:
        """The options that came from the server, as returned by it. Raises as `get`."""
        assert self.options is not None
        return self._served

    def get(
        self,
        *parts: str,
        query: Mapping[str, str] | None = None,
        bytes_max: int = SMALL_BYTES_MAX,
    ) -> Json:
        """The answer, of at most `bytes_max`. Retries while the server is busy or silent.

        Raises `CatalogDown` if retries do not help, `NoSuchResource` if the resource does not
        exist, `AccessDenied`, and `CatalogUnavailable` for any other invalid answer.
        """
        assert self.options is not None
        return self._get((*self._prefix, *parts), query or {}, bytes_max)

    def pages(self, *parts: str, key: str) -> Iterator[Any]:
        """The items under `key` of all pages. Raises as `get`."""
        query: dict[str, str] = {}
        seen: set[str] = set()
        sizes = [*_PAGE_ITEMS]
        for _ in range(_PAGES_MAX):
            page = self._page(parts, query, sizes)
            items = page.get(key) or []
            if not isinstance(items, list):
                raise CatalogUnavailable(self._url(parts), f"answered with {key} that is no list")
            yield from items
            token = page.get("nextPageToken")
            if not token:
                return
            if not isinstance(token, str) or len(token) > _PAGE_TOKEN_MAX or token in seen:
                raise CatalogUnavailable(self._url(parts), "its pages lead back to an earlier one")
            seen.add(token)
            query = {"pageToken": token}
        raise CatalogUnavailable(self._url(parts), f"there are more than {_PAGES_MAX:,} pages")

    def _page(self, parts: tuple[str, ...], query: Mapping[str, str], sizes: list[int]) -> Json:
        """The next page; `sizes` are the remaining page sizes, largest first."""
        while True:
            asked = {**query, "maxResults": str(sizes[0])}
            try:
                return self.get(*parts, query=asked, bytes_max=PAGE_BYTES_MAX)
            except AnswerTooLarge:
                if len(sizes) == 1:
                    raise
                del sizes[0]

    def post(self, *parts: str, body: Json, bytes_max: int = SMALL_BYTES_MAX) -> Json:
        """The answer to a request that is sent once. Raises as `get` if it had no effect.

        Raises `TransientStorageError` if it may have had an effect, or may have one later.
        """
        assert self.options is not None
        parts = (*self._prefix, *parts)
        url, data = self._url(parts), json.dumps(body, ensure_ascii=False)
        try:
            status, answer = self._authorised("POST", parts, {}, data, bytes_max)
        except AnswerRefused as error:
            raise TransientStorageError(url, f"POST failed ({error})") from None
        except NoAnswer as error:
            kind = TransientStorageError if error.was_sent else CatalogDown
            raise kind(url, f"POST failed ({error})") from None
        if status >= 500 and status != 501:
            raise TransientStorageError(url, f"POST failed ({_message(status, answer)})")
        try:
            # Some answers are empty (rest/HttpClient.java).
            return _content(url, status, answer or b"{}")
        except CatalogUnavailable as error:
            if status < 300:
                raise TransientStorageError(url, error.message) from None
            raise

    def _get(self, parts: tuple[str, ...], query: Mapping[str, str], bytes_max: int) -> Json:
        url = self._url(parts)
        retries = RetryPolicy(clock=self._clock, attempts_max=_ATTEMPTS_MAX, give_up_after_s=30.0)
        for is_last in retries.attempts():
            try:
                return _content(url, *self._authorised("GET", parts, query, "", bytes_max))
            except AnswerRefused as error:
                raise AnswerTooLarge(url, str(error)) from None
            except NoAnswer as error:
                if is_last:
                    raise CatalogDown(url, str(error)) from None
        raise AssertionError("the last attempt returns or raises")

    def _authorised(
        self,
        method: str,
        parts: tuple[str, ...],
        query: Mapping[str, str],
        body: str,
        bytes_max: int,
    ) -> tuple[int, bytes]:
        exchange = partial(self._exchange, method, parts, query, body, bytes_max)
        status, answer = exchange()
        return exchange() if status == 401 and self._auth.is_renewed() else (status, answer)

    def _exchange(
        self,
        method: str,
        parts: tuple[str, ...],
        query: Mapping[str, str],
        body: str,
        bytes_max: int,
    ) -> tuple[int, bytes]:
        """One request: its status and its answer. Raises as `Http.send`."""
        url = self._url(parts)
        path = url[len(self.uri) :]
        request = Request(method=method, path=path, query=query, body=body)
        headers = {**self._headers, **self._auth.headers(request)}
        if body:
            headers["Content-Type"] = "application/json"
        asked = f"{url}?{urlencode(query)}" if query else url

        def attempt() -> tuple[int, bytes]:
            status, answer = self._http.send(method, asked, headers, body, bytes_max=bytes_max)
            if status in _BUSY:
                raise NoAnswer(_message(status, answer), was_sent=status != 429)
            return status, answer

        return call_once(self.breaker, url, attempt, silent=NoAnswer, answers=(AnswerRefused,))

    def _url(self, parts: tuple[str, ...]) -> str:
        return "/".join((self.uri, "v1", *map(form_encoded, parts)))


def _headers(options: Mapping[str, str]) -> dict[str, str]:
    return {
        key.removeprefix(_HEADER): value
        for key, value in options.items()
        if key.startswith(_HEADER)
    }


def option_texts(found: object, url: str) -> dict[str, str]:
    """The options in an answer; null counts as none.

    Raises `CatalogUnavailable` for values that no library accepts: with a NUL, or half a surrogate
    pair.
    """
    if not isinstance(found, dict):
        return {}
    options = {name: str(value) for name, value in found.items() if value is not None}
    for name, value in options.items():
        if "\0" in name + value or not is_utf8(name + value):
            shown = repr(name)[:_MESSAGE_MAX]
            raise CatalogUnavailable(url, f"answered with an option {shown} that is no text")
    return options


def _content(url: str, status: int, answer: bytes) -> Json:
    if status in (200, 202, 204):
        try:
            with _parsing_large if len(answer) > _LARGE_BYTES else contextlib.nullcontext():
                found = parse_json(answer)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise CatalogUnavailable(url, "answered with something that is not a JSON object")
        return found
    message = _message(status, answer)
    if status in (401, 403):
        raise AccessDenied(url, message)
    if status == 404:
        missing = NoSuchResource(url, message)
        missing.kind = str(_error_of(answer).get("resourceType") or "")
        raise missing
    raise CatalogUnavailable(url, message)


def _error_of(answer: bytes) -> Json:
    try:
        found = parse_json(answer)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _message(status: int, answer: bytes) -> str:
    """The shown part of the server's error message."""
    text = _error_of(answer).get("message")
    said = f": {shown_text(text)}" if isinstance(text, str) else ""
    return f"the server answered {status}{said}"
