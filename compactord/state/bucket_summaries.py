"""Summaries of all buckets of a table, without objects for its files.

`BucketSummary` is one bucket as a value; making a new one costs as much as the commit changed.
`BucketSummaries` are all of them as columns.

The oldest run is all of the highest level, or, where level 0 is the highest, the last file in the
order of Levels.java. That order ends with the file name; here, of two files that differ only in
their names, the smaller one counts as older.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from compactord.paimon.avro.columns import Ints
from compactord.paimon.data_file import BucketId, DataFile
from compactord.paimon.manifest.entry_columns import FileColumns, Mask, SmallInts

Number = TypeVar("Number", int, Ints)

_LARGEST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class TopLevel(Generic[Number]):
    """The files on the highest level of a bucket that has any, or of many buckets as columns.

    `oldest_run_bytes` is the size of the oldest run and `age` that of its file by `level0_age`,
    which has a meaning on level 0 only. `created_ms` is the newest creation of a file on the level,
    by local wall clock, -1 if none is known.
    """

    level: Number
    oldest_run_bytes: Number
    created_ms: Number
    age: tuple[Number, Number, Number]

    @staticmethod
    def of_file(file: DataFile) -> TopLevel[int]:
        return TopLevel(
            level=file.level,
            oldest_run_bytes=file.file_size,
            created_ms=file.created_ms,
            age=level0_age(file.max_sequence_number, file.min_sequence_number, file.created_ms),
        )

    def joined(self: TopLevel[int], other: TopLevel[int]) -> TopLevel[int]:
        """The top level of both sets of files together."""
        if self.level != other.level:
            return max(self, other, key=lambda top: top.level)
        older = min(self, other, key=lambda top: (top.age, top.oldest_run_bytes))
        level_bytes = self.oldest_run_bytes + other.oldest_run_bytes
        return TopLevel(
            level=self.level,
            oldest_run_bytes=level_bytes if self.level > 0 else older.oldest_run_bytes,
            created_ms=max(self.created_ms, other.created_ms),
            age=older.age,
        )

    def of_bucket(self: TopLevel[Ints], index: int) -> TopLevel[int]:
        first, second, third = (int(column[index]) for column in self.age)
        return TopLevel(
            level=int(self.level[index]),
            oldest_run_bytes=int(self.oldest_run_bytes[index]),
            created_ms=int(self.created_ms[index]),
            age=(first, second, third),
        )


def level0_age(
    max_sequence_number: Number, min_sequence_number: Number, creation_time_ms: Number
) -> tuple[Number, Number, Number]:
    """A sort key: less for a file that is older on level 0."""
    return max_sequence_number, ~min_sequence_number, ~creation_time_ms


def top_levels(files: FileColumns, starts: Ints) -> TopLevel[Ints]:
    """Of files that are ordered by bucket, each of which begins at one of `starts`."""
    if not len(starts):
        none = np.zeros(0, np.int64)
        return TopLevel(none, none, none, (none, none, none))
    level = files.level
    counts = np.diff(starts, append=len(level))
    highest = np.maximum.reduceat(level, starts)
    on_top = level == np.repeat(highest, counts)
    level_bytes = np.add.reduceat(np.where(on_top, files.file_size, 0), starts)
    newest = np.maximum.reduceat(np.where(on_top, files.creation_time_ms, -1), starts)
    age = level0_age(files.max_sequence_number, files.min_sequence_number, files.creation_time_ms)
    oldest = []
    is_oldest = on_top
    for column in (*age, files.file_size):
        least = np.minimum.reduceat(np.where(is_oldest, column, _LARGEST), starts)
        is_oldest = is_oldest & (column == np.repeat(least, counts))
        oldest.append(least)
    first, second, third, smallest = oldest
    return TopLevel(
        level=highest.astype(np.int64),
        oldest_run_bytes=np.where(highest > 0, level_bytes, smallest),
        created_ms=newest,
        age=(first, second, third),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSummary:
    """One bucket's facts, as `BucketSummaries` has them for all.

    `level_counts` are files by level. `top` is None for a bucket without files.
    """

    total_buckets: int
    size_bytes: int
    row_count: int
    level_counts: Mapping[int, int]
    top: TopLevel[int] | None

    @property
    def file_count(self) -> int:
        return sum(self.level_counts.values())

    @property
    def level0_count(self) -> int:
        return self.level_counts.get(0, 0)

    @property
    def run_count(self) -> int:
        return self.level0_count + sum(level > 0 for level in self.level_counts)

    @property
    def max_level(self) -> int:
        return self.top.level if self.top else 0

    @property
    def oldest_run_bytes(self) -> int:
        return self.top.oldest_run_bytes if self.top else 0

    @property
    def top_created_ms(self) -> int:
        return self.top.created_ms if self.top else -1


EMPTY_BUCKET = BucketSummary(total_buckets=0, size_bytes=0, row_count=0, level_counts={}, top=None)


@dataclass(frozen=True, slots=True)
class BucketIndex:
    """Buckets in order, by the bytes of the partition and the bucket number.

    `partitions` are in order, too, and may be more than there are buckets of. `keys` are those of
    `packed_keys`, with `codes` of partitions.
    """

    partitions: tuple[bytes, ...]
    codes: Mapping[bytes, int]
    keys: Ints

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, bucket: BucketId) -> int | None:
        """The bucket's row, None if there is none."""
        code = self.codes.get(bucket.partition)
        if code is None:
            return None
        # `packed_keys` of one bucket: vectors take longer.
        key = (code << 32) | (bucket.bucket + _BIAS)
        index = int(self.keys.searchsorted(key))
        return index if index < len(self.keys) and self.keys[index] == key else None

    def bucket_id(self, index: int) -> BucketId:
        high, low = unpacked_keys(self.keys[index])
        return BucketId(self.partitions[int(high)], int(low))

    def bucket_ids(self) -> list[BucketId]:
        high, low = unpacked_keys(self.keys)
        return [
            BucketId(self.partitions[code], bucket)
            for code, bucket in zip(high.tolist(), low.tolist(), strict=True)
        ]

    def take(self, rows: Ints | Mask) -> BucketIndex:
        """Some of the buckets; `rows` are in order."""
        return replace(self, keys=self.keys[rows])

    def grown(self, buckets: Sequence[BucketId]) -> tuple[BucketIndex, Ints]:
        """This index with new buckets, and the source row of each: ours first, then `buckets`."""
        partitions, codes, keys = self.partitions, self.codes, self.keys
        unknown = {bucket.partition for bucket in buckets} - codes.keys()
        if unknown:
            partitions = tuple(sorted(unknown.union(partitions)))
            codes = {partition: code for code, partition in enumerate(partitions)}
            high, low = unpacked_keys(keys)
            recoded = np.array([codes[partition] for partition in self.partitions], np.int64)
            keys = packed_keys(recoded[high], low)
        others = packed_keys([codes[b.partition] for b in buckets], [b.bucket for b in buckets])
        keys = np.concatenate([keys, others])
        order = np.argsort(keys, kind="stable")
        return BucketIndex(partitions, codes, keys[order]), order


_BIAS = 1 << 31


def packed_keys(high: npt.ArrayLike, low: npt.ArrayLike) -> Ints:
    """One number that sorts by both; `low` is a signed 32-bit number, `high` 31 bits."""
    key: Ints = (np.asarray(high, np.int64) << 32) | (np.asarray(low, np.int64) + _BIAS)
    return key


def unpacked_keys(keys: Ints) -> tuple[Ints, Ints]:
    """The inverse of `packed_keys`."""
    return keys >> 32, (keys & 0xFFFFFFFF) - _BIAS


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSummaries:
    """The summaries of all buckets, one array per fact, in the order of `index`.

    `run_count` is level-0 files plus levels above that have files. `max_level` is the highest level
    that has files, `top_created_ms` the newest creation of a file on it (by local wall clock, -1:
    not known). `oldest_run_bytes` is the size of the oldest run; it has no meaning for append
    tables. Sizes in bytes; rows include retractions.
    """

    index: BucketIndex
    total_buckets: SmallInts
    file_count: Ints
    size_bytes: Ints
    row_count: Ints
    level0_count: Ints
    run_count: Ints
    max_level: Ints
    oldest_run_bytes: Ints
    top_created_ms: Ints

    def __len__(self) -> int:
        return len(self.index)

    def updated(self, changed: Mapping[BucketId, BucketSummary]) -> BucketSummaries:
        """With these buckets replaced; a bucket without files is removed.

        Copies the columns; the other steps cost O(changed buckets). New or removed buckets cost
        some passes over all buckets.
        """
        rows, there, new = [], [], []
        for bucket, summary in changed.items():
            row = self.index.find(bucket)
            if row is not None:
                rows.append(row)
                there.append(summary)
            elif summary.top is not None:
                new.append((bucket, summary))
        index, order = self.index, None
        if new:
            index, order = self.index.grown([bucket for bucket, _ in new])
        columns = {}
        for name in _FACTS:
            column = getattr(self, name).copy()
            column[rows] = [getattr(summary, name) for summary in there]
            if order is not None:
                others = np.array([getattr(summary, name) for _, summary in new], column.dtype)
                column = np.concatenate([column, others])[order]
            columns[name] = column
        grown = BucketSummaries(index=index, **columns)
        return grown if all(one.top for one in there) else grown._with_files()

    def _with_files(self) -> BucketSummaries:
        rows = np.flatnonzero(self.file_count)
        columns = {name: getattr(self, name)[rows] for name in _FACTS}
        return BucketSummaries(index=self.index.take(rows), **columns)


_FACTS = tuple(f.name for f in fields(BucketSummaries) if f.name != "index")
