"""The read-only JSON under `/v1`: the view's own dataclasses under their own names.

Enums go by value, a table's name as `{catalog, database, table}`, maps with two keys join them by
`/` (`"minor/committed": 3`), and what JSON has no number for (infinity) is null.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compactord.service.view import ServiceView, StatusSource, TableDetail

Json = Any


def encode(value: object) -> bytes:
    """JSON text of a view or of plain values. Raises `TypeError` for types without a JSON form."""
    # File names may hold lone surrogates, which have no UTF-8: write them as escapes.
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def plain(value: Any) -> Json:
    """The value as dicts, lists, texts and numbers."""
    # mypy takes `__hash__` of what the type makes for the type's own.
    return _plainer(type(value))(value)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=256)
def _plainer(kind: type[Any]) -> Callable[[Any], Json]:
    """The function that makes values of a type plain; cached per type, since tables are many."""
    if issubclass(kind, enum.Enum):
        return _enum_value
    if issubclass(kind, str | int | None):
        return _itself
    if issubclass(kind, float):
        return _finite
    if dataclasses.is_dataclass(kind):
        return functools.partial(_named, tuple(field.name for field in dataclasses.fields(kind)))
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return functools.partial(_named, kind._fields)
    if issubclass(kind, Mapping):
        return _mapping
    if issubclass(kind, tuple | list):
        return _items
    raise TypeError(f"{kind.__name__} has no JSON form")


def _itself(value: Json) -> Json:
    return value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _enum_value(value: enum.Enum) -> Json:
    return value.value


def _named(names: Sequence[str], value: object) -> Json:
    return {name: plain(getattr(value, name)) for name in names}


def _mapping(value: Mapping[object, object]) -> Json:
    return {_key(key): plain(item) for key, item in value.items()}


def _items(value: Sequence[object]) -> Json:
    return [plain(item) for item in value]


def _key(key: object) -> str:
    if isinstance(key, tuple):
        return "/".join(_key(part) for part in key)
    return str(key.value if isinstance(key, enum.Enum) else key)


def status(view: ServiceView) -> Json:
    """The view without its tables, which are many, and without what is internal."""
    names = (field.name for field in dataclasses.fields(view))
    left_out = ("tables", "queued_by_table", "steady_ms")
    return _named(tuple(name for name in names if name not in left_out), view)


def tables(view: ServiceView) -> Json:
    return {"now_ms": view.now_ms, "tables": plain(view.tables)}


def top_buckets(view: ServiceView, count: int) -> Json:
    """The `count` buckets with the most sorted runs; at most those that the view names."""
    return {"now_ms": view.now_ms, "buckets": plain(view.top_buckets[:count])}


def plan(detail: TableDetail) -> Json:
    """What would be picked now in the table's worst buckets, and why or why not."""
    picked = (bucket for bucket in detail.buckets if bucket.plan)
    return {
        "name": plain(detail.view.name),
        "snapshot_id": detail.view.planned_snapshot_id,
        "bucket_count": detail.bucket_count,
        "buckets": [
            _named(("partition", "bucket", "sorted_runs", "files", "size_bytes", "plan"), bucket)
            for bucket in picked
        ],
    }


def find_table(status: StatusSource, text: str) -> TableDetail | None:
    """The table called `catalog.database.table`; parts of a name may hold dots themselves."""
    names = (table.name for table in status.view().tables)
    found = next((name for name in names if str(name) == text), None)
    return None if found is None else status.detail(found)
