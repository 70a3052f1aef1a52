"""The output for frames and texts for people: the terminal, or a plain stream."""

from __future__ import annotations

from typing import IO

from rich.console import Console

_PLAIN_WIDTH = 120


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
