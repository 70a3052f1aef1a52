from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest

from compactord.model import WorkKind
from compactord.scheduler.compaction import Outcome, PriorityClass
from compactord.service import site
from compactord.service.codec import encode, status_json
from compactord.service.http import JSON, HttpServer, PageResponse, Request
from compactord.service.view import ServiceView, TableStatus
from compactord.table.status import Backlog
from compactord_demo.observer import Observer
from compactord_demo.summary import committed
from tests.views import append_view, service_view, table_view, task_view

SNAPSHOTS = {"sales.orders": 9, "logs.clicks": 9}


class Daemon:
    """Answers as one whose newest view is `view`."""

    def __init__(self) -> None:
        self.view = _view()
        self.url = ""

    def answer(self, request: Request) -> PageResponse:
        said = {"/v1/status": status_json, "/v1/tables": site.tables}[request.path](self.view)
        return PageResponse(status=HTTPStatus.OK, content_type=JSON, body=encode(said))


def _view(now_ms: int = 1_000, runs: int = 4, **changes: Any) -> ServiceView:
    """Two tables at rest; `changes` are the orders'."""
    rest = {"planned_snapshot_id": 9, "backlog": Backlog(), "running_tasks": 0}
    orders = table_view("sales.orders", runs=runs, **{**rest, **changes})
    clicks = append_view("logs.clicks", **rest)
    view = service_view(orders, clicks)
    return replace(view, now_ms=now_ms, running=(), queued={}, queue=())


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    found = Daemon()
    server = HttpServer(found.answer, host="127.0.0.1", port=0)
    found.url = f"http://127.0.0.1:{server.port}"
    yield found
    server.stop()


def test_nothing_is_known_before_there_is_an_address_or_an_answer(daemon: Daemon) -> None:
    observer = Observer()
    observer.observe(None)
    observer.observe("http://127.0.0.1:1")
    assert (observer.view, observer.histories, observer.is_started) == (None, {}, False)
    assert not observer.is_idle_at(SNAPSHOTS)


def test_a_daemon_whose_engine_has_not_been_up_is_not_started(daemon: Daemon) -> None:
    observer = Observer()
    for is_started in (False, True):
        daemon.view = replace(_view(), is_started=is_started)
        observer.observe(daemon.url)
        assert observer.is_started is is_started


def test_each_new_view_is_a_point_of_the_curves(daemon: Daemon) -> None:
    observer = Observer()
    for now_ms, runs in ((1_000, 7), (1_000, 7), (2_000, 3)):
        daemon.view = _view(now_ms, runs)
        observer.observe(daemon.url)
    assert observer.histories["sales.orders"].runs == [7, 3]
    assert len(observer.histories["logs.clicks"].files) == 2


def test_only_committed_compactions_count(daemon: Daemon) -> None:
    before = daemon.view.tables[0].counters
    compactions = {
        (WorkKind.MINOR, Outcome.COMMITTED): 3,
        (WorkKind.FULL, Outcome.COMMITTED): 4,
        (WorkKind.MINOR, Outcome.CONFLICT): 5,
    }
    counters = replace(before, compactions=compactions, commits_committed=6)
    daemon.view = _view(counters=counters)
    observer = Observer()
    observer.observe(daemon.url)
    assert committed(observer.counters("sales.orders")) == 7


def test_idle_is_at_rest_at_the_newest_snapshot_of_every_table(daemon: Daemon) -> None:
    observer = Observer()
    observer.observe(daemon.url)
    assert observer.is_idle_at(SNAPSHOTS)
    assert not observer.is_idle_at({**SNAPSHOTS, "logs.clicks": 10}), "it has not seen all"
    assert not observer.is_idle_at({**SNAPSHOTS, "logs.others": 1}), "it does not know the table"


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda: _view(backlog=Backlog(tasks=1)), id="due"),
        pytest.param(lambda: replace(_view(), running=(task_view(),)), id="running"),
        pytest.param(lambda: replace(_view(), queued={PriorityClass.BENEFIT: 1}), id="queued"),
    ],
)
def test_with_work_left_it_is_not_idle(view: Callable[[], ServiceView], daemon: Daemon) -> None:
    daemon.view = view()
    observer = Observer()
    observer.observe(daemon.url)
    assert not observer.is_idle_at(SNAPSHOTS)


def test_a_table_that_is_not_served_is_trouble(daemon: Daemon) -> None:
    observer = Observer()
    observer.observe(daemon.url)
    assert observer.troubles() == []
    daemon.view = _view(status=TableStatus.ERROR, error="permission denied")
    observer.observe(daemon.url)
    assert observer.troubles() == ["sales.orders is error: permission denied"]
