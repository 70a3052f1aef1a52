"""The demo's steps: fill tables while the daemon runs, let it finish, compare the rows."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from compactord.clock import Clock
from compactord.ids import Owner
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import latest_snapshot_id, snapshot_ids
from compactord.storage.base import Storage
from compactord.text import count_text
from compactord.top.top import console_on
from compactord_demo.daemon import DaemonFailed, DaemonProcess
from compactord_demo.ingestion import Ingestion
from compactord_demo.jobs import SNAPSHOTS_KEPT, ClicksJob, Job, OrdersJob, Scene
from compactord_demo.observer import History, Observer
from compactord_demo.screen import Screen, screen_on
from compactord_demo.summary import committed, result_of, summary, verdict

# The daemon makes a view once a second.
_LOOK_S = 0.5
# A slow machine may need longer than the ingestion for its first compaction.
_COMPACTION_S = 60.0
_IDLE_S = 180.0
# Expiry runs every ten seconds, but a busy machine may take several rounds.
_EXPIRY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The location of the demo's tables.

    `section` is their catalog in the daemon's configuration; `register` adds tables to it.
    `next_step` tells the user what to run after the demo.
    """

    storage: Storage
    warehouse: str
    section: Mapping[str, object]
    register: Callable[[Sequence[TableRef]], None]
    next_step: str


def run(
    place: Place,
    *,
    seconds: float,
    owner: Owner,
    clock: Clock,
    stop: threading.Event,
    backlog_commits: int = 0,
) -> bool:
    """Ingest for `seconds` while a daemon runs, and longer until it has compacted both tables.

    Returns whether it compacted them and their rows are those ingested. `stop` ends it early.

    Each job makes `backlog_commits` more commits after the daemon has ended; they stay uncompacted.

    Prints to stdout, errors to stderr. Raises `CompactordError` if a job fails.
    """
    console = console_on(sys.stdout)
    scene = Scene(storage=place.storage, warehouse=place.warehouse, owner=owner, clock=clock)
    jobs = (OrdersJob(scene), ClicksJob(scene))
    place.register([job.table for job in jobs])
    show = _Show(place.storage, jobs, console, clock, stop)
    try:
        with tempfile.TemporaryDirectory(prefix="compactord-daemon-") as folder:
            show.play(Path(folder), place, seconds)
        if not stop.is_set():
            show.leave_backlog(backlog_commits)
    except DaemonFailed as failed:
        Console(stderr=True, highlight=False).out(f"compactord: {failed}", highlight=False)
        return False
    if stop.is_set():
        console.out("stopped", highlight=False)
        return False
    return show.sum_up(place.next_step)


class _Show:
    def __init__(
        self,
        storage: Storage,
        jobs: Sequence[Job],
        console: Console,
        clock: Clock,
        stop: threading.Event,
    ) -> None:
        self._storage = storage
        self._jobs = jobs
        self._console = console
        self._clock = clock
        self._stop = stop
        self._observer = Observer()
        self._ingestion = Ingestion(jobs, clock)
        self._is_told = False

    def play(self, folder: Path, place: Place, seconds: float) -> None:
        """Run until the daemon has ended, or until `stop` is set. Raises `DaemonFailed`."""
        names = [job.table.full_name for job in self._jobs]
        self._console.out(f"warehouse {place.warehouse}", highlight=False)
        self._console.out(f"write-only jobs fill {' and '.join(names)}", highlight=False)
        start_s = self._clock.monotonic_s()
        with (
            DaemonProcess(folder, place.section, [job.table for job in self._jobs]) as daemon,
            screen_on(self._console, names, start_s) as screen,
        ):
            self._wait_until_started(daemon, screen)
            with self._ingestion:
                self._ingest(daemon, screen, self._clock.monotonic_s() + seconds)
            self._wait_until_idle(daemon, screen)
            if not self._stop.is_set():
                screen.show(
                    self._observer, self._told("the daemon ends"), self._clock.monotonic_s()
                )
                daemon.stop()

    def leave_backlog(self, commits: int) -> None:
        """Let the jobs commit without a running daemon."""
        self._ingestion.add(commits)
        if commits:
            self._console.out(
                f"{count_text(commits, 'more commit')}, not compacted", highlight=False
            )

    def sum_up(self, next_step: str) -> bool:
        """Read the tables and print the results."""
        results = [
            result_of(
                self._storage,
                job,
                self._ingestion.tallies[job.table.full_name],
                self._observer.counters(job.table.full_name),
                self._observer.histories.get(job.table.full_name, History()),
            )
            for job in self._jobs
        ]
        self._console.print()
        self._console.print(summary(results))
        self._console.print()
        said, went_well = verdict(results, next_step)
        self._console.out(said, highlight=False)
        return went_well

    def _wait_until_started(self, daemon: DaemonProcess, screen: Screen) -> None:
        """Wait for the engine. The daemon ends by itself if that takes too long."""
        while not self._observer.is_started and not self._stop.is_set():
            self._look(daemon, screen, "Spark is starting…")
            self._stop.wait(_LOOK_S)

    def _ingest(self, daemon: DaemonProcess, screen: Screen, end_s: float) -> None:
        while not self._stop.is_set():
            left_s = end_s - self._clock.monotonic_s()
            if left_s > 0:
                self._look(daemon, screen, f"ingestion for {left_s:.0f} s more")
            elif left_s > -_COMPACTION_S and not self._are_compacted():
                self._look(daemon, screen, "ingestion until both tables are compacted")
            else:
                self._ingestion.end()
                return
            self._ingestion.check()
            self._stop.wait(_LOOK_S)

    def _are_compacted(self) -> bool:
        return all(committed(self._observer.counters(job.table.full_name)) for job in self._jobs)

    def _wait_until_idle(self, daemon: DaemonProcess, screen: Screen) -> None:
        """Wait until no work is due, and a little longer for snapshots to expire."""
        start_s = self._clock.monotonic_s()
        while not self._stop.is_set():
            waited_s = self._clock.monotonic_s() - start_s
            if self._observer.is_idle_at(self._newest()):
                if waited_s > _EXPIRY_S or self._has_expired():
                    return
                self._look(daemon, screen, "snapshots expire")
            elif waited_s > _IDLE_S:
                why = "; ".join(self._observer.troubles()) or "merges take too long"
                raise DaemonFailed(
                    f"work was still due {_IDLE_S:.0f} s after the last commit: {why}\n"
                    f"{daemon.tail()}"
                )
            else:
                self._look(daemon, screen, "ingestion has ended; work is still due")
            self._stop.wait(_LOOK_S)

    def _look(self, daemon: DaemonProcess, screen: Screen, phase: str) -> None:
        daemon.check()
        url = daemon.url
        if url is not None and not self._is_told:
            self._is_told = True
            self._console.out(f"compactord serve compacts them: {url}/", highlight=False)
        self._observer.observe(url)
        screen.show(self._observer, self._told(phase), self._clock.monotonic_s())

    def _told(self, phase: str) -> str:
        ingestion = self._ingestion
        commits = count_text(ingestion.commits, "commit")
        return f"{phase}; {commits}, {count_text(ingestion.rows, 'row')} so far"

    def _newest(self) -> dict[str, int]:
        return {
            job.table.full_name: latest_snapshot_id(self._storage, job.table.location) or 0
            for job in self._jobs
        }

    def _has_expired(self) -> bool:
        return all(
            len(snapshot_ids(self._storage, job.table.location)) <= SNAPSHOTS_KEPT
            for job in self._jobs
        )
