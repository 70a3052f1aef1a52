"""A daemon's status over HTTP. Quick to import, for commands that only query a service."""

from __future__ import annotations

import http.client
import ipaddress
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from compactord.errors import CompactordError, UsageError
from compactord.service.codec import decode
from compactord.service.view import ServiceView

_TIMEOUT_S = 5
_ANSWER_BYTES_MAX = 64 << 20


class NoAnswer(CompactordError):
    """The status could not be read this time; the text has the reason."""


class DaemonSource:
    """The daemon at a base URL like `http://host:9464`. Raises `UsageError` for anything else."""

    def __init__(self, url: str) -> None:
        self.name = _base_url(url)
        # A proxy from the environment might not reach this machine.
        is_here = _is_this_machine(urlsplit(self.name).hostname or "")
        proxies: dict[str, str] | None = {} if is_here else None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))

    def view(self) -> ServiceView:
        """The whole view. Raises `NoAnswer` unless a daemon answers."""
        # In this order: without new snapshots, a table that is idle in the first response cannot be
        # due in the second.
        status, tables = self.get("/v1/status"), self.get("/v1/tables")
        if "engine" not in status or "tables" not in tables:
            raise NoAnswer(f"what answers at {self.name} is not compactord")
        return decode(ServiceView, {**status, "tables": tables["tables"]})

    def get(self, path: str) -> Mapping[str, Any]:
        """The JSON object at a path. Raises `NoAnswer`."""
        request = urllib.request.Request(
            self.name + path, headers={"Accept": "application/json", "User-Agent": "compactord top"}
        )
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                body = answer.read(_ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise NoAnswer(_refusal(self.name, path, error.code)) from error
        except urllib.error.URLError as error:
            raise NoAnswer(_silence(self.name, error.reason)) from error
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise NoAnswer(_silence(self.name, str(error) or type(error).__name__)) from error
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if len(body) > _ANSWER_BYTES_MAX or not isinstance(found, dict):
            raise NoAnswer(
                f"what answers at {self.name} is not compactord: {path} is no JSON object"
            )
        return found


def _base_url(url: str) -> str:
    example = "give one like http://daemon:9464"
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError as error:
        raise UsageError(f"--url {url}: {error}; {example}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or not has_port:
        raise UsageError(f"--url {url}: not an http URL with a host; {example}")
    if parts.query or parts.fragment or any(c.isspace() or not c.isprintable() for c in url):
        raise UsageError(f"--url {url}: give only the address of the daemon; {example}")
    return url.rstrip("/")


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _silence(url: str, why: object) -> str:
    return f"no daemon answers at {url}: {why} (start `compactord serve` there, or correct --url)"


def _refusal(url: str, path: str, code: int) -> str:
    if code == http.client.NOT_FOUND:
        return f"what answers at {url} is not compactord, or the URL has a path too many: no {path}"
    return f"the daemon at {url} answers {path} with status {code}"
