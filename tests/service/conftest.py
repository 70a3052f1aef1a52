from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.events import untold
from tests.service.daemon_process import SERVE, Service, Services, configuration
from tests.service.lakes import LARGE, Lake


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/service/"):
            item.add_marker(pytest.mark.spark)


def _services() -> Iterator[Services]:
    # Not below pytest's folders: Spark's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="c-") as scratch:
        services = Services(Path(scratch), [])
        try:
            yield services
        finally:
            for service in services.started:
                service.kill_family()
        # Whatever they did, their logs are as docs/events.md tells.
        for service in services.started:
            assert list(untold(service.log())) == []


@pytest.fixture
def services() -> Iterator[Services]:
    """Starts daemons; whatever of them still runs at the end is killed."""
    yield from _services()


@dataclass(frozen=True, slots=True)
class Served:
    """A warehouse, the daemon that serves it, and the daemon's configuration."""

    lake: Lake
    service: Service
    config: dict[str, object]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The daemon that many tests share: they leave it as it was, each with tables of its own.

    It has no capabilities, so that modes of folders count for it also when root starts it.
    """
    warehouse = tmp_path_factory.mktemp("lake")
    lake = Lake(warehouse)
    config = configuration(warehouse, rules=[LARGE], retry={"halt_after_consecutive_failures": 3})
    bare = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--")
    for services in _services():
        command = (*bare, *SERVE) if os.geteuid() == 0 else SERVE
        service = services.start(config, command=command).wait_started()
        yield Served(lake, service, config)
        assert service.stop() == 0
        service.assert_no_process_remains()
        assert service.log("defect") == []
        assert "Traceback" not in service.err
