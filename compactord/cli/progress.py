"""What commands say while they work: `compact -v` an event for every step."""

from __future__ import annotations

import sys
from collections.abc import Callable

import structlog

from compactord.cli.running import say
from compactord.clock import Clock
from compactord.model import Compaction
from compactord.table import report
from compactord.table.jobs import Finished, InFlight
from compactord.table.opening import OpenTable
from compactord.text import count_text, size_text

_log = structlog.get_logger()
_SAID_EVERY_S = 5.0


def told_of(name: str, clock: Clock) -> Callable[[str], None]:
    """Says on stderr how far the work on a table is, every few seconds of it."""
    said = clock.monotonic_s()

    def told(what: str) -> None:
        nonlocal said
        if clock.monotonic_s() - said >= _SAID_EVERY_S:
            said = clock.monotonic_s()
            say(f"{name}: {what}")

    return told


class CommandProgress:
    """Logs every step at INFO (`-v`), under the names that the service's log has.

    Without that, one line on a terminal is rewritten as work goes on; elsewhere it is silent.
    """

    def __init__(self, *, is_logged: bool) -> None:
        self._stream = sys.stderr
        self._shown = not is_logged and self._stream is not None and self._stream.isatty()
        self._planned = self._finished = self._snapshots = 0
        self._bytes_planned = self._bytes_finished = 0
        self._waited = False

    def starting(self, where: str) -> None:
        """`where` is the Spark master, as it may be shown."""
        _log.info("spark_starting", master=where)
        self._write(f"starting Spark ({where}) …")

    def started(self, *, seconds: float, slots: int) -> None:
        _log.info("spark_started", seconds=round(seconds, 2), slots=slots)
        self._show()

    def planned(self, table: OpenTable, compaction: Compaction) -> None:
        found = report.compaction_json(table, compaction)
        _log.info(
            "compaction_planned",
            partition=table.partition_text(compaction.bucket.partition),
            bucket=found["bucket"],
            reason=found["reason"],
            input_files=len(found["files"]),
            input_bytes=found["bytes"],
            input_records=found["rows"],
            output_level=found["output_level"],
        )
        self._planned += 1
        self._bytes_planned += found["bytes"]
        self._show()

    def finished(self, in_flight: InFlight) -> None:
        compaction, done = in_flight.compaction, in_flight.result
        assert isinstance(done, Finished), "it has not failed"
        _log.info(
            "compaction_finished",
            partition=in_flight.partition,
            bucket=compaction.bucket.bucket,
            input_files=len(compaction.inputs),
            output_files=len(done.change.after),
            input_bytes=sum(stats.bytes_in for stats in done.stats),
            output_bytes=sum(stats.bytes_out for stats in done.stats),
            input_records=sum(stats.rows_in for stats in done.stats),
            output_records=sum(stats.rows_out for stats in done.stats),
        )
        self._finished += 1
        self._bytes_finished += sum(file.file_size for file in compaction.inputs)
        self._show()

    def committed(self, snapshot_id: int) -> None:
        _log.info("commit_succeeded", snapshot_id=snapshot_id)
        self._snapshots += 1
        self._show()

    def waiting(self, wait_ms: int) -> None:
        _log.info("commit_settling", seconds=round(wait_ms / 1000, 1))
        self._waited = True
        self._show(f"; waiting {wait_ms / 1000:.0f} s until writers cannot replace the last one")

    def close(self) -> None:
        """Nothing is left on the screen."""
        if self._planned or self._waited:
            self._write("")

    def _show(self, then: str = "") -> None:
        self._write(
            f"{self._finished} of {count_text(self._planned, 'compaction')}, "
            f"{size_text(self._bytes_finished)} of {size_text(self._bytes_planned)}, "
            f"{count_text(self._snapshots, 'snapshot')}{then}"
        )

    def _write(self, line: str) -> None:
        if self._shown:
            self._stream.write(f"\r\x1b[K{line}")
            self._stream.flush()
