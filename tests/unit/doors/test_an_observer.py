"""An observer is one class and one line of a registry; it cannot delay or end the work."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from compactord.cli.command import main
from compactord.maintenance.registry import maintenance_kinds
from compactord.model import TableName
from compactord.scheduler.events import Event, PollFailed
from compactord.service.logs import EVENTS_MAX, ObserverThread
from compactord.service.metrics import Metrics
from tests import builders
from tests.unit.cli.warehouses import LOCAL, configuration
from tests.unit.doors.command import registered
from tests.unit.service.test_wall_clock import Running

_EVENT = PollFailed(name=TableName("lake", "db", "t"), message="no")


class Remembers:
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_event(self, event: Event) -> None:
        self.events.append(type(event).__name__)


class Fails:
    def on_event(self, event: Event) -> None:
        raise ValueError("no room")


class Hangs:
    """Until `goes_on` is set."""

    def __init__(self) -> None:
        self.has_begun, self.goes_on = threading.Event(), threading.Event()

    def on_event(self, event: Event) -> None:
        self.has_begun.set()
        self.goes_on.wait()


def test_a_command_calls_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = builders.keyed_table(LOCAL, f"{tmp_path}/wh/db.db/t", buckets=1)
    builders.fill_keyed(builders.writer(LOCAL, table), commits=6)
    config = configuration(tmp_path, "catalogs: {lake: {warehouse: WH}}\n")
    toy = Remembers()
    assert main(["compact", "--all", "--config", config], registered(observers=(Fails(), toy))) == 0
    assert {"CompactionStarted", "SnapshotCommitted", "EndedCompaction"} <= set(toy.events)
    assert "ValueError: no room" in capsys.readouterr().err


def test_the_daemon_calls_it_and_another_that_fails_or_hangs_costs_nothing(tmp_path: Path) -> None:
    toy, hanging = Remembers(), Hangs()
    with Running(tmp_path, maintenance_kinds, toy, Fails(), hanging) as running:
        for _ in range(6):
            running.second()
        committed = running.scheduled.counters.commits_committed
    assert toy.events.count("SnapshotCommitted") == committed > 0
    scraped = b"".join(running.metrics.expose(running.daemon.view())[0]).decode()
    for name in (Fails, Hangs):
        dropped = float(len(toy.events))
        line = f'compactord_events_dropped_total{{observer="{name.__name__}"}} {dropped}'
        assert line in scraped
    assert 'observer="Remembers"' not in scraped
    hanging.goes_on.set()


def test_events_beyond_the_limit_are_dropped_and_counted() -> None:
    hanging, metrics = Hangs(), Metrics()
    thread = ObserverThread(hanging, metrics)
    thread.on_event(_EVENT)
    assert hanging.has_begun.wait(60)
    for _ in range(EVENTS_MAX + 3):
        thread.on_event(_EVENT)
    hanging.goes_on.set()
    thread.close()
    (dropped,) = metrics.events_dropped.collect()
    assert {(each.labels["observer"], each.value) for each in dropped.samples} == {("Hangs", 3)}
