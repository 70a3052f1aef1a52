"""Live files at the last full read, as columns ordered by bucket, with summaries of all buckets.

Everything here is immutable. A bucket is a slice; a file is found by the hash of its identity.
Entries stay encoded (and packed) and become objects on demand: a million files take
about 200 MB with statistics of nine columns.

`BucketSummary` is one bucket as a value; making a new one costs as much as the commit changed.
`BucketSummaries` has all buckets as columns.

The oldest run is all of the highest level, or, where level 0 is the highest, the last file in the
order of Levels.java. That order ends with the file name; here, of two files that differ only in
their names, the smaller one counts as older.

Encoded manifest entries resemble each other: compressed in groups of sixteen they take about a
fourth of their size. Packing costs a quarter of a microsecond each, reading one a few microseconds
(measured by `tests/bench/bench_scan.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactord.errors import FormatError
from compactord.paimon.avro.columns import Ints
from compactord.paimon.avro.container import AvroSchema, Block, decode_with_bytes
from compactord.paimon.data_file import BucketId, DataFile, FileIdentity, ManifestEntry
from compactord.paimon.manifest.entries import entries_of, identity_hashes
from compactord.paimon.manifest.entry_columns import (
    EntryColumns,
    FileColumns,
    Mask,
    SmallInts,
    columns_of,
)
from compactord.paimon.manifest.schemas import MANIFEST

Number = TypeVar("Number", int, Ints)

_LARGEST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class TopLevel(Generic[Number]):
    """The files on the highest level of a bucket that has any, or of many buckets as columns.

    `oldest_run_bytes` is the size of the oldest run and `age` its file's `level0_age`,
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
    """The top levels of files ordered by bucket; each bucket begins at one of `starts`."""
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
    """One bucket's facts, the same as in `BucketSummaries`.

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

    `partitions` are in order and may include unused ones. `keys` are
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
        some iterations over all buckets.
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

_GROUP = 16
_CODEC = "lz4_raw"


@dataclass(frozen=True, slots=True)
class PackedRecords:
    """Byte strings by position."""

    _groups: tuple[bytes, ...]
    _lengths: npt.NDArray[np.int32]

    @staticmethod
    def of(records: pa.LargeBinaryArray) -> PackedRecords:
        """Pack an array without nulls."""
        if not len(records):
            return PackedRecords((), np.zeros(0, np.int32))
        offsets = np.frombuffer(records.buffers()[1], np.int64)
        offsets = offsets[records.offset : records.offset + len(records) + 1]
        data = records.buffers()[2]
        codec = pa.Codec(_CODEC)
        bounds = [*offsets[:-1:_GROUP].tolist(), int(offsets[-1])]
        groups = tuple(
            codec.compress(data.slice(start, end - start), asbytes=True)
            for start, end in pairwise(bounds)
        )
        return PackedRecords(groups, np.diff(offsets).astype(np.int32))

    def __len__(self) -> int:
        return len(self._lengths)

    def read(self, positions: Iterable[int]) -> Iterator[bytes]:
        """The strings at these positions; adjacent ones are unpacked together."""
        codec = pa.Codec(_CODEC)
        unpacked = -1
        group, bounds = b"", [0]
        for position in positions:
            index, place = divmod(position, _GROUP)
            if index != unpacked:
                lengths = self._lengths[index * _GROUP : (index + 1) * _GROUP]
                bounds = [0, *accumulate(lengths.tolist())]
                group = codec.decompress(self._groups[index], bounds[-1], asbytes=True)
                unpacked = index
            yield group[bounds[place] : bounds[place + 1]]

    def take(self, positions: Iterable[int]) -> PackedRecords:
        """Only the strings at these positions, in that order."""
        return PackedRecords.of(pa.array(self.read(positions), pa.large_binary()))


# A chunk is copied without its dead entries once they are this share of it.
_DEAD_SHARE = 0.25
# Files with equal hashes that become objects at a time.
_COMPARED_TOGETHER = 1000


@dataclass(frozen=True, slots=True)
class Chunk:
    """Encoded entries of one schema."""

    schema: AvroSchema
    records: PackedRecords


class BaseFiles:
    """The columns of all files, ordered by bucket, with lookups by bucket, file and entry.

    `columns` are in order of arrival within a bucket. `places` and `kept_names` are in that order:
    each entry's position in `chunks`, and its name, null if that is not kept.
    """

    __slots__ = (
        "_by_hash",
        "_level_bounds",
        "_level_counts",
        "_levels",
        "_location",
        "_offsets",
        "_tops",
        "buckets",
        "chunks",
        "columns",
        "kept_names",
        "places",
        "summaries",
    )

    def __init__(
        self,
        location: str,
        columns: FileColumns,
        places: Ints,
        partitions: Sequence[bytes],
        *,
        chunks: Sequence[Chunk],
        names: pa.LargeStringArray | None,
    ) -> None:
        """Takes `columns` in order of arrival, with codes of `partitions`, and may modify them.

        `places` locate each entry's bytes: the chunk in `chunks`, and the position in it
        (`packed_keys`). `names` of files may be kept if objects of them would be too many.

        Raises `FormatError` if a file occurs twice.
        """
        self._location = location
        self.chunks = tuple(chunks)
        ranks = sorted(range(len(partitions)), key=partitions.__getitem__)
        recode = np.empty(len(partitions), np.int32)
        recode[ranks] = np.arange(len(partitions), dtype=np.int32)
        ordered = tuple(partitions[code] for code in ranks)
        codes = {partition: code for code, partition in enumerate(ordered)}
        columns = replace(columns, partition=recode[columns.partition])
        keys = packed_keys(columns.partition, columns.bucket)
        order = np.argsort(keys, kind="stable")
        self.columns = columns.take(order)
        self.places = places[order]
        self.kept_names = None if names is None else names.take(order)
        keys, starts = np.unique(keys[order], return_index=True)
        self.buckets = BucketIndex(ordered, codes, keys)
        self._offsets = np.append(starts, len(order))
        # The type that searchsorted needs: it would convert another one at every call.
        self._by_hash = np.argsort(self.columns.identity_hash)
        self._count_levels()
        self._tops = top_levels(self.columns, self._offsets[:-1])
        self.summaries = self._summarise()
        self._refuse_duplicates()

    def __len__(self) -> int:
        return len(self.columns.level)

    def names(self, rows: Ints) -> pa.LargeStringArray:
        """The names of these files; rows are in order."""
        if self.kept_names is not None and len(rows):
            first, last = int(rows[0]), int(rows[-1])
            is_range = last - first == len(rows) - 1
            names = self.kept_names[first : last + 1] if is_range else self.kept_names.take(rows)
            if not names.null_count:
                return names
        return pa.array([entry.file.file_name for entry in self.entries(rows)], pa.large_string())

    def rows_of(self, bucket: BucketId) -> slice:
        """The bucket's rows in `columns`; empty when it has no file."""
        index = self.buckets.find(bucket)
        if index is None:
            return slice(0, 0)
        return slice(int(self._offsets[index]), int(self._offsets[index + 1]))

    def summary(self, bucket: BucketId) -> BucketSummary:
        """The bucket's summary, an empty one without files. O(levels of the bucket)."""
        index = self.buckets.find(bucket)
        if index is None:
            return EMPTY_BUCKET
        some = slice(int(self._level_bounds[index]), int(self._level_bounds[index + 1]))
        levels, counts = self._levels[some].tolist(), self._level_counts[some].tolist()
        return BucketSummary(
            total_buckets=int(self.summaries.total_buckets[index]),
            size_bytes=int(self.summaries.size_bytes[index]),
            row_count=int(self.summaries.row_count[index]),
            level_counts=dict(zip(levels, counts, strict=True)),
            top=self._tops.of_bucket(index),
        )

    def top_level_of(self, rows: Ints) -> TopLevel[int] | None:
        """The top level of a bucket that has exactly these files."""
        if not len(rows):
            return None
        return top_levels(self.columns.take(rows), np.zeros(1, np.int64)).of_bucket(0)

    def created_ms(self, of: Mask, pick: np.ufunc) -> dict[BucketId, int]:
        """When the oldest (`np.minimum`) or newest of these files was created, by local wall clock.

        Includes buckets with at least one known creation time.
        """
        created = self.columns.creation_time_ms
        rows = np.flatnonzero(of & (created >= 0))
        bucket_of_row = np.searchsorted(self._offsets, rows, side="right") - 1
        buckets, starts = np.unique(bucket_of_row, return_index=True)
        times = pick.reduceat(created[rows], starts).tolist() if len(starts) else []
        return dict(zip(self.buckets.take(buckets).bucket_ids(), times, strict=True))

    def find(self, identities: Sequence[FileIdentity]) -> list[int | None]:
        """The row of each, None where there is none. A binary search per identity."""
        hashes = self.columns.identity_hash
        wanted = identity_hashes(identities)
        first = np.searchsorted(hashes, wanted, side="left", sorter=self._by_hash)
        last = np.searchsorted(hashes, wanted, side="right", sorter=self._by_hash)
        found: list[int | None] = []
        for identity, low, high in zip(identities, first.tolist(), last.tolist(), strict=True):
            rows = self._by_hash[low:high]
            same = (
                row
                for row, entry in zip(rows.tolist(), self.entries(rows), strict=True)
                if entry.identity == identity
            )
            found.append(next(same, None))
        return found

    def entries(self, rows: Ints | SmallInts) -> list[ManifestEntry]:
        """The files of these rows as objects; neighbours are cheaper than scattered ones."""
        path = f"{self._location}/manifest"
        entries: list[ManifestEntry] = []
        places = zip(*(part.tolist() for part in unpacked_keys(self.places[rows])), strict=True)
        for index, group in groupby(places, itemgetter(0)):
            chunk = self.chunks[index]
            found = tuple(chunk.records.read(position for _, position in group))
            records = decode_with_bytes(chunk.schema, Block(len(found), b"".join(found)), path)
            entries.extend(entries_of(chunk.schema, records, path))
        return entries

    def _count_levels(self) -> None:
        """Files per bucket and level, as one list cut by bucket."""
        bucket_of_row = np.repeat(np.arange(len(self.buckets)), np.diff(self._offsets))
        keys = packed_keys(bucket_of_row, self.columns.level)
        keys, self._level_counts = np.unique(keys, return_counts=True)
        buckets, self._levels = unpacked_keys(keys)
        self._level_bounds = np.searchsorted(buckets, np.arange(len(self.buckets) + 1))

    def _summarise(self) -> BucketSummaries:
        columns, starts = self.columns, self._offsets[:-1]
        per_level = np.diff(self._level_bounds)
        bucket_of_level = np.repeat(np.arange(len(self.buckets)), per_level)
        on_level0 = np.where(self._levels == 0, self._level_counts, 0)
        level0 = np.bincount(bucket_of_level, on_level0, len(self.buckets)).astype(np.int64)
        levels_above = per_level - (level0 > 0)
        return BucketSummaries(
            index=self.buckets,
            total_buckets=columns.total_buckets[starts],
            file_count=np.diff(self._offsets),
            size_bytes=_sums(columns.file_size, starts),
            row_count=_sums(columns.row_count, starts),
            level0_count=level0,
            run_count=level0 + levels_above,
            max_level=self._tops.level,
            oldest_run_bytes=self._tops.oldest_run_bytes,
            top_created_ms=self._tops.created_ms,
        )

    def _refuse_duplicates(self) -> None:
        hashes = self.columns.identity_hash[self._by_hash]
        same = np.flatnonzero(hashes[1:] == hashes[:-1])
        places = np.union1d(same, same + 1)
        seen: set[FileIdentity] = set()
        # In the order of hashes: of a million equal ones the first two are enough.
        for first in range(0, len(places), _COMPARED_TOGETHER):
            for entry in self.entries(self._by_hash[places[first : first + _COMPARED_TOGETHER]]):
                if entry.identity in seen:
                    raise FormatError(
                        f"{self._location}/manifest", f"file {entry.file.file_name} is added twice"
                    )
                seen.add(entry.identity)


def _sums(values: Ints, starts: Ints) -> Ints:
    return np.add.reduceat(values, starts) if len(starts) else np.zeros(0, np.int64)


class BaseFilesBuilder:
    """Collects batches of entries and keeps the bytes of live ones only."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._parts: list[FileColumns] = [_NO_FILES]
        self._places: list[Ints] = []
        self._chunks: list[Chunk] = []
        self._codes: dict[bytes, int] = {}
        # As long as the parts; None where a part's names are not kept.
        self._names: list[pa.LargeStringArray | None] = [None]

    def add(self, entries: EntryColumns, live: Mask) -> None:
        """Take the rows of `entries` that `live` marks."""
        rows = np.flatnonzero(live)
        if not len(rows):
            return
        records = entries.records if live.all() else entries.records.take(pa.array(rows))
        columns = entries.files.take(rows)
        self._add(columns, entries.partitions)
        # A partition without buckets may have very many files, which are packed by size and name.
        # The number of dynamic buckets is -1 as well, but they have buckets other than 0.
        has_buckets = bool((columns.total_buckets >= 0).all() or columns.bucket.any())
        self._names.append(None if has_buckets else entries.names(rows))
        self._places.append(packed_keys(len(self._chunks), np.arange(len(rows))))
        self._chunks.append(Chunk(entries.schema, PackedRecords.of(records)))

    def add_base(self, base: BaseFiles, live: Mask) -> None:
        """Take the rows of `base` that `live` marks, sharing the bytes where most are live."""
        self._add(base.columns.take(live), base.buckets.partitions)
        kept = base.kept_names
        self._names.append(None if kept is None else kept.filter(live))
        places = base.places[live]
        chunk_of_row, position = unpacked_keys(places)
        for index, chunk in enumerate(base.chunks):
            rows = np.flatnonzero(chunk_of_row == index)
            left, positions = _without_dead(chunk, position[rows])
            places[rows] = packed_keys(len(self._chunks), positions)
            self._chunks.append(left)
        self._places.append(places)

    def _add(self, columns: FileColumns, partitions: Sequence[bytes]) -> None:
        codes = [self._codes.setdefault(p, len(self._codes)) for p in partitions]
        self._parts.append(replace(columns, partition=np.array(codes, np.int32)[columns.partition]))

    def build(self) -> BaseFiles:
        columns, names = FileColumns.concatenated(self._parts), self._joined_names()
        # Sorting needs the memory that they take.
        self._parts.clear()
        self._names.clear()
        places = np.concatenate([np.zeros(0, np.int64), *self._places])
        return BaseFiles(
            self._location, columns, places, tuple(self._codes), chunks=self._chunks, names=names
        )

    def _joined_names(self) -> pa.LargeStringArray | None:
        if all(names is None for names in self._names):
            return None
        return pa.concat_arrays(
            pa.nulls(len(part.level), pa.large_string()) if names is None else names
            for part, names in zip(self._parts, self._names, strict=True)
        )


def _without_dead(chunk: Chunk, positions: Ints) -> tuple[Chunk, Ints]:
    """The chunk, or a copy of these positions only if most entries are dead."""
    if len(positions) >= (1 - _DEAD_SHARE) * len(chunk.records):
        return chunk, positions
    records = chunk.records.take(positions.tolist())
    return Chunk(chunk.schema, records), np.arange(len(positions))


_NO_FILES = columns_of((), MANIFEST, ()).files
