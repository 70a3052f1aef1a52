"""Servers of object stores, started once in a session."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.store_servers import StoreServer, moto_server
from tests.tools.store_servers import ServerMissing


@pytest.fixture(scope="session")
def moto() -> Iterator[StoreServer]:
    with contextlib.ExitStack() as running:
        try:
            server = running.enter_context(moto_server())
        except ServerMissing as error:
            pytest.skip(str(error))
        yield server
