"""The live files at the last full read or consolidation, as columns ordered by bucket.

Everything here is immutable. A bucket is a slice; a file is found by the hash of its identity.
Entries stay encoded (and packed) and become objects on demand: a million files take
about 200 MB with statistics of nine columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa

from compactord.errors import FormatError
from compactord.paimon.avro.columns import Ints
from compactord.paimon.avro.container import AvroSchema, Block, decode_with_bytes
from compactord.paimon.data_file import BucketId, FileIdentity, ManifestEntry
from compactord.paimon.manifest.entries import entries_of, identity_hashes
from compactord.paimon.manifest.entry_columns import (
    EntryColumns,
    FileColumns,
    Mask,
    SmallInts,
    columns_of,
)
from compactord.paimon.manifest.schemas import MANIFEST
from compactord.state.bucket_summaries import (
    EMPTY_BUCKET,
    BucketIndex,
    BucketSummaries,
    BucketSummary,
    TopLevel,
    packed_keys,
    top_levels,
    unpacked_keys,
)
from compactord.state.packed_records import PackedRecords

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

    `columns` are in order of arrival within a bucket. `places` and `kept_names` are in that order,
    and say where each entry is in `chunks`, and its name; null where that is not kept.
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
        chunks: Sequence[Chunk],
        names: pa.LargeStringArray | None,
    ) -> None:
        """Takes `columns` in order of arrival, with codes of `partitions`, and may modify them.

        `places` say where each entry's bytes are: in which of `chunks`, and at which position
        (`packed_keys`). `names` of files may be kept where objects of them would be too many.

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

        Of each bucket that has any whose creation is known.
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
        # The number of dynamic buckets is -1, too, but there are others than 0.
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
        return BaseFiles(self._location, columns, places, tuple(self._codes), self._chunks, names)

    def _joined_names(self) -> pa.LargeStringArray | None:
        if all(names is None for names in self._names):
            return None
        return pa.concat_arrays(
            pa.nulls(len(part.level), pa.large_string()) if names is None else names
            for part, names in zip(self._parts, self._names, strict=True)
        )


def _without_dead(chunk: Chunk, positions: Ints) -> tuple[Chunk, Ints]:
    """The chunk, or a copy of these positions only if it has many others."""
    if len(positions) >= (1 - _DEAD_SHARE) * len(chunk.records):
        return chunk, positions
    records = chunk.records.take(positions.tolist())
    return Chunk(chunk.schema, records), np.arange(len(positions))


_NO_FILES = columns_of((), MANIFEST, ()).files
