"""One HTTP request with deadlines, without retries or redirects."""

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
# Limits of each wait for bytes, and of a whole answer.
READ_SECONDS_MAX = 30.0
# Limit of an error's answer; of a longer one only the status counts.
_ERROR_BYTES_MAX = 64 << 10
_PIECE_BYTES = 1 << 16
_CONNECTIONS = 16
# The request has not been sent.
_UNSENT = (exceptions.NewConnectionError, exceptions.ConnectTimeoutError)


class NoAnswer(Exception):
    """There was no complete answer, or one that reports an outage.

    Unless `was_sent`, the request had no effect.
    """

    def __init__(self, why: str, *, was_sent: bool) -> None:
        self.was_sent = was_sent
        super().__init__(why)


class AnswerRefused(Exception):
    """An answer that is too large, or in an encoding that was not requested."""


class Http:
    """Connections to one host, through the environment's proxies. Thread-safe."""

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
        """The status, and the answer of at most `bytes_max`.

        Raises `NoAnswer`, and `AnswerRefused` as soon as an answer is longer.
        """
        exchange = partial(self._exchange, method, url, headers, body, bytes_max)
        try:
            # For names and headers, the library only limits the wait for each byte.
            return self._calls.within(self._read_seconds_max, exchange)
        except (exceptions.HTTPError, OSError, ValueError) as error:
            # Its text may contain the address with its query.
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
            # A few compressed bytes may expand to any number.
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
