"""Databases that accept a connection and answer no more: the client's own clock ends the call."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from zoneinfo import ZoneInfo

import pytest

from compactord.catalog.jdbc.database import Database, jdbc_address
from compactord.errors import CatalogUnavailable
from tests.silent_servers import postgresql_after_login, serving, silence


def _endless_login(client: socket.socket) -> None:
    """A few bytes of a large packet now and then, each before a driver's patience ends."""
    while True:
        client.sendall(b"\0\0\1\0")
        time.sleep(0.3)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("postgresql", postgresql_after_login),
        ("postgresql", silence),
        ("mysql", silence),
        ("mysql", _endless_login),
    ],
    ids=["PostgreSQL after the login", "PostgreSQL", "MySQL", "MySQL while it greets"],
)
def test_a_silent_database_is_unavailable_after_the_clients_deadline(
    kind: str, answer: Callable[[socket.socket], None]
) -> None:
    with serving(answer) as port:
        address = jdbc_address(f"jdbc:{kind}://127.0.0.1:{port}/paimon", {"user": "paimon"})
        database = Database(
            address, pool_size=2, zone=ZoneInfo("UTC"), connect_seconds=2, answer_seconds=1
        )
        for _ in range(2):
            start_s = time.monotonic()
            with pytest.raises(CatalogUnavailable, match=r"no answer within|timeout|timed out"):
                database.rows("SELECT 1")
            assert time.monotonic() - start_s < 30
