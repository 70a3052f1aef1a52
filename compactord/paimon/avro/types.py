"""Avro types with references resolved, and without their names.

Unknown columns of files by other writers may have any type of the Avro 1.11 specification.
"""

from __future__ import annotations

import re
from typing import Any

from compactord.errors import FormatError

Json = Any
_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
# Keys of a schema that change neither the encoding nor the meaning of values.
_DECORATION = frozenset({"doc", "aliases", "namespace", "default", "order"})
_COLUMN_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
# Named types that refer to each other can expand a small schema into a very large one.
_MAX_DEPTH = 16
_MAX_TYPES = 10_000


def resolved_schema(schema: Json, path: str) -> Json:
    """The schema with references replaced by the named types; logical types and names are kept.

    Raises `FormatError` with `path` for what is no schema, and for a type within itself: no release
    has one, and its values could be nested deeper than fastavro's stack.
    """
    try:
        return _Resolver(path).resolve(schema, "", 0)
    except (KeyError, TypeError, AttributeError) as error:
        # fastavro accepts records without columns and columns without names.
        raise FormatError(path, f"not an Avro schema ({error!r})") from error


class _Resolver:
    def __init__(self, path: str) -> None:
        self._path = path
        # Full name -> definition and the namespace around it.
        self._known: dict[str, tuple[Json, str]] = {}
        self._open: set[str] = set()
        self._count = 0

    def resolve(self, schema: Json, namespace: str, depth: int) -> Json:
        self._count += 1
        if depth > _MAX_DEPTH or self._count > _MAX_TYPES:
            raise FormatError(self._path, "the Avro schema is nested too deeply")
        if isinstance(schema, str):
            return self._reference(schema, namespace, depth)
        if isinstance(schema, list):
            return [self.resolve(branch, namespace, depth + 1) for branch in schema]
        kind = schema["type"]
        if isinstance(kind, list | dict):
            return self.resolve(kind, namespace, depth + 1)
        rest = {k: v for k, v in schema.items() if k not in _DECORATION}
        if kind in ("record", "enum", "fixed"):
            return self._definition(schema, rest, namespace, depth)
        if kind == "array":
            return {**rest, "items": self._items(schema["items"], namespace, depth)}
        if kind == "map":
            return {**rest, "values": self.resolve(schema["values"], namespace, depth + 1)}
        found = self.resolve(kind, namespace, depth + 1)
        return {**rest, "type": found} if len(rest) > 1 and isinstance(found, str) else found

    def _reference(self, name: str, namespace: str, depth: int) -> Json:
        if name in _PRIMITIVES:
            return name
        full = _full_name(name, namespace)
        if full in self._open:
            raise FormatError(self._path, f"the Avro type {full} contains itself")
        if full not in self._known:
            raise FormatError(self._path, f"an Avro schema of an unknown kind: {name!r}")
        definition, around = self._known[full]
        return self.resolve(definition, around, depth + 1)

    def _definition(self, schema: Json, rest: Json, around: str, depth: int) -> Json:
        full = _full_name(schema["name"], schema.get("namespace", around))
        self._known[full] = (schema, around)
        if schema["type"] != "record":
            return rest
        namespace = full.rpartition(".")[0]
        self._open.add(full)
        columns = [
            {"name": column["name"], "type": self.resolve(column["type"], namespace, depth + 1)}
            for column in schema["fields"]
        ]
        self._open.remove(full)
        names = [column["name"] for column in columns]
        if len(set(names)) < len(names) or not all(map(_COLUMN_NAME.fullmatch, names)):
            raise FormatError(self._path, f"the Avro record {full} has the columns {names}")
        return {**rest, "fields": columns}

    def _items(self, items: Json, namespace: str, depth: int) -> Json:
        found = self.resolve(items, namespace, depth + 1)
        if not _takes_bytes(plain_type(found)):
            # Otherwise a file of any size could claim any number of items.
            raise FormatError(self._path, "an Avro array of items that take no bytes")
        return found


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def plain_type(type_: Json) -> Json:
    """What `resolved_schema` gave, without names and decoration.

    It has type names, {"record": {name: type}}, {"array": type}, {"map": type}, {"fixed": bytes},
    "enum" and lists (unions).
    """
    if isinstance(type_, str):
        return type_
    if isinstance(type_, list):
        return [plain_type(branch) for branch in type_]
    match type_["type"]:
        case "record":
            return {"record": {c["name"]: plain_type(c["type"]) for c in type_["fields"]}}
        case "array":
            return {"array": plain_type(type_["items"])}
        case "map":
            return {"map": plain_type(type_["values"])}
        case "fixed":
            return {"fixed": type_["size"]}
        case kind:
            return kind


def without_null(type_: Json) -> Json:
    """The other branch, if the type is a union of null and one other type; else the type itself.

    Releases before 0.9 write every record as such a union, the outermost too.
    """
    if isinstance(type_, list) and len(type_) == 2 and "null" in type_:
        return next((branch for branch in type_ if branch != "null"), "null")
    return type_


def _takes_bytes(plain: Json) -> bool:
    match plain:
        case "null" | {"fixed": 0}:
            return False
        case {"record": columns}:
            return any(map(_takes_bytes, columns.values()))
    return True


def renamed(resolved: Json, prefix: str) -> Json:
    """The result of `resolved_schema` with new, unique names for its types.

    Several columns may come from one definition, but Avro allows a name to be defined only once.
    """
    numbers = iter(range(_MAX_TYPES))

    def rename(type_: Json) -> Json:
        if isinstance(type_, list):
            return [rename(branch) for branch in type_]
        if isinstance(type_, str):
            return type_
        out = dict(type_)
        if "name" in out:
            out["name"] = f"{prefix}_{next(numbers)}"
        for key in ("items", "values"):
            if key in out:
                out[key] = rename(out[key])
        if "fields" in out:
            out["fields"] = [{**column, "type": rename(column["type"])} for column in out["fields"]]
        return out

    return rename(resolved)
