"""Writes events of the service: one log line for each, and the metrics that count them."""

from __future__ import annotations

import structlog

from compactord.clock import iso_text
from compactord.errors import CompactordError
from compactord.maintenance.expire import Expired
from compactord.model import TableName
from compactord.paimon.data_file import BucketId
from compactord.scheduler.at_engine import Submitted
from compactord.scheduler.record import CompactionRecord
from compactord.scheduler.scheduled_table import Quarantined
from compactord.scheduler.status import EndedCompaction, Halt, Outcome
from compactord.service.metrics import Metrics
from compactord.table.cycle import Planned, Settled
from compactord.table.report import REWRITTEN

_log = structlog.get_logger()


class LoggingObserver:
    """An `Observer` that writes logs and metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def started(self, name: TableName, record: CompactionRecord, now_ms: int) -> None:
        pending = record.pending
        self._metrics.task_waited(record.priority_class, max(0, now_ms - record.queued_ms) / 1000)
        _log.info(
            "compaction_started",
            **name.log_fields,
            partition=record.dispatch.partition,
            bucket=pending.bucket.bucket,
            kind=pending.kind.value,
            reason=record.dispatch.compaction.reason.value,
            priority_class=record.priority_class.value,
            compaction_id=record.number,
            snapshot_id=record.dispatch.snapshot_id,
            input_files=pending.files,
            input_bytes=pending.size_bytes,
            runs_before=pending.sorted_runs,
            subcompactions=len(record.dispatch.subcompactions),
        )

    def ended(self, view: EndedCompaction) -> None:
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
                self._metrics.compaction_finished(
                    view.kind, view.seconds, input_bytes=view.bytes_in, output_bytes=view.bytes_out
                )
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

    def committed(self, name: TableName, settled: Settled, seconds: float) -> None:
        committed = settled.committed
        assert committed is not None, "told of a commit"
        self._metrics.committed(seconds, len(settled.published))
        _log.info(
            "commit_succeeded",
            **name.log_fields,
            snapshot_id=committed.snapshot_id,
            compaction_ids=[each.number for each in settled.published],
            buckets=len({each.compaction.bucket for each in settled.published}),
            attempts=committed.attempts,
            duration_s=round(seconds, 3),
        )

    def commit_failed(self, name: TableName, error: CompactordError) -> None:
        _log.error("commit_gave_up", **name.log_fields, error=str(error))

    def quarantined(
        self, name: TableName, bucket: BucketId, quarantined: Quarantined, now_ms: int
    ) -> None:
        pause_s = round((quarantined.until_ms - now_ms) / 1000, 1)
        _log.warning(
            "bucket_quarantined",
            **name.log_fields,
            partition=quarantined.partition,
            bucket=bucket.bucket,
            failures=quarantined.failures,
            error=quarantined.message,
            pause_s=None if quarantined.is_damaged else pause_s,
        )

    def halted(self, name: TableName, halt: Halt) -> None:
        event = (
            "table_unsupported" if halt.reason.value == "unsupported_feature" else "table_halted"
        )
        _log.error(
            event,
            **name.log_fields,
            reason=halt.reason.value,
            message=halt.message,
            action=halt.action,
        )

    def resumed(self, name: TableName) -> None:
        _log.info("table_resumed", **name.log_fields)

    def troubled(self, name: TableName, error: str) -> None:
        _log.warning("poll_failed", **name.log_fields, error=error)

    def planned(self, name: TableName, planned: Planned, before: Planned | None) -> None:
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
        self._metrics.scanned(
            planned.seconds,
            manifests=planned.manifests_read,
            kept=planned.entries_read - planned.entries_skipped,
            skipped=planned.entries_skipped,
        )
        if planned.offered:
            _log.debug(
                "plan_finished",
                **name.log_fields,
                snapshot_id=planned.snapshot_id,
                due_tasks=planned.backlog.tasks,
                due_bytes=planned.backlog.size_bytes,
            )

    def expired(self, name: TableName, result: Expired | CompactordError, seconds: float) -> None:
        """A round of snapshot expiry has ended."""
        if isinstance(result, CompactordError):
            _log.warning("expire_failed", **name.log_fields, error=str(result))
        elif result.why_not is not None:
            _log.warning("expire_stopped", **name.log_fields, message=result.why_not)
        elif result.snapshots:
            _log.info(
                "expire_finished",
                **name.log_fields,
                expired_snapshots=result.snapshots,
                first_snapshot_id=result.first,
                earliest_snapshot_id=result.end,
                data_files=result.data_files,
                manifests=result.manifests,
                size_bytes=result.size_bytes,
                duration_s=round(seconds, 3),
            )

    def hung(self, name: TableName, submitted: Submitted, now_ms: int) -> None:
        _log.error(
            "subcompaction_hung",
            **name.log_fields,
            compaction_id=submitted.subcompaction.compaction,
            index=submitted.subcompaction.index,
            input_bytes=submitted.size_bytes,
            limit_s=round(submitted.limit_ms / 1000, 1),
            duration_s=round((now_ms - submitted.began_ms) / 1000, 1),
        )

    def snapshot_lost(self, name: TableName, why: str) -> None:
        # The committer has logged `snapshot_lost` with all it knows.
        del name, why
