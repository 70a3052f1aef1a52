"""Types of columns as schema files write them: JSON, and the texts of atomic types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from compactord.errors import FormatError
from compactord.paimon.types import (
    BINARIES,
    MAX_LENGTH,
    MOMENTS,
    TEXTS,
    ArrayType,
    AtomicType,
    DataField,
    DataType,
    MapType,
    MultisetType,
    RowType,
    TypeRoot,
    VectorType,
)


class UnknownType(FormatError):
    """A type that release 2.0.0 does not know, such as GEOMETRY; `type_name` as it is written."""

    def __init__(self, path: str, type_name: str) -> None:
        self.type_name = type_name
        super().__init__(path, f"unknown type {type_name}")

    def __reduce__(self) -> tuple[type[UnknownType], tuple[str, str]]:
        return type(self), (self.path, self.type_name)


_MAX_LENGTH_NAMES = {TypeRoot.VARCHAR: "STRING", TypeRoot.VARBINARY: "BYTES"}
# The length or precision of a type that is written without it, the least and the most.
_PRECISIONS: Mapping[TypeRoot, tuple[int | None, int, int]] = {
    **dict.fromkeys(TEXTS | BINARIES, (1, 1, MAX_LENGTH)),
    TypeRoot.DECIMAL: (10, 1, 38),
    TypeRoot.TIME: (0, 0, 9),
    **dict.fromkeys(MOMENTS, (6, 0, 9)),
}
_KEYWORDS = {
    **{root.value: root for root in TypeRoot if root is not TypeRoot.TIMESTAMP_LTZ},
    "STRING": TypeRoot.VARCHAR,
    "BYTES": TypeRoot.VARBINARY,
    "INTEGER": TypeRoot.INT,
    "DEC": TypeRoot.DECIMAL,
    "NUMERIC": TypeRoot.DECIMAL,
    "TIMESTAMP_LTZ": TypeRoot.TIMESTAMP_LTZ,
}
_TOKEN = re.compile(r"\s*(?:(\d+)|([<>(),])|([^\s<>(),.\d'`][^\s<>(),.]*))")
_MAX_DIGITS = len(str(MAX_LENGTH))
# The parser calls itself for a VECTOR within a VECTOR.
_NESTED_MAX = 100
_WITHOUT_ZONE = ("WITHOUT", "TIME", "ZONE")
_LOCAL_ZONE = ("WITH", "LOCAL", "TIME", "ZONE")


def parse_type(json: object, *, path: str = "type") -> DataType:
    """A type as a schema file holds it; `path` is the file that errors name.

    Raises `UnknownType` for a well-formed type that release 2.0.0 does not have, `FormatError` for
    anything else that is not a type.
    """
    if isinstance(json, str):
        return _TypeText(json, path).parse()
    if not isinstance(json, Mapping):
        raise FormatError(path, f"a type must be a string or an object, found {json!r}")
    name = json.get("type")
    if not isinstance(name, str):
        raise FormatError(path, f"a type object needs the text 'type', found {name!r}")
    nullable = "NOT NULL" not in name

    def child(key: str) -> DataType:
        if key not in json:
            raise FormatError(path, f"type {name} lacks {key!r}")
        return parse_type(json[key], path=path)

    if name.startswith("ARRAY"):
        return ArrayType(element=child("element"), nullable=nullable)
    if name.startswith("VECTOR"):
        length = json.get("length")
        if not isinstance(length, int):
            raise FormatError(path, f"type {name} needs a whole number 'length', found {length!r}")
        return VectorType(element=child("element"), length=length, nullable=nullable)
    if name.startswith("MULTISET"):
        return MultisetType(element=child("element"), nullable=nullable)
    if name.startswith("MAP"):
        return MapType(key=child("key"), value=child("value"), nullable=nullable)
    if name.startswith("ROW"):
        fields = json.get("fields")
        if not isinstance(fields, list):
            raise FormatError(path, f"type {name} needs a list 'fields', found {fields!r}")
        return RowType(
            fields=tuple(parse_field(field, path=path) for field in fields), nullable=nullable
        )
    raise UnknownType(path, name)


def parse_field(json: object, *, path: str = "field") -> DataField:
    """A column or a field of a ROW as a schema file holds it; raises as `parse_type`."""
    if not isinstance(json, Mapping):
        raise FormatError(path, f"a field must be an object, found {json!r}")
    id_, name = json.get("id"), json.get("name")
    if not isinstance(id_, int) or isinstance(id_, bool):
        raise FormatError(path, f"field {name!r} needs a whole number 'id', found {id_!r}")
    if not isinstance(name, str):
        raise FormatError(path, f"field {id_} needs the text 'name', found {name!r}")
    texts = []
    for key in ("description", "defaultValue"):
        text = json.get(key)
        if text is not None and not isinstance(text, str):
            raise FormatError(path, f"field {name!r} needs a text as {key!r}, found {text!r}")
        texts.append(text)
    return DataField(
        id=id_,
        name=name,
        type=parse_type(json.get("type"), path=path),
        description=texts[0],
        default_value=texts[1],
    )


class _TypeText:
    """The parser of type strings: keywords in any case, blanks free, `NULL` may be written out."""

    def __init__(self, text: str, path: str) -> None:
        self._text = text
        self._path = path
        self._tokens: list[str] = []
        if text.count("<") > _NESTED_MAX:
            raise self._error("it is nested too deeply")
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._error(f"unexpected {text[at:]!r}")
            self._tokens.append(found.group().strip().upper())
            at = found.end()
        self._at = 0

    def parse(self) -> DataType:
        parsed = self._nullable_type()
        if self._at < len(self._tokens):
            raise self._error(f"unexpected {self._tokens[self._at]!r}")
        return parsed

    def _nullable_type(self) -> DataType:
        parsed: DataType = replace(self._bare_type(), nullable=self._nullability())
        if self._accept("ARRAY"):
            return ArrayType(element=parsed, nullable=self._nullability())
        if self._accept("MULTISET"):
            return MultisetType(element=parsed, nullable=self._nullability())
        return parsed

    def _bare_type(self) -> AtomicType | VectorType:
        keyword = self._next()
        if keyword == "VECTOR":
            self._expect("<")
            element = self._nullable_type()
            self._expect(",")
            length = self._number()
            self._expect(">")
            return VectorType(element=element, length=length)
        root = _KEYWORDS.get(keyword)
        if root is None:
            raise UnknownType(self._path, self._text)
        if keyword in _MAX_LENGTH_NAMES.values():
            return AtomicType(root=root, precision=MAX_LENGTH)
        precision, low, high = _PRECISIONS.get(root, (None, 0, 0))
        scale = 0 if root is TypeRoot.DECIMAL else None
        if precision is not None and self._accept("("):
            precision = self._number()
            if root is TypeRoot.DECIMAL and self._accept(","):
                scale = self._number()
            self._expect(")")
        if root is TypeRoot.DOUBLE:
            self._accept("PRECISION")
        elif root is TypeRoot.TIME:
            self._accept(*_WITHOUT_ZONE)
        elif root is TypeRoot.TIMESTAMP:
            self._accept(*_WITHOUT_ZONE)
            if self._accept(*_LOCAL_ZONE):
                root = TypeRoot.TIMESTAMP_LTZ
        if precision is not None and not max(low, scale or 0) <= precision <= high:
            raise self._error(f"parameters out of range {low} to {high}")
        return AtomicType(root=root, precision=precision, scale=scale)

    def _nullability(self) -> bool:
        if self._accept("NOT", "NULL"):
            return False
        self._accept("NULL")
        return True

    def _accept(self, *words: str) -> bool:
        if tuple(self._tokens[self._at : self._at + len(words)]) != words:
            return False
        self._at += len(words)
        return True

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._error(f"expected {word!r}")

    def _next(self) -> str:
        if self._at == len(self._tokens):
            raise self._error("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _number(self) -> int:
        word = self._next()
        if not word.isdecimal() or len(word) > _MAX_DIGITS:
            raise self._error(f"expected a number, found {word!r}")
        return int(word)

    def _error(self, cause: str) -> FormatError:
        return FormatError(self._path, f"type {self._text!r} cannot be read: {cause}")


def type_text(type_: DataType) -> str:
    """A type on one line, as SQL writes it: for messages."""
    suffix = "" if type_.nullable else " NOT NULL"
    match type_:
        case AtomicType():
            return _atomic_text(type_) + suffix
        case ArrayType(element=element):
            return f"ARRAY<{type_text(element)}>{suffix}"
        case MultisetType(element=element):
            return f"MULTISET<{type_text(element)}>{suffix}"
        case MapType(key=key, value=value):
            return f"MAP<{type_text(key)}, {type_text(value)}>{suffix}"
        case RowType(fields=fields):
            inside = ", ".join(f"`{field.name}` {type_text(field.type)}" for field in fields)
            return f"ROW<{inside}>{suffix}"
        case VectorType(element=element, length=length):
            return f"VECTOR<{type_text(element)}, {length}>{suffix}"


def _atomic_text(type_: AtomicType) -> str:
    if type_.precision == MAX_LENGTH and type_.root in _MAX_LENGTH_NAMES:
        return _MAX_LENGTH_NAMES[type_.root]
    if type_.precision is None:
        return type_.root.value
    if type_.root is TypeRoot.DECIMAL:
        return f"DECIMAL({type_.precision}, {type_.scale})"
    if type_.root is TypeRoot.TIMESTAMP_LTZ:
        return f"TIMESTAMP({type_.precision}) WITH LOCAL TIME ZONE"
    return f"{type_.root.value}({type_.precision})"
