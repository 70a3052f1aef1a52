"""Failures of requests to an object store in tests, and rules that select requests."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit


class How(enum.Enum):
    """The failure that a client observes."""

    CLOSE = "the connection is lost"
    ANSWER = "an error is answered"
    HANG = "nothing is answered, until the client goes away"
    HALF = "the connection is lost in the middle of the answer's body"


# S3's names of errors; other stores use the status. An upload may end with an error although its
# response began with 200.
CODES = {
    200: "InternalError",
    400: "ExpiredToken",
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    429: "TooManyRequests",
    500: "InternalError",
    503: "SlowDown",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A failure of a request: before it reaches the store, or `after` the store has processed it.

    `HALF` applies to responses and is always after the effect. An error `is_foreign` if it comes
    from a gateway before the store, which does not know the store's objects.
    """

    how: How
    after: bool = False
    status: int = 503
    is_foreign: bool = False

    def __str__(self) -> str:
        what = f"{self.how.name} {self.status}" if self.how is How.ANSWER else self.how.name
        what = f"foreign {what}" if self.is_foreign else what
        return f"{what} {'after' if self.after else 'before'}"


class Request(NamedTuple):
    """`number` counts from 1; `target` is the path with the query; for `kind` see `kind_of`.

    `authorization` is the header, which in S3 names the access key.
    """

    number: int
    method: str
    target: str
    kind: str
    authorization: str = ""

    @property
    def is_mutation(self) -> bool:
        return self.method in {"PUT", "POST", "DELETE"}


Decide = Callable[[Request], "Fault | None"]


def kind_of(method: str, target: str, headers: Mapping[str, str]) -> str:
    """The kind of a request in S3's terms, otherwise the method in lower case."""
    query = parse_qs(urlsplit(target).query, keep_blank_values=True)
    if "uploadId" in query or "uploads" in query:
        names = {
            "PUT": "upload_part",
            "POST": "complete_upload" if "uploadId" in query else "start_upload",
            "DELETE": "abort_upload",
            "GET": "list_parts" if "uploadId" in query else "list_uploads",
        }
        return names.get(method, method.lower())
    if method == "GET" and ("list-type" in query or "prefix" in query):
        return "list"
    if method == "POST" and "delete" in query:
        return "delete_many"
    if method == "PUT" and "x-amz-copy-source" in headers:
        return "copy"
    if method == "PUT" and headers.get("if-none-match") == "*":
        return "create"
    return method.lower()


def every_nth(n: int, fault: Fault, concerns: Callable[[Request], bool] | None = None) -> Decide:
    """Lets every n-th matching request fail; by default all requests match."""
    return _counted(lambda count: count % n == 0, fault, concerns)


def nth(n: int, fault: Fault, concerns: Callable[[Request], bool] | None = None) -> Decide:
    """Lets the n-th matching request fail, counted from 1."""
    return _counted(lambda count: count == n, fault, concerns)


def from_nth(n: int, fault: Fault, concerns: Callable[[Request], bool] | None = None) -> Decide:
    """Lets the n-th matching request and all later ones fail."""
    return _counted(lambda count: count >= n, fault, concerns)


def _counted(
    hits: Callable[[int], bool], fault: Fault, concerns: Callable[[Request], bool] | None
) -> Decide:
    concerned = 0

    def decide(request: Request) -> Fault | None:
        nonlocal concerned
        if concerns is not None and not concerns(request):
            return None
        concerned += 1
        return fault if hits(concerned) else None

    return decide
