"""Which types of columns can be read as which others: the casts of schema evolution.

A column keeps its id when its type is altered. Files written before have values of the old type,
which are cast when they are read. What these casts do is in `rewrite.casting`.

Sources: casting/CastExecutors.java and its rules, schema/SchemaEvolutionUtil.java.
"""

from __future__ import annotations

from compactord.paimon.type_texts import type_text
from compactord.paimon.types import (
    BINARIES,
    INTEGERS,
    MAX_LENGTH,
    MOMENTS,
    NUMBERS,
    TEXTS,
    ArrayType,
    AtomicType,
    DataType,
    MapType,
    RowType,
    TypeRoot,
    bare_type,
)

_TO_NUMBER = NUMBERS | TEXTS | {TypeRoot.BOOLEAN}
_TO_WHOLE_SECONDS = _TO_NUMBER | MOMENTS
_TO_MOMENT = MOMENTS | TEXTS | {TypeRoot.INT, TypeRoot.BIGINT, TypeRoot.DATE, TypeRoot.TIME}
_CLOCKS = MOMENTS | {TypeRoot.DATE, TypeRoot.TIME}

# The roots that Java has a rule for, by the root of the target; texts are in `_is_printable`.
_SOURCES = {
    TypeRoot.BOOLEAN: INTEGERS | TEXTS,
    TypeRoot.TINYINT: _TO_NUMBER,
    TypeRoot.SMALLINT: _TO_NUMBER,
    TypeRoot.INT: _TO_WHOLE_SECONDS,
    TypeRoot.BIGINT: _TO_WHOLE_SECONDS,
    TypeRoot.FLOAT: _TO_NUMBER,
    TypeRoot.DOUBLE: _TO_NUMBER,
    TypeRoot.DECIMAL: _TO_NUMBER,
    TypeRoot.BINARY: BINARIES | TEXTS,
    TypeRoot.VARBINARY: BINARIES | TEXTS,
    TypeRoot.DATE: MOMENTS | TEXTS,
    TypeRoot.TIME: MOMENTS | TEXTS,
    TypeRoot.TIMESTAMP: _TO_MOMENT,
    TypeRoot.TIMESTAMP_LTZ: _TO_MOMENT,
}
# The type that Java's rules compare with: nullable, of any length.
STRING = AtomicType(root=TypeRoot.VARCHAR, precision=MAX_LENGTH)


def same_type(left: DataType, right: DataType) -> bool:
    """Whether the types are equal but for nullability, at any depth, and for descriptions."""
    return bare_type(left, all_nullable=True) == bare_type(right, all_nullable=True)


def shares_fields(source: DataType, target: DataType) -> bool:
    """Whether anything of `target` is in `source`: false for ROWs without a field of the same id.

    Java does not read such a ROW, nor an ARRAY or MAP of them: all its values become null
    (utils/FormatReaderMapping.java, pruneDataType).
    """
    match source, target:
        case RowType(fields=old), RowType(fields=new):
            by_id = {field.id: field for field in old}
            return any(
                field.id in by_id and shares_fields(by_id[field.id].type, field.type)
                for field in new
            )
        case ArrayType(element=old_element), ArrayType(element=new_element):
            return shares_fields(old_element, new_element)
        case MapType(key=old_key, value=old_value), MapType(key=new_key, value=new_value):
            return shares_fields(old_key, new_key) and shares_fields(old_value, new_value)
        case _:
            return True


def why_not_castable(source: DataType, target: DataType) -> str | None:
    """Why values of `source` cannot be read as `target`; None if they can."""
    if same_type(source, target):
        return None
    match source, target:
        case RowType(fields=old), RowType(fields=new):
            by_id = {field.id: field.type for field in old}
            reasons = [
                why_not_castable(by_id[field.id], field.type) for field in new if field.id in by_id
            ]
            return next((reason for reason in reasons if reason is not None), None)
        case ArrayType(element=old_element), ArrayType(element=new_element):
            return why_not_castable(old_element, new_element)
        case MapType(key=old_key, value=old_value), MapType(key=new_key, value=new_value):
            if old_key != new_key:
                return f"its map key changed from {type_text(old_key)} to {type_text(new_key)}"
            return why_not_castable(old_value, new_value)
    if isinstance(target, AtomicType) and _has_rule(source, target):
        return None
    return f"there is no cast from {type_text(source)} to {type_text(target)}"


def _has_rule(source: DataType, target: AtomicType) -> bool:
    if target.root in TEXTS:
        return _is_printable(source, target)
    return isinstance(source, AtomicType) and source.root in _SOURCES.get(target.root, ())


def _is_printable(source: DataType, target: AtomicType) -> bool:
    match source:
        case AtomicType(root=root) if root in _CLOCKS:
            # Java registers these rules for STRING itself, not for texts of a length or NOT NULL.
            return target == STRING
        case AtomicType(root=root):
            return root in NUMBERS or root in TEXTS or root in BINARIES or root is TypeRoot.BOOLEAN
        case ArrayType(element=element):
            return _is_printable(element, STRING)
        case MapType(key=key, value=value):
            return _is_printable(key, STRING) and _is_printable(value, STRING)
        case RowType(fields=fields):
            return all(_is_printable(field.type, STRING) for field in fields)
        case _:
            return False
