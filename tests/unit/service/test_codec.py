"""Views as JSON and back, also between versions that do not know the same fields."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest

from compactord.model import CompactReason, TableName, WorkKind
from compactord.scheduler.compaction import PriorityClass, Status
from compactord.service import site
from compactord.service.codec import decode, encode, plain, status_json
from compactord.service.view import (
    ActiveCompaction,
    ServiceView,
    TableDetail,
    TableStatus,
    TableView,
)
from compactord.table.status import TableShape
from tests.views import busy_detail, busy_night, table_view, task_view


def test_names_of_any_bytes_and_numbers_beyond_json_are_valid_json() -> None:
    value = {"half": "\udcff", "far": math.inf, "not": math.nan, "list": [WorkKind.FULL, None]}
    text = encode(value)
    text.decode("ascii")
    assert json.loads(text) == {"half": "\udcff", "far": None, "not": None, "list": ["full", None]}


@dataclass(frozen=True, slots=True)
class _Odd:
    things: object


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object()])
def test_what_has_no_json_form_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="has no JSON form"):
        encode(_Odd(value))


def test_a_view_arrives_as_it_was_sent_without_what_is_internal() -> None:
    view = busy_night().view()
    status, tables = (json.loads(encode(shown(view))) for shown in (status_json, site.tables))
    sent = replace(view, steady_ms=0, queued_by_table={})
    assert decode(ServiceView, {**status, "tables": tables["tables"]}) == sent
    detail = busy_detail(view.tables[0])
    assert decode(TableDetail, json.loads(encode(detail))) == detail


def test_an_infinite_number_arrives_as_one() -> None:
    shape = TableShape(size_amplification_max=math.inf)
    assert decode(TableShape, json.loads(encode(shape))) == shape


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param({"location": 3}, {"location": ""}, id="another type"),
        pytest.param({"priority": True}, {"priority": 0}, id="true is no number"),
        pytest.param({"later": 1}, {}, id="a field that is not known"),
        pytest.param({"halt": "no"}, {"halt": None}, id="no object"),
        pytest.param({"shape": {"files": 2}}, {"shape": TableShape(files=2)}, id="a part of one"),
        pytest.param({"max_freshness_lag_ms": None}, {}, id="no limit of an older version"),
        pytest.param({"quarantined": [1, None]}, {"quarantined": ()}, id="no items"),
        pytest.param(
            {"last_success_ms": {"minor": 5, "full": "x"}},
            {"last_success_ms": {WorkKind.MINOR: 5}},
            id="values of a map",
        ),
    ],
)
def test_what_another_version_sends_is_read_as_far_as_it_goes(
    sent: dict[str, Any], expected: dict[str, Any]
) -> None:
    table = table_view()
    empty = TableView(name=table.name, location="/t", status=TableStatus.ACTIVE, why="")
    found = decode(TableView, {**plain(empty), **sent})
    assert found == replace(empty, **expected)


def test_of_what_is_absent_nothing_bad_is_claimed() -> None:
    view = decode(ServiceView, {})
    assert (view.engine.is_up, view.config.last_reload_successful) == (True, True)
    assert (view.tables, view.queued) == ((), {})
    task = decode(ActiveCompaction, {})
    assert (task.status, task.reason.value, task.name) == (None, "", TableName("", "", ""))


def test_a_value_that_is_not_known_is_shown_as_it_was_sent() -> None:
    sent = {**plain(task_view()), "reason": "moon_phase", "status": "resting"}
    task = decode(ActiveCompaction, sent)
    assert task.reason.value == "moon_phase"
    assert task.reason not in list(CompactReason)
    assert task.status is not None
    assert task.status not in list(Status)
    view = decode(ServiceView, {"queued": {"forced": 2, "sometime": 1}})
    assert view.queued[PriorityClass.FORCED] == 2
    assert sum(view.queued.values()) == 3
