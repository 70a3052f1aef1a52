"""What the loop itself owes to others, on a clock that stands still."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from compactord.engine.inline import InlineEngine
from compactord.service import probes
from compactord.service.daemon import Daemon
from compactord.service.metrics import Metrics
from compactord.storage.local import LocalStorage
from tests.builders import FIRST, NOW_MS, VirtualClock
from tests.unit.config.files import load


class _Told(Metrics):
    """Calls `then` after each picture that the loop makes because a second has gone by."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Callable[[], None] = lambda: None

    def loop_ran(self, loop: str, seconds: float) -> None:
        super().loop_ran(loop, seconds)
        self.then()


def _daemon(folder: Path, metrics: Metrics) -> Daemon:
    loaded, clock = load(folder), VirtualClock()
    return Daemon(
        loaded,
        clock=clock,
        zone=clock.time_zone,
        owner=FIRST,
        open_warehouse=lambda _: (LocalStorage(), str(folder)),
        start_engine=InlineEngine,
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
