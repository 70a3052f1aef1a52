"""Live files of a table, updated with each snapshot at the cost of its changes.

A large immutable base (see `base_files`) has a few layers of patches, newest last, each with the
changed buckets only. Layers are merged when one is not much larger than the next, so there are few
of them and a change is copied O(log changes) times. When the patches reach a fourth of the base,
base and patches are merged: an amortised constant cost per change. All values are immutable: a
state never changes.

This relies on a rule of the format: a file is added once and deleted at most once
(manifest/FileEntry.java).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
import pyarrow as pa

from compactord.errors import FormatError
from compactord.paimon.avro.columns import Ints
from compactord.paimon.data_file import (
    BucketFiles,
    BucketId,
    DataFile,
    EntryKind,
    FileIdentity,
    ManifestEntry,
)
from compactord.paimon.manifest.entries import NO_DELETIONS, Deletions, encoded_entries
from compactord.paimon.manifest.entry_columns import Mask, columns_of
from compactord.state.base_files import (
    BaseFiles,
    BaseFilesBuilder,
    BucketSummaries,
    BucketSummary,
    TopLevel,
)
from compactord.state.files_by_size import (
    FilesBySize,
    SizeColumns,
    formats_of,
    named,
    names_of,
)

# A layer is merged into the one below unless that one is this many times larger.
_LAYER_RATIO = 2


@dataclass(frozen=True, slots=True)
class Patch:
    """The changes of one bucket since the layer below; `summary` describes the bucket afterwards.

    `removed` maps to the file's row in the base, None if a lower layer had added it.
    """

    removed: Mapping[FileIdentity, int | None]
    added: Mapping[FileIdentity, ManifestEntry]
    summary: BucketSummary

    @property
    def change_count(self) -> int:
        return len(self.removed) + len(self.added)


Layer = dict[BucketId, Patch]


def merged_layers(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Newest layers merged until each is more than twice as large as the next."""
    merged = list(layers)
    while len(merged) > 1 and len(merged[-2]) <= _LAYER_RATIO * len(merged[-1]):
        upper = merged.pop()
        merged[-1] = _merge(merged[-1], upper)
    return tuple(merged)


def _merge(lower: Layer, upper: Layer) -> Layer:
    merged = dict(lower)
    for bucket, patch in upper.items():
        below = lower.get(bucket)
        if below is not None:
            added = {i: e for i, e in below.added.items() if i not in patch.removed}
            removed = {i: row for i, row in patch.removed.items() if i not in below.added}
            patch = Patch(
                removed={**below.removed, **removed},
                added={**added, **patch.added},
                summary=patch.summary,
            )
        merged[bucket] = patch
    return merged


_MIN_CHANGES_TO_CONSOLIDATE = 2000
_CONSOLIDATE_SHARE = 4


class UnknownFile(Exception):
    """A delta deletes a file that is not live: the delta belongs to another state."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A live file: its row in the base (None if a layer holds it) and its numbers."""

    row: int | None
    level: int
    file_size: int
    row_count: int
    schema_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFiles:
    """All live files at one snapshot. Totals: files, bytes, rows (retractions included)."""

    base: BaseFiles = field(repr=False)
    layers: tuple[Layer, ...] = field(default=(), repr=False)
    # Files added and removed since the base was made.
    changes: int = field(default=0, repr=False)
    # Deletions in the manifests that the base was read from.
    deleted: Deletions = field(default=NO_DELETIONS, repr=False, compare=False)
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
        """The bucket's files as objects; only files below a size in bytes if that is given.

        Raises `FormatError` when its entries disagree about the number of buckets.
        """
        entries = self.entries(bucket, smaller_than=smaller_than)
        return BucketFiles(
            bucket=bucket,
            total_buckets=self._total_buckets(bucket, {entry.total_buckets for entry in entries}),
            files=tuple(entry.file for entry in entries),
        )

    def by_size(
        self, bucket: BucketId, *, smaller_than: int, besides: Set[str] = frozenset()
    ) -> FilesBySize:
        """The bucket's files below a size in bytes, and those `besides`, by name, as columns.

        Raises as `bucket` does.
        """
        base = self.base.columns
        rows, added = self._smaller(bucket, smaller_than, besides)
        numbers = {entry.total_buckets for entry in added}
        if len(rows):
            told = base.total_buckets[rows]
            numbers.add(int(told[0]))
            numbers.update(told[told != told[0]].tolist())
        columns = SizeColumns(
            file_size=base.file_size[rows],
            min_sequence_number=base.min_sequence_number[rows],
            level=base.level[rows],
            creation_time_ms=base.creation_time_ms[rows],
            file_source=base.file_source[rows],
        )
        files_added = [entry.file for entry in added]

        def read(places: Ints) -> list[DataFile]:
            """Places of `rows`, then of `added`; in order."""
            old = places[places < len(rows)]
            new = places[len(old) :] - len(rows)
            files = [entry.file for entry in self.base.entries(rows[old])]
            return [*files, *(files_added[place] for place in new.tolist())]

        return FilesBySize.ordered(
            bucket,
            self._total_buckets(bucket, numbers),
            SizeColumns.concatenated([columns, SizeColumns.of(files_added)]),
            pa.concat_arrays([self.base.names(rows), names_of(files_added)]),
            read,
        )

    def _total_buckets(self, bucket: BucketId, numbers: Collection[int]) -> int:
        """The number that the files record, or, if none was read, the newest of all."""
        if len(numbers) > 1:
            raise FormatError(
                f"{self.location}/manifest",
                f"files of bucket {bucket.bucket} disagree about the number of buckets: "
                f"{', '.join(map(str, sorted(numbers)))}",
            )
        return next(iter(numbers)) if numbers else self.summary(bucket).total_buckets

    def entries(
        self, bucket: BucketId, *, smaller_than: int | None = None
    ) -> tuple[ManifestEntry, ...]:
        """The ADD entries of the bucket's live files, oldest first if known."""
        rows, added = self._smaller(bucket, smaller_than)
        return (*self.base.entries(rows), *added)

    def count_smaller(self, size_bytes: int, buckets: Iterable[BucketId] | None = None) -> int:
        """The number of files below a size, in some buckets or, with None, in all."""
        if buckets is not None:
            small = (self._smaller(bucket, size_bytes) for bucket in buckets)
            return sum(len(rows) + len(added) for rows, added in small)
        patched = {bucket for layer in self.layers for bucket in layer}
        sizes = self.base.columns.file_size
        count = np.count_nonzero(sizes < size_bytes)
        count += self.count_smaller(size_bytes, patched)
        for bucket in patched:
            count -= np.count_nonzero(sizes[self.base.rows_of(bucket)] < size_bytes)
        return int(count)

    def facts(self, bucket: BucketId) -> Iterator[tuple[int, int, int, int | None]]:
        """Creation, level, size and source of the bucket's files: for few, vectors take longer."""
        (rows, added), base = self._contents(bucket), self.base.columns
        facts = base.creation_time_ms, base.level, base.file_size, base.file_source
        yield from zip(*(fact[rows].tolist() for fact in facts), strict=True)
        for file in (entry.file for entry in added.values()):
            yield file.created_ms, file.level, file.file_size, file.file_source

    def _smaller(
        self, bucket: BucketId, than: int | None, besides: Set[str] = frozenset()
    ) -> tuple[Ints, list[ManifestEntry]]:
        """`_contents`, but only files below a size in bytes, if that is given, or `besides`."""
        rows, added = self._contents(bucket)
        entries = list(added.values())
        if than is not None:
            taken = self.base.columns.file_size[rows] < than
            if besides:
                large = np.flatnonzero(~taken)
                taken[large] = named(self.base.names(rows[large]), besides)
            rows = rows[taken]
            entries = [
                entry
                for entry in entries
                if entry.file.file_size < than or entry.file.file_name in besides
            ]
        return rows, entries

    def files_in(self, bucket: BucketId) -> tuple[DataFile, ...]:
        return tuple(entry.file for entry in self.entries(bucket))

    def formats(self, most: int) -> set[str]:
        """The formats of up to `most` files, by their names, bucket by bucket.

        Raises `FormatError` for a name without a format.
        """
        found: set[str] = set()
        for bucket in self.bucket_ids():
            rows, added = self._smaller(bucket, None)
            ours = self.base.names(rows[:most])
            names = pa.concat_arrays([ours, names_of([entry.file for entry in added])])
            found |= formats_of(names)
            most -= len(names)
            if most <= 0:
                break
        return found

    def contains(self, identity: FileIdentity) -> bool:
        return self._find([identity])[0] is not None

    def still_live(self, bucket: BucketId, files: Iterable[DataFile]) -> list[DataFile]:
        """The given files that are live in the bucket."""
        return [file for file in files if self.contains(file.identity(bucket))]

    def named(self, bucket: BucketId, names: Set[str]) -> dict[str, DataFile]:
        """The bucket's live files with these names."""
        # No file is smaller than 0 bytes.
        rows, added = self._smaller(bucket, 0, names)
        entries = (*self.base.entries(rows), *added)
        return {entry.file.file_name: entry.file for entry in entries}

    def bucket_ids(self) -> list[BucketId]:
        """All buckets that have files."""
        return self.summaries().index.bucket_ids()

    def summary(self, bucket: BucketId) -> BucketSummary:
        """As `BaseFiles.summary`."""
        for layer in reversed(self.layers):
            if bucket in layer:
                return layer[bucket].summary
        return self.base.summary(bucket)

    def summaries(self) -> BucketSummaries:
        """All buckets with files. Free right after a load; later it costs what all layers changed.

        A caller that follows the table keeps them and calls `updated` with the changed buckets.
        """
        changed: dict[BucketId, BucketSummary] = {}
        for layer in self.layers:
            changed.update((bucket, patch.summary) for bucket, patch in layer.items())
        return self.base.summaries.updated(changed) if changed else self.base.summaries

    def applied(self, delta: Sequence[ManifestEntry]) -> LiveFiles:
        """The live files after one snapshot with these delta entries.

        Raises `UnknownFile` for a delete of a missing file, `FormatError` for a repeated add.
        """
        delta_of: dict[BucketId, list[ManifestEntry]] = {}
        for entry in delta:
            delta_of.setdefault(entry.bucket_id, []).append(entry)
        identities = list({entry.identity: None for entry in delta})
        live = dict(zip(identities, self._find(identities), strict=True))
        layer: Layer = {}
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
            layers=merged_layers((*self.layers, layer)) if layer else self.layers,
            changes=self.changes + sum(patch.change_count for patch in layer.values()),
            schema_id_counts={schema: count for schema, count in schema_ids.items() if count},
            file_count=files,
            size_bytes=size,
            row_count=rows,
        )
        if grown.changes < max(_MIN_CHANGES_TO_CONSOLIDATE, len(self.base) // _CONSOLIDATE_SHARE):
            return grown
        return grown.consolidated()

    def _patch(
        self,
        bucket: BucketId,
        delta: Sequence[ManifestEntry],
        live: Mapping[FileIdentity, _Place | None],
    ) -> Patch:
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
        return Patch(
            removed={identity: place.row for identity, place in removed.items()},
            added=added,
            summary=self._summary_after(bucket, removed, added.values()),
        )

    def _summary_after(
        self,
        bucket: BucketId,
        removed: Mapping[FileIdentity, _Place],
        added: Collection[ManifestEntry],
    ) -> BucketSummary:
        before = self.summary(bucket)
        levels = Counter(before.level_counts)
        size, rows, total_buckets = before.size_bytes, before.row_count, before.total_buckets
        for place in removed.values():
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
            top=self._top_after(bucket, before.top, removed, added),
        )

    def _top_after(
        self,
        bucket: BucketId,
        before: TopLevel[int] | None,
        removed: Mapping[FileIdentity, _Place],
        added: Iterable[ManifestEntry],
    ) -> TopLevel[int] | None:
        """O(files of the bucket) when the highest level loses some, else O(change)."""
        known = [before]
        if before is not None and any(place.level == before.level for place in removed.values()):
            rows, patched = self._contents(bucket)
            gone = [place.row for place in removed.values() if place.row is not None]
            known = [self.base.top_level_of(np.setdiff1d(rows, gone))]
            stay = (entry for identity, entry in patched.items() if identity not in removed)
            known += [TopLevel.of_file(entry.file) for entry in stay]
        tops = [top for top in known if top is not None]
        tops += [TopLevel.of_file(entry.file) for entry in added]
        return reduce(TopLevel.joined, tops) if tops else None

    def _contents(self, bucket: BucketId) -> tuple[Ints, dict[FileIdentity, ManifestEntry]]:
        """The bucket's live files: rows of the base, and files added by layers, oldest first."""
        rows = self.base.rows_of(bucket)
        if not self.layers:
            return np.arange(rows.start, rows.stop), {}
        is_live: Mask = np.ones(rows.stop - rows.start, np.bool_)
        added: dict[FileIdentity, ManifestEntry] = {}
        for patch in self._patches(bucket):
            for identity, row in patch.removed.items():
                if row is None:
                    added.pop(identity, None)
                else:
                    is_live[row - rows.start] = False
            added.update(patch.added)
        return np.flatnonzero(is_live) + rows.start, added

    def _find(self, identities: Sequence[FileIdentity]) -> list[_Place | None]:
        """The place of each live file; None for files that are not live."""
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

    def _patches(self, bucket: BucketId) -> Iterator[Patch]:
        """The bucket's patches, oldest first."""
        return (layer[bucket] for layer in self.layers if bucket in layer)

    def consolidated(self) -> LiveFiles:
        """The same with base and layers as one base: O(table)."""
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
        for schema, entries, records in encoded_entries(added.values()):
            builder.add(columns_of(entries, schema, records), np.ones(len(entries), np.bool_))
        return replace(self, base=builder.build(), layers=(), changes=0)
