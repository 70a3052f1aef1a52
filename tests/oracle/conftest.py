from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.oracle.judge import Judge


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/oracle/"):
            item.add_marker(pytest.mark.oracle)


@pytest.fixture(scope="session")
def writer() -> Iterator[Judge]:
    """A second Java: what happens in another process is seen only through the files."""
    with Judge(java_options=("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")) as judge:
        yield judge
