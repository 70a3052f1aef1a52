"""What stores report of the requests that they are asked for."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace


class StorageOp(enum.Enum):
    """Requests as object stores name them."""

    GET = "get"
    PUT = "put"
    PUT_IF_ABSENT = "put_if_absent"
    LIST = "list"
    DELETE = "delete"
    HEAD = "head"


class StorageOutcome(enum.Enum):
    """The outcome of a request; a missing object is an answer, hence `ok`."""

    OK = "ok"
    THROTTLED = "throttled"
    ERROR = "error"
    PRECONDITION_FAILED = "precondition_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRequest:
    """One request. `store` is the scheme of its URL, `size_bytes` what was read or written.

    `is_repeated`: it failed, and the same is asked for again.
    """

    store: str
    op: StorageOp
    outcome: StorageOutcome
    seconds: float
    size_bytes: int = 0
    is_repeated: bool = False


Report = Callable[[StorageRequest], None]


def both(first: Report | None, second: Report) -> Report:
    """Tells two of each request."""
    if first is None:
        return second

    def told(request: StorageRequest) -> None:
        first(request)
        second(request)

    return told


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTotal:
    """Requests that had the same outcome; sums of what `StorageRequest` says of one."""

    store: str
    op: StorageOp
    outcome: StorageOutcome
    requests: int = 0
    size_bytes: int = 0
    repeated: int = 0


class RequestTally:
    """Adds requests up, for a process that exposes no metrics itself. Any thread may report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[tuple[str, StorageOp, StorageOutcome], RequestTotal] = {}

    def add(self, request: StorageRequest) -> None:
        key = (request.store, request.op, request.outcome)
        with self._lock:
            known = self._totals.get(key)
            if known is None:
                known = RequestTotal(store=key[0], op=key[1], outcome=key[2])
            self._totals[key] = replace(
                known,
                requests=known.requests + 1,
                size_bytes=known.size_bytes + request.size_bytes,
                repeated=known.repeated + request.is_repeated,
            )

    def totals(self) -> tuple[RequestTotal, ...]:
        with self._lock:
            return tuple(self._totals.values())
