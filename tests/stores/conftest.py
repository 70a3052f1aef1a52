"""Object stores of this machine, each started once in a session."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.store_servers import SERVERS, StoreServer
from tests.tools.workbench import ToolError


@pytest.fixture(scope="session")
def started() -> Iterator[Callable[[str], StoreServer]]:
    """A server by its name; the test is skipped where it cannot be had."""
    running: dict[str, StoreServer] = {}
    with contextlib.ExitStack() as ends:

        def start(name: str) -> StoreServer:
            if name not in running:
                try:
                    running[name] = ends.enter_context(SERVERS[name]())
                except ToolError as error:
                    pytest.skip(str(error))
            return running[name]

        yield start


@pytest.fixture(scope="session")
def s3_server(started: Callable[[str], StoreServer]) -> StoreServer:
    """MinIO answers ten times as fast as moto, which is always there."""
    try:
        return started("minio")
    except pytest.skip.Exception:
        return started("moto")


@pytest.fixture
def moto(started: Callable[[str], StoreServer]) -> StoreServer:
    return started("moto")
