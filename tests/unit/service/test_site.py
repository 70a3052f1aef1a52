from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from compactord.service.http import HttpServer, PageResponse
from compactord.service.metrics import OPENMETRICS, TEXT, Metrics
from compactord.service.site import Site
from tests.unit.service.http_client import get, serving
from tests.views import HOUR, NOW_MS, FixedClock, FixedStatus, busy_night, service_view

CLOCK = FixedClock()
STATUS = busy_night()


def page(path: str, query: Mapping[str, str]) -> PageResponse | None:
    if path not in ("/", "/tables/lake/sales/orders"):
        return None
    body = f"{path} {query.get('q', '')}".encode()
    return PageResponse(status=200, content_type="text/html; charset=utf-8", body=body)


@pytest.fixture(scope="module")
def server():
    site = Site(
        status=STATUS,
        metrics=Metrics(),
        clock=CLOCK,
        config=lambda: {"catalogs": {"lake": {"password": "******"}}},
        page=page,
    )
    with serving(site.answer) as running:
        yield running


@pytest.fixture
def starting():
    STATUS.shown, before = service_view(is_started=False), STATUS.shown
    yield
    STATUS.shown = before


@pytest.mark.parametrize(
    "path",
    [
        *("/livez", "/readyz", "/startupz", "/healthz", "/config"),
        *("/v1/status", "/v1/tables", "/v1/tables/lake/sales/orders"),
        *("/v1/buckets/top", "/v1/plan?table=lake.sales.orders"),
    ],
)
def test_endpoints_answer_json(server: HttpServer, path: str) -> None:
    reply = get(server, path)
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert json.loads(reply.body)


def test_metrics_come_in_the_format_that_was_asked_for(server: HttpServer) -> None:
    text = get(server, "/metrics")
    assert text.headers["content-type"] == TEXT
    assert len(list(text_string_to_metric_families(text.body.decode()))) > 50
    openmetrics = get(server, "/metrics", f"Accept: {OPENMETRICS}")
    assert openmetrics.headers["content-type"] == OPENMETRICS
    assert openmetrics.body.endswith(b"# EOF\n")
    assert get(server, "/metrics", "Accept-Encoding: gzip").headers["content-encoding"] == "gzip"


def test_a_probe_that_fails_says_so_by_status_and_why_in_its_body(
    server: HttpServer, starting: None
) -> None:
    for path in ("/startupz", "/readyz", "/healthz"):
        reply = get(server, path)
        assert reply.status == 503
        assert json.loads(reply.body)["failed"][0]["check"] == "start"
    assert get(server, "/livez").status == 200


def test_liveness_goes_by_the_clock_and_not_by_the_view(server: HttpServer) -> None:
    CLOCK.now = NOW_MS + HOUR
    try:
        assert get(server, "/livez").status == 503
    finally:
        CLOCK.now = NOW_MS


def test_the_configuration_is_what_the_service_hands_out(server: HttpServer) -> None:
    assert json.loads(get(server, "/config").body) == {"catalogs": {"lake": {"password": "******"}}}


def test_one_table_is_looked_into(server: HttpServer) -> None:
    detail = json.loads(get(server, "/v1/tables/lake/sales/orders").body)
    assert detail["view"]["name"]["table"] == "orders"
    assert detail["buckets"][0]["runs"][0]["min_key"] == "88120"


@pytest.mark.parametrize(
    ("query", "count"), [("", 3), ("?n=1", 1), ("?n=0", 0), ("?n=99999", 3), ("?n=1&n=2", 2)]
)
def test_so_many_top_buckets_as_asked_for(server: HttpServer, query: str, count: int) -> None:
    assert len(json.loads(get(server, f"/v1/buckets/top{query}").body)["buckets"]) == count


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/v1/buckets/top?n=many", 400, "n must be a number from 0 to 1000, not 'many'"),
        ("/v1/buckets/top?n=-1", 400, "n must be a number from 0 to 1000, not '-1'"),
        ("/v1/buckets/top?n=%C2%B2", 400, "n must be a number from 0 to 1000, not '²'"),
        ("/v1/plan", 400, "name a table: ?table=catalog.database.table"),
        ("/v1/plan?table=orders", 400, "name a table: ?table=catalog.database.table"),
        ("/v1/plan?table=lake.sales.none", 404, "table lake.sales.none is not served"),
        ("/v1/tables/lake/sales/none", 404, "table lake.sales.none is not served"),
        ("/v1/tables/lake/sales", 404, "no page or endpoint at /v1/tables/lake/sales"),
        ("/v1", 404, "no page or endpoint at /v1"),
        ("/v2/status", 404, "no page or endpoint at /v2/status"),
        ("/metrics/", 404, "no page or endpoint at /metrics/"),
        ("/../../etc/passwd", 404, "no page or endpoint at /../../etc/passwd"),
        ("/%2e%2e/%2e%2e/etc/passwd", 404, "no page or endpoint at /../../etc/passwd"),
        ("/v1/tables/../../x", 404, "table ../../x"),
    ],
)
def test_what_cannot_be_answered_is_said(
    server: HttpServer, path: str, status: int, message: str
) -> None:
    reply = get(server, path)
    assert (reply.status, reply.headers["content-type"]) == (status, "application/json")
    assert json.loads(reply.body)["error"].startswith(message.removesuffix("../../x"))


def test_all_other_paths_are_the_pages(server: HttpServer) -> None:
    assert get(server, "/?q=a%20b").body == b"/ a b"
    reply = get(server, "/tables/lake/sales/orders")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")


def test_a_long_path_is_not_sent_back_whole(server: HttpServer) -> None:
    assert len(get(server, "/" + "a" * 9000).body) < 500


def test_a_view_without_tables_is_served(server: HttpServer) -> None:
    STATUS.shown, before = FixedStatus(service_view()).view(), STATUS.shown
    try:
        assert json.loads(get(server, "/v1/tables").body)["tables"] == []
    finally:
        STATUS.shown = before
