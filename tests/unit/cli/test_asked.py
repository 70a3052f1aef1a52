"""`tables --url` and `why --url`: what a running service answers, as the page and `top` show it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from compactord.scheduler.compaction import HaltReason
from compactord.service.codec import decode
from compactord.service.http import HttpServer
from compactord.service.metrics import Metrics
from compactord.service.page.pages import render
from compactord.service.site import Site
from compactord.service.view import TableDetail, TableStatus, TableView
from compactord.table.status import Backlog
from tests.unit.cli.warehouses import answered, said
from tests.views import (
    MIB,
    MINUTE,
    NOW_MS,
    FixedClock,
    FixedStatus,
    busy_detail,
    busy_night,
    halt,
    pattern_excluded_view,
    service_view,
    table_view,
)

(FAILED,) = busy_night().shown.tables[0].quarantined
OF_BUCKETS = halt(
    HaltReason.REPEATED_FAILURES,
    message="bucket 3: the store is full",
    action="Make room.",
    next_try_ms=NOW_MS - 10 * MINUTE,
)
TABLES = (
    table_view("d.busy", runs=5, backlog=Backlog(tasks=1, files=5, size_bytes=MIB, oldest_ms=1)),
    table_view("d.quiet", runs=5),
    table_view("d.calm"),
    table_view("d.halted", status=TableStatus.HALTED, halt=OF_BUCKETS),
    table_view("d.unread", status=TableStatus.ERROR, error="no answer", first_poll_ms=0),
    table_view("d.refused", status=TableStatus.UNSUPPORTED, halt=halt(next_try_ms=0)),
    table_view("d.held", status=TableStatus.PAUSED, why="by rules.0.set.mode"),
    pattern_excluded_view("d.tmp"),
)


class Service:
    """The whole site of a service that shows these tables."""

    def __init__(self, *tables: TableView, **changes: Any) -> None:
        details = [TableDetail(view=each, buckets=(), bucket_count=0) for each in tables]
        status, clock = FixedStatus(service_view(*tables, **changes), *details), FixedClock()
        self.status = status
        self.server = HttpServer(
            Site(
                status=status,
                metrics=Metrics(),
                clock=clock,
                config=dict,
                page=lambda path, query: render(status, path, query, clock=clock),
            ).answer,
            host="127.0.0.1",
            port=0,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def page(self, name: str) -> str:
        """The page of a table, or the first page, as text."""
        path = f"/tables/lake/{name.replace('.', '/')}" if name else "/"
        shown = render(self.status, path, {}, clock=FixedClock())
        assert shown is not None
        return " ".join(re.sub(r"<[^>]*>", " ", shown.body.decode()).split())


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service(*TABLES)
    yield found
    found.server.stop()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: str(table.name.table))
def test_tables_why_top_and_the_page_say_the_same_of_a_table(
    table: TableView, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    name, state = f"d.{table.name.table}", table.status.value
    listed = answered(capsys, "tables", "--url", service.url, code=3)["tables"]
    (line,) = [each for each in listed if each["table"] == name]
    explained = answered(capsys, "why", name, "--url", service.url)
    top = answered(capsys, "top", "--url", service.url, "--once")["tables"]
    (shown,) = [each for each in top if each["name"]["table"] == table.name.table]
    assert [each["state"] for each in (line, explained)] == [state] * 2
    assert shown["status"] == state
    assert line["why"] == explained["why"] == shown["note"]
    assert f"{name} {state}" in service.page(name)
    assert table.why in line["why"]
    assert table.why in service.page(name)


@pytest.mark.parametrize(
    ("waited_ms", "bound_ms", "expected", "state"),
    [
        (3 * MINUTE, 0, "rows wait 3 min to be seen by readers", "active"),
        (
            3 * MINUTE,
            5 * MINUTE,
            "rows wait 3 min to be seen by readers (max_freshness_lag 5 min)",
            "active",
        ),
        (
            6 * MINUTE,
            5 * MINUTE,
            "rows wait 6 min to be seen by readers (max_freshness_lag 5 min)",
            "late",
        ),
        (0, 5 * MINUTE, "", "active"),
    ],
)
def test_why_top_and_the_page_say_how_long_rows_wait_for_readers(
    waited_ms: int,
    bound_ms: int,
    expected: str,
    state: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calm = table_view("d.fresh", max_freshness_lag_ms=bound_ms)
    info = replace(calm.info, readers_wait=True)
    shape = replace(
        calm.shape,
        waiting_since_ms=waited_ms and NOW_MS - waited_ms,
        last_compacted_file_ms=NOW_MS - 7 * MINUTE,
        earliest_uncompacted_file_ms=NOW_MS - 8 * MINUTE,
    )
    service = Service(replace(calm, info=info, shape=shape))
    try:
        said_by = [
            said(capsys, "why", "d.fresh", "--url", service.url),
            said(capsys, "top", "--url", service.url, "--once", "--width", "200"),
            service.page("d.fresh"),
        ]
        (line,) = answered(capsys, "top", "--url", service.url, "--once")["tables"]
        (table,) = answered(capsys, "tables", "--url", service.url)["tables"]
    finally:
        service.server.stop()
    for text in said_by:
        assert expected in text
        assert ("rows wait" in text.replace("no rows wait", "")) is bool(expected)
    assert "Last compacted file 7 min ago" in said_by[2]
    assert "Earliest file not compacted 8 min ago" in said_by[2]
    assert (line["shape"]["waiting_since_ms"], line["max_freshness_lag_ms"]) == (
        shape.waiting_since_ms,
        bound_ms,
    )
    assert table["waiting_since_ms"] == (shape.waiting_since_ms or None)
    assert ("late" in said_by[1]) is (state == "late")
    assert ("Readers see changes too late" in said_by[2]) is (state == "late")


def test_an_overdue_attempt_is_made_as_soon_as_a_slot_is_free_everywhere(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    again = "next attempt as soon as a slot is free"
    said_by = [
        said(capsys, "tables", "--url", service.url, code=3),
        said(capsys, "why", "d.halted", "--url", service.url),
        said(capsys, "top", "--url", service.url, "--once", "--width", "200"),
        service.page("d.halted"),
    ]
    for text in said_by:
        assert "bucket 3: the store is full" in text
        assert again in text
        assert "What to do: Make room." in text


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        ("no such host", "never listed since the start: no such host"),
        ("", "never listed since the start"),
    ],
)
def test_a_catalog_that_was_never_listed_is_named_everywhere(
    error: str, trouble: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (lake,) = service_view().catalogs
    service = Service(catalogs=(replace(lake, last_success_ms=0, error=error),))
    try:
        listed = said(capsys, "tables", "--url", service.url, code=3)
        answer = answered(capsys, "tables", "--url", service.url, code=3)
        shown = said(capsys, "top", "--url", service.url, "--once", "--width", "200")
        page = service.page("")
    finally:
        service.server.stop()
    assert answer["unreadable"] == {"catalog lake": trouble}
    assert listed == f"0 tables; not listed: catalog lake\ncatalog lake: {trouble}\n"
    # Without an error its first listing still runs: `top` shows only what needs an operator.
    assert (trouble in shown) == bool(error)
    assert trouble in page


def test_why_says_what_the_service_knows(capsys: pytest.CaptureFixture[str]) -> None:
    orders = table_view(
        "sales.orders", runs=5, quarantined=(FAILED,), quarantined_count=1, running_tasks=2
    )
    service = Service(orders)
    detail = replace(busy_detail(orders), view=orders)
    service.status.details[orders.name] = detail
    try:
        text = said(capsys, "why", "sales.orders", "--url", service.url, "--worst", "1")
        found = answered(capsys, "why", "sales.orders", "--url", service.url)
    finally:
        service.server.stop()
    for expected in (
        "lake.sales.orders  (/data/wh/sales.db/orders)",
        "degraded: dt=2026-11-17 bucket 5: data-2f1c.parquet",
        "What to do: Restore the file.",
        "polls it every 10 s (continuous.discovery-interval), next within",
        "window: full work may not start now; it opens at 2026-11-18T22:00:00Z",
        "rules that match: rules.3 (c.yaml:40)",
        "priority  50  defaults.priority (default)",
        "dt=2026-11-17 bucket 5 is quarantined after 3 failures: data-2f1c.parquet",
        "next attempt in 14 min",
        "2 compactions running",
        f"(1 of {detail.bucket_count} buckets)",
        f"9 sorted runs, 35 files; {detail.buckets[0].what}",
        f"because: {detail.buckets[0].why}",
        f"next: {detail.buckets[0].later}",
    ):
        assert expected in text
    assert [each["bucket"] for each in found["buckets"]] == [b.bucket for b in detail.buckets]
    assert found["quarantined"][0]["message"] == FAILED.message


@pytest.mark.parametrize(
    ("arguments", "expected", "code"),
    [
        (("why", "d.none", "--url", "URL"), "has no table d.none", 2),
        (("why", "d.cal", "--url", "URL"), "has no table d.cal; did you mean d.calm", 2),
        (("why", "lake.d.calm", "--url", "URL"), "lake.d.calm  (", 0),
        (("tables", "--table", "lake.d.calm", "--url", "URL"), "1 table: 1 active", 0),
        (("tables", "--table", "pond.d.calm", "--url", "URL"), "has no table pond.d.calm", 2),
        (("tables", "--tables", "calm", "--url", "URL"), "; did you mean d.calm?", 2),
        (("tables", "--tables", r"x\..*", "--url", "URL"), "has no table", 2),
        (("why", "d.calm", "--url", "URL", "--bucket", "1"), "need --config or --warehouse", 2),
        (("why", "d.calm", "--url", "URL", "--set", "a=b"), "--set needs --config", 2),
        (("tables", "--url", "URL", "--metastore", "jdbc"), "need --warehouse", 2),
        (("tables", "--url", "URL/runbooks"), "not compactord", 3),
        (("tables", "--url", "http://127.0.0.1:1"), "(start `compactord serve` there, or", 3),
        (("tables", "--url", "URL", "--tables", r"d\.(calm|held)"), "2 tables: 1 active, 1 pa", 0),
        (("tables", "--url", "URL", "--catalog", "lake", "--database", "d"), "8 tables", 3),
    ],
)
def test_arguments_choose_among_the_tables_of_the_service(
    arguments: tuple[str, ...],
    expected: str,
    code: int,
    service: Service,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [each.replace("URL", service.url) for each in arguments]
    assert expected in said(capsys, *given, code=code)


@pytest.mark.parametrize(
    ("states", "code"),
    [
        (["active", "paused", "excluded"], 0),
        (["active", "unsupported", "paused"], 4),
        (["error", "unsupported"], 3),
        (["halted"], 3),
        (["active", "degraded"], 3),
        (["some later state"], 0),
    ],
)
def test_the_exit_code_shows_whether_a_table_needs_attention(
    states: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    views = [table_view(f"d.t{index}") for index in range(len(states))]
    # As read by a client that does not know the state.
    status = [decode(TableView, {"status": state}).status for state in states]
    service = Service(*map(_with_status, views, status))
    try:
        said(capsys, "tables", "--url", service.url, code=code)
    finally:
        service.server.stop()


def _with_status(view: TableView, status: TableStatus) -> TableView:
    return replace(view, status=status)


def test_a_table_of_two_catalogs_needs_the_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    other = table_view("d.t")
    service = Service(other, replace(other, name=other.name._replace(catalog="pond")))
    try:
        assert "in several catalogs (lake, pond)" in said(
            capsys, "why", "d.t", "--url", service.url, code=2
        )
        for named in (["d.t", "--catalog", "pond"], ["pond.d.t"]):
            text = said(capsys, "why", *named, "--url", service.url)
            assert text.startswith("pond.d.t")
        assert "pond.d.t" in said(capsys, "tables", "--url", service.url)
    finally:
        service.server.stop()
