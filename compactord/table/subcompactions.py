"""Cuts a decision into the subcompactions that workers run."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from compactord.clock import Clock, local_ms
from compactord.errors import UnsupportedTable
from compactord.ids import Owner
from compactord.model import (
    ChangelogSpec,
    Compaction,
    Concat,
    ConcatSpec,
    InputFile,
    KeyRange,
    MergeSpec,
    Rewrite,
    Section,
    SortedRun,
    Subcompaction,
    Upgrade,
    WorkKind,
    WriteSpec,
)
from compactord.paimon import paths, types
from compactord.paimon.binary_row import Value, decode_row
from compactord.paimon.data_file import ColumnStatsMode, DataFile, FileSource, stats_modes
from compactord.paimon.deletion_vectors import NO_VECTORS, VectorRef
from compactord.paimon.options.table_options import SortOrder
from compactord.paimon.types import DataField
from compactord.rewrite.split import cut_ranges
from compactord.table.opening import OWN, OpenTable, TableRegistries

# A smaller input gains nothing from a split: a worker has threads of its own.
_MIN_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Settings of workers. `memory_bytes` is for one subcompaction; `registries` open tables."""

    owner: Owner
    memory_bytes: int
    zone: datetime.tzinfo
    registries: TableRegistries = field(default=OWN, repr=False)


def subcompactions(
    table: OpenTable,
    compaction: Compaction,
    *,
    compaction_id: int,
    free_slots: int,
    worker: WorkerSpec,
    clock: Clock,
    vectors: Mapping[str, VectorRef] = NO_VECTORS,
) -> tuple[Subcompaction, ...]:
    """The subcompactions of a decision in output order; none if it only changes levels.

    A rewrite of many bytes is cut into key ranges, at most one for each of `free_slots`; this reads
    the footers of its inputs. `vectors` are the deletion vectors of the bucket. Raises
    `UnsupportedTable` for an input that cannot be rewritten, before it is read.
    """
    inputs = _Inputs(table, table.bucket_folder(compaction.bucket), vectors)
    write = write_spec(table, inputs.folder, compaction.output_level, worker, clock)
    sources: list[MergeSpec | ConcatSpec] = []
    for action in compaction.actions:
        if isinstance(action, Concat):
            sources.append(
                ConcatSpec(
                    files=tuple(inputs.file(file) for file in action.files),
                    first_sequence_number=action.files[0].min_sequence_number,
                    continues_across_outputs=action.ordered,
                )
            )
        elif (merge := _merge_spec(table, action, inputs, write)) is not None:
            sources += _cut(table, merge, free_slots, inputs)
    return tuple(
        Subcompaction(
            table=table.ref.full_name,
            compaction_id=compaction_id,
            index=index,
            fields=table.schema.fields,
            source=source,
            write=write,
            storage=table.storage.spec,
            owner=worker.owner,
            memory_bytes=worker.memory_bytes,
            older_schemas=inputs.older_schemas,
            zone=worker.zone,
            partition=_partition(table, compaction),
        )
        for index, source in enumerate(sources)
    )


def _partition(table: OpenTable, compaction: Compaction) -> tuple[tuple[str, Value], ...]:
    """Names and values of the partition's columns, which files of append tables may lack."""
    if compaction.kind is not WorkKind.APPEND:
        return ()
    fields = table.schema.partition_fields
    values = decode_row(compaction.bucket.partition, [field.type for field in fields])
    return tuple(zip((field.name for field in fields), values, strict=True))


def _merge_spec(
    table: OpenTable, action: Rewrite | Upgrade, inputs: _Inputs, write: WriteSpec
) -> MergeSpec | None:
    """The merge that an action needs from workers, or None."""
    match action:
        case Rewrite(sections=sections):
            pass
        case Upgrade(file=file) if action.reads_rows:
            sections = (Section(runs=(SortedRun(level=file.level, files=(file,)),)),)
        case Upgrade():
            return None
    return MergeSpec(
        sections=tuple(
            tuple(tuple(inputs.file(file) for file in run.files) for run in section.runs)
            for section in sections
        ),
        merge_engine=table.options.merge_engine,
        rules=table.options.merge_rules,
        key_columns=tuple(field.name for field in table.schema.key_fields),
        sequence_fields=table.options.sequence_fields,
        sequence_descending=table.options.sequence_order is SortOrder.DESCENDING,
        ignore_delete=table.options.ignore_delete,
        drop_deletes=isinstance(action, Rewrite) and action.drop_deletes,
        looks_up=action.looks_up,
        above=tuple(tuple(inputs.file(file) for file in run.files) for run in action.above),
        marks=action.marks,
        finds_values=action.finds_values,
        key_range=KeyRange(),
        record_expire=table.options.compaction.record_expire,
        changelog=_changelog_spec(table, write, action) if action.changelog else None,
        keeps_inputs=isinstance(action, Upgrade),
    )


def _changelog_spec(table: OpenTable, write: WriteSpec, action: Rewrite | Upgrade) -> ChangelogSpec:
    """How changes above the level of `write` are recorded."""
    files, new_files = table.options.files, table.formats.changelog_at(write.level)
    return ChangelogSpec(
        before_level=None if action.looks_up else write.level,
        write=replace(
            write,
            file_format=new_files.file_format,
            file_prefix=files.changelog_prefix,
            file_suffix=new_files.file_suffix,
            encoding=new_files.encoding,
            stats_modes=_stats_modes(table, write.level, files.changelog_stats_mode),
        ),
        rule=table.options.changelog,
    )


def _cut(
    table: OpenTable, whole: MergeSpec, free_slots: int, inputs: _Inputs
) -> list[MergeSpec | ConcatSpec]:
    count = min(free_slots, sum(file.size_bytes for file in whole.files) // _MIN_BYTES)
    if count < 2:
        return [whole]
    ranges = cut_ranges(
        whole,
        count,
        table.schema.fields,
        table.storage,
        older=inputs.older_schemas,
        formats=table.readable,
    )
    return [replace(whole, key_range=key_range) for key_range in ranges]


def write_spec(
    table: OpenTable, folder: str, level: int, worker: WorkerSpec, clock: Clock
) -> WriteSpec:
    """How the outputs of one level are made, in the bucket's `folder`."""
    files, new_files = table.options.files, table.formats.at(level)
    now = clock.now_ms()
    return WriteSpec(
        folder=folder,
        file_format=new_files.file_format,
        file_prefix=files.data_file_prefix,
        file_suffix=new_files.file_suffix,
        level=level,
        schema_id=table.schema.id,
        target_file_size=table.options.compaction.target_file_size,
        encoding=new_files.encoding,
        thin_mode=files.thin_mode,
        stats_modes=_stats_modes(table, level, None),
        stats_dense=files.stats_dense,
        creation_zone_offset_ms=local_ms(now, worker.zone) - now,
        keeps_encoding=table.keeps_encoding,
    )


def _stats_modes(
    table: OpenTable, level: int, mode: str | None
) -> tuple[tuple[str, ColumnStatsMode], ...]:
    """The modes of a file's columns; `mode` replaces the level's."""
    schema, files = table.schema, table.options.files
    if mode is not None:
        files = replace(files, stats_mode=mode, stats_mode_per_level={})
    columns: tuple[DataField, ...] = schema.fields
    if schema.primary_keys:
        key = [field.name for field in schema.key_fields]
        columns = tuple(types.file_fields(schema.fields, key, thin=files.thin_mode))
    return stats_modes(columns, schema, files, level)


class _Inputs:
    """Input files of one compaction, and the older schemas that they have, each once."""

    def __init__(self, table: OpenTable, folder: str, vectors: Mapping[str, VectorRef]) -> None:
        self.folder = folder
        self._vectors = vectors
        self._table = table
        self._older: dict[tuple[DataField, ...], int] = {}

    @property
    def older_schemas(self) -> tuple[tuple[DataField, ...], ...]:
        return tuple(self._older)

    def file(self, file: DataFile) -> InputFile:
        """Raises `UnsupportedTable` for a file that cannot be rewritten."""
        if file.external_path is not None:
            reason = f"file {file.file_name} is outside the table, at {file.external_path}"
            raise UnsupportedTable(self._table.ref.full_name, [reason])
        if file.foreign:
            columns = ", ".join(value.column for value in file.foreign)
            reason = (
                f"file {file.file_name} has values of columns that are not known, {columns}: "
                "rewriting it would lose them"
            )
            raise UnsupportedTable(self._table.ref.full_name, [reason])
        return InputFile(
            path=paths.join(self.folder, file.file_name),
            file_format=paths.format_of(file.file_name),
            size_bytes=file.file_size,
            row_count=file.row_count,
            min_sequence_number=file.min_sequence_number,
            max_sequence_number=file.max_sequence_number,
            level=file.level,
            older_schema=self._older_schema(file),
            sequence_number=self._sequence_number(file),
            vector=self._vectors.get(file.file_name),
        )

    def _older_schema(self, file: DataFile) -> int | None:
        """The index of the file's older columns, or None if it has the latest schema's."""
        if file.schema_id == self._table.schema.id and file.write_columns is None:
            return None
        columns = self._table.history.schema(file.schema_id).fields
        if file.write_columns is not None:
            columns = tuple(column for column in columns if column.name in file.write_columns)
        return self._older.setdefault(columns, len(self._older))

    def _sequence_number(self, file: DataFile) -> int | None:
        """The common number of the file's records, if the table orders them by snapshots."""
        if not self._table.options.snapshot_ordering:
            return None
        if file.file_source is None:
            reason = (
                f"file {file.file_name} does not record whether a writer or a compaction made it, "
                "which sequence.snapshot-ordering needs"
            )
            raise UnsupportedTable(self._table.ref.full_name, [reason])
        return file.min_sequence_number if file.file_source == FileSource.APPEND else None
