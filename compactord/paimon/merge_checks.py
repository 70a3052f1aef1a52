"""Rules of a merge engine for which a table is refused, as Java refuses them.

Sources: schema/SchemaValidation.java, mergetree/compact/PartialUpdateMergeFunction.java (Factory),
mergetree/compact/aggregate/factory/*.java. Java notices some of them only when it merges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec

from compactord.paimon.merge_rules import ColumnRule, MergeRules
from compactord.paimon.options.merge import (
    AGGREGATION_REMOVES,
    GROUP_REMOVES,
    LAST_NON_NULL_VALUE,
    PARTIAL_UPDATE_REMOVES,
    aggregator_name,
    sequence_groups,
)
from compactord.paimon.options.texts import OptionTexts
from compactord.paimon.schema import TableSchema
from compactord.paimon.type_texts import type_text
from compactord.paimon.types import (
    NUMBERS,
    STRING,
    TEXTS,
    ArrayType,
    AtomicType,
    DataType,
    MapType,
    RowType,
    TypeRoot,
)

INSTALL_SKETCHES = "pip install 'datasketches>=5.2,<6'"
SNAPSHOT_ORDERING = "sequence.snapshot-ordering"
_Check = Callable[[DataType, ColumnRule], str]


def merge_reasons(schema: TableSchema, raw: Mapping[str, str], engine: str) -> Iterator[str]:
    """Why the merge engine `engine` cannot have the options `raw`; nothing when it can."""
    texts = OptionTexts(raw, {})
    yield from _sequence_field_reasons(schema, texts)
    yield from _snapshot_ordering_reasons(texts)
    if engine == "partial-update":
        yield from _group_reasons(schema, texts)
        yield from _contradictions(texts)
        yield from _ungrouped_reasons(schema, texts)


def rule_reasons(schema: TableSchema, rules: MergeRules, raw: Mapping[str, str]) -> Iterator[str]:
    """Why a column cannot have its aggregator."""
    types = {field.name: field.type for field in schema.fields}
    removes = raw.get(AGGREGATION_REMOVES, "").lower() == "true"
    for rule in rules.columns:
        if rule.aggregator not in AGGREGATORS:
            yield f"column {rule.column}: aggregate function {rule.aggregator} is unknown"
            continue
        problem = AGGREGATORS[rule.aggregator](types[rule.column], rule)
        if problem:
            yield f"column {rule.column}: aggregate function {rule.aggregator} {problem}"
        if rule.ignore_retract and removes:
            yield (
                f"options {AGGREGATION_REMOVES} and fields.{rule.column}.ignore-retract "
                "contradict each other"
            )


def _sequence_field_reasons(schema: TableSchema, texts: OptionTexts) -> Iterator[str]:
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


def _any_type(type_: DataType, rule: ColumnRule) -> str:
    return ""


def _one_of(what: str, roots: Collection[TypeRoot]) -> _Check:
    def check(type_: DataType, rule: ColumnRule) -> str:
        if isinstance(type_, AtomicType) and type_.root in roots:
            return ""
        return f"needs {what}, not {type_text(type_)}"

    return check


_number = _one_of("a number", NUMBERS)
_boolean = _one_of("a BOOLEAN", {TypeRoot.BOOLEAN})
_bytes = _one_of("a VARBINARY", {TypeRoot.VARBINARY})


def _string(type_: DataType, rule: ColumnRule) -> str:
    # Nullability does not count.
    is_string = isinstance(type_, AtomicType) and replace(type_, nullable=True) == STRING
    return "" if is_string else f"needs a STRING, not {type_text(type_)}"


def _sketch(type_: DataType, rule: ColumnRule) -> str:
    return _bytes(type_, rule) or missing_package(rule.aggregator)


def missing_package(aggregator: str) -> str:
    """What this installation lacks for an aggregator, and how to get it; "": nothing."""
    if aggregator not in ("hll_sketch", "theta_sketch") or find_spec("datasketches"):
        return ""
    return f"needs the package datasketches: {INSTALL_SKETCHES}"


def _array(type_: DataType, rule: ColumnRule) -> str:
    return "" if isinstance(type_, ArrayType) else f"needs an ARRAY, not {type_text(type_)}"


def _map(type_: DataType, rule: ColumnRule) -> str:
    return "" if isinstance(type_, MapType) else f"needs a MAP, not {type_text(type_)}"


def _timed_map(type_: DataType, rule: ColumnRule) -> str:
    values = type_.value if isinstance(type_, MapType) else None
    if not isinstance(values, RowType) or len(values.fields) < 2:
        return f"needs a MAP of ROWs with two fields or more, not {type_text(type_)}"
    by_name = {field.name: field.type for field in values.fields}
    name = rule.time_field or values.fields[-1].name
    if name not in by_name:
        return f"has the time field {name}, which the map's values lack"
    time = by_name[name]
    if not isinstance(time, AtomicType) or time.root not in TEXTS:
        return f"compares times as texts, and field {name} has type {type_text(time)}"
    return ""


def _nested(type_: DataType, rule: ColumnRule) -> str:
    rows = type_.element if isinstance(type_, ArrayType) else None
    if not isinstance(rows, RowType):
        return f"needs an ARRAY of ROWs, not {type_text(type_)}"
    names = {field.name for field in rows.fields}
    for name in (*rule.nested_key, *rule.nested_sequence):
        if name not in names:
            return f"names the field {name}, which the array's rows lack"
    if rule.nested_sequence and not rule.nested_key:
        return "has a nested-sequence-field without a nested-key"
    return ""


def _nested_with_key(type_: DataType, rule: ColumnRule) -> str:
    return _nested(type_, rule) if rule.nested_key else "needs a nested-key"


# The aggregators that tables may name, each with what is wrong with a column; "": nothing.
AGGREGATORS: Mapping[str, _Check] = {
    "sum": _number,
    "product": _number,
    "max": _any_type,
    "min": _any_type,
    "last_value": _any_type,
    "last_non_null_value": _any_type,
    "first_value": _any_type,
    "first_non_null_value": _any_type,
    "first_not_null_value": _any_type,
    "bool_and": _boolean,
    "bool_or": _boolean,
    "listagg": _string,
    "collect": _array,
    "merge_map": _map,
    "merge_map_with_keytime": _timed_map,
    "nested_update": _nested,
    "nested_partial_update": _nested_with_key,
    "rbm32": _bytes,
    "rbm64": _bytes,
    "hll_sketch": _sketch,
    "theta_sketch": _sketch,
    "primary-key": _any_type,
}
