"""Option values that can be parsed but for which a table is refused.

Each reason names the option and its value. Refused are values that Java refuses
(schema/SchemaValidation.java, mergetree/Levels.java, mergetree/compact/UniversalCompaction.java),
values with which readers would not find the files, and more levels than fit into Java's memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from compactord.paimon.options import values as option_values
from compactord.paimon.options.catalogue import LEVELS_MAX
from compactord.paimon.options.table_options import TableOptions
from compactord.paimon.schema import TableSchema
from compactord.paimon.types import RowType

_DEFAULT_AGGREGATION = "default-aggregate-function"


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
