"""Writes events of the service: one log line for each, and the metrics that count them."""

from __future__ import annotations

import structlog

from compactord.clock import iso_text
from compactord.model import TableName
from compactord.scheduler import events
from compactord.scheduler.compaction import EndedCompaction, HaltReason, Outcome
from compactord.service.metrics import Metrics
from compactord.table.jobs import Planned
from compactord.table.report import REWRITTEN

_log = structlog.get_logger()


class LoggingObserver:
    """An `Observer` that writes logs and metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def told(self, event: events.Event) -> None:
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
            case events.Committed():
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
                # Counted, or logged with all that is known where it was found.
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
            compaction_id=record.number,
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

    def _committed(self, event: events.Committed) -> None:
        self._metrics.commit.observe(event.seconds)
        self._metrics.commit_buckets.observe(len(event.compactions))
        _log.info(
            "commit_succeeded",
            **event.name.log_fields,
            snapshot_id=event.snapshot_id,
            compaction_ids=list(event.compactions),
            buckets=event.buckets,
            attempts=event.attempts,
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
