from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import machine
from tests.cluster.cluster import Cluster, running_cluster
from tests.tools.obtain import tool_path


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Takes a minute; the first time some more, for the image."""
    why_not = machine.why_not_here()
    if why_not is not None:
        pytest.skip(f"{why_not}: see `make test-cluster`")
    tool_path("kube-apiserver")
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A stop that waits for a merge of a minute takes some more on a crowded machine."""
    for item in items:
        if item.nodeid.startswith("tests/cluster/"):
            item.add_marker(pytest.mark.timeout(1800))
