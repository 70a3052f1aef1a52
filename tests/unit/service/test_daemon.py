"""What the loop itself owes to others, on a clock that stands still."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from structlog.testing import capture_logs

from compactord.catalog.filesystem import FilesystemCatalog
from compactord.engine.base import Engine
from compactord.engine.inline import InlineEngine
from compactord.errors import EngineUnavailable
from compactord.service import probes
from compactord.service.daemon import Daemon
from compactord.service.metrics import Metrics
from compactord.storage.local import LocalStorage
from tests.builders import FIRST, NOW_MS, VirtualClock
from tests.unit.config.files import load


class _Told(Metrics):
    """Calls `then` after each view that the loop makes because a second has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Callable[[], None] = lambda: None

    def loop_ran(self, loop: str, seconds: float) -> None:
        super().loop_ran(loop, seconds)
        self.then()


def _daemon(
    folder: Path,
    metrics: Metrics,
    *,
    clock: VirtualClock | None = None,
    start_engine: Callable[[], Engine] = InlineEngine,
) -> Daemon:
    loaded, clock = load(folder), clock or VirtualClock()
    return Daemon(
        loaded,
        clock=clock,
        zone=clock.time_zone,
        owner=FIRST,
        open_catalog=lambda _: FilesystemCatalog(LocalStorage(), str(folder)),
        start_engine=start_engine,
        reload=lambda: loaded,
        apply_logs=lambda _: None,
        metrics=metrics,
        instance="here",
    )


def test_readers_are_told_of_a_stop_at_once_and_not_with_the_next_second(tmp_path: Path) -> None:
    metrics = _Told()
    daemon = _daemon(tmp_path, metrics)
    metrics.then = daemon.stop
    assert daemon.run() == 0
    assert daemon.view().is_draining
    failed = probes.readiness(daemon.view(), NOW_MS).failed
    assert "draining" in [check.check for check in failed]


def test_a_start_that_is_given_up_says_what_it_waited_for(tmp_path: Path) -> None:
    def start_engine() -> Engine:
        time.sleep(0.5)
        raise EngineUnavailable("nobody asks any more")

    metrics, clock = _Told(), VirtualClock()
    metrics.then = lambda: clock.sleep(400)
    daemon = _daemon(tmp_path, metrics, clock=clock, start_engine=start_engine)
    with capture_logs() as events:
        assert daemon.run() == 69
    (failed,) = (event for event in events if event["event"] == "startup_failed")
    assert "Spark has not answered yet" in failed["reason"]
