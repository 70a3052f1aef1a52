"""Tables of metadata alone, as in `lineage`, whose rows a foreign writer deletes by vectors."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from compactord.commit.changes import BucketChange
from compactord.ids import Owner
from compactord.model import Marks
from compactord.paimon import paths
from compactord.paimon.avro.types import codec_of
from compactord.paimon.data_file import BucketId, DataFile
from compactord.paimon.deletion_vectors import (
    INDEX_TYPE,
    VERSION,
    DeletedRows,
    VectorKind,
    ascending,
    bitmap_of_parts,
    encode_vector,
    read_deleted_rows,
)
from compactord.paimon.manifest.index_manifest import (
    VectorRange,
    VectorsFile,
    with_vectors_files,
)
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import (
    CommitKind,
    Snapshot,
    read_snapshot,
    snapshot_ids,
    snapshot_json,
)
from compactord.state.table_state import load_state
from compactord.storage.base import Storage
from tests.lineage import TABLE, Kind, Lineage, bucket_id
from tests.unit.paimon.table_builder import History

LOCATION = TABLE.location
ENABLED = {"deletion-vectors.enabled": "true"}
Rows = Mapping[str, Sequence[int]]


def bitmap_of(positions: Iterable[int]) -> bytes:
    """The bitmap of these numbers."""
    parts = itertools.groupby(sorted(positions), lambda number: number >> 16)
    return bitmap_of_parts(
        (upper, np.array([number & 0xFFFF for number in numbers], np.uint16))
        for upper, numbers in parts
    )


def numbers_in(bitmap: bytes) -> list[int]:
    """The numbers of a bitmap."""
    return [upper << 16 | int(number) for upper, part in ascending(bitmap) for number in part]


def rows_deleted(positions: Iterable[int]) -> DeletedRows:
    """These rows, of a file that ends with the last of them."""
    rows = np.array(sorted(positions), np.int64)
    deleted = DeletedRows.none_of(int(rows[-1]) + 1 if len(rows) else 0)
    deleted.add(rows)
    return deleted


def marks(rows: Rows) -> tuple[Marks, ...]:
    """Marks of these positions by data file."""
    return tuple(Marks(name, bitmap_of(positions)) for name, positions in rows.items())


def write_vectors_file(
    storage: Storage,
    table: TableRef,
    name: str,
    bucket: BucketId,
    rows: Mapping[str, Sequence[int] | set[int]],
    *,
    kind: VectorKind = VectorKind.BITS_32,
) -> VectorsFile:
    """An index file that no snapshot has yet."""
    data, vectors = VERSION, []
    for data_file, positions in rows.items():
        stored, length = encode_vector(kind, rows_deleted(positions))
        vectors.append(VectorRange(data_file, len(data), length, len(set(positions))))
        data += stored
    storage.write_new(paths.index_path(table.location, name), data)
    return VectorsFile(bucket, name, len(data), tuple(vectors))


def delete_first(storage: Storage, table: TableRef, rows: Rows) -> None:
    """A foreign DELETE of rows of one bucket of a real table, in which none was deleted before."""
    state = load_state(storage, table)
    [bucket] = state.files.bucket_ids()
    file = write_vectors_file(storage, table, "index-java-0", bucket, rows)
    data = with_vectors_files(
        storage, table.location, None, without=(), added=[file], codec=codec_of("zstd", 1)
    )
    name = "index-manifest-java-0"
    storage.write_new(paths.manifest_path(table.location, name), data)
    # The builder was made for its own store, which has the same methods.
    history = History(storage, table, snapshot=state.snapshot)  # type: ignore[arg-type]
    history.commit([], CommitKind.OVERWRITE, index_manifest=name)


class Deletions(Lineage):
    """The foreign writer deletes as Java does: it replaces index files as a whole.

    With `buckets`, those of a bucket are one; else each DELETE writes one for all the files that it
    touches, and replaces the others that these were in. `rows_of` lists a file's rows in order.
    """

    def __init__(self, kind: Kind, options: Mapping[str, str] | None = None) -> None:
        super().__init__(**kind, options={**ENABLED, **(options or {})})
        self.vector_kind = VectorKind.BITS_32

    def rows_of(self, name: str) -> list[int]:
        return sorted(self.rows[name])

    def deleted(self, bucket: int = 0) -> dict[str, list[int]]:
        """The deleted positions by data file, now."""
        indexes = self.state().indexes
        for entry in indexes.of(bucket_id(bucket)):
            status = self.storage.status(indexes.path(entry))
            assert status is not None, f"{entry.file_name} does not exist"
            assert (status.size_bytes, entry.row_count) == (entry.file_size, len(entry.vectors))
        return {
            name: numbers_in(read_deleted_rows(self.storage, ref, len(self.rows[name])).bitmap())
            for name, ref in indexes.vectors(bucket_id(bucket)).items()
        }

    def index_files(self, bucket: int = 0) -> dict[str, list[str]]:
        """Names of data files by index file of the newest snapshot."""
        return {
            entry.file_name: [vector.data_file for vector in entry.vectors]
            for entry in self.state().indexes.of(bucket_id(bucket))
        }

    def delete_rows(self, rows: Rows, *, bucket: int = 0) -> Snapshot:
        """A foreign DELETE of rows that are there: an OVERWRITE without data files."""
        for name, positions in rows.items():
            ordered = self.rows_of(name)
            self.expected.subtract(ordered[position] for position in positions)
        return self._vectors_committed(rows, bucket)

    def prepare_delete(self, rows: Rows, *, bucket: int = 0) -> Callable[[], Snapshot]:
        """As `prepare_replacement`: a DELETE whose snapshot is renamed into its place later."""
        hint, expected = paths.latest_hint(LOCATION), Counter(self.expected)
        before = self.storage.read(hint)
        replacement = self.delete_rows(rows, bucket=bucket)
        self.expected = expected
        path = paths.snapshot_path(LOCATION, replacement.id)
        self.storage.delete(path)
        self.storage.overwrite(hint, before)

        def rename() -> Snapshot:
            self.storage.now_ms += 1
            self.storage.overwrite(path, snapshot_json(replacement))
            self.storage.overwrite(hint, str(replacement.id).encode())
            return replacement

        return rename

    def rewrite_vectors(self, *, bucket: int = 0) -> Snapshot:
        """Another writer replaces all index files of the bucket; no row is deleted."""
        return self._vectors_committed(dict.fromkeys(self.deleted(bucket), ()), bucket)

    def _vectors_committed(self, rows: Rows, bucket: int) -> Snapshot:
        known = self.deleted(bucket)
        entries = [
            e for e in self.state().indexes.of(bucket_id(bucket)) if e.index_type == INDEX_TYPE
        ]
        if self.buckets == -1 and not self.is_keyed:
            entries = [e for e in entries if any(v.data_file in rows for v in e.vectors)]
        merged: dict[str, set[int]] = defaultdict(set)
        for entry in entries:
            for vector in entry.vectors:
                merged[vector.data_file] |= set(known[vector.data_file])
        for name, positions in rows.items():
            merged[name] |= set(positions)
        number = next(self._numbers)
        file = self.write_vectors(f"index-java-{number}", merged, bucket=bucket)
        return self.index_changed([file], without=[entry.file_name for entry in entries])

    def write_vectors(
        self, name: str, rows: Mapping[str, Sequence[int] | set[int]], *, bucket: int = 0
    ) -> VectorsFile:
        """An index file that no snapshot has yet."""
        return write_vectors_file(
            self.storage, TABLE, name, bucket_id(bucket), rows, kind=self.vector_kind
        )

    def index_changed(
        self, added: Sequence[VectorsFile], *, without: Sequence[str] = ()
    ) -> Snapshot:
        """A commit that changes nothing but index files."""
        newest = self._newest()
        before = newest and newest.index_manifest
        codec = codec_of("zstd", 1)
        data = with_vectors_files(
            self.storage, LOCATION, before, without=without, added=added, codec=codec
        )
        name = f"index-manifest-java-{next(self._numbers)}"
        self.storage.write_new(paths.manifest_path(LOCATION, name), data)
        return self._foreign([], CommitKind.OVERWRITE, index_manifest=name)

    def compaction(
        self,
        before: Sequence[DataFile],
        *,
        owner: Owner,
        bucket: int = 0,
        marked: Rows | None = None,
        only_read: Sequence[DataFile] = (),
    ) -> BucketChange:
        """What merging `before` brings: rows that are left of it, and those that are marked."""
        change = self.change(before, owner=owner, bucket=bucket)
        known = self.deleted(bucket)
        (output,) = change.after
        gone = {
            self.rows_of(file.file_name)[position]
            for file in before
            for position in known.get(file.file_name, ())
        }
        moved = {
            self.rows_of(name)[position]
            for name, positions in (marked or {}).items()
            for position in set(positions).difference(known.get(name, ()))
        }
        left = self.rows[output.file_name] - gone | moved
        self.rows[output.file_name] = left
        read = {file.file_name for file in (*before, *only_read)}
        vectors = self.state().indexes.vectors(bucket_id(bucket))
        outputs = tuple(
            each._replace(file=replace(each.file, row_count=len(left))) for each in change.outputs
        )
        return replace(
            change,
            outputs=outputs,
            vectors={name: ref for name, ref in vectors.items() if name in read},
            marks=marks(marked or {}),
            only_read=frozenset(file.file_name for file in only_read),
        )

    def rows_now(self) -> Counter[int]:
        found: Counter[int] = Counter()
        state = self.state()
        for bucket in state.files.bucket_ids():
            deleted = self.deleted(bucket.bucket)
            for file in state.files.files_in(bucket):
                rows = self.rows_of(file.file_name)
                gone = set(deleted.get(file.file_name, ()))
                found.update(row for place, row in enumerate(rows) if place not in gone)
        return found

    def check(self) -> None:
        """All rows that nobody deleted, each once; the chain whole; a file in one index file."""
        ids = snapshot_ids(self.storage, LOCATION)
        assert ids == tuple(range(1, len(ids) + 1))
        total = 0
        for snapshot_id in ids:
            snapshot = read_snapshot(self.storage, LOCATION, snapshot_id)
            total += snapshot.delta_record_count
            assert snapshot.total_record_count == total
        assert +self.rows_now() == +self.expected
        state = self.state()
        for bucket in state.indexes.buckets:
            names = [v.data_file for e in state.indexes.of(bucket) for v in e.vectors]
            assert len(names) == len(set(names))
