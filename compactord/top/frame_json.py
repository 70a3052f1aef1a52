"""A frame of `top` as plain data, for `--json`: its own names, which scripts read."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from compactord.scheduler.status import EndedCompaction
from compactord.service.codec import plain_fields
from compactord.service.page.need import is_failing, need_of, why_text
from compactord.service.view import ActiveCompaction, ServiceView, TableView
from compactord.top.status import (
    Rates,
    SeenCompaction,
    TopStatus,
    place_text,
    service_troubles,
    shown_name,
)

_SIZES = ("files_in", "files_out", "bytes_in", "bytes_out")


def frame_json(status: TopStatus, rates: Rates | None, *, trouble: str) -> dict[str, Any]:
    """The status as plain data; `need` of a table is the frame's word for it, or `nothing`.

    `trouble` is why the newest status is an older one, empty otherwise. None: it is not known.
    """
    service = status.service
    return {
        "source": status.source,
        "now_ms": status.now_ms,
        "service": None if service is None else _service(service),
        "tables": [_table(table, status.now_ms) for table in status.by_need()],
        "running": [] if service is None else [_running(task) for task in service.running],
        "recent": [_seen(each) for each in status.seen]
        if service is None
        else [_ended(each) for each in service.recent],
        "rates": None if rates is None else asdict(rates),
        "trouble": trouble,
    }


def _service(view: ServiceView) -> dict[str, Any]:
    engine = view.engine
    shown = ("slots", "running", "memory_reserved_bytes", "memory_budget_bytes")
    return {
        "is_starting": not engine.is_up and not engine.error,
        "is_draining": view.is_draining,
        **plain_fields(shown, engine),
        "queued": sum(view.queued.values()),
        "troubles": list(service_troubles(view)),
    }


def _table(table: TableView, now_ms: int) -> dict[str, Any]:
    info = ("kind", "merge_engine", "write_only", "compaction_trigger", "stop_trigger")
    return {
        "name": shown_name(table.name),
        "status": table.status.value,
        "catalog": table.name.catalog,
        "location": table.location,
        **plain_fields(info, table.info),
        "is_read": table.is_read,
        "sorted_runs": table.shape.sorted_runs_max,
        **plain_fields(("level0_files", "files", "small_files", "size_bytes"), table.shape),
        "backlog_bytes": table.backlog.size_bytes,
        "oldest_ms": table.backlog.oldest_ms,
        "max_backlog_age_ms": table.max_backlog_age_ms,
        "waiting_since_ms": table.shape.waiting_since_ms,
        "max_freshness_lag_ms": table.max_freshness_lag_ms,
        "last_commit_ms": table.last_commit_ms,
        "is_failing": is_failing(table),
        "note": why_text(table, now_ms),
        **plain_fields(("input_bytes", "output_bytes"), table.counters),
        "need": need_of(table, now_ms).name.lower(),
    }


def _running(task: ActiveCompaction) -> dict[str, Any]:
    shown = ("files", "size_bytes", "started_ms", "subcompactions", "subcompactions_done")
    return {
        "table": shown_name(task.name),
        "place": place_text(task.partition, task.bucket),
        "why": task.reason.value,
        **plain_fields(shown, task),
    }


def _ended(ended: EndedCompaction) -> dict[str, Any]:
    snapshot = f"snapshot {ended.snapshot_id}" if ended.snapshot_id else ""
    return {
        "table": shown_name(ended.name),
        "place": place_text(ended.partition, ended.bucket),
        "why": ended.reason.value,
        "outcome": ended.outcome.value,
        "detail": snapshot or ended.message,
        **plain_fields((*_SIZES, "finished_ms"), ended),
    }


def _seen(seen: SeenCompaction) -> dict[str, Any]:
    return {
        "table": shown_name(seen.name),
        **dict.fromkeys(("place", "why"), ""),
        "outcome": "committed",
        "detail": f"snapshot {seen.snapshot_id}",
        **dict.fromkeys(_SIZES),
        "finished_ms": seen.finished_ms,
    }
