"""The routes of the HTTP server, and the JSON under `/v1`.

All answers come from memory, and no request changes anything.

/metrics                        Prometheus: text or OpenMetrics
/livez /readyz /startupz        probes; /healthz is /readyz
/v1/status                      the service without its tables
/v1/tables                      all tables
/v1/tables/{c}/{d}/{t}          one table with its worst buckets
/v1/buckets/top?n=20            the buckets with the most sorted runs
/v1/plan?table=c.d.t            what would be compacted now, and why
/config                         the configuration in effect, secrets redacted
/ and all other paths           the page, one for each table, and the runbooks
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from compactord.clock import Clock
from compactord.model import TableName
from compactord.service import probes
from compactord.service.codec import Json, encode, plain, plain_fields, status_json
from compactord.service.http import JSON, BadRequest, PageResponse, Request, error_response
from compactord.service.metrics import Metrics
from compactord.service.view import ServiceView, StatusSource, TableDetail


def tables(view: ServiceView) -> Json:
    return {"now_ms": view.now_ms, "tables": plain(view.tables)}


def top_buckets(view: ServiceView, count: int) -> Json:
    """The `count` buckets with the most sorted runs; at most as many as the view names."""
    return {"now_ms": view.now_ms, "buckets": plain(view.top_buckets[:count])}


def plan(detail: TableDetail) -> Json:
    """The picks in the table's worst buckets if it were planned now, and why or why not."""
    shown = ("partition", "bucket", "sorted_runs", "files", "size_bytes", "plan")
    return {
        "name": plain(detail.view.name),
        "snapshot_id": detail.view.planned_snapshot_id,
        "bucket_count": detail.bucket_count,
        "buckets": [plain_fields(shown, bucket) for bucket in detail.buckets if bucket.plan],
    }


def find_table(status: StatusSource, text: str) -> TableDetail | None:
    """The table named `catalog.database.table`; parts of a name may contain dots."""
    names = (table.name for table in status.view().tables)
    found = next((name for name in names if str(name) == text), None)
    return None if found is None else status.detail(found)


Page = Callable[[str, Mapping[str, str]], PageResponse | None]

# Paths of orchestrators: answered at once, even under load.
PROBES = frozenset({"/livez", "/readyz", "/healthz", "/startupz"})
TOP_BUCKETS = 20
TOP_BUCKETS_MAX = 1000
_ECHO_MAX = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Answers requests. Thread-safe. `page` returns None for unknown paths."""

    status: StatusSource
    metrics: Metrics
    clock: Clock
    config: Callable[[], Mapping[str, object]]
    page: Page

    def answer(self, request: Request) -> PageResponse:
        match request.path.removeprefix("/").split("/"):
            case ["metrics"]:
                body, content_type = self.metrics.expose(self.status.view(), request.accept)
                return PageResponse(status=HTTPStatus.OK, content_type=content_type, body=body)
            case ["livez" | "readyz" | "healthz" as asked]:
                view, judge = self.status.view(), probes.readiness
                if asked == "livez":
                    judge = probes.liveness
                return _probe(judge(view, view.reading_ms(self.clock.steady_ms())))
            case ["startupz"]:
                return _probe(probes.startup(self.status.view()))
            case ["config"]:
                return _json(self.config())
            case ["v1", *rest]:
                return self._v1(rest, request.query)
        return self.page(request.path, request.query) or _unknown(request.path)

    def _v1(self, path: list[str], query: Mapping[str, str]) -> PageResponse:
        match path:
            case ["status"]:
                return _json(status_json(self.status.view()))
            case ["tables"]:
                return _json(tables(self.status.view()))
            case ["tables", catalog, database, table]:
                name = TableName(catalog, database, table)
                detail = self.status.detail(name)
                return _no_table(str(name)) if detail is None else _json(detail)
            case ["buckets", "top"]:
                return _json(top_buckets(self.status.view(), _count(query)))
            case ["plan"]:
                text = query.get("table", "")
                if text.count(".") < 2:
                    raise BadRequest("name a table: ?table=catalog.database.table")
                detail = find_table(self.status, text)
                return _no_table(text) if detail is None else _json(plan(detail))
        return _unknown("/".join(("", "v1", *path)))


def _count(query: Mapping[str, str]) -> int:
    text = query.get("n", str(TOP_BUCKETS))
    # Without isascii, isdigit accepts digits of other scripts, which int() reads.
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise BadRequest(f"n must be a number from 0 to {TOP_BUCKETS_MAX}, not {text[:40]!r}")
    return min(int(text), TOP_BUCKETS_MAX)


def _json(value: object, status: int = HTTPStatus.OK) -> PageResponse:
    return PageResponse(status=status, content_type=JSON, body=encode(value))


def _probe(health: probes.Health) -> PageResponse:
    return _json(health, HTTPStatus.OK if health.is_well else HTTPStatus.SERVICE_UNAVAILABLE)


def _no_table(text: str) -> PageResponse:
    return error_response(HTTPStatus.NOT_FOUND, f"table {text[:_ECHO_MAX]} is not served")


def _unknown(path: str) -> PageResponse:
    return error_response(HTTPStatus.NOT_FOUND, f"no page or endpoint at {path[:_ECHO_MAX]}")
