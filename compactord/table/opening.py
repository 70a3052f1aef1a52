"""Opens one table for compaction: schema, options, and whether compactord supports it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from compactord.catalog.access import TableAccess
from compactord.commit.attempt import CommitSettings
from compactord.errors import FormatError, UnsupportedTable, UsageError
from compactord.formats.registry import (
    FORMATS,
    Formats,
    TableFormats,
    table_formats,
    unheld_columns,
)
from compactord.kernels.aggregators.registry import rule_reasons
from compactord.kernels.functions.registry import MERGE_FUNCTIONS, MergeFunctions
from compactord.model import TableKind
from compactord.paimon import paths
from compactord.paimon.binary_row import comparable_key, decode_row
from compactord.paimon.catalog_partitions import PartitionEntries, PartitionEvents, PartitionSpec
from compactord.paimon.data_file import BucketId
from compactord.paimon.deletion_vectors import INDEX_TYPE
from compactord.paimon.options.maintenance import NONE_EXPIRES, NONE_MARKED
from compactord.paimon.options.table_options import TableOptions, parse_options
from compactord.paimon.schema import CURRENT_VERSION, SchemaHistory, TableRef, TableSchema
from compactord.paimon.support import reasons_to_refuse, warnings
from compactord.plan.triggers import TRIGGERS, Triggers, trigger_options
from compactord.rewrite.evolution import reasons_in_files
from compactord.state.table_state import TableState
from compactord.storage.base import Storage

# Names of more files would take seconds to read.
_FILES_LOOKED_AT = 20_000


@dataclass(frozen=True, kw_only=True)
class TableRegistries:
    """The file formats, merge functions and triggers of minor picks that tables may request."""

    formats: Formats = field(default_factory=lambda: FORMATS)
    functions: MergeFunctions = field(default_factory=lambda: MERGE_FUNCTIONS)
    triggers: Triggers = TRIGGERS


OWN = TableRegistries()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTable:
    """A table in its latest schema. `key_of` is None without a primary key.

    `refusals` are the reasons why it is not supported; only tables without any are compacted.
    `formats` are for its new files, `readable` all formats that can be read. `keeps_encoding`:
    files are encoded by the table's own options, not by options of this run.
    """

    access: TableAccess
    schema: TableSchema
    options: TableOptions
    kind: TableKind
    key_of: Callable[[bytes], Any] | None
    refusals: tuple[str, ...]
    warnings: tuple[str, ...]
    formats: TableFormats
    keeps_encoding: bool
    readable: Formats = field(compare=False, repr=False)
    history: SchemaHistory = field(compare=False, repr=False)
    triggers: Triggers = field(compare=False, repr=False)

    @property
    def storage(self) -> Storage:
        return self.access.storage

    @property
    def ref(self) -> TableRef:
        return self.access.ref

    @property
    def entries(self) -> PartitionEntries | None:
        """Partition entries in the catalog, or None if no option requires them; `events` alike."""
        return self.access.entries

    @property
    def events(self) -> PartitionEvents | None:
        return self.access.events

    @property
    def commit_settings(self) -> CommitSettings:
        return CommitSettings(
            options=self.options.commit,
            partition_types=tuple(column.type for column in self.schema.partition_fields),
            key_of=self.key_of,
            bucket_folder=self.bucket_folder,
        )

    @property
    def manifests(self) -> str:
        """The source of partitions and keys, for errors."""
        return paths.manifest_folder(self.ref.location)

    @property
    def partial_schemas(self) -> frozenset[int]:
        """Schemas whose files may hold a part of a key's state: its records are not looked up.

        If the newest record is the whole state, it makes no difference.
        """
        lookup = self.options.compaction.lookup
        if lookup is None or lookup.upgrades:
            return frozenset()
        found = self._older_schemas(lambda older: older.compaction.lookup is None)
        before = self._older_schemas(
            lambda older: older.compaction.lookup is not None and not older.compaction.lookup.marks
        )
        # Whole states, whose parts are not marked, would be merged with these once more.
        return found if before and not lookup.is_one_record else _and_before(found)

    @property
    def unmarked_schemas(self) -> frozenset[int]:
        """Schemas whose files may have rows that can be replaced without a deletion vector."""
        lookup = self.options.compaction.lookup
        if lookup is None or not lookup.marks:
            return frozenset()
        return _and_before(self._older_schemas(lambda older: older.commit.vectors is None))

    def _older_schemas(self, lack: Callable[[TableOptions], bool]) -> frozenset[int]:
        older = map(self.history.schema, range(self.schema.id))
        return frozenset(each.id for each in older if lack(parse_options(each)))

    def bucket_folder(self, bucket: BucketId) -> str:
        return paths.bucket_folder(
            self.ref.location, self.partition_path(bucket.partition), bucket.bucket
        )

    def partition_path(self, partition: bytes) -> str:
        """Raises `FormatError` if the partition cannot be read, as does `partition_spec`."""
        return paths.spec_path(self.partition_spec(partition))

    def partition_spec(self, partition: bytes) -> PartitionSpec:
        return paths.partition_spec(
            partition,
            self.schema.partition_fields,
            source=self.manifests,
            default_name=self.options.partition_default_name,
            legacy_name=self.options.partition_legacy_name,
        )

    def partition_text(self, partition: bytes) -> str:
        """Readable text: `dt=2026-01-01, region=eu`, empty for a table without partitions.

        Hexadecimal bytes if the row cannot be read.
        """
        fields = self.schema.partition_fields
        try:
            values = decode_row(partition, [column.type for column in fields])
        except FormatError:
            return f"0x{partition.hex()}"
        return paths.partition_text(values, fields)


def _and_before(schemas: frozenset[int]) -> frozenset[int]:
    """These and all earlier schemas: a compaction may have moved their files without a rewrite."""
    return frozenset(range(max(schemas, default=-1) + 1))


def open_table(
    access: TableAccess,
    overrides: Mapping[str, str],
    registries: TableRegistries = OWN,
    *,
    known: OpenTable | None = None,
) -> OpenTable:
    """The table, with the options of this run over its own.

    `known` is the table as opened before: no folder is listed then, and if its schema is still the
    latest, older ones are not read again.

    Raises `UnsupportedTable` with every reason, before any data is read, and `UsageError` for
    options that only this run sets.
    """
    schema = access.newest_schema(known.schema if known else None)
    table = describe_table(access, schema, overrides, registries)
    if table.refusals:
        raise UnsupportedTable(access.ref.full_name, table.refusals)
    if known is not None and known.schema == schema:
        return replace(table, history=known.history)
    return table


def describe_table(
    access: TableAccess,
    schema: TableSchema,
    overrides: Mapping[str, str],
    registries: TableRegistries = OWN,
) -> OpenTable:
    """The table, supported or not, for commands that only read.

    Raises `UsageError` for options of the run with which no table is supported.
    """
    judged = _of_branch(schema, access.ref)
    found = own = _judged(judged, {}, registries)
    if overrides:
        found = _judged(judged, overrides, registries)
        if reasons := [reason for reason in found.refusals if reason not in own.refusals]:
            raise UsageError("this run: " + "; ".join(reasons))
    options = found.options
    if schema.primary_keys:
        kind = TableKind.PRIMARY_KEY
    elif options.bucket == -1:
        kind = TableKind.APPEND_UNAWARE
    else:
        kind = TableKind.APPEND_BUCKETED
    types = [key.type for key in schema.key_fields]
    location = access.ref.location
    return OpenTable(
        access=access,
        schema=schema,
        options=options,
        kind=kind,
        key_of=partial(comparable_key, types=types, source=paths.manifest_folder(location))
        if schema.primary_keys
        else None,
        refusals=found.refusals,
        warnings=(
            *warnings(schema, options, registries.formats),
            *_catalog_warnings(access, options),
            *found.formats.warnings,
        ),
        formats=found.formats,
        readable=registries.formats,
        history=access.schemas(schema),
        triggers=registries.triggers,
        keeps_encoding=(options.files, found.formats) == (own.options.files, own.formats),
    )


def _catalog_warnings(access: TableAccess, options: TableOptions) -> Iterator[str]:
    maintenance = options.maintenance
    why = maintenance.why_none_expires(access.entries)
    if why is not None and why != maintenance.expiry_refusal:
        yield f"{why}; {NONE_EXPIRES}"
    why = maintenance.why_none_marked(access.entries, access.events)
    if why is not None and why != maintenance.mark_done_refusal:
        yield f"{why}; {NONE_MARKED}"


def _of_branch(schema: TableSchema, ref: TableRef) -> TableSchema:
    """The schema without option `branch` for branches other than main.

    There the schema's location decides, not the option (catalog/AbstractCatalog.java,
    tableSchemaInFileSystem).
    """
    if ref.branch == paths.MAIN_BRANCH:
        return schema
    return replace(schema, options={k: v for k, v in schema.options.items() if k != "branch"})


@dataclass(frozen=True, slots=True)
class _Judged:
    """A table's options, and the reasons why it is not supported."""

    options: TableOptions
    formats: TableFormats
    refusals: tuple[str, ...]


def _judged(
    schema: TableSchema, overrides: Mapping[str, str], registries: TableRegistries
) -> _Judged:
    options = parse_options(schema, overrides, trigger_options(registries.triggers))
    new_files = table_formats(schema, options, overrides, registries.formats)
    reasons = [*reasons_to_refuse(schema, options)]
    if schema.version <= CURRENT_VERSION:
        if options.merge_engine not in registries.functions:
            known = ", ".join(registries.functions)
            reasons.append(f"option merge-engine={options.merge_engine}: expected one of {known}")
        if schema.primary_keys:
            reasons += rule_reasons(schema, options.merge_rules, options.raw)
        reasons += new_files.refusals
    return _Judged(options, new_files, tuple(reasons))


def refuse_live_state(table: OpenTable, state: TableState) -> None:
    """Refuses tables by their live files: raises `UnsupportedTable`.

    Refused are columns that cannot be cast to the latest schema's, index files that name data files
    other than by deletion vectors, and deletion vectors where the table has them disabled.
    """
    reasons = list(live_reasons(table, state))
    if reasons:
        raise UnsupportedTable(table.ref.full_name, reasons)


def refuse_formats(table: OpenTable, formats: Iterable[str]) -> None:
    """Raises `UnsupportedTable` unless all these formats, of live files, can be read."""
    reasons = list(_format_reasons(table, formats))
    if reasons:
        raise UnsupportedTable(table.ref.full_name, reasons)


def _format_reasons(table: OpenTable, formats: Iterable[str]) -> Iterator[str]:
    for name in sorted(set(formats)):
        if name in table.readable:
            yield from unheld_columns(table.readable[name], table.schema)
        else:
            yield f"it has files of format {name}"


def reasons_before_planning(table: OpenTable, state: TableState) -> Iterator[str]:
    """`live_reasons`, and formats of files, which planning would find, for commands without a plan.

    Only some files are looked at if a table has very many.
    """
    yield from live_reasons(table, state)
    yield from _format_reasons(table, state.files.formats(_FILES_LOOKED_AT))


def live_reasons(table: OpenTable, state: TableState) -> Iterator[str]:
    """The reasons why the live files cannot be compacted; none if they can."""
    known = [schema_id for schema_id in state.files.schema_ids if schema_id <= table.schema.id]
    for schema_id in sorted(state.files.schema_ids - set(known)):
        yield f"live files have schema {schema_id}, newer than the latest, {table.schema.id}"
    schemas = [table.history.schema(schema_id) for schema_id in sorted(known)]
    yield from reasons_in_files(table.schema, schemas)
    has_vectors = table.options.commit.vectors is not None
    entries = state.indexes.entries
    for kind in sorted({e.index_type for e in entries if not e.is_served(has_vectors=has_vectors)}):
        yield f"index files of type {kind} exist"
    if not has_vectors and any(entry.vectors for entry in entries):
        # With or without them, a compaction would make its reading of the rows permanent.
        yield (
            f"index files of type {INDEX_TYPE} exist and deletion-vectors.enabled is not true: "
            "readers see rows that were deleted, and a compaction would make that permanent"
        )
