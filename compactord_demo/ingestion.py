"""Runs ingestion jobs, each in its own thread and at its own interval."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from compactord.clock import Clock
from compactord_demo.jobs import Job


@dataclass(slots=True)
class Tally:
    """The commits and rows of a job so far."""

    commits: int = 0
    rows: int = 0


class Ingestion:
    """Starts with the context; `end` or leaving the context waits for running commits."""

    def __init__(self, jobs: Sequence[Job], clock: Clock) -> None:
        self.tallies = {job.table.full_name: Tally() for job in jobs}
        self._jobs = tuple(jobs)
        self._clock = clock
        self._ended = threading.Event()
        self._threads = ThreadPoolExecutor(len(self._jobs), thread_name_prefix="job")
        self._futures: list[Future[None]] = []

    @property
    def commits(self) -> int:
        return sum(tally.commits for tally in self.tallies.values())

    @property
    def rows(self) -> int:
        return sum(tally.rows for tally in self.tallies.values())

    def check(self) -> None:
        """Raises the error that has ended a job."""
        for future in self._futures:
            if future.done():
                future.result()

    def end(self) -> None:
        """Let the jobs finish their commits. Raises the error that has ended a job."""
        self._ended.set()
        self._threads.shutdown()
        self.check()

    def add(self, commits: int) -> None:
        """Let each job, all of which have ended, make more commits, one after the other."""
        for job in self._jobs:
            tally = self.tallies[job.table.full_name]
            for _ in range(commits):
                tally.rows += job.commit()
                tally.commits += 1

    def __enter__(self) -> Ingestion:
        self._futures = [self._threads.submit(self._work, job) for job in self._jobs]
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._threads.shutdown()

    def _work(self, job: Job) -> None:
        tally = self.tallies[job.table.full_name]
        next_s = self._clock.monotonic_s()
        while not self._ended.is_set():
            tally.rows += job.commit()
            tally.commits += 1
            # A slow machine writes less: missed commits are not repeated.
            now_s = self._clock.monotonic_s()
            next_s = max(next_s + job.period_s, now_s)
            self._ended.wait(next_s - now_s)
