"""Resources that are dear enough to be shared by all tests of a run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactord.engine.pool import PooledEngine
from compactord.engine.spark import start_spark

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def spark_engine() -> Iterator[PooledEngine]:
    """The one embedded Spark of this process; its workers can import the tests' storage doubles."""
    conf = {"spark.executorEnv.PYTHONPATH": str(REPOSITORY)}
    with start_spark("local[2]", conf) as engine:
        yield engine


def pytest_configure() -> None:
    """A shell's background job ignores SIGINT, and so would the programs that tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
