"""The demo's output: frames of `top` on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from compactord.text import count_text
from compactord.top.frame import frame
from compactord.top.status import place_text
from compactord_demo.observer import History, Observer

_PLAIN_PERIOD_S = 3.0
_LEVELS = " ▁▂▃▄▅▆▇█"
_CURVE_CELLS = 48
# Lines above the frame: status, a curve for each of three figures, an empty one.
_OWN_LINES = 5


class Screen(Protocol):
    """Shows the observer's view; `phase` describes the current step in a few words."""

    def show(self, observer: Observer, phase: str, now_s: float) -> None: ...


@contextlib.contextmanager
def screen_on(console: Console, names: Sequence[str], start_s: float) -> Iterator[Screen]:
    """The screen for the console's output; it restores the terminal at the end."""
    if not console.is_terminal:
        yield _PlainLines(console, names, start_s)
        return
    with Live(Text(), console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield _Frames(console, names, live)


def curve(values: Sequence[int], cells: int = _CURVE_CELLS) -> str:
    """The last values as a line of bars, the highest of them as high as a line is."""
    shown = values[-cells:]
    most = max(shown, default=0)
    top = len(_LEVELS) - 1
    # Values above 0 differ from 0 however small they are.
    return "".join(_LEVELS[-(-value * top // most) if most else 0] for value in shown)


class _Frames:
    def __init__(self, console: Console, names: Sequence[str], live: Live) -> None:
        self._console = console
        self._names = names
        self._live = live

    def show(self, observer: Observer, phase: str, now_s: float) -> None:
        lines: list[RenderableType] = [Text(phase, "bold cyan", no_wrap=True, overflow="ellipsis")]
        lines += (_curve_line(*row) for row in self._curves(observer))
        lines.append("")
        if observer.view is not None:
            height = self._console.height - _OWN_LINES
            lines.append(frame(observer.url, observer.view, observer.rates, height=height))
        self._live.update(Group(*lines), refresh=True)

    def _curves(self, observer: Observer) -> Iterator[tuple[str, str, list[int]]]:
        for name in self._names:
            if history := observer.histories.get(name):
                if any(history.runs):
                    yield name, "runs", history.runs
                yield name, "files", history.files


def _curve_line(name: str, what: str, values: list[int]) -> Text:
    line = Text(f"{name:<14}{what:<7}", no_wrap=True, overflow="ellipsis")
    line.append(curve(values), "green")
    return line.append(f" {values[-1]} (max {max(values)})")


class _PlainLines:
    def __init__(self, console: Console, names: Sequence[str], start_s: float) -> None:
        self._console = console
        self._names = names
        self._start_s = start_s
        self._next_s = start_s

    def show(self, observer: Observer, phase: str, now_s: float) -> None:
        if now_s < self._next_s:
            return
        self._next_s = now_s + _PLAIN_PERIOD_S
        told = [f"{now_s - self._start_s:4.0f} s", phase]
        told += [
            f"{name}: {_figures(history)}"
            for name in self._names
            if (history := observer.histories.get(name)) is not None
        ]
        told += observer.troubles()
        if observer.view is not None and (recent := observer.view.recent):
            last = recent[0]
            place = place_text(last.partition, last.bucket)
            told.append(f"last: {last.name} {place} files {last.files_in}→{last.files_out}")
        self._console.out("  ".join(told), highlight=False)


def _figures(history: History) -> str:
    files = count_text(history.files[-1], "file")
    if not any(history.runs):
        return files
    runs = count_text(history.runs[-1], "run")
    return f"{runs}, {history.level0_files[-1]} in level 0, {files}"
