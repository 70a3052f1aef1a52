"""Through a real Spark Connect server on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pyspark
import pytest

from compactord.engine.jvm import find_java
from compactord.errors import EngineUnavailable
from compactord.model import FailureKind, SubcompactionFailure, SubcompactionResult
from tests.spark.cluster import SPARK_HOME, doubles_zip, free_port, is_listening, worker_python
from tests.spark.remote import RemoteEngine, descendants
from tests.spark.subcompactions import (
    PATIENCE_SECONDS,
    DyingStorage,
    GatedStorage,
    append_subcompaction,
    eventually,
    outputs,
    waiting,
)

# Packages of its extra, and a server, which Spark 3 does not ship.
_HAS_CONNECT = find_spec("grpc") is not None and any(
    (SPARK_HOME / "jars").glob("spark-connect_*.jar")
)
pytestmark = pytest.mark.skipif(not _HAS_CONNECT, reason="no Spark Connect: run `make compat-4.1`")
SECRET = "s3same-wJalrXUtnFEMI"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("connect")
    java = find_java(pyspark.__version__, os.environ, folder)
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    doubles = f"import sys; sys.path.append({str(doubles_zip(folder))!r})"
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", "--class", SERVER]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    environment = os.environ | {
        "JAVA_HOME": str(java.home),
        "PYSPARK_PYTHON": str(worker_python(folder / "python", doubles)),
        "SPARK_LOCAL_HOSTNAME": "localhost",
    }
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "spark-internal"], env=environment, stdout=log, stderr=log, cwd=folder
        )
    try:
        eventually(lambda: is_listening(port), "the server listens")
        yield f"sc://127.0.0.1:{port}"
    finally:
        for pid in (*descendants(process.pid), process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def engine(server: str) -> Iterator[RemoteEngine]:
    with RemoteEngine(server, {}) as engine:
        yield engine


def test_subcompactions_travel_through_connect(engine: RemoteEngine, tmp_path: Path) -> None:
    for number in range(3):
        engine.submit(append_subcompaction(tmp_path, number))
    outcomes = [engine.next_outcome(PATIENCE_SECONDS) for _ in range(3)]
    assert sorted(o.index for o in outcomes if isinstance(o, SubcompactionResult)) == [0, 1, 2]


def test_a_killed_worker_is_a_lost_subcompaction(engine: RemoteEngine, tmp_path: Path) -> None:
    engine.submit(append_subcompaction(tmp_path, 0, DyingStorage()))
    outcome = engine.next_outcome(PATIENCE_SECONDS)
    assert isinstance(outcome, SubcompactionFailure)
    assert outcome.kind is FailureKind.LOST
    assert "at org.apache" not in outcome.message


def test_cancelled_subcompactions_are_lost(engine: RemoteEngine, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    engine.submit(append_subcompaction(tmp_path, 0, GatedStorage(gate=str(gate))))
    with waiting(gate, 1):
        engine.cancel()
        outcome = engine.next_outcome(PATIENCE_SECONDS)
    assert isinstance(outcome, SubcompactionFailure)
    assert (outcome.kind, outcome.error) == (FailureKind.LOST, "Cancelled")
    engine.submit(append_subcompaction(tmp_path, 1))
    assert isinstance(engine.next_outcome(PATIENCE_SECONDS), SubcompactionResult)
    assert [name for name in outputs(tmp_path) if name]


def test_one_of_several_is_cancelled(engine: RemoteEngine, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    for number in range(2):
        engine.submit(append_subcompaction(tmp_path, number, GatedStorage(gate=str(gate))))
    with waiting(gate, 2):
        engine.cancel_one(7, 1)
        lost = engine.next_outcome(PATIENCE_SECONDS)
    assert isinstance(lost, SubcompactionFailure)
    assert (lost.index, lost.kind, lost.error) == (1, FailureKind.LOST, "Cancelled")
    other = engine.next_outcome(PATIENCE_SECONDS)
    assert isinstance(other, SubcompactionResult)
    assert other.index == 0


def test_a_server_that_is_not_there_is_unavailable() -> None:
    port = free_port()
    with pytest.raises(EngineUnavailable, match="did not answer") as raised:
        RemoteEngine(f"sc://127.0.0.1:{port}/;token={SECRET}", {}, start_seconds_max=5.0)
    assert f"sc://127.0.0.1:{port}/;***" in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("parameters", "conf"),
    [
        pytest.param(f"token={SECRET};{SECRET}", {}, id="address"),
        pytest.param("", {"spark.sql.shuffle.partitions": f"secret={SECRET}"}, id="setting"),
    ],
)
def test_what_a_server_refuses_is_said_without_secrets(
    server: str, parameters: str, conf: dict[str, str]
) -> None:
    with pytest.raises(EngineUnavailable, match=r"did not answer: .+") as raised:
        RemoteEngine(f"{server}/;{parameters}".removesuffix("/;"), conf)
    assert SECRET not in str(raised.value)
