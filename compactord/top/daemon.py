"""Reads a running daemon's status from its JSON under `/v1`.

Fields that are absent or of another type count as empty: daemon and command may differ in version.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from compactord.errors import UsageError
from compactord.service.page.figures import age_text
from compactord.service.page.need import why_text
from compactord.top.look import Look, NoAnswer, TopCommit, TopService, TopTable, TopTask

_TIMEOUT_S = 5
_ANSWER_BYTES_MAX = 64 << 20

_Json = Mapping[str, Any]


class DaemonSource:
    """The daemon at a base URL like `http://host:9464`. Raises `UsageError` for anything else."""

    def __init__(self, url: str) -> None:
        self._url = _base_url(url)
        # A proxy from the environment might not reach this machine.
        is_here = _is_this_machine(urlsplit(self._url).hostname or "")
        proxies: dict[str, str] | None = {} if is_here else None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))

    def look(self) -> Look:
        """Raises `NoAnswer` if nothing answers there, or something other than a daemon."""
        status = self.get("/v1/status")
        tables = self.get("/v1/tables")
        if "engine" not in status or "tables" not in tables:
            raise NoAnswer(f"what answers at {self._url} is not compactord")
        return look_of(self._url, status, tables)

    def get(self, path: str) -> Mapping[str, Any]:
        """The JSON object at a path. Raises `NoAnswer`."""
        request = urllib.request.Request(
            self._url + path, headers={"Accept": "application/json", "User-Agent": "compactord top"}
        )
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                body = answer.read(_ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise NoAnswer(_refusal(self._url, path, error.code)) from error
        except urllib.error.URLError as error:
            raise NoAnswer(f"no daemon answers at {self._url}: {error.reason}") from error
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            why = str(error) or type(error).__name__
            raise NoAnswer(f"no daemon answers at {self._url}: {why}") from error
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if len(body) > _ANSWER_BYTES_MAX or not isinstance(found, dict):
            raise NoAnswer(
                f"what answers at {self._url} is not compactord: {path} is no JSON object"
            )
        return found


def look_of(source: str, status: _Json, tables: _Json) -> Look:
    """A look from the bodies of `/v1/status` and `/v1/tables`."""
    return Look(
        source=source,
        now_ms=number(status, "now_ms"),
        service=_service(status),
        tables=tables_of(tables),
        running=tuple(_task(task) for task in items(status, "running")),
        recent=tuple(_commit(ended) for ended in items(status, "recent")),
    )


def tables_of(tables: _Json) -> tuple[TopTable, ...]:
    """The tables from the body of `/v1/tables`."""
    now_ms = number(tables, "now_ms")
    return tuple(_table(table, now_ms) for table in items(tables, "tables"))


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


def _refusal(url: str, path: str, code: int) -> str:
    if code == http.client.NOT_FOUND:
        return f"what answers at {url} is not compactord, or the URL has a path too many: no {path}"
    return f"the daemon at {url} answers {path} with status {code}"


def _service(status: _Json) -> TopService:
    engine = object_of(status, "engine")
    queued = object_of(status, "queued")
    return TopService(
        is_starting=engine.get("is_up") is False and not text(engine, "error"),
        is_draining=status.get("is_draining") is True,
        slots=number(engine, "slots"),
        running=number(engine, "running"),
        memory_reserved_bytes=number(engine, "memory_reserved_bytes"),
        memory_budget_bytes=number(engine, "memory_budget_bytes"),
        queued=sum(number(queued, kind) for kind in queued),
        troubles=tuple(_troubles(status, engine)),
    )


def _troubles(status: _Json, engine: _Json) -> list[str]:
    found = []
    if engine.get("is_up") is False and (error := text(engine, "error")):
        found.append(f"the engine is down: {error}")
    found.extend(
        f"catalog {text(catalog, 'name')} cannot be listed: {error}"
        for catalog in items(status, "catalogs")
        if (error := text(catalog, "error"))
    )
    found.extend(
        f"the store of catalog {text(catalog, 'name')} does not answer; its tables wait"
        for catalog in items(status, "catalogs")
        if number(catalog, "store_silent_since_ms")
    )
    config = object_of(status, "config")
    if config.get("last_reload_successful") is False:
        found.append(f"the configuration could not be reloaded: {text(config, 'error')}")
    now_ms = number(status, "now_ms")
    for loop in items(status, "loops"):
        silent_ms = now_ms - number(loop, "heartbeat_ms")
        if silent_ms > number(loop, "stale_after_ms"):
            found.append(f"the loop {text(loop, 'name')} is silent for {age_text(silent_ms)}")
    return found


def _table(table: _Json, now_ms: int) -> TopTable:
    info, shape = object_of(table, "info"), object_of(table, "shape")
    backlog, counters = object_of(table, "backlog"), object_of(table, "counters")
    halt = object_of(table, "halt")
    return TopTable(
        name=_name(table),
        status=text(table, "status"),
        catalog=text(object_of(table, "name"), "catalog"),
        location=text(table, "location"),
        kind=text(info, "kind"),
        merge_engine=text(info, "merge_engine"),
        write_only=info.get("write_only") is True,
        is_read=number(table, "first_poll_ms") > 0,
        sorted_runs=number(shape, "sorted_runs_max"),
        compaction_trigger=number(info, "compaction_trigger"),
        stop_trigger=number(info, "stop_trigger"),
        level0_files=number(shape, "level0_files"),
        files=number(shape, "files"),
        small_files=number(shape, "small_files"),
        size_bytes=number(shape, "size_bytes"),
        backlog_bytes=number(backlog, "size_bytes"),
        oldest_ms=number(backlog, "oldest_ms"),
        max_backlog_age_ms=number(table, "max_backlog_age_ms"),
        last_commit_ms=number(table, "last_commit_ms"),
        is_failing=number(table, "consecutive_failures") + number(table, "quarantined_count") > 0,
        note=why_text(
            text(table, "why"), text(halt, "action"), number(halt, "next_try_ms"), now_ms
        ),
        input_bytes=number(counters, "input_bytes"),
        output_bytes=number(counters, "output_bytes"),
    )


def _task(task: _Json) -> TopTask:
    return TopTask(
        table=_name(task),
        place=_place(task),
        why=text(task, "reason"),
        files=number(task, "files"),
        size_bytes=number(task, "size_bytes"),
        started_ms=number(task, "started_ms"),
        subcompactions=number(task, "subcompactions"),
        subcompactions_done=number(task, "subcompactions_done"),
    )


def _commit(ended: _Json) -> TopCommit:
    snapshot = number(ended, "snapshot_id")
    return TopCommit(
        table=_name(ended),
        place=_place(ended),
        why=text(ended, "reason"),
        outcome=text(ended, "outcome"),
        detail=f"snapshot {snapshot}" if snapshot else text(ended, "message"),
        files_in=number(ended, "files_in"),
        files_out=number(ended, "files_out"),
        bytes_in=number(ended, "bytes_in"),
        bytes_out=number(ended, "bytes_out"),
        finished_ms=number(ended, "finished_ms"),
    )


def _name(found: _Json) -> str:
    name = object_of(found, "name")
    return ".".join(text(name, part) for part in ("catalog", "database", "table"))


def _place(found: _Json) -> str:
    """The bucket first: a long partition may be cut short."""
    return f"b{number(found, 'bucket')} {text(found, 'partition')}".rstrip()


def object_of(found: _Json, key: str) -> _Json:
    """The object under a key, an empty one if there is none."""
    value = found.get(key)
    return value if isinstance(value, dict) else {}


def items(found: _Json, key: str) -> list[_Json]:
    """The objects of the list under a key."""
    value = found.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def number(found: _Json, key: str) -> int:
    """The integer under a key, else 0."""
    value = found.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def text(found: _Json, key: str) -> str:
    """The text under a key, else an empty one."""
    value = found.get(key)
    return value if isinstance(value, str) else ""
