"""Events as lines: one JSON object each, or readable text on a terminal, without secrets.

Libraries that log through `logging` pass the same processors. Keys of every line: `ts` (UTC, with
milliseconds), `level`, `event`, `logger`, and for a daemon `version` and `instance`.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from compactord.clock import Clock, SystemClock
from compactord.config.section import LogFormat, LogLevel
from compactord.text import printable, printable_lines, redacted

# Below these levels the libraries log too much, or nothing an operator needs.
_LIBRARIES = ("py4j", "pyspark", "apscheduler", "waitress")
_REPEAT_S = 300.0
_MOST_REPEATED = 4096
# Fields that make two warnings the same.
_IDENTITY = ("logger", "event", "catalog", "database", "table")
_ROOT = "compactord"
_OF_LINES = ("exception", "stack")


def configure_logs(
    *,
    level: LogLevel,
    format: LogFormat,
    stream: TextIO | None,
    instance: str | None = None,
    version: str | None = None,
    clock: Clock | None = None,
) -> None:
    """Send all events to `stream` (None: nowhere); called again when a setting changes.

    A daemon passes `instance` and `version`; commands leave both out. Libraries log from WARNING
    on. The clock is the machine's unless given.
    """
    stream = stream if stream is not None else io.StringIO()
    least: int = getattr(logging, level.name)
    handler = _EventHandler(
        stream,
        _processors(
            as_text=stream.isatty() if format is LogFormat.AUTO else format is LogFormat.CONSOLE,
            always={"version": version, "instance": instance},
            clock=clock or SystemClock(),
        ),
    )
    ours, everyone = logging.getLogger(_ROOT), logging.getLogger()
    for logger in (ours, everyone):
        for previous in list(logger.handlers):
            if isinstance(previous, _EventHandler):
                logger.removeHandler(previous)
        logger.addHandler(handler)
    ours.setLevel(least)
    everyone.setLevel(max(least, logging.WARNING))
    # A handler of another library would write our events without redaction.
    ours.propagate = False
    for library in _LIBRARIES:
        logging.getLogger(library).setLevel(max(least, logging.WARNING))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def _processors(
    *, as_text: bool, always: Mapping[str, str | None], clock: Clock
) -> list[Processor]:
    """Repetitions are dropped first, which saves work. Redaction is last, before the line."""
    exceptions: Processor = structlog.processors.ExceptionRenderer(
        # Local variables would carry what redaction cannot recognise.
        structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    )
    renderer: Processor = structlog.processors.JSONRenderer()
    if as_text:
        exceptions = structlog.processors.format_exc_info
        renderer = structlog.dev.ConsoleRenderer(
            exception_formatter=structlog.dev.plain_traceback, timestamp_key="ts"
        )
    return [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        _Repetitions(clock),
        exceptions,
        _Header(always, clock),
        _redact,
        *([_escape] if as_text else []),
        renderer,
    ]


class _EventHandler(logging.Handler):
    """Writes whole lines. A line that cannot be written is lost; the work goes on."""

    def __init__(self, stream: TextIO, processors: list[Processor]) -> None:
        super().__init__()
        self._stream = stream
        self.setFormatter(structlog.stdlib.ProcessorFormatter(processors=processors))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except structlog.DropEvent:
            return
        except Exception as error:  # noqa: BLE001 - whatever a value's own repr may raise
            line = json.dumps({"event": "log_line_lost", "error": type(error).__name__})
        # A full disk, a closed pipe or stream: there is no other place to report it.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()


class _Repetitions:
    """Lets a warning through once in five minutes for each event of a logger and table.

    The next one that passes carries `suppressed`, the number of those that did not. Remembers the
    latest few thousand; called by one thread at a time, as a handler holds its lock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Key -> when the last one passed, and how many were suppressed since; oldest first.
        self._passed: OrderedDict[tuple[str, ...], tuple[float, int]] = OrderedDict()

    def __call__(self, _logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
        if event.get("level") != "warning":
            return event
        key = tuple(str(event.get(name, "")) for name in _IDENTITY)
        now_s = self._clock.monotonic_s()
        passed_s, suppressed = self._passed.get(key, (-math.inf, 0))
        if now_s - passed_s < _REPEAT_S:
            self._passed[key] = (passed_s, suppressed + 1)
            raise structlog.DropEvent
        self._passed[key] = (now_s, 0)
        self._passed.move_to_end(key)
        if len(self._passed) > _MOST_REPEATED:
            self._passed.popitem(last=False)
        if suppressed:
            event["suppressed"] = suppressed
        return event


class _Header:
    """The keys that begin every line, in one order."""

    def __init__(self, always: Mapping[str, str | None], clock: Clock) -> None:
        self._always = {key: value for key, value in always.items() if value is not None}
        self._clock = clock

    def __call__(self, _logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
        now_ms = self._clock.now_ms()
        reading = datetime.fromtimestamp(now_ms // 1000, timezone.utc)
        header: EventDict = {"ts": f"{reading:%Y-%m-%dT%H:%M:%S}.{now_ms % 1000:03}Z"}
        for key in ("level", "event", "logger"):
            header[key] = event.pop(key, "")
        return {**header, **self._always, **event}


def _redact(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    found = redacted(event)
    assert isinstance(found, dict)
    return found


def _escape(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """Keep names from controlling a terminal; what is no text is shown by its `repr` anyway."""
    return {
        key: (printable_lines if key in _OF_LINES else printable)(value)
        if isinstance(value, str)
        else value
        for key, value in event.items()
    }
