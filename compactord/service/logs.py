"""Events of the service as log lines and metrics, without secrets.

Libraries that log through `logging` pass the same processors. Keys of every line: `ts` (UTC, with
milliseconds), `level`, `event`, `logger`, and for a daemon `version` and `instance`.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import queue
import threading
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from compactord.clock import Clock, SystemClock, iso_text
from compactord.config.choices import LogFormat, LogLevel
from compactord.model import TableName
from compactord.scheduler import events
from compactord.scheduler.compaction import EndedCompaction, HaltReason, Outcome
from compactord.service.metrics import Metrics
from compactord.table.jobs import Planned
from compactord.table.report import REWRITTEN
from compactord.text import printable, printable_lines, redacted

# Below these levels the libraries log too much, or nothing an operator needs.
_LIBRARIES = ("py4j", "pyspark", "apscheduler", "waitress")
_REPEAT_S = 300.0
_MOST_REPEATED = 4096
# Fields that make two warnings the same.
_IDENTITY = ("logger", "event", "catalog", "database", "table")
_ROOT = "compactord"
EVENTS_MAX, _CLOSE_S = 1_000, 2.0
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
    """Send all events to `stream`, or drop them if it is None. Callable again with new settings.

    Only a daemon passes `instance` and `version`. Libraries log from WARNING on. `clock` defaults
    to the system clock.
    """
    stream = stream if stream is not None else io.StringIO()
    least: int = getattr(logging, level.name)
    handler = _EventHandler(
        stream,
        _processors(
            as_text=stream.isatty() if format is LogFormat.AUTO else format is LogFormat.CONSOLE,
            has_colors=stream.isatty(),
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
    *, as_text: bool, has_colors: bool, always: Mapping[str, str | None], clock: Clock
) -> list[Processor]:
    """The processors in order: dropping repetitions is first and saves work, redaction is last."""
    exceptions: Processor = structlog.processors.ExceptionRenderer(
        # Local variables may hold secrets that redaction cannot recognise.
        structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    )
    renderer: Processor = structlog.processors.JSONRenderer()
    if as_text:
        exceptions = structlog.processors.format_exc_info
        renderer = structlog.dev.ConsoleRenderer(
            colors=has_colors,
            exception_formatter=structlog.dev.plain_traceback,
            timestamp_key="ts",
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
        except Exception as error:  # noqa: BLE001 - a value's own repr may raise anything
            line = json.dumps({"event": "log_line_lost", "error": type(error).__name__})
        # A full disk, a closed pipe or stream: there is no other place to report it.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()


class _Repetitions:
    """Lets a warning through once in five minutes for each event of a logger and table.

    The next one carries `suppressed`, the number of warnings dropped in between. Remembers the
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
    """Puts the keys of every line first, in a fixed order."""

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
    """Escape control characters in texts; other values are shown by their `repr` anyway."""
    return {
        key: (printable_lines if key in _OF_LINES else printable)(value)
        if isinstance(value, str)
        else value
        for key, value in event.items()
    }


_log = structlog.get_logger()


class LoggingObserver:
    """An `Observer` that writes logs and metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def on_event(self, event: events.Event) -> None:
        match event:
            case EndedCompaction():
                self._ended(event)
            case events.CompactionStarted():
                self._started(event)
            case events.Polled(seconds=seconds, planned=planned):
                self._metrics.poll.observe(seconds)
                if planned is not None:
                    self._planned(event.name, planned, event.before)
            case events.PollFailed(message=message):
                _log.warning("poll_failed", **event.name.log_fields, error=message)
            case events.SnapshotCommitted():
                self._committed(event)
            case events.CommitFailed(error=error):
                _log.error("commit_gave_up", **event.name.log_fields, error=str(error))
            case events.BucketQuarantined():
                self._quarantined(event)
            case events.TableHalted():
                self._halted(event)
            case events.TableResumed():
                _log.info("table_resumed", **event.name.log_fields)
            case events.SubcompactionHung():
                self._hung(event)
            case events.Maintained(kind=kind, round=round_, seconds=seconds):
                # Its kind has logged it.
                self._metrics.maintained(kind, round_.counts, seconds)
            case _:
                # Counted, or logged in detail where it was found.
                pass

    def _started(self, event: events.CompactionStarted) -> None:
        record, pending = event.record, event.record.pending
        waited_ms = max(0, event.now_ms - record.queued_ms)
        self._metrics.wait.labels(record.priority_class.value).observe(waited_ms / 1000)
        _log.info(
            "compaction_started",
            **event.name.log_fields,
            partition=record.in_flight.partition,
            bucket=pending.bucket.bucket,
            kind=pending.kind.value,
            reason=record.in_flight.compaction.reason.value,
            priority_class=record.priority_class.value,
            compaction_id=record.compaction_id,
            snapshot_id=record.in_flight.snapshot_id,
            input_files=pending.files,
            input_bytes=pending.size_bytes,
            runs_before=pending.sorted_runs,
            subcompactions=len(record.in_flight.subcompactions),
        )

    def _ended(self, view: EndedCompaction) -> None:
        fields = {
            **view.name.log_fields,
            "compaction_id": view.compaction_id,
            "partition": view.partition,
            "bucket": view.bucket,
            "kind": view.kind.value,
            "reason": view.reason.value,
        }
        match view.outcome:
            case Outcome.COMMITTED:
                self._metrics.compaction.labels(view.kind.value).observe(view.seconds)
                self._metrics.input.labels(view.kind.value).observe(view.bytes_in)
                self._metrics.output.labels(view.kind.value).observe(view.bytes_out)
                _log.info(
                    "compaction_finished",
                    **fields,
                    snapshot_id=view.snapshot_id,
                    input_files=view.files_in,
                    output_files=view.files_out,
                    upgraded_files=view.upgraded_files,
                    input_bytes=view.bytes_in,
                    output_bytes=view.bytes_out,
                    input_records=view.rows_in,
                    output_records=view.rows_out,
                    duration_s=round(view.seconds, 3),
                )
            case Outcome.FAILED:
                _log.error("compaction_failed", **fields, error=view.message)
            case Outcome.CANCELLED:
                _log.info("compaction_cancelled", **fields, message=view.message)
            case Outcome.CONFLICT | Outcome.EMPTY:
                # The conflict was logged where it was found, with its reason.
                pass

    def _committed(self, event: events.SnapshotCommitted) -> None:
        commit = event.commit
        self._metrics.commit.observe(event.seconds)
        self._metrics.commit_buckets.observe(len(commit.published))
        _log.info(
            "commit_succeeded",
            **event.name.log_fields,
            snapshot_id=commit.snapshot_id,
            compaction_ids=list(commit.compaction_ids),
            buckets=len({change.bucket for change in commit.published}),
            attempts=commit.attempts,
            duration_s=round(event.seconds, 3),
        )

    def _quarantined(self, event: events.BucketQuarantined) -> None:
        quarantined = event.quarantined
        pause_s = round((quarantined.until_ms - event.now_ms) / 1000, 1)
        _log.warning(
            "bucket_quarantined",
            **event.name.log_fields,
            partition=quarantined.partition,
            bucket=event.bucket.bucket,
            failures=quarantined.failures,
            error=quarantined.message,
            pause_s=None if quarantined.is_damaged else pause_s,
        )

    def _halted(self, event: events.TableHalted) -> None:
        halt = event.halt
        is_refused = halt.reason is HaltReason.UNSUPPORTED_FEATURE
        _log.error(
            "table_unsupported" if is_refused else "table_halted",
            **event.name.log_fields,
            reason=halt.reason.value,
            message=halt.message,
            action=halt.action,
        )

    def _planned(self, name: TableName, planned: Planned, before: Planned | None) -> None:
        """A table was planned; `before` is its previous plan."""
        warnings = planned.info.warnings
        if warnings != (before.info.warnings if before is not None else ()):
            _log.warning("table_not_fully_served", **name.log_fields, messages=list(warnings))
        rewrite = planned.info.rewrite
        if rewrite is not None and (before is None or before.info.rewrite is None):
            _log.warning(
                "table_rewritten",
                **name.log_fields,
                message=REWRITTEN,
                user=rewrite.commit_user,
                operation=rewrite.operation,
                snapshot_id=rewrite.snapshot_id,
                time=iso_text(rewrite.time_ms),
            )
        self._metrics.scan.observe(planned.seconds)
        self._metrics.manifests.inc(planned.manifests_read)
        kept, skipped = planned.entries_read - planned.entries_skipped, planned.entries_skipped
        self._metrics.entries.labels("kept").inc(kept)
        self._metrics.entries.labels("skipped").inc(skipped)
        if planned.offered:
            _log.debug(
                "plan_finished",
                **name.log_fields,
                snapshot_id=planned.snapshot_id,
                due_tasks=planned.backlog.tasks,
                due_bytes=planned.backlog.size_bytes,
            )

    def _hung(self, event: events.SubcompactionHung) -> None:
        submitted = event.submitted
        compaction, index = submitted.key
        _log.error(
            "subcompaction_hung",
            **event.name.log_fields,
            compaction_id=compaction,
            index=index,
            input_bytes=submitted.size_bytes,
            limit_s=round(submitted.limit_ms / 1000, 1),
            duration_s=round(event.ran_ms / 1000, 1),
        )


class ObserverThread:
    """Calls an observer in a thread; drops events if it fails or is `EVENTS_MAX` behind."""

    def __init__(self, observer: events.Observer, metrics: Metrics | None = None) -> None:
        self._observer, self._metrics = observer, metrics
        self._events = queue.Queue[events.Event | None](EVENTS_MAX)
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
        self._thread.start()

    def on_event(self, event: events.Event) -> None:
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._drop("it is too slow")

    def close(self) -> None:
        """Wait until the observer has received all events; drop the rest after a few seconds."""
        with contextlib.suppress(queue.Full):
            self._events.put(None, timeout=_CLOSE_S)
            self._thread.join(_CLOSE_S)
        for _ in range(self._events.qsize()):
            self._drop("it is too slow")

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._observer.on_event(event)
            except Exception as error:  # noqa: BLE001 - it may be code of anyone
                self._drop(f"{type(error).__name__}: {error}")

    def _drop(self, why: str) -> None:
        name = type(self._observer).__name__
        if self._metrics is not None:
            self._metrics.events_dropped.labels(name).inc()
        _log.warning("event_dropped", observer=name, error=why)
