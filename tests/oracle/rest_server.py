"""Paimon's own REST server for tests, run by a judge's JVM."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compactord.catalog.base import Catalog
from compactord.catalog.open import open_catalog
from tests.oracle.contest import PROGRAM, Contest
from tests.oracle.judge_jar import rest_jars
from tests.oracle.judge_jvm import JAVA_OPTIONS, JudgeJvm

_SERVER = Path(__file__).with_name("RestServer.java")
_WAREHOUSE, _PREFIX, TOKEN = "the lake", "a prefix", "hunter2"


@contextlib.contextmanager
def java_with_rest() -> Iterator[JudgeJvm]:
    """A JVM that has the server and a writer; `JudgeJarError` where its jars cannot be had."""
    jvm = JudgeJvm(time_zone="UTC", java_options=JAVA_OPTIONS, jars=rest_jars())
    jvm.start()
    try:
        jvm.load(PROGRAM)
        jvm.load(_SERVER)
        yield jvm
    finally:
        jvm.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class RestServer:
    """A server that runs. `options` are those of a client's catalog."""

    java: JudgeJvm
    uri: str
    options: Mapping[str, str]

    @property
    def java_options(self) -> dict[str, str]:
        return {"metastore": "rest", "warehouse": _WAREHOUSE, **self.options}

    def catalog(self, **more: str) -> Catalog:
        options = {**self.options, **more}
        return open_catalog(_WAREHOUSE, metastore="rest", options=options, allow_schemes=["file"])

    def contest(self, *, commits: int) -> Contest:
        users = ["java-1", "java-2"]
        return Contest(java=self.java, options=self.java_options, users=users, commits=commits)

    def tell(self, method: str, **arguments: object) -> Any:
        return self.java.call("RestServer", method, arguments)

    def create_table(self, name: str, **options: str) -> None:
        """db.`name` with the columns k, v and p, by which it is partitioned."""
        options = {"bucket": "-1", "write-only": "true", **options}
        self.tell("createTable", catalog=self.java_options, name=name, options=options)

    def write(self, name: str, rows: Sequence[Sequence[object]]) -> None:
        """A commit, and a file, for each row [k, v, p]."""
        self.tell("write", catalog=self.java_options, name=name, rows=rows)

    def newest(self, table: str) -> dict[str, Any]:
        """What the server says of the newest snapshot of db.`table`."""
        url = f"{self.uri}v1/a+prefix/databases/db/tables/{table}/snapshot"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request) as answer:
            found: dict[str, Any] = json.load(answer)["snapshot"]
        return found


@contextlib.contextmanager
def rest_server(java: JudgeJvm, path: Path) -> Iterator[RestServer]:
    """A server whose tables lie below `path`."""
    arguments = {
        "path": str(path),
        "token": TOKEN,
        "warehouse": _WAREHOUSE,
        "defaults": {"prefix": _PREFIX},
        "overrides": {},
    }
    uri = java.call("RestServer", "start", arguments)
    options = {"uri": uri, "token.provider": "bear", "token": TOKEN}
    try:
        yield RestServer(java=java, uri=uri, options=options)
    finally:
        java.call("RestServer", "stop", {})
