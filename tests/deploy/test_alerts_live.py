"""A real Prometheus watches a real daemon: alerts fire, clear, and every panel shows something.

The rules are those that are shipped, but for their patience: `for` is two seconds.
"""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from compactord import ids
from compactord.clock import SystemClock
from compactord.paimon.schema import TableRef
from compactord.storage.local import LocalStorage
from compactord_demo.writer import WriteOnlyWriter, create_table
from tests import builders
from tests.deploy.prometheus import RULES, Prometheus, free_port, running_prometheus
from tests.deploy.test_dashboard import filled_in, queries
from tests.e2e.command import Command, Commands

pytestmark = [pytest.mark.tools, pytest.mark.spark]

SECONDS_MAX = 180.0
HELD_BACK = {
    "CompactordBacklogOld",
    "CompactordRunsNearStopTrigger",
    "CompactordRunsOverStopTrigger",
}
PAUSED = {"CompactordTablePaused"}
# A table with a feature that is refused.
ALWAYS = {"CompactordTableHalted"}
_AS_SHIPPED: Mapping[str, str] = {}
STEPS = {"$__rate_interval": "20s", "$__range": "2m"}
# Panels that have nothing to show of a service that is well, and why.
MAY_BE_EMPTY = {
    "Quarantined buckets": "no bucket is damaged",
    "Blocked work": "no table with due work is halted",
}


@dataclass
class Story:
    """What was seen: alerts that fired in each act, and which panels' queries had no answer."""

    while_paused: set[str] = field(default_factory=set)
    while_held_back: set[str] = field(default_factory=set)
    annotations: dict[str, dict[str, str]] = field(default_factory=dict)
    after_letting_go: set[str] = field(default_factory=set)
    with_a_bad_configuration: set[str] = field(default_factory=set)
    once_mended: set[str] = field(default_factory=set)
    after_the_end: set[str] = field(default_factory=set)
    unanswered: dict[str, str] = field(default_factory=dict)


class Lake:
    """A warehouse with writers: a table with primary key, an append table, a refused one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._storage = LocalStorage()
        expiring = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "5"}
        base = {"write-only": "true", "continuous.discovery-interval": "1 s", **expiring}
        served = [
            self._table("orders", ["k"], {**base, "bucket": "2"}),
            self._table("clicks", [], {**base, "bucket": "-1"}),
        ]
        self._table("totals", ["k"], {**base, "bucket": "1", "row-tracking.enabled": "true"})
        me, clock = ids.this_process(), SystemClock()
        self._writers = [
            WriteOnlyWriter(self._storage, table, owner=me, clock=clock) for table in served
        ]
        self._batches = 0

    def _table(self, name: str, keys: list[str], options: dict[str, str]) -> TableRef:
        table = TableRef(database="db", name=name, location=f"{self.root}/db.db/{name}")
        create_table(self._storage, table, builders.FIELDS, primary_keys=keys, options=options)
        return table

    def write(self) -> None:
        """One commit to each table that can be compacted."""
        self._batches += 1
        for writer in self._writers:
            writer.write(builders.rows_of([(k, self._batches) for k in range(200)]))


class Service:
    """The daemon and its configuration file."""

    def __init__(self, folder: Path, lake: Lake) -> None:
        self.port = free_port()
        self.path = folder / "compactord.yaml"
        self._lake = lake
        self.configure(mode="paused")

    def configure(self, **defaults: object) -> None:
        """Put these settings of all tables into effect."""
        new = self.path.with_suffix(".new")
        new.write_text(
            yaml.safe_dump(
                {
                    "service": {"http": {"bind": "127.0.0.1", "port": self.port}},
                    "spark": {"master": "local[2]"},
                    "catalogs": {"lake": {"warehouse": str(self._lake.root)}},
                    "discovery": {"catalog_list_interval": "2 s"},
                    "defaults": {"max_backlog_age": "3 s", **defaults},
                    "reload": {"interval": "1 s"},
                    "log": {"format": "json"},
                }
            )
        )
        new.replace(self.path)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.port}{path}", timeout=SECONDS_MAX
        ) as reply:
            return json.load(reply)

    def is_up(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.get("/readyz")["status"] == "ok")
        return False


def impatient_rules(ranges: Mapping[str, str]) -> str:
    """The shipped rules, alerting two seconds after what they wait for, with other `ranges`."""
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = "2s"
            for usual, short in ranges.items():
                rule["expr"] = rule["expr"].replace(f"[{usual}]", f"[{short}]")
    return yaml.safe_dump(rules)


def prometheus_config(folder: Path, port: int, ranges: Mapping[str, str] = _AS_SHIPPED) -> str:
    (folder / "rules.yaml").write_text(impatient_rules(ranges))
    return yaml.safe_dump(
        {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(folder / "rules.yaml")],
            "scrape_configs": [
                {
                    "job_name": "compactord",
                    "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
                }
            ],
        }
    )


def wait_until(condition: Callable[[], bool], what: str, daemon: Command) -> None:
    """Raises TimeoutError; meanwhile it remembers which processes the daemon starts."""
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        daemon.family()
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {SECONDS_MAX:.0f} s: {what}")
        time.sleep(0.2)


@contextlib.contextmanager
def writing(lake: Lake) -> Iterator[None]:
    """Two commits a second to each table meanwhile."""
    is_over = threading.Event()

    def write() -> None:
        while not is_over.wait(0.5):
            lake.write()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        is_over.set()
        writer.join()


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    with tempfile.TemporaryDirectory(prefix="c-") as scratch:
        folder = Path(scratch)
        (folder / "tmp").mkdir()
        lake = Lake(folder / "warehouse")
        service = Service(folder, lake)
        started: list[Command] = []
        commands = Commands(folder / "tmp", started)
        with (
            (folder / "daemon.log").open("w") as log,
            running_prometheus(folder, prometheus_config(folder, service.port)) as prometheus,
        ):
            daemon = commands.start("serve", "--config", str(service.path), stdout=log, stderr=log)
            try:
                yield play(lake, service, daemon, prometheus)
            finally:
                daemon.kill_family()


def play(lake: Lake, service: Service, daemon: Command, prometheus: Prometheus) -> Story:
    seen = Story()
    for _ in range(12):
        lake.write()
    wait_until(service.is_up, "the daemon is ready", daemon)
    # Those of a Spark that takes its time to start may have fired; they end by themselves.
    wait_until(lambda: prometheus.firing() == PAUSED | ALWAYS, "paused, it is told", daemon)
    seen.while_paused = prometheus.firing()

    service.configure(windows=[{"days": far_day()}], windows_strict=True)
    wait_until(lambda: prometheus.firing() == HELD_BACK | ALWAYS, "held back, alerts fire", daemon)
    seen.while_held_back = prometheus.firing()
    for alert in prometheus.get("alerts")["alerts"]:
        seen.annotations[alert["labels"]["alertname"]] = alert["annotations"]

    service.configure()
    wait_until(lambda: not prometheus.firing() & HELD_BACK, "let go, alerts clear", daemon)
    seen.after_letting_go = prometheus.firing()

    refused = "CompactordConfigReloadFailed"
    service.configure(mode="automatic")
    wait_until(lambda: refused in prometheus.firing(), "a bad configuration alerts", daemon)
    seen.with_a_bad_configuration = prometheus.firing()
    service.configure()
    wait_until(lambda: refused not in prometheus.firing(), "a good one ends that", daemon)
    seen.once_mended = prometheus.firing()

    with writing(lake), contextlib.suppress(TimeoutError):
        wait_until(lambda: not unanswered(prometheus), "every panel shows something", daemon)
    seen.unanswered = unanswered(prometheus)

    daemon.kill_family()
    wait_until(
        lambda: prometheus.firing() == {"CompactordDown"}, "killed, it counts as down", daemon
    )
    seen.after_the_end = prometheus.firing()
    return seen


def far_day() -> str:
    """A day of the week that is not today, tomorrow or yesterday, in any zone."""
    days = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
    return days[(datetime.now().astimezone().weekday() + 3) % 7]


def unanswered(prometheus: Prometheus) -> dict[str, str]:
    """Queries of panels without a single number, by title; NaN is none."""
    return {
        title: expression
        for title, expression, _ in queries()
        if title not in MAY_BE_EMPTY
        and all(math.isnan(value) for _, value in prometheus.samples(filled_in(expression, STEPS)))
    }


def test_a_pause_is_told_and_nothing_that_follows_from_it(story: Story) -> None:
    assert story.while_paused == PAUSED | ALWAYS


def test_alerts_fire_while_compaction_is_held_back(story: Story) -> None:
    assert story.while_held_back == HELD_BACK | ALWAYS
    near = story.annotations["CompactordRunsNearStopTrigger"]
    assert near["summary"] == "lake.db.orders is close to its stop trigger."
    assert near["description"].startswith("A bucket has had 12 sorted runs")
    halted = story.annotations["CompactordTableHalted"]
    assert halted["summary"] == "lake.db.totals cannot be compacted."


def test_alerts_clear_once_it_is_let_go(story: Story) -> None:
    assert story.after_letting_go == ALWAYS


def test_a_bad_configuration_alerts_until_it_is_mended(story: Story) -> None:
    assert story.with_a_bad_configuration == ALWAYS | {"CompactordConfigReloadFailed"}
    assert story.once_mended == ALWAYS


def test_a_daemon_that_was_killed_counts_as_down_and_as_nothing_else(story: Story) -> None:
    assert story.after_the_end == {"CompactordDown"}


def test_every_panel_shows_something_of_a_service_at_work(story: Story) -> None:
    assert story.unanswered == {}
    assert set(MAY_BE_EMPTY) <= {title for title, _, _ in queries()}
