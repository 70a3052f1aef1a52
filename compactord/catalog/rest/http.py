"""One HTTP request with deadlines, which nothing repeats or redirects."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from functools import partial
from urllib.parse import urlsplit

import urllib3
from urllib3 import exceptions

from compactord.clock import Clock
from compactord.storage.calls import CALLS_AT_ONCE, TimedCalls
from compactord.text import size_text

CONNECT_SECONDS_MAX = 5.0
# Of each wait for bytes, and of all of an answer.
READ_SECONDS_MAX = 30.0
# Of what is answered with an error; of a longer one the status alone counts.
_ERROR_BYTES_MAX = 64 << 10
_PIECE_BYTES = 1 << 16
_CONNECTIONS = 16
# The request has not left.
_UNSENT = (exceptions.NewConnectionError, exceptions.ConnectTimeoutError)


class NoAnswer(Exception):
    """No whole answer came, or one that says that the server does not work.

    Not `was_sent`: nor did the request have an effect.
    """

    def __init__(self, why: str, *, was_sent: bool) -> None:
        self.was_sent = was_sent
        super().__init__(why)


class AnswerRefused(Exception):
    """An answer came that is not read: too large, or in an encoding that was not asked for."""


class Http:
    """Connections to one host; any number of threads may ask. Proxies are the environment's."""

    def __init__(
        self, url: str, clock: Clock, *, read_seconds_max: float = READ_SECONDS_MAX
    ) -> None:
        parts = urlsplit(url)
        proxy = urllib.request.getproxies().get(parts.scheme)
        self._pool = (
            urllib3.ProxyManager(proxy, maxsize=_CONNECTIONS)
            if proxy and not urllib.request.proxy_bypass(parts.hostname or "")
            else urllib3.PoolManager(maxsize=_CONNECTIONS)
        )
        self._clock = clock
        self._calls = TimedCalls(CALLS_AT_ONCE)
        self._read_seconds_max = read_seconds_max
        self._timeout = urllib3.Timeout(connect=CONNECT_SECONDS_MAX, read=read_seconds_max)

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: str = "",
        *,
        bytes_max: int,
    ) -> tuple[int, bytes]:
        """The status, and what came with it, of at most so many bytes.

        Raises `NoAnswer`, and `AnswerRefused` as soon as there are more.
        """
        exchange = partial(self._exchange, method, url, headers, body, bytes_max)
        try:
            # Of names and of headers the library waits for each byte as long.
            return self._calls.within(self._read_seconds_max, exchange)
        except (exceptions.HTTPError, OSError, ValueError) as error:
            # Its text may have the address with its query.
            why = f"no answer ({type(error).__name__})"
            raise NoAnswer(why, was_sent=not isinstance(error, _UNSENT)) from None

    def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: str, bytes_max: int
    ) -> tuple[int, bytes]:
        deadline_s = self._clock.monotonic_s() + self._read_seconds_max
        response = self._pool.request(
            method,
            url,
            body=body.encode() if body else None,
            headers=headers,
            timeout=self._timeout,
            retries=False,
            redirect=False,
            preload_content=False,
        )
        try:
            if response.status >= 300:
                return response.status, self._error(response, deadline_s)
            return response.status, self._whole(response, deadline_s, bytes_max)
        except BaseException:
            response.close()
            raise
        finally:
            response.release_conn()

    def _error(self, response: urllib3.BaseHTTPResponse, deadline_s: float) -> bytes:
        try:
            return self._whole(response, deadline_s, _ERROR_BYTES_MAX)
        except AnswerRefused:
            response.close()
            return b""

    def _whole(
        self, response: urllib3.BaseHTTPResponse, deadline_s: float, bytes_max: int
    ) -> bytes:
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            # A few bytes could be any number of them.
            why = f"the server compressed its answer ({encoding[:20]!r}) unasked"
            raise AnswerRefused(f"{why}; it is not read")
        found = bytearray()
        while piece := response.read1(_PIECE_BYTES, decode_content=False):
            found += piece
            if len(found) > bytes_max:
                text = size_text(bytes_max)
                raise AnswerRefused(f"the answer is longer than {text}, the most that is read")
            if self._clock.monotonic_s() > deadline_s:
                raise TimeoutError("an answer that takes too long")
        return bytes(found)
