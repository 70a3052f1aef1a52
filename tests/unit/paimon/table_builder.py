"""Tables made of metadata alone: entries by keyword, and a history of snapshots in memory."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from compactord.errors import ObjectNotFound
from compactord.paimon import paths
from compactord.paimon.avro.container import ContainerWriter
from compactord.paimon.avro.types import codec_of
from compactord.paimon.data_file import EMPTY_ROW, EMPTY_STATS, DataFile, EntryKind, ManifestEntry
from compactord.paimon.manifest.entries import encode_entry
from compactord.paimon.manifest.foreign import CarriedColumns
from compactord.paimon.manifest.manifest_files import (
    ManifestFile,
    describe_entries,
    encode_manifest_list,
    read_entries,
    roll_entries,
)
from compactord.paimon.manifest.schemas import MANIFEST
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind, Snapshot, snapshot_json
from compactord.paimon.types import DataType
from compactord.state.table_state import data_manifests
from compactord.storage.base import Capabilities, Creation, ObjectStatus

CODEC = codec_of("zstd", 1)
UNPARTITIONED = EMPTY_ROW
TABLE = TableRef(database="db", name="t", location="/warehouse/db.db/t")


@dataclass
class MemoryStorage:
    """Objects in a dict; `reads` lists what was read."""

    objects: dict[str, bytes] = field(default_factory=dict)
    reads: list[str] = field(default_factory=list)

    def read(self, path: str) -> bytes:
        self.reads.append(path)
        if path not in self.objects:
            raise ObjectNotFound(path, "read failed (no such object)")
        return self.objects[path]

    def status(self, path: str) -> ObjectStatus | None:
        if path not in self.objects:
            return None
        return _status(path.rsplit("/", 1)[-1], is_folder=False, size=len(self.objects[path]))

    def list(self, folder: str) -> Iterator[ObjectStatus]:
        names: dict[str, bool] = {}
        for path in self.objects:
            if path.startswith(folder + "/"):
                head, _, tail = path[len(folder) + 1 :].partition("/")
                names[head] = bool(tail)
        for name, is_folder in names.items():
            yield _status(name, is_folder=is_folder, size=0)

    def overwrite(self, path: str, data: bytes) -> None:
        self.objects[path] = data

    def write_new(self, path: str, data: bytes) -> None:
        assert path not in self.objects
        self.objects[path] = data

    def delete(self, path: str) -> None:
        self.objects.pop(path, None)

    def create_if_absent(self, path: str, data: bytes, *, temporary: str) -> Creation:
        if path in self.objects:
            return Creation.EXISTS
        self.objects[path] = data
        return Creation.CREATED

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    def read_range(self, path: str, start: int, size: int) -> bytes:
        return self.read(path)[start : start + size]

    def folder_exists(self, path: str) -> bool:
        return any(other.startswith(path + "/") for other in self.objects)

    def open_input(self, path: str, size_bytes: int | None = None) -> pa.NativeFile:
        return pa.BufferReader(self.read(path))

    def open_output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        raise NotImplementedError("metadata is written whole")


def _status(name: str, *, is_folder: bool, size: int) -> ObjectStatus:
    return ObjectStatus(name=name, is_folder=is_folder, size_bytes=size, changed_ms=0)


def data_file(name: str, **fields: object) -> DataFile:
    known = DataFile(
        file_name=name,
        file_size=1000,
        row_count=10,
        min_key=EMPTY_ROW,
        max_key=EMPTY_ROW,
        key_stats=EMPTY_STATS,
        value_stats=EMPTY_STATS,
        min_sequence_number=0,
        max_sequence_number=9,
        schema_id=0,
        level=0,
    )
    return replace(known, **fields)  # type: ignore[arg-type]


def entry(
    file: DataFile,
    kind: EntryKind = EntryKind.ADD,
    *,
    bucket: int = 0,
    partition: bytes = UNPARTITIONED,
    total_buckets: int = 4,
) -> ManifestEntry:
    return ManifestEntry(
        kind=kind, partition=partition, bucket=bucket, total_buckets=total_buckets, file=file
    )


def deleted(added: ManifestEntry) -> ManifestEntry:
    return replace(added, kind=EntryKind.DELETE)


@dataclass
class History:
    """A table that grows by commits, as a Java committer would write it."""

    storage: MemoryStorage = field(default_factory=MemoryStorage)
    table: TableRef = TABLE
    partition_types: Sequence[DataType] = ()
    snapshot: Snapshot | None = None
    written: int = 0

    def commit(
        self,
        entries: Sequence[ManifestEntry],
        kind: CommitKind = CommitKind.APPEND,
        *,
        with_uuid: bool = True,
        **fields: object,
    ) -> Snapshot:
        """`fields` are those of the snapshot that are to be others."""
        base = () if self.snapshot is None else self._manifests(self.snapshot)
        return self.commit_on(base, entries, kind, with_uuid=with_uuid, **fields)

    def commit_on(
        self,
        base: Sequence[ManifestFile],
        entries: Sequence[ManifestEntry],
        kind: CommitKind = CommitKind.APPEND,
        *,
        with_uuid: bool = True,
        **fields: object,
    ) -> Snapshot:
        """A commit whose base list holds other manifests than the last snapshot's."""
        before = self.snapshot
        rows = sum(
            e.file.row_count if e.kind is EntryKind.ADD else -e.file.row_count for e in entries
        )
        base_list, base_size = self._write_list(base)
        delta_list, delta_size = self._write_list(self.write_manifests(entries))
        snapshot = Snapshot(
            uuid=str(uuid.uuid4()) if with_uuid else None,
            id=1 if before is None else before.id + 1,
            schema_id=0,
            base_manifest_list=base_list,
            base_manifest_list_size=base_size,
            delta_manifest_list=delta_list,
            delta_manifest_list_size=delta_size,
            commit_user="test",
            commit_identifier=self.written,
            commit_kind=kind,
            time_ms=1_700_000_000_000 + self.written,
            total_record_count=rows + (before.total_record_count if before else 0),
            delta_record_count=rows,
        )
        self.snapshot = replace(snapshot, **fields)  # type: ignore[arg-type]
        self._publish(self.snapshot)
        return self.snapshot

    def merge_manifests(
        self, change: Callable[[DataFile], DataFile] = lambda file: file
    ) -> Snapshot:
        """A COMPACT commit without entries whose base is one merged manifest.

        `change` makes other records of the files.
        """
        live: dict[object, ManifestEntry] = {}
        assert self.snapshot is not None
        for manifest in self._manifests(self.snapshot):
            for one in read_entries(self.storage, self.table.location, manifest):
                if one.kind is EntryKind.ADD:
                    live[one.identity] = one
                else:
                    del live[one.identity]
        merged = self.write_manifests(
            [replace(one, file=change(one.file)) for one in live.values()]
        )
        return self.commit_on(merged, [], CommitKind.COMPACT)

    def rollback(self, snapshot: Snapshot) -> None:
        """Drop all later snapshots, as Java's rollback does."""
        assert self.snapshot is not None
        for snapshot_id in range(snapshot.id + 1, self.snapshot.id + 1):
            self.storage.delete(paths.snapshot_path(self.table.location, snapshot_id))
        self.storage.overwrite(paths.latest_hint(self.table.location), str(snapshot.id).encode())
        self.snapshot = snapshot

    def write_manifests(self, entries: Sequence[ManifestEntry]) -> tuple[ManifestFile, ...]:
        described = []
        for data, manifest in roll_entries(
            entries,
            names=(self._name("manifest") for _ in iter(int, 1)),
            target_size=8 << 20,
            codec=CODEC,
            partition_types=self.partition_types,
        ):
            self.storage.write_new(
                paths.manifest_path(self.table.location, manifest.file_name), data
            )
            described.append(manifest)
        return tuple(described)

    def _write_list(self, manifests: Sequence[ManifestFile]) -> tuple[str, int]:
        name, data = self._name("manifest-list"), encode_manifest_list(manifests, CODEC)
        self.storage.write_new(paths.manifest_path(self.table.location, name), data)
        return name, len(data)

    def _manifests(self, snapshot: Snapshot) -> tuple[ManifestFile, ...]:
        return data_manifests(self.storage, self.table.location, snapshot)

    def _publish(self, snapshot: Snapshot) -> None:
        path = paths.snapshot_path(self.table.location, snapshot.id)
        self.storage.write_new(path, snapshot_json(snapshot))
        hint = paths.latest_hint(self.table.location)
        self.storage.overwrite(hint, str(snapshot.id).encode())

    def _name(self, kind: str) -> str:
        self.written += 1
        return f"{kind}-00000000-0000-4000-8000-000000000000-{self.written}"


@dataclass
class SoundStatistics(History):
    """Its manifests have the statistics of a `sound` partition, whichever their entries have."""

    sound: bytes = UNPARTITIONED

    def write_manifests(self, entries: Sequence[ManifestEntry]) -> tuple[ManifestFile, ...]:
        writer, name = ContainerWriter(MANIFEST, CODEC), self._name("manifest")
        for each in entries:
            writer.append(encode_entry(each, CarriedColumns()))
        data = writer.finish()
        self.storage.write_new(paths.manifest_path(self.table.location, name), data)
        sound = [replace(each, partition=self.sound) for each in entries]
        return (describe_entries(name, len(data), sound, self.partition_types),)
