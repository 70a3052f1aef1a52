from __future__ import annotations

import json
from dataclasses import fields, replace

from compactord.service import codec, site
from compactord.service.view import ServiceView, TableView
from tests.views import (
    FixedStatus,
    bucket_detail,
    busy_detail,
    busy_night,
    run_view,
    service_view,
    table_name,
    table_view,
)


def test_status_is_the_view_without_its_tables() -> None:
    view = busy_night().view()
    status = json.loads(codec.encode(codec.status_json(view)))
    left_out = {"tables", "queued_by_table", "steady_ms"}
    assert set(status) == {field.name for field in fields(ServiceView)} - left_out
    assert status["tables_by_status"]["lake/halted"] == 1
    assert status["engine"]["memory_budget_bytes"] == 4 << 30
    assert status["running"][0]["reason"] == "size_ratio"
    assert status["queued"] == {"forced": 2, "benefit": 3}


def test_tables_keep_the_names_of_their_fields() -> None:
    (orders, *_) = json.loads(codec.encode(site.tables(busy_night().view())))["tables"]
    assert set(orders) == {field.name for field in fields(TableView)}
    assert orders["name"] == {"catalog": "lake", "database": "sales", "table": "orders"}
    assert orders["status"] == "degraded"
    assert orders["halt"] is None
    assert orders["shape"]["buckets_by_run_state"]["near_stop"] == 1
    assert orders["counters"]["compactions"]["full/committed"] == 12
    assert list(orders["last_success_ms"]) == ["minor"]
    assert orders["quarantined"][0]["bucket"] == 5


def test_top_buckets_are_cut_to_what_is_asked_for() -> None:
    top = site.top_buckets(busy_night().view(), 2)
    assert [bucket["sorted_runs"] for bucket in top["buckets"]] == [9, 7]


def test_a_plan_names_the_buckets_that_would_be_compacted_and_why() -> None:
    plan = site.plan(busy_detail(table_view()))
    assert plan["name"] == {"catalog": "lake", "database": "sales", "table": "orders"}
    assert [bucket["bucket"] for bucket in plan["buckets"]] == [3, 11]
    assert plan["buckets"][0]["plan"].startswith("size_ratio")
    assert plan["bucket_count"] == 48


def test_a_table_is_found_by_its_whole_name_also_with_dots_in_it() -> None:
    dotted = replace(table_view(), name=table_name("d.a.b"))
    detail = replace(busy_detail(dotted), buckets=(bucket_detail(run_view(0, 1, "a..b")),))
    status = FixedStatus(service_view(table_view(), dotted), detail)
    assert site.find_table(status, "lake.d.a.b") == detail
    assert site.find_table(status, "lake.d.a") is None
    assert site.find_table(status, "lake.sales.orders") is None
