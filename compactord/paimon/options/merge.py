"""Merge rules and file options of a table, read from its options.

Sources: CoreOptions.java of release 2.0.0, mergetree/compact/PartialUpdateMergeFunction.java,
mergetree/compact/aggregate/{AggregateMergeFunction,factory/*}.java.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from compactord.paimon.options import values as option_values
from compactord.paimon.options.texts import OptionTexts
from compactord.paimon.schema import TableSchema

COUNT_LIMIT_MAX = 2**31 - 1


class NullKeys(enum.Enum):
    """Handling of elements whose nested key has a null (`nested-key-null-strategy`)."""

    MERGE = "merge"
    IGNORE = "ignore"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRule:
    """The aggregator of one column and its options.

    Options that the aggregator does not have keep their defaults.
    """

    column: str
    aggregator: str
    ignore_retract: bool = False
    delimiter: str = ","
    distinct: bool = False
    count_limit: int = COUNT_LIMIT_MAX
    nested_key: tuple[str, ...] = ()
    nested_sequence: tuple[str, ...] = ()
    null_keys: NullKeys = NullKeys.MERGE
    # The field of a map's values that holds their time, by default the last one.
    time_field: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceGroup:
    """Columns of a partial update that have an order of their own.

    A record with a smaller sequence (`sequence_fields`, nulls first) does not replace `columns`.
    """

    sequence_fields: tuple[str, ...]
    columns: tuple[str, ...]
    # A delete of the newest sequence removes the whole record.
    removes_record: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRules:
    """The rules of a table's merge engine.

    `columns` has a rule for each column with an aggregator, in the order of the table's columns.
    `ignore_delete` and `remove_on_delete` are the engine's options of these names.
    """

    columns: tuple[ColumnRule, ...] = ()
    groups: tuple[SequenceGroup, ...] = ()
    ignore_delete: bool = False
    remove_on_delete: bool = False


NO_RULES = MergeRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogRule:
    """The changes that compactions write to a changelog.

    `compared` are the columns that must differ for a row to have changed; if it is None, each
    merged row counts as changed. `updates_before` and `deletes`: rows of kind -U and -D are
    written.
    """

    compared: tuple[str, ...] | None
    updates_before: bool = True
    deletes: bool = True


PRIMARY_KEY = "primary-key"
LAST_VALUE = "last_value"
LAST_NON_NULL_VALUE = "last_non_null_value"
PARTIAL_UPDATE_REMOVES = "partial-update.remove-record-on-delete"
AGGREGATION_REMOVES = "aggregation.remove-record-on-delete"
GROUP_REMOVES = "partial-update.remove-record-on-sequence-group"
_DEFAULT_AGGREGATOR = "fields.default-aggregate-function"
_GROUP_START, _GROUP_END = "fields.", ".sequence-group"


def merge_rules(
    schema: TableSchema, texts: OptionTexts, engine: str, sequence_fields: tuple[str, ...]
) -> MergeRules:
    """The rules of the merge engine `engine`; empty for engines without rules.

    Contradictory options are read as written: `support.merge_reasons` refuses such a table.
    """
    if engine == "partial-update":
        return _partial_update(schema, texts)
    if engine == "aggregation":
        return MergeRules(
            columns=tuple(_aggregation_columns(schema, texts, sequence_fields)),
            remove_on_delete=texts.read(AGGREGATION_REMOVES, False),
        )
    return NO_RULES


def sequence_groups(texts: OptionTexts) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Each option that defines a group, its sequence fields, and the columns it protects.

    Names are split at commas and not trimmed, as in Java.
    """
    for key, text in sorted(texts.merged.items()):
        if key.startswith(_GROUP_START) and key.endswith(_GROUP_END):
            fields = key[len(_GROUP_START) : -len(_GROUP_END)].split(",")
            yield key, tuple(fields), tuple(text.split(","))


def aggregator_name(column: str, texts: OptionTexts) -> str | None:
    """The aggregator that options name for a column, its own or the default."""
    for key in (f"fields.{column}.aggregate-function", _DEFAULT_AGGREGATOR):
        if key in texts.merged:
            return texts.merged[key]
    return None


def _partial_update(schema: TableSchema, texts: OptionTexts) -> MergeRules:
    removing = texts.maybe(GROUP_REMOVES, _names) or ()
    groups = tuple(
        SequenceGroup(
            sequence_fields=fields,
            columns=tuple(column for column in columns if column not in fields),
            removes_record=not set(fields).isdisjoint(removing),
        )
        for _, fields, columns in sequence_groups(texts)
    )
    ordering = {field for group in groups for field in group.sequence_fields}
    fixed = _fixed_columns(schema)
    columns = [
        _column_rule(field.name, name, texts)
        for field in schema.fields
        if field.name not in ordering
        and field.name not in fixed
        and (name := aggregator_name(field.name, texts)) is not None
    ]
    return MergeRules(
        columns=tuple(columns),
        groups=groups,
        ignore_delete=texts.read("ignore-delete", False),
        remove_on_delete=texts.read(PARTIAL_UPDATE_REMOVES, False),
    )


def _aggregation_columns(
    schema: TableSchema, texts: OptionTexts, sequence_fields: tuple[str, ...]
) -> Iterator[ColumnRule]:
    fixed = _fixed_columns(schema)
    for field in schema.fields:
        if field.name in sequence_fields:
            name = LAST_VALUE
        elif field.name in fixed:
            name = PRIMARY_KEY
        else:
            name = aggregator_name(field.name, texts) or LAST_NON_NULL_VALUE
        yield _column_rule(field.name, name, texts)


def _fixed_columns(schema: TableSchema) -> frozenset[str]:
    """Columns with one value in all records of a key.

    Java's reader takes partition columns from the folder and ignores merged values.
    """
    return frozenset((*schema.primary_keys, *schema.partition_keys))


def _column_rule(column: str, aggregator: str, texts: OptionTexts) -> ColumnRule:
    def key(name: str) -> str:
        return f"fields.{column}.{name}"

    boolean = option_values.boolean
    return ColumnRule(
        column=column,
        aggregator=aggregator,
        ignore_retract=texts.read(key("ignore-retract"), False, boolean),
        delimiter=texts.read(key("list-agg-delimiter"), ",", str),
        distinct=texts.read(key("distinct"), False, boolean),
        count_limit=texts.read(key("count-limit"), COUNT_LIMIT_MAX, option_values.integer),
        nested_key=texts.maybe(key("nested-key"), _trimmed_names) or (),
        nested_sequence=texts.maybe(key("nested-sequence-field"), _trimmed_names) or (),
        null_keys=texts.read(key("nested-key-null-strategy"), NullKeys.MERGE),
        time_field=texts.maybe(key("ts-field"), str),
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _trimmed_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


# The default prefix of data files' names.
USUAL_PREFIX = "data-"
STATS_MODE = re.compile(r"(?i:none|counts|full|truncate\((?P<length>0*[1-9][0-9]*)\))")
_FIELD_STATS_MODE = re.compile(r"fields\.(.+)\.stats-mode")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """Options of output files in any format; `formats` reads the options of one format.

    Per-level maps override the table-wide value, and options of changelogs override both.
    """

    data_file_prefix: str
    suffix_includes_compression: bool
    format: str
    format_per_level: Mapping[int, str]
    compression: str
    compression_per_level: Mapping[int, str]
    thin_mode: bool
    stats_mode: str
    stats_mode_per_level: Mapping[int, str]
    stats_mode_per_field: Mapping[str, str]
    stats_dense: bool
    stats_keep_first: int
    changelog_prefix: str
    changelog_format: str | None
    changelog_compression: str | None
    changelog_stats_mode: str | None


def file_options(texts: OptionTexts) -> FileOptions:
    """The file options. Invalid values are handled as in `parse_options`."""
    return FileOptions(
        data_file_prefix=texts.read("data-file.prefix", USUAL_PREFIX, option_values.name_part),
        suffix_includes_compression=texts.read("file.suffix.include.compression", False),
        format=texts.read("file.format", "parquet", str.lower),
        format_per_level=texts.level_map("file.format.per.level", str.lower),
        compression=texts.read("file.compression", "zstd", option_values.codec),
        compression_per_level=texts.level_map("file.compression.per.level", option_values.codec),
        thin_mode=texts.read("data-file.thin-mode", False),
        stats_mode=texts.read("metadata.stats-mode", "truncate(16)", _stats_mode),
        stats_mode_per_level=texts.level_map("metadata.stats-mode.per.level", _stats_mode),
        stats_mode_per_field={
            found[1]: mode
            for key in texts.merged
            if (found := _FIELD_STATS_MODE.fullmatch(key))
            and (mode := texts.maybe(key, _stats_mode)) is not None
        },
        stats_dense=texts.read("metadata.stats-dense-store", True),
        stats_keep_first=texts.read("metadata.stats-keep-first-n-columns", -1),
        changelog_prefix=texts.read("changelog-file.prefix", "changelog-", option_values.name_part),
        changelog_format=texts.maybe("changelog-file.format", str.lower),
        changelog_compression=texts.maybe("changelog-file.compression", option_values.codec),
        changelog_stats_mode=texts.maybe("changelog-file.stats-mode", _stats_mode),
    )


def changelog_rule(texts: OptionTexts, columns: Iterable[str]) -> ChangelogRule:
    """The options of changelogs of a table with these columns. Errors as `file_options`."""
    producer = "changelog-producer"
    ignored = texts.maybe(f"{producer}.row-deduplicate-ignore-fields") or ""
    compared = tuple(name for name in columns if name not in ignored.split(","))
    only_different = texts.read(f"{producer}.row-deduplicate", False)
    return ChangelogRule(
        compared=compared if only_different else None,
        updates_before=not texts.read(f"{producer}.ignore-update-before", False),
        deletes=not texts.read(f"{producer}.ignore-delete", False),
    )


def _stats_mode(text: str) -> str:
    if STATS_MODE.fullmatch(text) is None:
        raise ValueError("none, counts, full or truncate(n) with n > 0")
    return text
