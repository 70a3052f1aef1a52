"""Small values for tests of planning: files with integer keys, options with Paimon's defaults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from compactord.model import Compaction, PickRule, TableKind
from compactord.paimon.data_file import EMPTY_STATS, BucketFiles, BucketId, DataFile, FileSource
from compactord.paimon.options.table_options import CompactionOptions, LookupOptions
from compactord.plan.table import BucketPlan, PlanRequest, Strategy, one_round, plan_bucket

MB = 1 << 20
BUCKET = BucketId(b"", 0)
# A Saturday, 10:00 local time.
NOW_MS = 1_700_042_400_000 // 86_400_000 * 86_400_000 + 10 * 3_600_000


def key(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def key_of(data: bytes) -> tuple[int]:
    return (int.from_bytes(data, "big", signed=True),)


def data_file(
    name: str,
    *,
    level: int = 0,
    size: int = MB,
    keys: tuple[int, int] = (0, 0),
    sequences: tuple[int, int] = (0, 0),
    rows: int = 1,
    deletes: int | None = 0,
    created_ms: int | None = NOW_MS,
    source: FileSource = FileSource.APPEND,
    schema_id: int = 0,
) -> DataFile:
    return DataFile(
        file_name=name,
        file_size=size,
        row_count=rows,
        min_key=key(keys[0]),
        max_key=key(keys[1]),
        key_stats=EMPTY_STATS,
        value_stats=EMPTY_STATS,
        min_sequence_number=sequences[0],
        max_sequence_number=sequences[1],
        schema_id=schema_id,
        level=level,
        creation_time_ms=created_ms,
        delete_row_count=deletes,
        file_source=source,
    )


DEFAULTS = CompactionOptions(
    num_levels=6,
    compaction_trigger=5,
    stop_trigger=8,
    max_size_amplification_percent=200,
    size_ratio_percent=1,
    offpeak_start_hour=-1,
    offpeak_end_hour=-1,
    offpeak_ratio_percent=0,
    force_up_level_0=False,
    optimization_interval_ms=None,
    total_size_threshold=None,
    incremental_size_threshold=None,
    full_compaction_delta_commits=None,
    force_rewrite_all_files=False,
    target_file_size=128 * MB,
    small_file_ratio=0.7,
    min_file_num=5,
    file_num_limit=100_000,
    open_file_cost=4 * MB,
)


# Of tables that keep the newest record and mark what it replaces.
MARKS = LookupOptions(
    changelog=False,
    upgrades=True,
    is_one_record=True,
    marks=True,
    finds_values=False,
    ignores_deletes=False,
    wait_ms=None,
    readers_wait=True,
)


def compaction_options(**changed: Any) -> CompactionOptions:
    return replace(DEFAULTS, **changed)


def append_options(**changed: Any) -> CompactionOptions:
    return replace(DEFAULTS, **{"target_file_size": 256 * MB, **changed})


def bucket_of(files: Iterable[DataFile], bucket: BucketId = BUCKET) -> BucketFiles:
    return BucketFiles(bucket=bucket, total_buckets=1, files=tuple(files))


def plan_request(kind: TableKind = TableKind.PRIMARY_KEY, **changed: Any) -> PlanRequest:
    is_keyed = kind is TableKind.PRIMARY_KEY
    values = {
        "options": DEFAULTS if is_keyed else append_options(),
        "strategy": Strategy.MINOR,
        "pick": PickRule.RELEASE_2_1,
        "key_of": key_of,
        "now_local_ms": NOW_MS,
        "steady_ms": NOW_MS,
        "append_wait_ms": 600_000,
        **changed,
    }
    return PlanRequest(kind=kind, **values)


def names(files: Iterable[DataFile]) -> list[str]:
    return [file.file_name for file in files]


def plan_buckets(buckets: Iterable[BucketFiles], request: PlanRequest) -> Iterator[BucketPlan]:
    """A round over these buckets."""
    return one_round((plan_bucket(bucket, request) for bucket in buckets), request)


def decisions(buckets: Iterable[BucketFiles], request: PlanRequest) -> Iterator[Compaction]:
    """Those on all buckets."""
    return (decision for plan in plan_buckets(buckets, request) for decision in plan.compactions)
