"""Golden answers of `/v1`, `/config` and the probes, by a service with all there can be."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace

import pytest

from compactord.model import CompactReason, WorkKind
from compactord.service.http import HttpServer
from compactord.service.metrics import Metrics
from compactord.service.page.pages import render
from compactord.service.site import Site
from compactord.service.view import (
    MaintenanceView,
    QuarantineView,
    ServiceView,
    TableDetail,
    TableView,
)
from compactord.state.rewrites import Rewrite
from compactord.table.status import Backlog, CoolingPartition
from tests.unit.golden.recorded import PLACES, check, check_names, stable
from tests.unit.service.http_client import get, serving
from tests.views import (
    HOUR,
    MINUTE,
    NOW_MS,
    SECOND,
    FixedClock,
    FixedStatus,
    append_view,
    bucket_detail,
    busy_detail,
    busy_night,
    run_view,
    service_view,
    table_view,
)


def _orders() -> TableView:
    """Of the busy night, with a damaged bucket and rounds of maintenance."""
    orders = busy_night().shown.tables[0]
    damaged = QuarantineView(
        partition="dt=2026-11-16",
        bucket=1,
        failures=1,
        message="the key range overlaps with data-99.parquet on level 5",
        until_ms=0,
    )
    rounds = {
        "expire": MaintenanceView(
            began_ms=NOW_MS - 5 * MINUTE,
            succeeded_ms=NOW_MS - 4 * MINUTE,
            counts={"expired_snapshots": 40, "expired_files": 312},
        ),
        # It has begun and not ended.
        "changelogs": MaintenanceView(began_ms=NOW_MS - 20 * SECOND),
        "tags": MaintenanceView(
            began_ms=NOW_MS - MINUTE,
            succeeded_ms=NOW_MS - MINUTE,
            why_not="a restore may be running",
        ),
    }
    return replace(
        orders,
        quarantined=(*orders.quarantined, damaged),
        quarantined_count=2,
        maintenance=rounds,
        last_expire_ms=NOW_MS - 4 * MINUTE,
        consecutive_failures=2,
    )


def _waiting() -> TableView:
    """A table outside its window whose readers wait for a merge, with a partition at rest."""
    calm = table_view("mart.fresh", max_freshness_lag_ms=5 * MINUTE)
    rewrite = Rewrite(
        snapshot_id=810, commit_user="etl", operation="MERGE", time_ms=NOW_MS - MINUTE
    )
    until_ms = NOW_MS + 9 * MINUTE
    resting = CoolingPartition(partition="dt=2026-11-18", rewrite=rewrite, until_ms=until_ms)
    return replace(
        calm,
        info=replace(calm.info, readers_wait=True, merge_engine="partial-update"),
        shape=replace(
            calm.shape,
            waiting_since_ms=NOW_MS - 6 * MINUTE,
            last_compacted_file_ms=NOW_MS - 7 * MINUTE,
            earliest_uncompacted_file_ms=NOW_MS - 8 * MINUTE,
        ),
        window_open=False,
        next_window_ms=NOW_MS + HOUR,
        resting=(resting,),
        resting_count=1,
    )


def night() -> FixedStatus:
    """The busy night of `tests/views.py` and what it lacks."""
    shown, orders, waiting = busy_night().shown, _orders(), _waiting()
    calm, clicks = table_view("mart.calm"), append_view("logs.few", backlog=Backlog())
    silent = replace(
        shown.catalogs[0],
        name="pond",
        warehouse="s3://pond/wh",
        failures=3,
        error="s3://pond/wh: list failed (no answer)",
        store_silent_since_ms=NOW_MS - 2 * MINUTE,
    )
    view = replace(
        shown,
        tables=(orders, *shown.tables[1:], waiting, calm, clicks),
        catalogs=(*shown.catalogs, silent),
        config=replace(shown.config, restart_required=("service.http.port",)),
        picks={(WorkKind.MINOR, CompactReason.SIZE_RATIO): 812},
        unmatched_patterns=("rules.3.match.table (c.yaml:40)",),
        expiry_held_since_ms=NOW_MS - HOUR,
    )
    small = bucket_detail(bucket=0, files=41, size_bytes=1 << 20, plan="append_small_files: 41")
    one = TableDetail(
        view=calm, buckets=(bucket_detail(run_view(5, 1 << 20, "1..9")),), bucket_count=1
    )
    return FixedStatus(
        view,
        busy_detail(orders),
        TableDetail(
            view=waiting,
            buckets=(),
            bucket_count=0,
            closed_windows={WorkKind.MINOR: "opens at 2026-11-18T22:00:00Z"},
        ),
        TableDetail(view=clicks, buckets=(small,), bucket_count=1),
        TableDetail(view=shown.tables[4], buckets=(), bucket_count=0),
        one,
    )


def site_of(status: FixedStatus) -> Site:
    """The whole site of a service with this status."""
    clock = FixedClock()
    return Site(
        status=status,
        metrics=Metrics(),
        clock=clock,
        config=lambda: {"catalogs": {"lake": {"warehouse": "/data/wh", "password": "******"}}},
        page=lambda path, query: render(status, path, query, clock=clock),
    )


# Each golden file with the path that makes it.
_OF_NIGHT = {
    "status": "/v1/status",
    "tables": "/v1/tables",
    "table": "/v1/tables/lake/sales/orders",
    "table-halted": "/v1/tables/lake/sales/refunds",
    "table-waiting": "/v1/tables/lake/mart/fresh",
    "table-append": "/v1/tables/lake/logs/few",
    "table-unknown": "/v1/tables/lake/sales/none",
    "table-excluded": "/v1/tables/lake/ops/tmp_7",
    "top-buckets": "/v1/buckets/top",
    "top-buckets-one": "/v1/buckets/top?n=1",
    "top-buckets-no-number": "/v1/buckets/top?n=many",
    "plan": "/v1/plan?table=lake.sales.orders",
    "plan-nothing": "/v1/plan?table=lake.mart.calm",
    "plan-unnamed": "/v1/plan",
    "plan-unknown": "/v1/plan?table=lake.sales.none",
    "unknown-path": "/v1/nothing",
    "config": "/config",
    "livez": "/livez",
    "readyz": "/readyz",
    "startupz": "/startupz",
}
_OF_START = {f"start-{name}": f"/{name}" for name in ("livez", "readyz", "startupz", "v1/status")}
_OF_START = {name.replace("/", "-"): path for name, path in _OF_START.items()}
_REFUSED = "method-refused"


@pytest.fixture(scope="module")
def busy() -> Iterator[HttpServer]:
    with serving(site_of(night()).answer) as server:
        yield server


@pytest.fixture(scope="module")
def starting() -> Iterator[HttpServer]:
    with serving(site_of(FixedStatus(_starting())).answer) as server:
        yield server


def _starting() -> ServiceView:
    calm = service_view()
    engine = replace(calm.engine, is_up=False, error="no Java was found")
    return replace(calm, is_started=False, engine=engine)


@pytest.mark.parametrize("name", _OF_NIGHT)
def test_a_busy_night(name: str, busy: HttpServer) -> None:
    _check(busy, name, _OF_NIGHT[name])


@pytest.mark.parametrize("name", _OF_START)
def test_a_start(name: str, starting: HttpServer) -> None:
    _check(starting, name, _OF_START[name])


def test_a_method_that_is_refused(busy: HttpServer) -> None:
    _check(busy, _REFUSED, "/v1/status", "POST")


def _check(server: HttpServer, name: str, path: str, method: str = "GET") -> None:
    reply = get(server, path, method=method)
    found = {
        "request": f"{method} {path}",
        "status": reply.status,
        "content_type": reply.headers["content-type"],
        "body": json.loads(reply.body),
    }
    text = json.dumps(found, indent=2, ensure_ascii=False)
    check(f"http/{name}.json", stable(f"{text}\n", PLACES))


def test_every_file_is_of_a_case() -> None:
    check_names("http", {f"{name}.json" for name in (*_OF_NIGHT, *_OF_START, _REFUSED)})


def test_every_route_of_the_service_has_a_golden_file() -> None:
    routes = {pattern: re.compile(pattern) for pattern in _routes()}
    assert len(routes) >= 5
    paths = [path.partition("?")[0] for path in _OF_NIGHT.values()]
    assert [
        pattern for pattern, each in routes.items() if not any(map(each.fullmatch, paths))
    ] == []


def _routes() -> Iterator[str]:
    """The paths that `Site` matches below `/v1`, as regular expressions."""
    source = textwrap.dedent(inspect.getsource(Site._v1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.MatchSequence):
            parts = (
                ast.literal_eval(part.value) if isinstance(part, ast.MatchValue) else "[^/]+"
                for part in node.patterns
            )
            yield "/".join(("/v1", *parts))
