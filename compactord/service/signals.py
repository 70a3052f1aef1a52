"""The daemon's signal handlers."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType

import structlog

from compactord.service.daemon import Daemon

_log = structlog.get_logger()

# The first drains, the second cancels.
_PATIENCE = 2


@contextlib.contextmanager
def handled(daemon: Daemon) -> Iterator[None]:
    """Signals become events of the daemon; a third SIGTERM or SIGINT ends the process.

    A handler interrupts the main thread at any point, so it takes no lock and writes nothing: a
    separate thread writes the stacks.
    """
    times_asked = itertools.count(1)
    stacks_wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        if next(times_asked) > _PATIENCE:
            os._exit(128 + number)
        daemon.stop()

    def want_stacks(number: int, frame: FrameType | None) -> None:
        del number, frame
        if stacks_wanted.empty():
            stacks_wanted.put(True)

    actions = {
        signal.SIGTERM: end,
        signal.SIGINT: end,
        signal.SIGHUP: lambda number, frame: daemon.reload(),
        signal.SIGUSR1: want_stacks,
    }
    writer = threading.Thread(
        target=_write_stacks, args=(stacks_wanted,), name="stacks", daemon=True
    )
    writer.start()
    previous = {number: signal.signal(number, action) for number, action in actions.items()}
    try:
        yield
    finally:
        for number, action in previous.items():
            signal.signal(number, action)
        stacks_wanted.put(False)
        writer.join()


def _write_stacks(wanted: queue.SimpleQueue[bool]) -> None:
    """Log the stacks of all threads each time that `wanted` yields true; end at false."""
    while wanted.get():
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            stack = "".join(traceback.format_stack(frame))
            _log.info("thread_stack", thread=names.get(ident, str(ident)), stack=stack)
