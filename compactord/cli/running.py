"""Runs any command: output, errors, exit code, signals."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from compactord.config.choices import LogFormat, LogLevel
from compactord.config.problems import ConfigInvalid
from compactord.errors import (
    AccessDenied,
    CompactordError,
    EngineUnavailable,
    StoreMissing,
    TableNotFound,
    UnsafeStore,
    UnsupportedTable,
    UsageError,
)
from compactord.text import count_text, printable, redact_text

# The exit codes of all commands (docs/commands.md). Python itself ends with 1 after a defect.
OK, USAGE, FAILED, REFUSED, NO_ENGINE, DENIED = 0, 2, 3, 4, 69, 77
# Monitoring plugins use 2 for "critical", so usage errors get their code for "unknown".
NAGIOS_UNKNOWN = 3


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Parse the arguments and run the command; the result is the exit code.

    `parser` sets `command`, a function of the parsed arguments that returns an exit code,
    `verbose`, `json`, and `figures_of_error`: what `json` prints in addition to an error.
    Raises `SystemExit` after --help and for wrong arguments.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name that the terminal cannot show must not end the command.
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            code = run_parsed(parser.parse_args(arguments))
        except SystemExit as end:
            _flush()  # the text of --help
            given = sys.argv if arguments is None else arguments
            if end.code == USAGE and "--nagios" in given:
                raise SystemExit(NAGIOS_UNKNOWN) from end
            raise
        _flush()
    except OSError as error:
        # Only writing our output can raise this: stores raise errors of their own.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not isinstance(error, BrokenPipeError):
            say(f"compactord: its output cannot be written: {error}")
        return FAILED
    return code


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def run_parsed(args: argparse.Namespace) -> int:
    """Like `run`, for parsed arguments."""
    # Clients of a service log nothing.
    if getattr(args, "url", None) is None:
        _configure_logs(is_verbose=args.verbose)
    command: Callable[[argparse.Namespace], int] = args.command
    try:
        return command(args)
    except (CompactordError, KeyboardInterrupt) as error:
        told = error_json(error)
        if args.json:
            figures: Callable[[BaseException], dict[str, Any]] = args.figures_of_error
            print(json.dumps(figures(error) | told))
        first, *more = error.lines if isinstance(error, ConfigInvalid) else [told["error"]]
        say(f"compactord: {first}")
        for line in more:
            say(line)
        return exit_code(error)


def error_json(error: CompactordError | KeyboardInterrupt) -> dict[str, str]:
    """The error that ended a command, as plain data."""
    return {"error": redact_text(str(error)) or "interrupted", "kind": type(error).__name__}


def _configure_logs(*, is_verbose: bool) -> None:
    # Slow to import.
    from compactord.service.logs import configure_logs

    # Events go to stderr. Warnings are text, as the command's own messages are; with -v they are a
    # log: one JSON object per line, except on a terminal.
    level, format = LogLevel.WARNING, LogFormat.CONSOLE
    if is_verbose:
        level, format = LogLevel.INFO, LogFormat.AUTO
    configure_logs(level=level, format=format, stream=sys.stderr)


def answer(args: argparse.Namespace, found: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Print what a command found: with --json one object, otherwise lines of text."""
    if args.json:
        print(json.dumps(found))
        return
    for line in lines:
        tell(line)


def tell(line: str) -> None:
    """Print a line on stdout. Names in it cannot control the terminal."""
    print(printable(line))


def say(line: str) -> None:
    """As `tell`, on stderr, without secrets. Failures are ignored: no exit code depends on it."""
    if sys.stderr is None:
        return
    try:
        print(printable(redact_text(line)), file=sys.stderr, flush=True)
    except OSError:
        # Buffered output would fail again at exit, and Python would change the exit code.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def exit_code(error: CompactordError | KeyboardInterrupt) -> int:
    """The exit code of a command that this error ended."""
    match error:
        case UsageError() | TableNotFound() | StoreMissing() | UnsafeStore():
            return USAGE
        case AccessDenied():
            return DENIED
        case EngineUnavailable():
            return NO_ENGINE
        case UnsupportedTable():
            return REFUSED
        case _:
            return FAILED


def failure_word(error: CompactordError) -> str:
    """`refused` for a table that compactord does not support, `failed` for any other error."""
    return "refused" if exit_code(error) == REFUSED else "failed"


def joint_code(codes: Iterable[int]) -> int:
    """The exit code of a command that worked on several things, from the code of each.

    Failures outrank refusals. Failures with different codes give `FAILED`, and so does a wrong
    argument that did not stop everything, because `USAGE` means that nothing changed.
    """
    found = set(codes)
    failed = found - {OK, REFUSED}
    if not failed:
        return REFUSED if REFUSED in found else OK
    if len(failed) > 1 or (failed == {USAGE} and OK in found):
        return FAILED
    return failed.pop()


def summary_text(tables: int, parts: Sequence[str]) -> str:
    """The last line of a command on several tables; `parts` count them by result, and what could
    not be listed.
    """
    return f"{count_text(tables, 'table')}: {', '.join(parts)}" if parts else "no tables yet"


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that SIGINT, SIGTERM or SIGHUP sets; a second such signal ends the process."""
    stop = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    previous = {number: signal.getsignal(number) for number in numbers}

    def on_signal(number: int, frame: object) -> None:
        stop.set()
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)

    for number in numbers:
        # nohup ignores SIGHUP; it must stay ignored.
        if previous[number] is not signal.SIG_IGN:
            signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
