"""The index files of a snapshot by bucket, and the deletion vectors in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from compactord.paimon.data_file import BucketId, DataFile, FileSource
from compactord.paimon.deletion_vectors import INDEX_TYPE, VectorRef
from compactord.paimon.manifest.index_manifest import (
    IndexEntry,
    read_entries_but_hash,
    sources_of,
)
from compactord.storage.base import Storage


@dataclass(frozen=True, slots=True)
class IndexFiles:
    """All but HASH indexes: writers replace HASH ones with new keys, compactions keep all keys."""

    location: str
    entries: tuple[IndexEntry, ...] = ()
    _by_bucket: Mapping[BucketId, list[IndexEntry]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        by_bucket: dict[BucketId, list[IndexEntry]] = defaultdict(list)
        for entry in self.entries:
            by_bucket[entry.bucket].append(entry)
        object.__setattr__(self, "_by_bucket", dict(by_bucket))

    @property
    def buckets(self) -> Iterable[BucketId]:
        """The buckets that may have deletion vectors."""
        return {entry.bucket for entry in self.entries if entry.index_type == INDEX_TYPE}

    def of(self, bucket: BucketId) -> tuple[IndexEntry, ...]:
        """The entries of a bucket, in their order."""
        return tuple(self._by_bucket.get(bucket, ()))

    def path(self, entry: IndexEntry) -> str:
        """The path of its index file. Raises as `IndexEntry.path`."""
        return entry.path(self.location)

    def vectors(self, bucket: BucketId) -> dict[str, VectorRef]:
        """The deletion vectors of a bucket by data file, which need not be live.

        If a file has two vectors, the later counts, as for Java's readers.
        """
        return {
            vector.data_file: VectorRef(
                path=self.path(entry),
                offset=vector.offset,
                length=vector.length,
                cardinality=vector.cardinality,
            )
            for entry in self._by_bucket.get(bucket, ())
            if entry.index_type == INDEX_TYPE
            for vector in entry.vectors
        }

    def levels_without(
        self, bucket: BucketId, files: Iterable[DataFile], columns: Mapping[int, str]
    ) -> int:
        """Levels above 0 for which a query by one of `columns` reads more than an index.

        `columns` are types of sorted indexes by the column's field id, `files` the bucket's files.
        An index counts if it names all files of its level, except files that writers made, which
        no index has (index/pk/PrimaryKeyIndexSourcePolicy.java, index/pksorted/
        PkSortedBucketIndexState.java).
        """
        levels: dict[int, list[DataFile]] = defaultdict(list)
        for file in files:
            if file.level > 0 and columns:
                levels[file.level].append(file)
        known = {(e.index_type, e.field_id, e.sources) for e in self.of(bucket) if e.level}
        lacking = 0
        for level, here in levels.items():
            named = sources_of(level, {file.file_name: file.row_count for file in here})
            lacking += any(file.file_source != FileSource.COMPACT for file in here) or any(
                (kind, field_id, named) not in known for field_id, kind in columns.items()
            )
        return lacking


# For a table without indexes.
NO_INDEXES = IndexFiles("")


def read_indexes(storage: Storage, location: str, manifest: str | None) -> IndexFiles:
    """The index files of an index manifest, or none for None. Raises as `read_entries_but_hash`."""
    if manifest is None:
        return IndexFiles(location)
    return IndexFiles(location, read_entries_but_hash(storage, location, manifest))
