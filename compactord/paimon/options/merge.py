"""Reads the rules of a table's merge engine from its options.

Sources: CoreOptions.java, mergetree/compact/PartialUpdateMergeFunction.java,
mergetree/compact/aggregate/{AggregateMergeFunction,factory/*}.java.
"""

from __future__ import annotations

from collections.abc import Iterator

from compactord.paimon.merge_rules import (
    COUNT_LIMIT_MAX,
    NO_RULES,
    ColumnRule,
    MergeRules,
    NullKeys,
    SequenceGroup,
)
from compactord.paimon.options import values as option_values
from compactord.paimon.options.texts import OptionTexts
from compactord.paimon.schema import TableSchema

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
    """The rules of the merge engine `engine`; none for engines that have none.

    What contradicts itself is read as it stands: `option_checks` says why such a table is refused.
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
    """Columns of one value in all records of a key.

    Java's reader takes partition columns from the folder, whatever a merge has made of them.
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
