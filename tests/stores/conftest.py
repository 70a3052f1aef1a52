"""Object stores of this machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.store_servers import StoreServer


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
