"""A small write-only writer on the format layer; it writes the same files as ingestion jobs.

Level-0 files with a merge buffer's content (each key once, sorted), APPEND commits, no compaction.
For `compactord-demo` and for tests that need a table without Java. Keys must be unique within one
batch; sequence numbers continue from the newest snapshot's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from compactord.catalog.access import table_in_folder
from compactord.clock import Clock
from compactord.commit.metadata import MetadataFiles
from compactord.formats.layout import append_layout, keyed_layout
from compactord.formats.registry import FORMATS, format_named
from compactord.ids import Owner, random_uuid
from compactord.model import (
    DATA,
    ConcatSpec,
    KeyRange,
    MergeSpec,
    Subcompaction,
    TableKind,
    WriteSpec,
    data_files,
)
from compactord.paimon import paths
from compactord.paimon.avro.types import codec_of
from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import BucketId, DataFile, EntryKind, FileSource, ManifestEntry
from compactord.paimon.schema import TableRef, TableSchema
from compactord.paimon.snapshot import CommitKind, Snapshot, snapshot_json
from compactord.paimon.types import DataField
from compactord.rewrite.outputs import AppendedFile, GroupSize, MergedFile, Outputs, RollingWriter
from compactord.rewrite.pipeline import Encoding
from compactord.state.table_state import TableState, data_manifests, load_state, refresh_state
from compactord.storage.base import Creation, Storage
from compactord.table.opening import OpenTable, open_table
from compactord.table.subcompactions import WorkerSpec, write_spec
from compactord_demo.binary_rows import bucket_numbers, encode_rows
from compactord_demo.schema_files import schema_json

_GROUP_ROWS = 1 << 20
_GROUP_BYTES = 128 << 20


def create_table(
    storage: Storage,
    table: TableRef,
    fields: Sequence[DataField],
    *,
    primary_keys: Sequence[str] = (),
    partition_keys: Sequence[str] = (),
    options: Mapping[str, str],
) -> None:
    """Write schema 0. Raises `StorageError` if the table exists."""
    schema = TableSchema(
        id=0,
        version=3,
        fields=tuple(fields),
        highest_field_id=max(field.id for field in fields),
        partition_keys=tuple(partition_keys),
        primary_keys=tuple(primary_keys),
        options=dict(options),
        comment=None,
        time_ms=0,
    )
    storage.write_new(paths.schema_path(table.location, 0), schema_json(schema))


class WriteOnlyWriter:
    """One ingestion job: `write` makes files and commits them as one APPEND snapshot."""

    def __init__(self, storage: Storage, table: TableRef, *, owner: Owner, clock: Clock) -> None:
        self._storage = storage
        self._table: OpenTable = open_table(table_in_folder(storage, table), {})
        self._owner = owner
        self._clock = clock
        self._user = owner.unique_name()
        self._identifier = 0
        self._state: TableState = load_state(storage, table)
        files = self._state.files
        self._next_sequence = 1 + max(
            (
                file.max_sequence_number
                for bucket in files.bucket_ids()
                for file in files.files_in(bucket)
            ),
            default=-1,
        )

    def write(self, rows: pa.Table, *, kinds: pa.Array | None = None) -> int:
        """Commit rows (in the table's columns) of one or more partitions. Returns the snapshot's
        id.

        `kinds` are row kinds (int8), by default +I; only for primary-key tables.
        """
        files: list[tuple[BucketId, DataFile]] = []
        is_keyed = self._table.kind is TableKind.PRIMARY_KEY
        if is_keyed:
            sequence = np.arange(self._next_sequence, self._next_sequence + rows.num_rows)
            self._next_sequence += rows.num_rows
            kinds = kinds if kinds is not None else pa.nulls(rows.num_rows, pa.int8()).fill_null(0)
            rows = rows.append_column("_SEQUENCE_NUMBER", pa.array(sequence, pa.int64()))
            rows = rows.append_column("_VALUE_KIND", kinds)
        for bucket, part in self._by_bucket(rows.combine_chunks()):
            files += [(bucket, file) for file in self._write_files(bucket, part)]
        return self.commit(files)

    def _by_bucket(self, rows: pa.Table) -> list[tuple[BucketId, pa.Table]]:
        schema, options = self._table.schema, self._table.options
        if options.bucket > 0:
            names = options.bucket_key or [field.name for field in schema.key_fields]
            fields = schema.fields_named(tuple(names))
            columns = [rows.column(field.name).chunk(0) for field in fields]
            types = [field.type for field in fields]
            number = bucket_numbers(columns, types, options.bucket)  # type: ignore[arg-type]  # bucket keys are atomic
        else:
            number = np.zeros(rows.num_rows, np.int32)
        found = []
        for partition, of_partition in self._by_partition(rows, number):
            for bucket in np.unique(number[of_partition]).tolist():
                mask = of_partition & (number == bucket)
                found.append((BucketId(partition, bucket), rows.filter(pa.array(mask))))
        return found

    def _by_partition(
        self, rows: pa.Table, number: np.ndarray[tuple[int], np.dtype[np.int32]]
    ) -> list[tuple[bytes, np.ndarray[tuple[int], np.dtype[np.bool_]]]]:
        fields = self._table.schema.partition_fields
        types = [field.type for field in fields]
        if not fields:
            return [(encode_row((), ()), np.ones(len(number), bool))]
        columns = [rows.column(field.name).chunk(0) for field in fields]
        encoded = pa.array(encode_rows(columns, types), pa.binary()).dictionary_encode()  # type: ignore[arg-type]  # partition keys are atomic
        codes = encoded.indices.to_numpy()
        partitions: list[bytes] = encoded.dictionary.to_pylist()
        return [(partition, codes == code) for code, partition in enumerate(partitions)]

    def _write_files(self, bucket: BucketId, rows: pa.Table) -> list[DataFile]:
        subcompaction = self._subcompaction(bucket)
        if isinstance(subcompaction.source, MergeSpec):
            key = subcompaction.source.key_columns
            layout = keyed_layout(subcompaction.fields, key, thin=subcompaction.write.thin_mode)
            rows = rows.sort_by([(name, "ascending") for name in key])
            describe: MergedFile | AppendedFile = MergedFile(
                subcompaction.write, layout, FileSource.APPEND
            )
        else:
            layout = append_layout(subcompaction.fields)
            describe = AppendedFile(subcompaction.write, subcompaction.source)
            self._next_sequence += rows.num_rows
        outputs = Outputs(
            storage=self._storage, unique_name=self._owner.unique_name(), clock=self._clock
        )
        with outputs, Encoding(threaded=False) as encoding:
            writer = RollingWriter(
                outputs.series(DATA, spec=subcompaction.write, layout=layout, describe=describe),
                size=GroupSize(rows=_GROUP_ROWS, size_bytes=_GROUP_BYTES, bytes_per_row=32),
                writer=format_named(subcompaction.write.file_format, FORMATS).writer(
                    layout, subcompaction.write.encoding, ()
                ),
                encoding=encoding,
            )
            ordered = rows.select(layout.row_names).cast(layout.row_schema)
            for batch in ordered.combine_chunks().to_batches():
                writer.write(batch)
            writer.finish()
        written = data_files(outputs.finished)
        return [replace(file, file_source=FileSource.APPEND) for file in written]

    def _subcompaction(self, bucket: BucketId) -> Subcompaction:
        table = self._table
        keys = tuple(field.name for field in table.schema.key_fields)
        worker = WorkerSpec(owner=self._owner, memory_bytes=0, zone=self._clock.time_zone)
        spec: WriteSpec = write_spec(table, table.bucket_folder(bucket), 0, worker, self._clock)
        source: MergeSpec | ConcatSpec
        if table.kind is TableKind.PRIMARY_KEY:
            source = MergeSpec(
                sections=(),
                merge_engine=table.options.merge_engine,
                rules=table.options.merge_rules,
                key_columns=keys,
                sequence_fields=(),
                sequence_descending=False,
                ignore_delete=False,
                drop_deletes=False,
                key_range=KeyRange(),
            )
        else:
            source = ConcatSpec(
                files=(),
                first_sequence_number=self._next_sequence,
                continues_across_outputs=True,
            )
        return Subcompaction(
            table=table.ref.full_name,
            compaction_id=0,
            index=0,
            fields=table.schema.fields,
            source=source,
            write=spec,
            storage=self._storage.spec,
            owner=self._owner,
            memory_bytes=0,
        )

    def commit(self, files: Sequence[tuple[BucketId, DataFile]]) -> int:
        """Append a snapshot; after a lost race, retry on top of the newest one."""
        self._identifier += 1
        location, root = self._table.ref.location, self._table.ref.root
        options = self._table.options.commit
        metadata = MetadataFiles(
            self._storage,
            location,
            unique_name=self._owner.unique_name(),
            codec=codec_of(options.manifest_compression, options.manifest_compression_level),
            manifest_target_size=options.manifests.target_size,
            partition_types=[field.type for field in self._table.schema.partition_fields],
        )
        total_buckets = self._table.options.bucket
        manifests = metadata.write_manifests(
            ManifestEntry(
                kind=EntryKind.ADD,
                partition=bucket.partition,
                bucket=bucket.bucket,
                total_buckets=total_buckets,
                file=file,
            )
            for bucket, file in files
        )
        delta, delta_size = metadata.write_list(manifests)
        rows = sum(file.row_count for _, file in files)
        while True:
            self._state = refresh_state(self._storage, self._state).state
            latest = self._state.snapshot
            base, base_size = metadata.write_list(
                data_manifests(self._storage, location, latest) if latest else ()
            )
            metadata.wait()
            snapshot = Snapshot(
                uuid=random_uuid(),
                id=latest.id + 1 if latest else 1,
                schema_id=self._table.schema.id,
                base_manifest_list=base,
                base_manifest_list_size=base_size,
                delta_manifest_list=delta,
                delta_manifest_list_size=delta_size,
                commit_user=self._user,
                commit_identifier=self._identifier,
                commit_kind=CommitKind.APPEND,
                time_ms=self._clock.now_ms(),
                total_record_count=(latest.total_record_count if latest else 0) + rows,
                delta_record_count=rows,
                next_row_id=latest.next_row_id if latest else 0,
                index_manifest=latest.index_manifest if latest else None,
            )
            temporary = f"{paths.snapshot_folder(root)}/.{self._owner.unique_name()}.tmp"
            path = paths.snapshot_path(root, snapshot.id)
            created = self._storage.create_if_absent(
                path, snapshot_json(snapshot), temporary=temporary
            )
            if created is Creation.CREATED:
                hint = paths.latest_hint(root)
                self._storage.overwrite(hint, str(snapshot.id).encode())
                return snapshot.id
            metadata.delete_written(only=[base])
