"""A compaction in S3 with Spark: the keys stand in no log, page, event log or command line."""

from __future__ import annotations

import contextlib
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import builders
from tests.databases import sqlite_database
from tests.e2e.command import Command, Commands
from tests.store_servers import ACCESS_KEY, SECRET_KEY, StoreServer, free_port, s3
from tests.tools.store_faults import Fault, Request
from tests.tools.store_proxy import StoreProxy

# Keys that stand nowhere by chance.
_ACCESS, _SECRET = f"AKIA{ACCESS_KEY}3XAMPL3", f"{SECRET_KEY}/wJalrXUtnFEMI+bPx=="
_PAGES = (
    "/jobs/",
    "/stages/",
    "/environment/",
    "/executors/",
    "/api/v1/applications",
    "/api/v1/applications/{id}/environment",
    "/api/v1/applications/{id}/allexecutors",
    "/api/v1/applications/{id}/jobs",
)


class _Gate:
    """Holds the first upload of a data file until it is opened."""

    def __init__(self) -> None:
        self.reached, self._is_open = threading.Event(), threading.Event()

    def __call__(self, request: Request) -> Fault | None:
        if request.is_mutation and "/data-" in request.target and not self.reached.is_set():
            self.reached.set()
            self._is_open.wait(60)
        return None

    def open(self) -> None:
        self._is_open.set()


@pytest.mark.spark
def test_no_key_is_shown_while_spark_compacts_and_afterwards(
    commands: Commands, started: Callable[[str], StoreServer], tmp_path: Path
) -> None:
    moto = started("moto")
    storage, warehouse = moto.spec.open(), f"{moto.root}/secrets"
    table = builders.keyed_table(storage, f"{warehouse}/db.db/t")
    rows = builders.fill_keyed(builders.writer(storage, table), commits=6)
    gate, port = _Gate(), free_port()
    (tmp_path / "events").mkdir()
    with StoreProxy(("127.0.0.1", moto.port)) as proxy:
        proxy.fail(gate)
        config = tmp_path / "compactord.yaml"
        config.write_text(_configuration(warehouse, s3(proxy.port), tmp_path))
        command = commands.start(
            *("compact", "--config", str(config), "--table", "db.t", "--verbose"),
            *("--spark-conf", "spark.ui.enabled=true", "--spark-conf", f"spark.ui.port={port}"),
            *("--spark-conf", "spark.eventLog.enabled=true"),
            *("--spark-conf", "spark.eventLog.compress=false"),
            *("--spark-conf", f"spark.eventLog.dir=file://{tmp_path}/events"),
            environment={"LAKE_SECRET": _SECRET},
        )
        command.wait_until(gate.reached.is_set, "a worker uploads")
        try:
            shown = dict(_pages(port)) | dict(_command_lines(command))
        finally:
            gate.open()
        outcome = command.outcome()
    assert outcome.code == 0, outcome.err
    assert builders.read_keyed(storage, table) == rows
    logs = {
        str(path): path.read_text()
        for path in (tmp_path / "events").rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
    assert any("spark.ui.port" in text for text in logs.values()), "events are logged"
    assert "spark.ui.port" in shown["/api/v1/applications/{id}/environment"]
    shown |= logs | {"out": outcome.out, "err": outcome.err}
    assert not _showing(shown)


def test_no_key_is_shown_when_the_store_refuses_it(
    commands: Commands, started: Callable[[str], StoreServer], tmp_path: Path
) -> None:
    minio = started("minio")
    config = tmp_path / "compactord.yaml"
    config.write_text(_configuration(f"{minio.root}/secrets", minio, tmp_path))
    command = commands.start(
        *("compact", "--config", str(config), "--table", "db.t", "--verbose"),
        environment={"LAKE_SECRET": _SECRET},
    )
    outcome = command.outcome()
    assert outcome.code == os.EX_NOPERM
    assert "InvalidAccessKeyId" in outcome.err
    assert not _showing({"out": outcome.out, "err": outcome.err})


def _configuration(warehouse: str, server: StoreServer, folder: Path) -> str:
    """One key is a reference, the other stands there."""
    return f"""\
catalogs:
  lake:
    metastore: jdbc
    warehouse: {warehouse}
    options:
      uri: "{sqlite_database(folder / "c.db", ["db.t"])}"
      s3.endpoint: "{server.options["s3.endpoint"]}"
      s3.access-key: {_ACCESS}
      s3.secret-key: ${{env:LAKE_SECRET}}
      s3.path.style.access: "true"
"""


def _pages(port: int) -> Iterator[tuple[str, str]]:
    base, name = f"http://127.0.0.1:{port}", ""
    for page in _PAGES:
        with contextlib.suppress(urllib.error.HTTPError):
            with urllib.request.urlopen(base + page.format(id=name), timeout=180) as answer:
                text = answer.read().decode()
            if page.endswith("/applications"):
                name = text.split('"id" : "')[1].split('"')[0]
            yield page, text


def _command_lines(command: Command) -> Iterator[tuple[str, str]]:
    for pid in (command.pid, *command.family()):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield f"command line of {pid}", Path(f"/proc/{pid}/cmdline").read_text()


def _showing(texts: dict[str, str]) -> list[str]:
    return [what for what, text in texts.items() for key in (_ACCESS, _SECRET) if key in text]
