"""Adds up what a run over one table came to."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from compactord.clock import Clock
from compactord.errors import AccessDenied, CompactordError, ReadOnlyFileSystem
from compactord.model import MergeCompaction, TableName
from compactord.paimon.data_file import BucketId
from compactord.scheduler.at_engine import Submitted
from compactord.scheduler.record import CompactionRecord
from compactord.scheduler.scheduled_table import Counts, Quarantined
from compactord.scheduler.status import EndedCompaction, Halt, Outcome
from compactord.table.cycle import Settled
from compactord.table.in_flight import Finished
from compactord.table.totals import CompactTotals, Progress

_log = structlog.get_logger()
_DENIED = {AccessDenied.__name__, ReadOnlyFileSystem.__name__}


class TotallingObserver:
    """An `Observer` that writes totals and reports progress."""

    def __init__(self, totals: CompactTotals, progress: Progress, clock: Clock) -> None:
        self._totals = totals
        self._progress = progress
        self._clock = clock
        self._start_s = 0.0

    def begin(self) -> None:
        """The run begins: its time counts from here."""
        self._start_s = self._clock.monotonic_s()

    def end(self, counts: Counts) -> None:
        """The run is over; `counts` are those of its table."""
        outcomes = counts.compactions.items()
        self._totals.dropped = sum(n for (_, how), n in outcomes if how is Outcome.CONFLICT)
        self._totals.wasted_bytes = counts.sums["wasted_bytes"]

    def committed(self, name: TableName, settled: Settled, seconds: float) -> None:
        committed, totals = settled.committed, self._totals
        assert committed is not None, "told of a commit"
        totals.snapshots.append(committed.snapshot_id)
        totals.seconds = self._clock.monotonic_s() - self._start_s - totals.start_seconds
        _add_up(totals, settled.published)
        self._progress.committed(committed)

    def quarantined(
        self, name: TableName, bucket: BucketId, quarantined: Quarantined, now_ms: int
    ) -> None:
        """A bucket is quarantined for the rest of the run."""
        why, partition = quarantined.message, quarantined.partition
        _log.error("compaction_failed", partition=partition, bucket=bucket.bucket, error=why)
        place = f"partition {partition} " if partition else ""
        self._totals.failures.append(f"{place}bucket {bucket.bucket}: {why}")
        self._totals.denied += quarantined.error in _DENIED

    def snapshot_lost(self, name: TableName, why: str) -> None:
        self._totals.lost_snapshots.append(why)

    # What follows is for those who watch: the log of the session has it already.

    def hung(self, name: TableName, submitted: Submitted, now_ms: int) -> None: ...

    def started(self, name: TableName, record: CompactionRecord, now_ms: int) -> None: ...

    def ended(self, view: EndedCompaction) -> None: ...

    def commit_failed(self, name: TableName, error: CompactordError) -> None: ...

    def halted(self, name: TableName, halt: Halt) -> None: ...

    def resumed(self, name: TableName) -> None: ...

    def troubled(self, name: TableName, error: str) -> None: ...


def _add_up(totals: CompactTotals, published: Sequence[Finished]) -> None:
    for finished in published:
        compaction = finished.compaction
        upgraded = len(compaction.upgraded) if isinstance(compaction, MergeCompaction) else 0
        totals.compactions += 1
        totals.upgraded_files += upgraded
        totals.files_in += len(compaction.inputs) - upgraded
        totals.files_out += len(finished.change.after) - upgraded
        for stats in finished.stats:
            totals.bytes_in += stats.bytes_in
            totals.bytes_out += stats.bytes_out
            totals.rows_in += stats.rows_in
            totals.rows_out += stats.rows_out
            totals.worker_cpu_s += stats.cpu_s
            totals.peak_worker_rss_bytes = max(totals.peak_worker_rss_bytes, stats.peak_rss_bytes)
