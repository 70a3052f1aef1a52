"""Periodic events: APScheduler, which only posts events to the loop's queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from zlib import crc32

from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

# Names of one interval share this many instants: one call for each name would cost too much.
_SLOT_MS = 500
_SLOTS_MAX = 60

# Milliseconds: the interval, and the delay of the first call.
_Group = tuple[int, int]
_Call = Callable[[], None]


class Timetable:
    """Posts functions at intervals, from a thread of its own.

    Names of the same interval are spread over it, so that many tables are not all due at once.
    Those due together are posted as one event: to wake the loop for each costs more than a poll.
    """

    def __init__(self, post: Callable[[_Call], None]) -> None:
        self._post = post
        # Posting takes no time, so no pool is needed; runs that were missed become one.
        self._scheduler = BackgroundScheduler(
            timezone=timezone.utc,
            executors={"default": DebugExecutor()},
            job_defaults={"coalesce": True, "misfire_grace_time": None, "max_instances": 1},
        )
        self._lock = threading.Lock()
        self._group_of: dict[str, _Group] = {}
        self._calls: dict[_Group, dict[str, _Call]] = {}

    def start(self) -> None:
        self._scheduler.start()

    def every(self, name: str, interval_ms: int, call: _Call) -> None:
        """Post the event from now on at this interval, which replaces any earlier one."""
        slots = max(1, min(_SLOTS_MAX, interval_ms // _SLOT_MS))
        slot = crc32(name.encode(errors="surrogatepass")) % slots
        group = (interval_ms, interval_ms * slot // slots)
        if self._group_of.get(name) == group:
            return
        self.stop_calling(name)
        self._group_of[name] = group
        with self._lock:
            is_new = group not in self._calls
            self._calls.setdefault(group, {})[name] = call
        if is_new:
            self._schedule(group)

    def stop_calling(self, name: str) -> None:
        """Forget a name; nothing if it is not known."""
        group = self._group_of.pop(name, None)
        if group is None:
            return
        with self._lock:
            del self._calls[group][name]
            is_empty = not self._calls[group]
            if is_empty:
                del self._calls[group]
        if is_empty:
            self._scheduler.remove_job(str(group))

    def clock_jumped(self) -> None:
        """Compute all due times again: by a wall clock that was set they may be hours away."""
        for group in list(self._calls):
            self._schedule(group)

    def close(self) -> None:
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)

    def _schedule(self, group: _Group) -> None:
        interval_ms, delay_ms = group
        start = datetime.now(timezone.utc) + timedelta(milliseconds=delay_ms)
        self._scheduler.add_job(
            partial(self._call, group),
            IntervalTrigger(seconds=interval_ms / 1000, start_date=start, timezone=timezone.utc),
            id=str(group),
            replace_existing=True,
        )

    def _call(self, group: _Group) -> None:
        with self._lock:
            calls = tuple(self._calls.get(group, {}).values())
        self._post(partial(_run, calls))


def _run(calls: Sequence[_Call]) -> None:
    for call in calls:
        call()
