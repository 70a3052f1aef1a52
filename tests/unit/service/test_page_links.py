"""What the page leads to: sorted and filtered tables, runbooks, other addresses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compactord.service.page.pages import render
from compactord.service.view import TableDetail
from compactord.table.status import Backlog
from tests.unit.service.test_page import ORDERS, page
from tests.views import (
    HOUR,
    NOW_MS,
    FixedClock,
    FixedStatus,
    busy_night,
    service_view,
    table_view,
)

RUNBOOKS = sorted((Path(__file__).parents[3] / "deploy" / "runbooks").glob("*.md"))


def test_loops_are_shown_only_when_one_is_silent() -> None:
    view = service_view(table_view())
    assert "Loops" not in page(FixedStatus(view)).texts
    silent = replace(view, loops=(replace(view.loops[0], heartbeat_ms=NOW_MS - HOUR),))
    assert "Loops" in page(FixedStatus(silent)).texts


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("name", ["a", "b", "c"]),
        ("-name", ["c", "b", "a"]),
        ("-size", ["b", "a", "c"]),
        ("size", ["c", "a", "b"]),
        ("-oldest", ["c", "a", "b"]),
        # By need where the order leaves it open: c has an old backlog, b more runs than a.
        ("commit", ["c", "b", "a"]),
        ("nonsense", ["c", "b", "a"]),
    ],
)
def test_tables_are_sorted_by_the_column_that_the_address_names(
    sort: str, expected: list[str]
) -> None:
    def table(name: str, size_bytes: int, runs: int, oldest_ms: int) -> Any:
        found = table_view(f"d.{name}", runs=runs, last_commit_ms=NOW_MS)
        shape = replace(found.shape, size_bytes=size_bytes)
        return replace(found, shape=shape, backlog=Backlog(oldest_ms=oldest_ms))

    tables = (table("b", 30, 4, 0), table("a", 20, 3, NOW_MS - 5), table("c", 10, 4, NOW_MS - HOUR))
    found = page(FixedStatus(service_view(*tables)), sort=sort)
    rows = [row.split()[0] for row in found.rows if row.startswith("lake.d")]
    assert rows == [f"lake.d.{name}" for name in expected]


def test_heads_sort_and_turn_round_and_keep_what_else_was_chosen() -> None:
    first = page(busy_night(), q="sales", state="active")
    assert "/?q=sales&state=active&sort=-size" in first.values("href")
    assert "/?q=sales&state=active&sort=name" in first.values("href")
    assert "/?q=sales&state=active&sort=-oldest" in first.values("href")
    assert first.values("aria-sort") == []
    turned = page(busy_night(), q="sales", state="active", sort="-size")
    assert "/?q=sales&state=active&sort=size" in turned.values("href")
    assert turned.values("aria-sort") == ["descending"]
    # The form for names keeps them, too.
    assert {("state", "active"), ("sort", "-size")} <= {
        (attrs.get("name"), attrs.get("value")) for tag, attrs in turned.elements if tag == "input"
    }


def test_states_are_links_that_count_their_tables() -> None:
    found = page(busy_night())
    for text in ("all 16", "active 11", "degraded 1", "paused 1", "halted 1", "excluded 1"):
        assert text in found.texts
    assert "error 0" not in found.texts
    paused = page(busy_night(), state="paused")
    rows = [row.split()[0] for row in paused.rows if row.startswith("lake.")]
    assert rows == ["lake.ops.audit"]
    assert page(busy_night(), state="nonsense").text == found.text


def test_names_of_kinds_classes_and_reasons_say_what_they_mean() -> None:
    found = page(busy_night())
    titles = {
        (attrs.get("class") or tag, attrs["title"] or "")
        for tag, attrs in found.elements
        if "title" in attrs
    }
    for meaning in (
        "merges the newer sorted runs",
        "combines small files",
        "one run below the stop trigger",
        "neighbouring runs are of similar size",
    ):
        assert any(meaning in title for _, title in titles), meaning


def test_the_page_leads_to_metrics_configuration_and_json() -> None:
    links = page(busy_night()).values("href")
    assert {"/metrics", "/config", "/v1/status", "/v1/tables"} <= set(links)
    links = page(busy_night(), ORDERS).values("href")
    assert {"/v1/tables/lake/sales/orders", "/v1/plan?table=lake.sales.orders"} <= set(links)


def test_troubles_lead_to_runbooks_that_are_there() -> None:
    view = busy_night().view()
    broken = replace(
        view,
        engine=replace(view.engine, is_up=False, error="no Java"),
        catalogs=(replace(view.catalogs[0], error="denied", store_silent_since_ms=NOW_MS - HOUR),),
        config=replace(view.config, last_reload_successful=False),
        loops=(replace(view.loops[0], heartbeat_ms=NOW_MS - HOUR),),
    )
    found = set(page(FixedStatus(broken)).values("href"))
    for table in view.tables:
        status = FixedStatus(view, TableDetail(view=table, buckets=(), bucket_count=0))
        path = f"/tables/lake/{table.name.database}/{table.name.table}"
        found |= set(page(status, path).values("href"))
    runbooks = {link for link in found if link.startswith("/runbooks")}
    names = ("LoopStalled", "SparkUnavailable", "ConfigReloadFailed", "DiscoveryFailing")
    names += ("StoreSilent", "BucketsQuarantined")
    names += ("TableHalted", "TablePaused", "RunsOverStopTrigger", "RunsNearStopTrigger")
    assert runbooks == {"/runbooks", *(f"/runbooks/Compactord{name}" for name in names)}
    for link in runbooks:
        assert "Meaning" in page(busy_night(), link).text or link == "/runbooks"


def test_runbooks_are_listed_with_what_their_alerts_mean_and_shown_as_written() -> None:
    found = page(busy_night(), "/runbooks")
    assert {f"/runbooks/{path.stem}" for path in RUNBOOKS} <= set(found.values("href"))
    assert "The configuration has paused the table (mode: paused) for three days." in found.text
    text = page(busy_night(), "/runbooks/CompactordTablePaused").text
    (written,) = (path.read_text() for path in RUNBOOKS if path.stem == "CompactordTablePaused")
    assert written.partition("\n")[2].strip() in text
    for path in ("/runbooks/None", "/runbooks/../config", "/runbooks/CompactordDown.md"):
        assert render(busy_night(), path, {}, clock=FixedClock()) is None
