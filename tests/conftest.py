"""Resources that are dear enough to be shared by all tests of a run."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from compactord.engine.base import PooledEngine
from compactord.engine.spark import start_spark
from tests import sampling, scheduling
from tests.oracle.judge import Judge
from tests.sampling import CutPoints
from tests.store_servers import SERVERS, StoreServer
from tests.tools.class_archive import archive_options
from tests.tools.workbench import ToolError

REPOSITORY = Path(__file__).parent.parent
# On a crowded machine everything is slow.
settings.register_profile("crowded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("crowded")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--renew-durations", action="store_true", help="rewrite tests/durations.json from this run"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return scheduling.scheduler(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:], left_out = sampling.divide(items)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    if hasattr(config, "workerinput"):
        scheduling.sort(items)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Commands that run in this process set up logging, and pytest listens to such loggers."""
    names = (None, "compactord", "py4j", "pyspark", "apscheduler", "waitress")
    levels = {name: logging.getLogger(name).level for name in names}
    handlers = {name: list(logging.getLogger(name).handlers) for name in names}
    propagates = logging.getLogger("compactord").propagate
    structure = structlog.get_config()
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
        logging.getLogger(name).handlers[:] = handlers[name]
    logging.getLogger("compactord").propagate = propagates
    structlog.configure(**structure)


@pytest.fixture
def cut_points(request: pytest.FixtureRequest) -> CutPoints:
    return CutPoints(request.node.nodeid)


@pytest.fixture(scope="session")
def spark_engine() -> Iterator[PooledEngine]:
    """The one embedded Spark of this process; its workers can import the tests' storage doubles."""
    conf = {"spark.executorEnv.PYTHONPATH": str(REPOSITORY)}
    with start_spark("local[2]", conf) as engine:
        yield engine


@pytest.fixture(scope="session")
def started() -> Iterator[Callable[[str], StoreServer]]:
    """Starts a server of a store by its name, once; the test is skipped where it cannot be had."""
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
def judge() -> Iterator[Judge]:
    """The one JVM of this process with Java Paimon."""
    with Judge() as judge:
        yield judge


def pytest_configure(config: pytest.Config) -> None:
    """Sets up what all programs inherit that tests start."""
    if config.getoption("--renew-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(scheduling.Durations())
    # A shell's background job ignores it, and so would the programs that tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if options := archive_options():
        os.environ.setdefault("SPARK_SUBMIT_OPTS", options)
