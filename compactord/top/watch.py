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
from collections.abc import Iterator
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from compactord.errors import UsageError
from compactord.top.console import console_on
from compactord.top.frame import frame
from compactord.top.frame_json import frame_json
from compactord.top.status import NoAnswer, Rates, Source, TopStatus, rates_between

# How soon a key or a signal is noticed.
_STEP_S = 0.1


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
    console = console_on(stream or sys.stdout, width)
    watch = _Watch(source)
    # The first poll of a large warehouse may take long.
    is_quiet = as_json or not console.is_terminal
    waiting = contextlib.nullcontext() if is_quiet else console.status("reading …")
    try:
        with waiting:
            watch.poll()
    except NoAnswer as error:
        if stop.is_set():
            return
        raise UsageError(str(error)) from error
    if as_json:
        _print_json(watch, stream or sys.stdout, interval_s=interval_s, once=once, stop=stop)
        return
    # A terminal that cannot move its cursor shows nothing of a live display.
    if once or not console.is_terminal or console.is_dumb_terminal:
        _print_frames(watch, console, interval_s=interval_s, once=once, stop=stop)
    else:
        _show_live(watch, console, interval_s=interval_s, stop=stop)


class _Watch:
    """The newest status, the speed since the previous one, and what is wrong now."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._rates: Rates | None = None
        self._newest: TopStatus | None = None
        self.trouble = ""

    @property
    def newest(self) -> TopStatus:
        assert self._newest is not None, "it is read before it is shown"
        return self._newest

    @property
    def rates(self) -> Rates | None:
        return self._rates

    def poll(self) -> None:
        """Raises `NoAnswer`; then the previous status is kept."""
        found = self._source.status()
        before = self._newest
        # The daemon publishes a status once a second: the same one twice gives no speed.
        if before is None or before.now_ms != found.now_ms:
            self._rates = rates_between(before, found)
        self._newest, self.trouble = found, ""

    def poll_again(self) -> None:
        try:
            self.poll()
        except NoAnswer as error:
            self.trouble = f"{error}; trying again"


def _print_json(
    watch: _Watch, stream: IO[str], *, interval_s: float, once: bool, stop: threading.Event
) -> None:
    while True:
        stream.write(
            json.dumps(frame_json(watch.newest, watch.rates, trouble=watch.trouble)) + "\n"
        )
        stream.flush()
        if once or stop.wait(interval_s):
            return
        watch.poll_again()


def _print_frames(
    watch: _Watch, console: Console, *, interval_s: float, once: bool, stop: threading.Event
) -> None:
    while True:
        console.print(frame(watch.newest, watch.rates, trouble=watch.trouble))
        if once or stop.wait(interval_s):
            return
        console.print()
        watch.poll_again()


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
            watch.poll_again()


class _Keys:
    """Waits for `q` on standard input, if that is a terminal."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def __call__(self, timeout_s: float) -> bool:
        if self._descriptor is None:
            time.sleep(timeout_s)
            return False
        ready, _, _ = select.select([self._descriptor], [], [], timeout_s)
        if not ready:
            return False
        typed = os.read(self._descriptor, 1)
        if not typed:
            self._descriptor = None
        return typed in (b"q", b"Q")


@contextlib.contextmanager
def _keys() -> Iterator[_Keys]:
    """Keys one by one and without echo; the terminal is restored afterwards."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield _Keys(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield _Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
