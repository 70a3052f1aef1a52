"""The LSM summary of one bucket that `inspect` and `plan` show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from compactord.paimon.data_file import BucketFiles, BucketId, DataFile
from compactord.paimon.deletion_vectors import NO_VECTORS, VectorRef
from compactord.paimon.options.merge import USUAL_PREFIX
from compactord.paimon.options.table_options import CompactionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelShape:
    """One non-empty level. `delete_row_count` counts what is known."""

    level: int
    file_count: int
    row_count: int
    delete_row_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketShape:
    """Level totals in ascending order, and how the run count stands against the triggers.

    `small_file_count` counts files that planning treats as small. `vector_count` are files that
    have deletion vectors, `deleted_row_count` their deleted rows as far as that is known.
    `unindexed_levels` are those that lack a sorted index. `is_from_before`: levels above 0 are, see
    `lookup_begins`. `foreign_file_count` are files whose names no Paimon writer gives, as those of
    migrated tables. Append tables have all files on level 0; their run count has no meaning.
    """

    bucket: BucketId
    total_buckets: int
    levels: tuple[LevelShape, ...]
    small_file_count: int
    vector_count: int
    deleted_row_count: int
    unindexed_levels: int
    is_from_before: bool
    foreign_file_count: int
    compaction_trigger: int
    stop_trigger: int

    @property
    def run_count(self) -> int:
        """Level-0 files and non-empty levels above."""
        return sum(level.file_count if level.level == 0 else 1 for level in self.levels)

    @property
    def file_count(self) -> int:
        return sum(level.file_count for level in self.levels)

    @property
    def row_count(self) -> int:
        """Physical rows: several of one key count separately."""
        return sum(level.row_count for level in self.levels)

    @property
    def size_bytes(self) -> int:
        return sum(level.size_bytes for level in self.levels)

    @property
    def is_at_trigger(self) -> bool:
        """Whether a minor compaction checks the sizes of the runs."""
        return self.run_count >= self.compaction_trigger

    @property
    def is_over_stop_trigger(self) -> bool:
        """Whether writers that compact themselves would wait."""
        return self.run_count > self.stop_trigger


def bucket_shape(
    bucket: BucketFiles,
    options: CompactionOptions,
    vectors: Mapping[str, VectorRef] = NO_VECTORS,
    unindexed_levels: int = 0,
    is_from_before: bool = False,
    file_prefix: str = USUAL_PREFIX,
) -> BucketShape:
    """`vectors` are the deletion vectors of the bucket by data file, which need not be live."""
    own = (USUAL_PREFIX, file_prefix)
    by_level: dict[int, list[DataFile]] = defaultdict(list)
    for file in bucket.files:
        by_level[file.level].append(file)
    having = [vectors[file.file_name] for file in bucket.files if file.file_name in vectors]
    return BucketShape(
        bucket=bucket.bucket,
        total_buckets=bucket.total_buckets,
        levels=tuple(_level_shape(level, by_level[level]) for level in sorted(by_level)),
        small_file_count=sum(file.file_size < options.small_file_size for file in bucket.files),
        vector_count=len(having),
        deleted_row_count=sum(vector.cardinality or 0 for vector in having),
        unindexed_levels=unindexed_levels,
        is_from_before=is_from_before,
        foreign_file_count=sum(not file.file_name.startswith(own) for file in bucket.files),
        compaction_trigger=options.compaction_trigger,
        stop_trigger=options.stop_trigger,
    )


def _level_shape(level: int, files: list[DataFile]) -> LevelShape:
    return LevelShape(
        level=level,
        file_count=len(files),
        row_count=sum(file.row_count for file in files),
        delete_row_count=sum(file.delete_row_count or 0 for file in files),
        size_bytes=sum(file.file_size for file in files),
    )
