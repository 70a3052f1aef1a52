"""A Prometheus of its own for tests, and what its parser says of an expression."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import parser

from tests.tools.obtain import tool_path
from tests.unit.service.test_metrics import everything

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "compactord.rules.yaml"
# What Prometheus itself puts on every series of a target, and on what it makes of rules.
TARGET_LABELS = frozenset({"job", "instance", "namespace"})
SECONDS_MAX = 180.0

Json = Any


@dataclass(frozen=True, slots=True)
class Selector:
    """A name with matchers, as written somewhere in an expression."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Exposed:
    """Names with the labels, and labels with the values, that an expression may speak of."""

    labels: Mapping[str, frozenset[str]]
    values: Mapping[tuple[str, str], frozenset[str]]

    @classmethod
    def everything(cls) -> Exposed:
        """All that the service exposes when everything has happened to it, and `up`."""
        labels: dict[str, set[str]] = {"up": set()}
        values: dict[tuple[str, str], set[str]] = {("up", "job"): {"compactord"}}
        for family in parser.text_string_to_metric_families(everything()):
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
                for label, value in sample.labels.items():
                    values.setdefault((sample.name, label), set()).add(value)
        return cls(
            {name: frozenset(found) | TARGET_LABELS for name, found in labels.items()},
            {key: frozenset(found) for key, found in values.items()},
        )

    def strangers(self, ast: Json) -> list[str]:
        """What an expression names and nobody exposes: metrics, labels, values of closed lists."""
        found = []
        for selector in selectors(ast):
            known = self.labels.get(selector.name)
            if known is None:
                found.append(selector.name)
                continue
            for label, kind, value in selector.matchers:
                if label not in known:
                    found.append(f"{selector.name}{{{label}}}")
                elif kind in ("=", "!=") and not self._occurs(selector.name, label, value):
                    found.append(f"{selector.name}{{{label}={value}}}")
        for node in _nodes(ast):
            if node["type"] == "aggregation":
                below = {"le"}.union(*(self.labels.get(s.name, ()) for s in selectors(node)))
                found += [f"by {label}" for label in node["grouping"] if label not in below]
        return found

    def _occurs(self, name: str, label: str, value: str) -> bool:
        known = self.values.get((name, label))
        return value in known if known is not None else label in TARGET_LABELS

    def labels_of(self, ast: Json) -> frozenset[str]:
        """The labels of the result; of a binary operation, those of its first vector."""
        match ast["type"]:
            case "vectorSelector":
                return self.labels[ast["name"]]
            case "matrixSelector":
                return self.labels[ast["name"]]
            case "aggregation":
                if ast["op"] in ("topk", "bottomk"):
                    return self.labels_of(ast["expr"])
                grouping = frozenset(ast["grouping"])
                below = self.labels_of(ast["expr"])
                return below - grouping if ast["without"] else below & (grouping | {"le"})
            case "parenExpr" | "unaryExpr" | "subquery":
                return self.labels_of(ast["expr"])
            case "binaryExpr":
                return self.labels_of(ast["lhs"]) or self.labels_of(ast["rhs"])
            case "call":
                if ast["func"]["name"] == "absent":
                    return frozenset()
                return frozenset[str]().union(*(self.labels_of(arg) for arg in ast["args"]))
            case _:
                return frozenset()


def selectors(ast: Json) -> list[Selector]:
    """All of them, in the order of the text."""
    return [
        Selector(
            node["name"],
            tuple(
                (matcher["name"], matcher["type"], matcher["value"])
                for matcher in node["matchers"]
                if matcher["name"] != "__name__"
            ),
        )
        for node in _nodes(ast)
        if node["type"] in ("vectorSelector", "matrixSelector")
    ]


def _nodes(ast: Json) -> Iterator[Json]:
    if isinstance(ast, dict) and isinstance(ast.get("type"), str) and "value" not in ast:
        yield ast
    if isinstance(ast, dict | list):
        for child in ast.values() if isinstance(ast, dict) else ast:
            yield from _nodes(child)


class Prometheus:
    """A running one; `folder` holds its data and its log."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.process = process
        self.url = url

    def get(self, path: str, **query: str) -> Json:
        """The `data` of an answer of its API."""
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=SECONDS_MAX) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode()
            raise AssertionError(f"{query}: {text}") from error

    def parse(self, expression: str) -> Json:
        """The expression as a tree; AssertionError when it is none."""
        return self.get("parse_query", query=expression)

    def samples(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series, now."""
        found = self.get("query", query=expression)["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def firing(self) -> set[str]:
        """The names of alerts that fire."""
        alerts = self.get("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


@contextlib.contextmanager
def running_prometheus(folder: Path, config: str) -> Iterator[Prometheus]:
    """Raises ToolError when `make deploy-tools` has not been run."""
    program = tool_path("prometheus")
    path = folder / "prometheus.yml"
    path.write_text(config)
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={path}",
                f"--storage.tsdb.path={folder / 'prometheus-data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "GOMAXPROCS": "2"},
        )
    started = Prometheus(process, f"http://127.0.0.1:{port}")
    try:
        _wait_until_ready(started, folder / "prometheus.log")
        yield started
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS_MAX)


def _wait_until_ready(prometheus: Prometheus, log: Path) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{prometheus.url}/-/ready"):
            return
        ended = prometheus.process.poll() is not None
        assert not ended, log.read_text()[-2000:]
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def promtool(*arguments: str | Path, cwd: Path) -> str:
    """What it prints; AssertionError with that when it fails."""
    ended = subprocess.run(
        [tool_path("promtool"), *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
