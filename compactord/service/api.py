"""The read-only JSON under `/v1`: the view's own dataclasses, as `service/codec.py` writes them."""

from __future__ import annotations

import dataclasses

from compactord.service.codec import Json, plain, plain_fields
from compactord.service.view import ServiceView, StatusSource, TableDetail


def status(view: ServiceView) -> Json:
    """The view without its tables, which are many, and without what is internal."""
    names = (field.name for field in dataclasses.fields(view))
    left_out = ("tables", "queued_by_table", "steady_ms")
    return plain_fields(tuple(name for name in names if name not in left_out), view)


def tables(view: ServiceView) -> Json:
    return {"now_ms": view.now_ms, "tables": plain(view.tables)}


def top_buckets(view: ServiceView, count: int) -> Json:
    """The `count` buckets with the most sorted runs; at most those that the view names."""
    return {"now_ms": view.now_ms, "buckets": plain(view.top_buckets[:count])}


def plan(detail: TableDetail) -> Json:
    """What would be picked now in the table's worst buckets, and why or why not."""
    shown = ("partition", "bucket", "sorted_runs", "files", "size_bytes", "plan")
    return {
        "name": plain(detail.view.name),
        "snapshot_id": detail.view.planned_snapshot_id,
        "bucket_count": detail.bucket_count,
        "buckets": [plain_fields(shown, bucket) for bucket in detail.buckets if bucket.plan],
    }


def find_table(status: StatusSource, text: str) -> TableDetail | None:
    """The table called `catalog.database.table`; parts of a name may hold dots themselves."""
    names = (table.name for table in status.view().tables)
    found = next((name for name in names if str(name) == text), None)
    return None if found is None else status.detail(found)
