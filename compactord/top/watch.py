"""Frames one after the other: on a terminal in place, otherwise as plain text."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from compactord.errors import UsageError
from compactord.top.frame import frame
from compactord.top.status import NoAnswer, Rates, Source, TopStatus, frame_json, rates_between

# How soon a key or a signal is noticed.
_STEP_S = 0.1
_PLAIN_WIDTH = 120


def run(
    source: Source,
    *,
    interval_s: float,
    once: bool,
    stop: threading.Event,
    width: int | None = None,
    stream: IO[str] | None = None,
    as_json: bool = False,
) -> None:
    """Show the status until `stop`, `q` on a terminal, or after one frame (`once`).

    With `as_json` a frame is one line of JSON, and there is no live display.

    Raises `UsageError` if the first poll fails; later the frame shows the error, and the next poll
    may succeed.
    """
    stream = stream or sys.stdout
    console = console_on(stream, width)
    # The first poll of a large warehouse may take long.
    is_quiet = as_json or not console.is_terminal
    waiting = contextlib.nullcontext() if is_quiet else console.status("reading …")
    try:
        with waiting:
            watch = _Watch(source, source.status())
    except NoAnswer as error:
        if stop.is_set():
            return
        raise UsageError(str(error)) from error
    # A terminal that cannot move its cursor shows nothing of a live display.
    if not (is_quiet or once or console.is_dumb_terminal):
        _show_live(watch, console, interval_s=interval_s, stop=stop)
        return
    while True:
        if as_json:
            found = frame_json(watch.newest, watch.rates, trouble=watch.trouble)
            stream.write(json.dumps(found) + "\n")
            stream.flush()
        else:
            console.print(frame(watch.newest, watch.rates, trouble=watch.trouble))
        if once or stop.wait(interval_s):
            return
        if not as_json:
            console.print()
        watch.poll()


class _Watch:
    """The newest status, the speed since the previous one, and what is wrong now."""

    def __init__(self, source: Source, first: TopStatus) -> None:
        self._source = source
        self.newest = first
        self.rates: Rates | None = None
        self.trouble = ""

    def poll(self) -> None:
        """Without an answer the previous status is kept."""
        try:
            found = self._source.status()
        except NoAnswer as error:
            self.trouble = f"{error}; trying again"
            return
        # The daemon publishes a status once a second: the same one twice gives no speed.
        if self.newest.now_ms != found.now_ms:
            self.rates = rates_between(self.newest, found)
        self.newest, self.trouble = found, ""


def _show_live(
    watch: _Watch, console: Console, *, interval_s: float, stop: threading.Event
) -> None:
    with (
        _keys() as quits,
        Live(Text(), console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            drawn = frame(watch.newest, watch.rates, height=console.height, trouble=watch.trouble)
            live.update(drawn, refresh=True)
            deadline = time.monotonic() + interval_s
            while time.monotonic() < deadline:
                if stop.is_set() or quits(_STEP_S):
                    return
            watch.poll()


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Waits for `q` on standard input, for so many seconds, if that is a terminal.

    Keys come one by one and without echo; the terminal is restored afterwards.
    """
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    descriptor = sys.stdin.fileno() if is_terminal else None

    def quits(timeout_s: float) -> bool:
        nonlocal descriptor
        if descriptor is None:
            time.sleep(timeout_s)
            return False
        ready, _, _ = select.select([descriptor], [], [], timeout_s)
        if not ready:
            return False
        typed = os.read(descriptor, 1)
        if not typed:
            descriptor = None
        return typed in (b"q", b"Q")

    if descriptor is None:
        yield quits
        return
    terminal, before = descriptor, termios.tcgetattr(descriptor)
    tty.setcbreak(terminal)
    try:
        yield quits
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def console_on(stream: IO[str], width: int | None = None) -> Console:
    """Without colours and of a fixed width (120) where there is no terminal, unless one is given.

    Raises `BrokenPipeError` when its reader has gone, so that the command decides what to do, not
    rich.
    """
    if stream.isatty():
        return _Console(file=stream, width=width, highlight=False)
    return _Console(
        file=stream,
        width=width or _PLAIN_WIDTH,
        force_terminal=False,
        color_system=None,
        highlight=False,
    )


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Called while the error is handled; by default it ends the process with 1."""
        raise
