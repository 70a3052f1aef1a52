"""The live files of a table, growing with its snapshots at the cost of what they change.

A large immutable base (see `base_files`) lies under a few layers of patches, newest last, each with
the changed buckets only. Layers are merged when one is not much larger than the next, so there are
few of them and a change is copied a logarithmic number of times. When patches have become a fourth
of the base, base and patches are made one again: a constant cost per change in the long run. All
values are immutable: a state that someone holds stays what it was.

Rule of the format that this rests on: a file is added once and deleted at most once
(manifest/FileEntry.java).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from compactord.errors import FormatError
from compactord.paimon.avro import encode_record
from compactord.paimon.base_files import (
    BaseFiles,
    BaseFilesBuilder,
    BucketSummaries,
    Hashes,
    Mask,
)
from compactord.paimon.data_file import (
    BucketFiles,
    BucketId,
    DataFile,
    EntryKind,
    FileIdentity,
    ManifestEntry,
)
from compactord.paimon.entry_columns import (
    EntryColumns,
    columns_of,
    identity_hashes,
    read_entry_columns,
)
from compactord.paimon.manifest import ManifestFile, entry_record
from compactord.paimon.manifest_schema import MANIFEST
from compactord.storage.base import Storage

_MIN_CHANGES_TO_CONSOLIDATE = 2000
_CONSOLIDATE_SHARE = 4
# A layer is merged into the one below unless that one is so many times larger.
_LAYER_RATIO = 2

Int = TypeVar("Int", np.int32, np.int64)


class UnknownFile(Exception):
    """A delta deletes a file that is not live: these live files are not what it builds upon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSummary:
    """One bucket's facts, as `BucketSummaries` has them for all. `level_counts` by level."""

    total_buckets: int
    size_bytes: int
    row_count: int
    level_counts: Mapping[int, int]

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
        return max(self.level_counts, default=0)


@dataclass(frozen=True, slots=True)
class _Patch:
    """What happened to one bucket since the layer below; `summary` is the state afterwards.

    `removed` maps to the file's row in the base, None when a lower layer had added it.
    """

    removed: Mapping[FileIdentity, int | None]
    added: Mapping[FileIdentity, ManifestEntry]
    summary: BucketSummary

    @property
    def change_count(self) -> int:
        return len(self.removed) + len(self.added)


@dataclass(frozen=True, slots=True)
class _Place:
    """A live file: its row in the base (None: a layer holds it) and its numbers."""

    row: int | None
    level: int
    file_size: int
    row_count: int
    schema_id: int


_Layer = dict[BucketId, _Patch]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFiles:
    """All live files at one snapshot. Totals: files, bytes, rows (retractions included)."""

    base: BaseFiles = field(repr=False)
    layers: tuple[_Layer, ...] = field(default=(), repr=False)
    schema_id_counts: Mapping[int, int]
    file_count: int
    size_bytes: int
    row_count: int
    location: str

    @property
    def schema_ids(self) -> frozenset[int]:
        """The schemas that live files were written with."""
        return frozenset(self.schema_id_counts)

    def bucket(self, bucket: BucketId, *, smaller_than: int | None = None) -> BucketFiles:
        """The bucket's files as objects; only those below a size in bytes when that is given.

        Raises `FormatError` when its entries disagree about the number of buckets.
        """
        entries = self.entries(bucket, smaller_than=smaller_than)
        numbers = {entry.total_buckets for entry in entries}
        if len(numbers) > 1:
            raise FormatError(
                f"{self.location}/manifest",
                f"files of bucket {bucket.bucket} disagree about the number of buckets: "
                f"{', '.join(map(str, sorted(numbers)))}",
            )
        return BucketFiles(
            bucket=bucket,
            total_buckets=numbers.pop() if numbers else self.summary(bucket).total_buckets,
            files=tuple(entry.file for entry in entries),
        )

    def entries(
        self, bucket: BucketId, *, smaller_than: int | None = None
    ) -> tuple[ManifestEntry, ...]:
        """The ADD entries of the bucket's live files, oldest first as far as known."""
        rows = self.base.rows_of(bucket)
        wanted: Mask = np.ones(rows.stop - rows.start, np.bool_)
        if smaller_than is not None:
            wanted &= self.base.columns.file_size[rows] < smaller_than
        added: dict[FileIdentity, ManifestEntry] = {}
        for patch in self._patches(bucket):
            for identity, row in patch.removed.items():
                if row is None:
                    added.pop(identity, None)
                else:
                    wanted[row - rows.start] = False
            added.update(patch.added)
        entries = self.base.entries(np.flatnonzero(wanted) + rows.start)
        entries.extend(
            entry
            for entry in added.values()
            if smaller_than is None or entry.file.file_size < smaller_than
        )
        return tuple(entries)

    def count_smaller(self, size_bytes: int, buckets: Iterable[BucketId] | None = None) -> int:
        """How many files are below a size, in some buckets or (None) in all."""
        if buckets is not None:
            return sum(self._count_smaller(size_bytes, bucket) for bucket in buckets)
        patched = {bucket for layer in self.layers for bucket in layer}
        sizes = self.base.columns.file_size
        count = np.count_nonzero(sizes < size_bytes)
        for bucket in patched:
            count += self._count_smaller(size_bytes, bucket)
            count -= np.count_nonzero(sizes[self.base.rows_of(bucket)] < size_bytes)
        return int(count)

    def _count_smaller(self, size_bytes: int, bucket: BucketId) -> int:
        sizes = self.base.columns.file_size
        count = int(np.count_nonzero(sizes[self.base.rows_of(bucket)] < size_bytes))
        added: set[FileIdentity] = set()
        for patch in self._patches(bucket):
            for identity, row in patch.removed.items():
                if row is None:
                    added.discard(identity)
                else:
                    count -= int(sizes[row]) < size_bytes
            added.update(i for i, e in patch.added.items() if e.file.file_size < size_bytes)
        return count + len(added)

    def files_in(self, bucket: BucketId) -> tuple[DataFile, ...]:
        return tuple(entry.file for entry in self.entries(bucket))

    def contains(self, identity: FileIdentity) -> bool:
        return self._find([identity])[0] is not None

    def bucket_ids(self) -> list[BucketId]:
        """Every bucket that has files."""
        return self.summaries().bucket_ids()

    def summary(self, bucket: BucketId) -> BucketSummary:
        """O(levels of the bucket); an empty one for a bucket without files."""
        for layer in reversed(self.layers):
            if bucket in layer:
                return layer[bucket].summary
        index = self.base.bucket_index(bucket)
        if index is None:
            return BucketSummary(total_buckets=0, size_bytes=0, row_count=0, level_counts={})
        all_buckets = self.base.summaries
        return BucketSummary(
            total_buckets=int(all_buckets.total_buckets[index]),
            size_bytes=int(all_buckets.size_bytes[index]),
            row_count=int(all_buckets.row_count[index]),
            level_counts=self.base.level_counts(bucket),
        )

    def summaries(self) -> BucketSummaries:
        """All buckets with files. O(1) after a load; after changes a copy of these few columns."""
        changed: dict[BucketId, BucketSummary] = {}
        for layer in self.layers:
            changed.update((bucket, patch.summary) for bucket, patch in layer.items())
        return _patched(self.base, changed) if changed else self.base.summaries

    def applied(self, delta: Sequence[ManifestEntry]) -> LiveFiles:
        """The live files after one snapshot with these delta entries.

        Raises `UnknownFile` when it deletes what is not live, `FormatError` when it adds what is.
        """
        delta_of: dict[BucketId, list[ManifestEntry]] = {}
        for entry in delta:
            delta_of.setdefault(entry.bucket_id, []).append(entry)
        identities = list({entry.identity: None for entry in delta})
        live = dict(zip(identities, self._find(identities), strict=True))
        layer: _Layer = {}
        schema_ids = Counter(self.schema_id_counts)
        files, size, rows = self.file_count, self.size_bytes, self.row_count
        for bucket, entries in delta_of.items():
            patch = self._patch(bucket, entries, live)
            if not patch.change_count:
                continue
            layer[bucket] = patch
            before = self.summary(bucket)
            files += patch.summary.file_count - before.file_count
            size += patch.summary.size_bytes - before.size_bytes
            rows += patch.summary.row_count - before.row_count
            schema_ids.update(entry.file.schema_id for entry in patch.added.values())
            removed = (live[identity] for identity in patch.removed)
            schema_ids.subtract(place.schema_id for place in removed if place is not None)
        grown = replace(
            self,
            layers=_merged((*self.layers, layer)) if layer else self.layers,
            schema_id_counts={schema: count for schema, count in schema_ids.items() if count},
            file_count=files,
            size_bytes=size,
            row_count=rows,
        )
        return grown._consolidated()

    def _patch(
        self,
        bucket: BucketId,
        delta: Sequence[ManifestEntry],
        live: Mapping[FileIdentity, _Place | None],
    ) -> _Patch:
        deleted = {e.identity for e in delta if e.kind is EntryKind.DELETE}
        added: dict[FileIdentity, ManifestEntry] = {}
        for entry in delta:
            if entry.kind is EntryKind.ADD:
                if live[entry.identity] is not None or entry.identity in added:
                    raise FormatError(
                        f"{self.location}/manifest",
                        f"file {entry.file.file_name} is added twice",
                    )
                added[entry.identity] = entry
        removed: dict[FileIdentity, _Place] = {}
        for identity in deleted - added.keys():
            place = live[identity]
            if place is None:
                raise UnknownFile(identity.file_name)
            removed[identity] = place
        for identity in deleted & added.keys():
            del added[identity]
        return _Patch(
            removed={identity: place.row for identity, place in removed.items()},
            added=added,
            summary=self._summary_after(bucket, removed.values(), added.values()),
        )

    def _summary_after(
        self, bucket: BucketId, removed: Iterable[_Place], added: Iterable[ManifestEntry]
    ) -> BucketSummary:
        before = self.summary(bucket)
        levels = Counter(before.level_counts)
        size, rows, total_buckets = before.size_bytes, before.row_count, before.total_buckets
        for place in removed:
            levels[place.level] -= 1
            size -= place.file_size
            rows -= place.row_count
        for entry in added:
            levels[entry.file.level] += 1
            size += entry.file.file_size
            rows += entry.file.row_count
            total_buckets = entry.total_buckets
        return BucketSummary(
            total_buckets=total_buckets,
            size_bytes=size,
            row_count=rows,
            level_counts={level: count for level, count in sorted(levels.items()) if count},
        )

    def _find(self, identities: Sequence[FileIdentity]) -> list[_Place | None]:
        """Where each live file is; None for those that are not live."""
        found: list[_Place | None] = []
        columns = self.base.columns
        for identity, row in zip(identities, self.base.find(identities), strict=True):
            place = None
            if row is not None:
                place = _Place(
                    row,
                    identity.level,
                    int(columns.file_size[row]),
                    int(columns.row_count[row]),
                    int(columns.schema_id[row]),
                )
            for patch in self._patches(BucketId(identity.partition, identity.bucket)):
                if identity in patch.removed:
                    place = None
                if identity in patch.added:
                    file = patch.added[identity].file
                    place = _Place(None, file.level, file.file_size, file.row_count, file.schema_id)
            found.append(place)
        return found

    def _patches(self, bucket: BucketId) -> Iterator[_Patch]:
        """Oldest first."""
        return (layer[bucket] for layer in self.layers if bucket in layer)

    def _consolidated(self) -> LiveFiles:
        """Base and layers as one base, once the layers have grown large; else the same."""
        changes = sum(patch.change_count for layer in self.layers for patch in layer.values())
        if changes < max(_MIN_CHANGES_TO_CONSOLIDATE, len(self.base) // _CONSOLIDATE_SHARE):
            return self
        live: Mask = np.ones(len(self.base), np.bool_)
        added: dict[FileIdentity, ManifestEntry] = {}
        for layer in self.layers:
            for patch in layer.values():
                for identity, row in patch.removed.items():
                    if row is None:
                        del added[identity]
                    else:
                        live[row] = False
                added.update(patch.added)
        builder = BaseFilesBuilder(self.location)
        builder.add_base(self.base, live)
        entries = list(added.values())
        records = [encode_record(MANIFEST, entry_record(entry)) for entry in entries]
        builder.add(columns_of(entries, MANIFEST, records), np.ones(len(entries), np.bool_))
        return replace(self, base=builder.build(), layers=())


def load_live_files(
    storage: Storage, location: str, manifests: Sequence[ManifestFile]
) -> LiveFiles:
    """Read what a snapshot's manifests (base list, then delta list) leave alive.

    As Java reads: files added by any manifest and deleted by none; a DELETE without its ADD has no
    effect. Manifests with deletions are decoded twice, so that one batch is in memory beside the
    result. Raises `FormatError` for damage and for a file that is there twice.
    """
    deleted = _Deleted.read(storage, location, manifests)
    builder = BaseFilesBuilder(location)
    adding = [manifest for manifest in manifests if manifest.num_added_files]
    for entries in read_entry_columns(storage, location, adding):
        builder.add(entries, deleted.spares(entries))
    return _of_base(location, builder.build())


def no_files(location: str) -> LiveFiles:
    """The live files of a table without a snapshot."""
    return _of_base(location, BaseFilesBuilder(location).build())


def _of_base(location: str, base: BaseFiles) -> LiveFiles:
    schema_ids, counts = np.unique(base.columns.schema_id, return_counts=True)
    return LiveFiles(
        base=base,
        schema_id_counts=dict(zip(schema_ids.tolist(), counts.tolist(), strict=True)),
        file_count=len(base),
        size_bytes=int(base.columns.file_size.sum()),
        row_count=int(base.columns.row_count.sum()),
        location=location,
    )


@dataclass(frozen=True, slots=True)
class _Deleted:
    """Identities that some manifest deletes, with their hashes in order for a quick look."""

    identities: frozenset[FileIdentity]
    hashes: Hashes

    @staticmethod
    def read(storage: Storage, location: str, manifests: Sequence[ManifestFile]) -> _Deleted:
        identities: set[FileIdentity] = set()
        deleting = [manifest for manifest in manifests if manifest.num_deleted_files]
        for entries in read_entry_columns(storage, location, deleting):
            rows = np.flatnonzero(entries.kind == EntryKind.DELETE)
            identities.update(entries.identities(rows))
        return _Deleted(frozenset(identities), np.sort(identity_hashes(list(identities))))

    def spares(self, entries: EntryColumns) -> Mask:
        """Which entries add a file that nothing deletes."""
        live: Mask = entries.kind == EntryKind.ADD
        if len(self.hashes):
            index = np.searchsorted(self.hashes, entries.identity_hash)
            index[index == len(self.hashes)] = 0
            suspects = np.flatnonzero(live & (self.hashes[index] == entries.identity_hash))
            dead = [identity in self.identities for identity in entries.identities(suspects)]
            live[suspects] = ~np.array(dead, np.bool_)
        return live


def _merged(layers: tuple[_Layer, ...]) -> tuple[_Layer, ...]:
    """Newest layers merged until each is more than twice as large as the next."""
    merged = list(layers)
    while len(merged) > 1 and len(merged[-2]) <= _LAYER_RATIO * len(merged[-1]):
        upper = merged.pop()
        merged[-1] = _merge(merged[-1], upper)
    return tuple(merged)


def _merge(lower: _Layer, upper: _Layer) -> _Layer:
    merged = dict(lower)
    for bucket, patch in upper.items():
        below = lower.get(bucket)
        if below is not None:
            added = {i: e for i, e in below.added.items() if i not in patch.removed}
            removed = {i: row for i, row in patch.removed.items() if i not in below.added}
            patch = _Patch(
                removed={**below.removed, **removed},
                added={**added, **patch.added},
                summary=patch.summary,
            )
        merged[bucket] = patch
    return merged


def _patched(base: BaseFiles, changed: Mapping[BucketId, BucketSummary]) -> BucketSummaries:
    """The base's summaries with changed buckets replaced, emptied ones gone, new ones appended."""
    summaries = base.summaries
    untouched = np.ones(len(summaries), np.bool_)
    for bucket in changed:
        index = base.bucket_index(bucket)
        if index is not None:
            untouched[index] = False
    kept = summaries.take(untouched)
    some = [(bucket, summary) for bucket, summary in changed.items() if summary.level_counts]
    codes = {partition: code for code, partition in enumerate(summaries.partitions)}
    partition = [codes.setdefault(bucket.partition, len(codes)) for bucket, _ in some]

    def appended(column: npt.NDArray[Int], values: list[int]) -> npt.NDArray[Int]:
        return np.concatenate([column, np.array(values, column.dtype)])

    return BucketSummaries(
        partitions=tuple(codes),
        partition=appended(kept.partition, partition),
        bucket=appended(kept.bucket, [bucket.bucket for bucket, _ in some]),
        total_buckets=appended(kept.total_buckets, [s.total_buckets for _, s in some]),
        file_count=appended(kept.file_count, [s.file_count for _, s in some]),
        size_bytes=appended(kept.size_bytes, [s.size_bytes for _, s in some]),
        row_count=appended(kept.row_count, [s.row_count for _, s in some]),
        level0_count=appended(kept.level0_count, [s.level0_count for _, s in some]),
        run_count=appended(kept.run_count, [s.run_count for _, s in some]),
        max_level=appended(kept.max_level, [s.max_level for _, s in some]),
    )
