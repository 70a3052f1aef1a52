"""Calls that are begun before they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from structlog.contextvars import bound_contextvars, get_contextvars

from compactord.errors import StorageError
from compactord.storage.base import Storage
from compactord.storage.calls import map_concurrently, prefetch
from compactord.storage.local import LocalStorage
from tests.storages import MemoryStorage


def _fail() -> None:
    raise StorageError("p", "no")


@pytest.mark.parametrize(
    ("storage", "order"), [(LocalStorage(), ["body", "call"]), (MemoryStorage(), ["call", "body"])]
)
def test_a_call_is_begun_where_it_is_a_request_and_made_in_order_elsewhere(
    storage: Storage, order: list[str]
) -> None:
    done: list[str] = []
    called = threading.Event()

    def call() -> int:
        done.append("call")
        called.set()
        return 7

    with prefetch(storage, call) as result:
        if storage.capabilities.behind_network:
            assert called.wait(180)
        done.append("body")
        assert result() == 7
    assert done == order


@pytest.mark.parametrize("storage", [LocalStorage(), MemoryStorage()])
def test_an_error_is_for_whoever_asks(storage: Storage) -> None:
    with prefetch(storage, _fail):
        pass
    with prefetch(storage, _fail) as result, pytest.raises(StorageError):
        result()


def _one(call: Callable[[], object]) -> object:
    with prefetch(MemoryStorage(), call) as result:
        return result()


def test_what_is_logged_names_the_table() -> None:
    with bound_contextvars(table="t"):
        assert _one(get_contextvars) == {"table": "t"}
        found = map_concurrently(MemoryStorage(), lambda _: get_contextvars(), [1, 2])
        assert list(found) == [{"table": "t"}] * 2
