"""The `top` command's loop: reads a daemon's view and draws frames."""

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

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from compactord.service.view import ServiceView
from compactord.top.daemon import NoAnswer
from compactord.top.frame import frame
from compactord.top.status import Rates, Source, frame_json, rates_between

# Delay until a key or a signal is noticed.
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

    With `as_json` a frame is one line of JSON, without a live display. Raises
    `NoAnswer` if the first poll fails; later frames show the error until a poll succeeds.
    """
    stream = stream or sys.stdout
    console = console_on(stream, width)
    # The first poll of a large warehouse may take long.
    is_quiet = as_json or not console.is_terminal
    waiting = contextlib.nullcontext() if is_quiet else console.status("reading …")
    try:
        with waiting:
            watch = _Watch(source, source.view())
    except NoAnswer:
        if stop.is_set():
            return
        raise
    # A live display needs a terminal that can move its cursor.
    if not (is_quiet or once or console.is_dumb_terminal):
        _show_live(watch, console, interval_s=interval_s, stop=stop)
        return
    while True:
        if as_json:
            found = frame_json(source.name, watch.newest, watch.rates, watch.trouble)
            stream.write(json.dumps(found) + "\n")
            stream.flush()
        else:
            console.print(watch.frame())
        if once or stop.wait(interval_s):
            return
        if not as_json:
            console.print()
        watch.poll()


class _Watch:
    """The newest view, the speed since the previous one, and the last poll's error."""

    def __init__(self, source: Source, first: ServiceView) -> None:
        self._source = source
        self.newest = first
        self.rates: Rates | None = None
        self.trouble = ""

    def poll(self) -> None:
        """Read the next view, or keep the previous one and note the error."""
        try:
            found = self._source.view()
        except NoAnswer as error:
            self.trouble = f"{error}; trying again"
            return
        # The daemon publishes a status once a second; the same one twice has no speed.
        if self.newest.now_ms != found.now_ms:
            self.rates = rates_between(self.newest, found)
        self.newest, self.trouble = found, ""

    def frame(self, height: int | None = None) -> RenderableType:
        return frame(
            self._source.name, self.newest, self.rates, height=height, trouble=self.trouble
        )


def _show_live(
    watch: _Watch, console: Console, *, interval_s: float, stop: threading.Event
) -> None:
    with (
        _keys() as quits,
        Live(Text(), console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            live.update(watch.frame(console.height), refresh=True)
            deadline = time.monotonic() + interval_s
            while time.monotonic() < deadline:
                if stop.is_set() or quits(_STEP_S):
                    return
            watch.poll()


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yields a function that waits some seconds for `q` if standard input is a terminal.

    Reads single keys without echo, and restores the terminal afterwards.
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
    """A console on `stream`; without a terminal it has no colours and 120 columns by default.

    Raises `BrokenPipeError` when its reader ends: the command handles that, not rich.
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
        """Reraise the error being handled; rich would end the process with 1."""
        raise
