"""What stores report of the requests that they are asked for."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass


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
