"""Resources that are dear enough to be shared by all tests of a run."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from compactord.engine.base import PooledEngine
from compactord.engine.spark import start_spark
from tests.tools.class_archive import archive_options

REPOSITORY = Path(__file__).parent.parent
# Their tests start whole programs, which have sessions of Spark, and share some of them.
_ONE_WORKER = ("browser", "e2e", "service")
# They run alone.
_BY_MODULE = ("bench", "deploy", "spark")
# What their tests share is dear to make: one worker runs each of these modules.
_SHARING = ("test_compact_copied", "test_hdfs", "test_releases", "test_s3", "test_storage_faults")

# On a crowded machine everything is slow.
settings.register_profile("crowded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("crowded")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of parallel workers, one runs all tests of such a folder, beginning with the largest.

    Folders with a target of their own are divided by modules.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types here
        def _split_scope(self, nodeid: str) -> str:
            folder = nodeid.split("/")[1]
            module = nodeid.split("::")[0]
            shares = module.endswith(tuple(f"/{name}.py" for name in _SHARING))
            if shares or folder in _BY_MODULE:
                return module
            return folder if folder in _ONE_WORKER else nodeid

    return ByFolder(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Short ones come last, so that no worker is still at a long one when the others have ended."""
    items.sort(key=lambda item: "unit" in item.path.parts)


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


@pytest.fixture(scope="session")
def spark_engine() -> Iterator[PooledEngine]:
    """The one embedded Spark of this process; its workers can import the tests' storage doubles."""
    conf = {"spark.executorEnv.PYTHONPATH": str(REPOSITORY)}
    with start_spark("local[2]", conf) as engine:
        yield engine


def pytest_configure() -> None:
    """What all programs inherit that tests start."""
    # A shell's background job ignores it, and so would the programs that tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if options := archive_options():
        os.environ.setdefault("SPARK_SUBMIT_OPTS", options)
