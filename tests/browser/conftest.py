"""The page in a real browser, served by the real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from compactord.service.http import HttpServer, PageResponse, Request
from compactord.service.page.pages import render
from tests.browser.serving import HOST, Served
from tests.tools.browser import browser
from tests.views import FixedClock, busy_night

__all__ = ["browser"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/browser/"):
            item.add_marker(pytest.mark.browser)


@pytest.fixture
def served() -> Iterator[Served]:
    """A daemon's port with the busy night's status, to be exchanged by tests."""
    found = Served(status=busy_night(), clock=FixedClock(), asked=[], is_up=threading.Event())
    found.is_up.set()

    def answer(request: Request) -> PageResponse:
        found.asked.append(request.path)
        if not found.is_up.is_set():
            return PageResponse(status=503, content_type="text/plain", body=b"down")
        page = render(found.status, request.path, request.query, clock=found.clock)
        return page or PageResponse(status=404, content_type="text/plain", body=b"nothing")

    server = HttpServer(answer, host=HOST, port=0)
    found.port = server.port
    yield found
    server.stop()
