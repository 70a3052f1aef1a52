from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.asking import PyPaimon


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/compat/"):
            item.add_marker(pytest.mark.compat)


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the one process of pypaimon; tests have databases of their own in it."""
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="session")
def pypaimon(warehouse: Path) -> Iterator[PyPaimon]:
    with PyPaimon(warehouse) as pypaimon:
        yield pypaimon
