"""Supported and refused features, and the checks of a table's options.

A compactor that does not know a feature can damage the table or leave it inconsistent. So a table
is compacted only if everything that it uses is on the lists below, or in a registry: formats of
data files (`formats`) and merge engines (`kernels.functions`) have refusals of their own. Every
other feature is refused by name before data is read. The table of docs/support.md is rendered from
the same lists.

Each reason names the option and its value. Refused are values and merge rules that Java refuses,
some of them only when it merges, values with which readers would not find the files, and more
levels than fit into Java's memory.

Sources: schema/SchemaValidation.java, mergetree/Levels.java,
mergetree/compact/{UniversalCompaction,PartialUpdateMergeFunction}.java.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from compactord.paimon.options import values as option_values
from compactord.paimon.options.catalogue import LEVELS_MAX, canonical_key, find, format_of
from compactord.paimon.options.maintenance import NONE_EXPIRES, NONE_MARKED, TAG_PARTITIONS
from compactord.paimon.options.merge import (
    GROUP_REMOVES,
    LAST_NON_NULL_VALUE,
    PARTIAL_UPDATE_REMOVES,
    aggregator_name,
    sequence_groups,
)
from compactord.paimon.options.table_options import (
    DEDUPLICATE,
    FIRST_ROW,
    ChangelogProducer,
    TableOptions,
)
from compactord.paimon.options.texts import OptionTexts
from compactord.paimon.schema import CURRENT_VERSION, TableSchema
from compactord.paimon.types import (
    BINARIES,
    ArrayType,
    AtomicType,
    DataType,
    MapType,
    MultisetType,
    RowType,
    TypeRoot,
    VectorType,
    type_text,
)

_DEFAULT_AGGREGATION = "default-aggregate-function"
SNAPSHOT_ORDERING = "sequence.snapshot-ordering"


def value_reasons(
    schema: TableSchema, options: TableOptions, texts: Mapping[str, str]
) -> Iterator[str]:
    """Reasons to refuse the table; `texts` are its options by their present keys."""
    yield from options.unreadable.values()
    if schema.primary_keys:
        yield from _level_reasons(options, texts)
    yield from _name_reasons(options, texts)
    for key in sorted(texts):
        yield from _field_reasons(key, schema)


def _level_reasons(options: TableOptions, texts: Mapping[str, str]) -> Iterator[str]:
    plan = options.compaction
    if not 2 <= plan.num_levels <= LEVELS_MAX and "num-levels" in texts:
        yield f"option num-levels={plan.num_levels}: expected 2 to {LEVELS_MAX} levels"
    if plan.compaction_trigger < 1:
        yield (
            f"option num-sorted-run.compaction-trigger={plan.compaction_trigger}: "
            "expected 1 or more runs"
        )


def _name_reasons(options: TableOptions, texts: Mapping[str, str]) -> Iterator[str]:
    """Texts in the names of files, besides their prefixes."""
    key = "file.compression"
    if options.files.suffix_includes_compression and key in texts:
        try:
            option_values.name_part(texts[key])
        except ValueError as error:
            yield f"option {key}={texts[key]!r}: expected {error}"


def _field_reasons(key: str, schema: TableSchema) -> Iterator[str]:
    """Options of columns must name columns of the table, not fields inside of a column."""
    head, *rest = key.split(".")
    if head != "fields" or not rest:
        return
    columns = {field.name: field.type for field in schema.fields}
    names = rest[0].split(",")
    for name in names:
        if name not in columns and name != _DEFAULT_AGGREGATION:
            yield f"option {key}: the table has no column {name}"
    if len(rest) > 2 and len(names) == 1 and isinstance(columns.get(names[0]), RowType):
        yield f"option {key}: options of fields inside a ROW are not supported"


def merge_reasons(schema: TableSchema, raw: Mapping[str, str], engine: str) -> Iterator[str]:
    """Why the merge engine `engine` cannot have the options `raw`; empty if it can."""
    texts = OptionTexts(raw, {})
    yield from _sequence_field_reasons(texts)
    yield from _snapshot_ordering_reasons(texts)
    if engine == "partial-update":
        yield from _group_reasons(schema, texts)
        yield from _contradictions(texts)
        yield from _ungrouped_reasons(schema, texts)


def _sequence_field_reasons(texts: OptionTexts) -> Iterator[str]:
    found = texts.text("sequence.field")
    names = [name.strip() for name in found[1].split(",")] if found else []
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield f"option sequence.field names {name} twice"
        if f"fields.{name}.aggregate-function" in texts.merged:
            yield f"column {name} is a sequence field and has an aggregate function"


def _snapshot_ordering_reasons(texts: OptionTexts) -> Iterator[str]:
    if not _is_on(texts, SNAPSHOT_ORDERING):
        return
    if texts.text("sequence.field"):
        yield f"options {SNAPSHOT_ORDERING} and sequence.field contradict each other"
    if not _is_on(texts, "write-only"):
        yield f"option {SNAPSHOT_ORDERING}=true needs write-only=true"


def _group_reasons(schema: TableSchema, texts: OptionTexts) -> Iterator[str]:
    columns = {field.name for field in schema.fields}
    taken: dict[str, str] = {}
    for key, fields, protected in sequence_groups(texts):
        own = dict.fromkeys(fields)
        members = [*own, *(name for name in protected if name not in own)]
        if len(set(protected)) < len(protected) or len(own) < len(fields):
            yield f"option {key}={','.join(protected)} names a column twice"
        for name in members:
            if name not in columns:
                yield f"option {key}: the table has no column {name!r}"
            elif name in schema.primary_keys:
                yield f"option {key}: column {name} of the primary key cannot be in a group"
            elif name in taken:
                yield f"column {name} is in two sequence groups, {taken[name]} and {key}"
            taken.setdefault(name, key)


def _contradictions(texts: OptionTexts) -> Iterator[str]:
    ignores = _is_on(texts, "ignore-delete")
    removes = _is_on(texts, PARTIAL_UPDATE_REMOVES)
    group_removes = texts.text(GROUP_REMOVES)
    groups = list(sequence_groups(texts))
    if ignores and removes:
        yield f"options ignore-delete and {PARTIAL_UPDATE_REMOVES} contradict each other"
    if ignores and group_removes:
        yield f"options ignore-delete and {GROUP_REMOVES} contradict each other"
    if removes and groups:
        yield f"options {groups[0][0]} and {PARTIAL_UPDATE_REMOVES} contradict each other"
    if group_removes:
        fields = {field for _, sequence, _ in groups for field in sequence}
        for name in group_removes[1].split(","):
            if name not in fields:
                yield f"option {GROUP_REMOVES}: {name!r} is not a field of a sequence group"


def _is_on(texts: OptionTexts, key: str) -> bool:
    found = texts.text(key)
    return found is not None and found[1].lower() == "true"


def _ungrouped_reasons(schema: TableSchema, texts: OptionTexts) -> Iterator[str]:
    groups = list(sequence_groups(texts))
    grouped = {name for _, fields, columns in groups for name in (*fields, *columns)}
    for field in schema.fields:
        if field.name in grouped or field.name in schema.primary_keys:
            continue
        name = aggregator_name(field.name, texts)
        if name not in (None, LAST_NON_NULL_VALUE):
            yield (
                f"column {field.name}: aggregate function {name} needs a sequence group "
                "in a partial update"
            )


MANIFEST_CODECS = ("zstd", "zstandard", "null", "deflate", "snappy", "bzip2", "xz")
EXPIRE_TIME_TYPES = (
    TypeRoot.INT,
    TypeRoot.BIGINT,
    TypeRoot.TIMESTAMP,
    TypeRoot.TIMESTAMP_LTZ,
)
_COMPACTION_TELLS = (ChangelogProducer.FULL_COMPACTION, ChangelogProducer.LOOKUP)
REFUSED_TYPES = ("VARIANT", "BLOB", "VECTOR")


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedOption:
    """An option that is refused unless its text is `allowed`, or always if that is None.

    Texts are compared as Java reads them, including blanks around them.
    """

    key: str
    why: str
    allowed: str | None = None
    in_any_case: bool = True

    def refuses(self, text: str) -> bool:
        if self.allowed is None:
            return text.strip() != ""
        return (text.lower() if self.in_any_case else text) != self.allowed


def _on(key: str, why: str) -> RefusedOption:
    return RefusedOption(key=key, why=why, allowed="false")


def _set(key: str, why: str) -> RefusedOption:
    return RefusedOption(key=key, why=why)


def _unless(key: str, allowed: str, why: str, *, in_any_case: bool = True) -> RefusedOption:
    return RefusedOption(key=key, why=why, allowed=allowed, in_any_case=in_any_case)


_CALLBACKS = "code that Java runs at each commit would not run"
_INDEXES = "its index files name data files and must change with them"
_ROW_IDS = "every row's id must be carried over"
_SEPARATE_FILES = "rows are split over files of their own"
_ELSEWHERE = "files lie outside the usual folders"
_BRANCH = "writers use that branch, whose name is db.t$branch_NAME"
_DROPPED = "a compacted level loses its index: queries are slower until Java builds it again"
SERVED_KEY_INDEXES = ("pk-btree.index.columns", "pk-bitmap.index.columns")
# Releases add kinds of indexes of primary-key tables, each with options of its own name.
_OF_A_KEY_INDEX = r"pk-[^.]+\."
_CHAINS = "partitions continue in another branch"

REFUSED_OPTIONS = (
    _unless("type", "table", "only plain tables have the files of this format"),
    _unless(
        "branch",
        "main",
        _BRANCH,
        in_any_case=False,
    ),
    _unless("manifest.format", "avro", "manifests are read as Avro"),
    _unless("metadata.iceberg.storage", "disabled", "Iceberg metadata would fall behind"),
    _on("chain-table.enabled", _CHAINS),
    _set("scan.fallback-snapshot-branch", _CHAINS),
    _set("scan.fallback-delta-branch", _CHAINS),
    _on("query-auth.enabled", "reads are filtered by a catalog server"),
    _on("row-tracking.enabled", _ROW_IDS),
    _on("data-evolution.enabled", _ROW_IDS),
    _on("clustering.incremental", "levels of append tables belong to clustering"),
    _set("clustering.columns", "rewritten files would lose their clustering"),
    _on("pk-clustering-override", "files are not in key order"),
    _on("primary-key.nullable", "keys of newer releases that may be null"),
    _set("blob-field", _SEPARATE_FILES),
    _set("blob-descriptor-field", _SEPARATE_FILES),
    _set("blob-view-field", _SEPARATE_FILES),
    _set("vector-field", _SEPARATE_FILES),
    _set("vector.file.format", _SEPARATE_FILES),
    _on("postpone.merge-on-read", "postponed buckets are not compacted yet"),
    _set("data-file.path-directory", _ELSEWHERE),
    _on("index-file-in-data-file-dir", _ELSEWHERE),
    _on("manifest-sort.enabled", "manifests would lose their order"),
    _set("commit.callbacks", _CALLBACKS),
    _set("tag.callbacks", _CALLBACKS),
    _on("visibility-callback.enabled", _CALLBACKS),
)

# Refused if writers move keys (`moves_keys`). Java's next writer of a table that has a key in
# two partitions does not start.
REFUSED_WHERE_KEYS_MOVE = (
    _set("sequence.field", "the delete of a row that has moved may be older than the row"),
    _set("record-level.expire-time", "a row comes back when its delete expires first"),
    _set(
        "cross-partition-upsert.index-ttl",
        "writers would find again what they have forgotten, in files that a compaction makes new",
    ),
)

# Maintenance that Java's committer does and compactord does not.
_UNSERVED_MAINTENANCE = {
    "partition.end-input-to-done": "partitions are not marked done at the end of an input",
}
# Other options that have no effect on compactord.
_UNSERVED = {
    "compaction.skip-expired-partitions": "expired partitions are compacted like others",
    "commit.strict-mode.last-safe-snapshot": "writers that set it fail after a compaction "
    "in their partitions",
    **dict.fromkeys(SERVED_KEY_INDEXES, _DROPPED),
}


def reasons_to_refuse(schema: TableSchema, options: TableOptions) -> tuple[str, ...]:
    """Reasons to refuse this table, each with the feature and its value; empty if it is supported.

    Only the latest schema and the merged options are considered, without the registries' refusals.
    `rewrite.reader` and the reader of index manifests check stored data.
    """
    if schema.version > CURRENT_VERSION:
        return (f"its schema has version {schema.version}, newer than {CURRENT_VERSION}",)
    texts = _canonical(options.raw)
    return (
        *value_reasons(schema, options, texts),
        *_kind_reasons(schema, options),
        *_column_reasons(schema),
        *_partition_reasons(schema, options),
        *_option_reasons(texts),
        *_moving_key_reasons(schema, options, texts),
        *_vector_reasons(options),
        *_expire_reasons(schema, texts),
        *_external_path_reasons(texts),
        *_pattern_reasons(texts),
        *_manifest_reasons(options),
    )


def moves_keys(schema: TableSchema, options: TableOptions) -> bool:
    """Whether writers look up the partition of a key (Java's bucket mode KEY_DYNAMIC)."""
    return bool(schema.partitions_outside_key) and options.bucket == -1


def warnings(
    schema: TableSchema, options: TableOptions, formats: Collection[str]
) -> tuple[str, ...]:
    """Warnings about a supported table, for operators.

    `formats` know the options that begin with their names.
    """
    texts = _canonical(options.raw)
    found = [*unserved_maintenance(options), *_requested(texts, _UNSERVED)]
    unknown = sorted(
        key
        for key in options.raw
        if find(key) is None
        and format_of(key) not in formats
        and key not in options.compaction.of_triggers
    )
    if unknown:
        found.append(f"unknown options in schema {schema.id}: {', '.join(unknown)}")
    return tuple(found)


def unserved_maintenance(options: TableOptions) -> tuple[str, ...]:
    """Maintenance that the table's options request and compactord does not do: a sentence for each.

    Java's dedicated job does these after its commits (table/sink/TableCommitImpl.java).
    """
    found = list(_requested(_canonical(options.raw), _UNSERVED_MAINTENANCE))
    if TAG_PARTITIONS in options.raw and "tag.default-time-retained" in options.raw:
        found.append(f"option {TAG_PARTITIONS}={options.raw[TAG_PARTITIONS]}: tags are not expired")
    if options.maintenance.tag_creation_refusal is not None:
        found.append(f"{options.maintenance.tag_creation_refusal}; no tags are created")
    if options.maintenance.mark_done_refusal is not None:
        found.append(f"{options.maintenance.mark_done_refusal}; {NONE_MARKED}")
    if options.maintenance.expiry_refusal is not None:
        found.append(f"{options.maintenance.expiry_refusal}; {NONE_EXPIRES}")
    return tuple(found)


def _requested(texts: Mapping[str, str], duties: Mapping[str, str]) -> Iterator[str]:
    for key, what in duties.items():
        if texts.get(key, "").strip().lower() not in ("", "none", "false"):
            yield f"option {key}={texts[key]}: {what}"


def _canonical(raw: Mapping[str, str]) -> dict[str, str]:
    """Options by present key; a former key counts only where the present one is absent."""
    former = {canonical_key(key): text for key, text in raw.items()}
    return {**former, **raw}


def _kind_reasons(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    if schema.primary_keys:
        if not schema.key_fields:
            yield "all columns of its primary key are partition columns"
        yield from merge_reasons(schema, options.raw, options.merge_engine)
        yield from _changelog_reasons(options)
    elif options.changelog_producer is not ChangelogProducer.NONE:
        producer = options.changelog_producer.value
        yield f"option changelog-producer={producer}: the table has no primary key"
    if "bucket" in options.unreadable:
        return  # already refused; the default would be a second, wrong reason
    if options.bucket == -2:
        yield "option bucket=-2 (postponed buckets) is not supported"
    elif options.bucket < -1 or options.bucket == 0:
        yield f"option bucket={options.bucket} is not a number of buckets"


def _changelog_reasons(options: TableOptions) -> Iterator[str]:
    producer = f"option changelog-producer={options.changelog_producer.value}"
    told_by = options.changelog_producer
    if told_by in _COMPACTION_TELLS and options.streams_overwrites:
        yield f"{producer} with streaming-read-overwrite=true: changes would be read twice"
    if told_by is ChangelogProducer.LOOKUP and options.compaction.full_compaction_delta_commits:
        yield f"{producer} with full-compaction.delta-commits, which it cannot have"
    forced = _canonical(options.raw).get("force-lookup", "").strip().lower() == "true"
    is_newest_whole = options.merge_engine == DEDUPLICATE and not options.sequence_fields
    if forced and options.compaction.full_changelog and not is_newest_whole:
        # Java makes no whole states then, and reads as if there were (PrimaryKeyFileStoreTable).
        yield f"{producer} with force-lookup=true: readers would lose what is on higher levels"
    if options.merge_engine == FIRST_ROW:
        if told_by in (ChangelogProducer.INPUT, ChangelogProducer.FULL_COMPACTION):
            yield f"{producer} with merge-engine=first-row, which can have lookup or none"
        if options.sequence_fields:
            yield "option sequence.field with merge-engine=first-row, which cannot have it"


def _vector_reasons(options: TableOptions) -> Iterator[str]:
    """Refusals of Java when it opens such a table (SchemaValidation.java)."""
    if options.commit.vectors is None:
        return
    producer, engine = options.changelog_producer, options.merge_engine
    enabled = "with deletion-vectors.enabled=true"
    if producer is ChangelogProducer.FULL_COMPACTION:
        yield (
            f"option changelog-producer={producer.value} {enabled}, "
            "which can have none, input or lookup"
        )
    if engine == FIRST_ROW:
        yield f"option merge-engine={engine} {enabled}, which it cannot have"


def _column_reasons(schema: TableSchema) -> Iterator[str]:
    for field in schema.fields:
        refused = sorted(set(refused_inside(field.type)))
        if refused:
            yield f"column {field.name} has type {type_text(field.type)} ({', '.join(refused)})"
    for field in (*schema.key_fields, *schema.partition_fields):
        if not isinstance(field.type, AtomicType):
            yield f"key column {field.name} has the nested type {type_text(field.type)}"


def refused_inside(type_: DataType) -> Iterator[str]:
    """The types of a column, or inside of it, that are not supported."""
    match type_:
        case AtomicType(root=root):
            if root.value in REFUSED_TYPES:
                yield root.value
        case ArrayType(element=element) | MultisetType(element=element):
            yield from refused_inside(element)
        case MapType(key=key, value=value):
            yield from refused_inside(key)
            yield from refused_inside(value)
        case RowType(fields=fields):
            for field in fields:
                yield from refused_inside(field.type)
        case VectorType():
            yield "VECTOR"


def _partition_reasons(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    """Partition columns whose folder names depend on more than the value."""
    for field in schema.partition_fields:
        root = field.type.root if isinstance(field.type, AtomicType) else None
        legacy = options.partition_legacy_name
        if root in BINARIES and legacy:
            yield f"partition column {field.name} is binary: its folders have random names"
        if root is TypeRoot.TIMESTAMP_LTZ and not legacy:
            yield (
                f"partition column {field.name} has type {type_text(field.type)} and "
                "partition.legacy-name=false: its folders depend on the writers' time zone"
            )


def _option_reasons(texts: Mapping[str, str]) -> Iterator[str]:
    for rule in REFUSED_OPTIONS:
        text = texts.get(rule.key)
        if text is not None and rule.refuses(text):
            yield f"option {rule.key}={text}: {rule.why}"


def _moving_key_reasons(
    schema: TableSchema, options: TableOptions, texts: Mapping[str, str]
) -> Iterator[str]:
    outside = ", ".join(schema.partitions_outside_key)
    for rule in REFUSED_WHERE_KEYS_MOVE if moves_keys(schema, options) else ():
        text = texts.get(rule.key)
        if text is not None and rule.refuses(text):
            yield f"option {rule.key}={text} with a primary key without {outside}: {rule.why}"


def _expire_reasons(schema: TableSchema, texts: Mapping[str, str]) -> Iterator[str]:
    """Refusals of Java when it opens such a table. Tables without a primary key expire no
    records.
    """
    time = texts.get("record-level.expire-time", "")
    if not schema.primary_keys or not time.strip():
        return
    name = texts.get("record-level.time-field")
    if name is None:
        yield f"option record-level.expire-time={time} without record-level.time-field"
        return
    types = {field.name: field.type for field in schema.fields}
    if name not in types:
        yield f"option record-level.time-field={name} is not a column"
        return
    found = types[name]
    if not isinstance(found, AtomicType) or found.root not in EXPIRE_TIME_TYPES:
        yield (
            f"option record-level.time-field={name} is a column of type {type_text(found)}, "
            "not INT, BIGINT or TIMESTAMP"
        )


def _external_path_reasons(texts: Mapping[str, str]) -> Iterator[str]:
    folders = texts.get("data-file.external-paths", "")
    strategy = texts.get("data-file.external-paths.strategy", "none")
    if folders.strip() and strategy.strip().lower() != "none":
        yield f"option data-file.external-paths={folders}: {_ELSEWHERE}"


def _pattern_reasons(texts: Mapping[str, str]) -> Iterator[str]:
    for key, text in sorted(texts.items()):
        lower = key.lower()
        if lower.startswith("file-index.") and lower.endswith(".columns"):
            yield f"option {key}={text}: new files would have no index"
        elif re.match(_OF_A_KEY_INDEX, lower) and text.strip() and key not in SERVED_KEY_INDEXES:
            yield f"option {key}={text}: {_INDEXES}"
        elif lower.endswith(".map.storage-layout") and text.strip().lower() != "default":
            yield f"option {key}={text}: maps are stored as several columns"


def _manifest_reasons(options: TableOptions) -> Iterator[str]:
    if options.commit.manifest_compression.lower() not in MANIFEST_CODECS:
        yield f"manifests of compression {options.commit.manifest_compression} cannot be written"
