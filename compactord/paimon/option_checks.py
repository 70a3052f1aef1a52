"""Options that can be parsed but for which a table is refused.

Each reason names the option and its value. Refused are values, and rules of a merge engine, that
Java refuses, some of them only when it merges, values with which readers would not find the files,
and more levels than fit into Java's memory.

Sources: schema/SchemaValidation.java, mergetree/Levels.java,
mergetree/compact/{UniversalCompaction,PartialUpdateMergeFunction}.java.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from compactord.paimon.options import values as option_values
from compactord.paimon.options.catalogue import LEVELS_MAX
from compactord.paimon.options.merge import (
    GROUP_REMOVES,
    LAST_NON_NULL_VALUE,
    PARTIAL_UPDATE_REMOVES,
    aggregator_name,
    sequence_groups,
)
from compactord.paimon.options.table_options import TableOptions
from compactord.paimon.options.texts import OptionTexts
from compactord.paimon.schema import TableSchema
from compactord.paimon.types import RowType

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
    """An option of columns must name columns of the table, and none inside of a column."""
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
    """Why the merge engine `engine` cannot have the options `raw`; nothing when it can."""
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
