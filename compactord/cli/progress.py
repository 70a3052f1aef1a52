"""What `compact -v` says while it works: an event for every step."""

from __future__ import annotations

import structlog

from compactord.model import Committed, Compaction
from compactord.table import report
from compactord.table.in_flight import Finished
from compactord.table.opening import OpenTable

_log = structlog.get_logger()


class EventProgress:
    """Logs every step at INFO, under the names that the service's log has."""

    def __init__(self) -> None:
        self._table: OpenTable | None = None

    def starting(self, where: str) -> None:
        """`where` is the Spark master, as it may be shown."""
        _log.info("spark_starting", master=where)

    def started(self, *, seconds: float, slots: int) -> None:
        _log.info("spark_started", seconds=round(seconds, 2), slots=slots)

    def planned(self, table: OpenTable, compaction: Compaction) -> None:
        self._table = table
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

    def finished(self, finished: Finished) -> None:
        assert self._table is not None, "planned before it is finished"
        bucket = finished.compaction.bucket
        _log.info(
            "compaction_finished",
            partition=self._table.partition_text(bucket.partition),
            bucket=bucket.bucket,
            input_files=len(finished.compaction.inputs),
            output_files=len(finished.change.after),
            input_bytes=sum(stats.bytes_in for stats in finished.stats),
            output_bytes=sum(stats.bytes_out for stats in finished.stats),
            input_records=sum(stats.rows_in for stats in finished.stats),
            output_records=sum(stats.rows_out for stats in finished.stats),
        )

    def committed(self, committed: Committed) -> None:
        _log.info("commit_succeeded", snapshot_id=committed.snapshot_id)

    def waiting(self, wait_ms: int) -> None:
        _log.info("commit_settling", seconds=round(wait_ms / 1000, 1))

    def close(self) -> None:
        """Nothing is left on the screen."""
