"""Encodes the view's values as JSON and decodes them; dataclasses use the names of their fields.

An enum is its value, and a table's name is `{catalog, database, table}`. A map with two keys joins
them by `/` (`"minor/committed": 3`). Infinity, for which JSON has no number, is null.

Service and client may differ in version, so decoding never fails: unknown fields are ignored. A
field that is absent or of another type gets its default, or the empty value of its type (0, "",
false, no items, or None if the type allows it); a list drops items of another type. An unknown
enum value becomes a new member, so clients show the service's own word.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from compactord.service.view import ServiceView

Json = Any
_T = TypeVar("_T")


def encode(value: object) -> bytes:
    """JSON text of a view or of plain values. Raises `TypeError` for types without a JSON form."""
    # File names may hold lone surrogates, which UTF-8 cannot encode: write them as escapes.
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def plain(value: Any) -> Json:
    """The value as dicts, lists, texts and numbers. Raises `TypeError` as `encode`."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, enum.Enum):
        return value.value
    # mypy mistakes the `__hash__` of the type's instances for the type's own.
    if names := _field_names(type(value)):  # type: ignore[arg-type]
        return plain_fields(names, value)
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def plain_fields(names: Sequence[str], value: object) -> Json:
    """The named fields of a value in plain form."""
    return {name: plain(getattr(value, name)) for name in names}


def status_json(view: ServiceView) -> Json:
    """The service without its tables (there may be thousands) and without internal fields."""
    left_out = ("tables", "queued_by_table", "steady_ms")
    return plain_fields([n for n in _field_names(ServiceView) if n not in left_out], view)


def decode(kind: type[_T], found: Mapping[str, Json]) -> _T:
    """A value of a dataclass from its plain form; never raises (see the module)."""
    # mypy mistakes the `__hash__` of the type's instances for the type's own.
    reader = _reader(kind)  # type: ignore[arg-type]
    return typing.cast(_T, reader.read(found))


@functools.lru_cache(maxsize=256)
def _field_names(kind: type[Any]) -> tuple[str, ...]:
    """The field names of a dataclass or named tuple; cached per type: there are many tables."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return getattr(kind, "_fields", ())


def _key(key: object) -> str:
    if isinstance(key, tuple):
        return "/".join(_key(part) for part in key)
    return str(key.value if isinstance(key, enum.Enum) else key)


# Marks a value that is absent or of another type.
_UNFIT = object()


class _Reader(NamedTuple):
    """Reads a type: `read` returns `_UNFIT` for values of other types; `empty` replaces them."""

    read: Callable[[Json], Any]
    empty: Any


@functools.cache
def _reader(hint: Any) -> _Reader:
    """The reader for a type annotation of the view."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if type(None) in arguments:
        return _Reader(_reader(arguments[0]).read, None)
    if origin is tuple:
        return _Reader(functools.partial(_read_items, _reader(arguments[0])), ())
    if origin is not None:
        return _Reader(functools.partial(_read_mapping, *arguments), {})
    if dataclasses.is_dataclass(hint) or issubclass(hint, tuple):
        hints, fields = typing.get_type_hints(hint), {}
        for name, parameter in inspect.signature(hint).parameters.items():
            reader = _reader(hints[name])
            has_default = parameter.default is not parameter.empty
            fields[name] = reader._replace(empty=_UNFIT) if has_default else reader
        read = functools.partial(_read_object, hint, fields)
        return _Reader(read, read({}))
    if issubclass(hint, enum.Enum):
        read = functools.partial(_read_member, hint)
        return _Reader(read, read(""))
    return _Reader(_read_float if hint is float else functools.partial(_read_scalar, hint), hint())


def _read_scalar(kind: type[Any], found: Json) -> Any:
    # Python counts true and false as numbers.
    return found if type(found) is kind else _UNFIT


def _read_float(found: Json) -> Any:
    return math.inf if found is None else found if type(found) in (int, float) else _UNFIT


def _read_member(kind: type[enum.Enum], found: Json) -> Any:
    if not isinstance(found, str):
        return _UNFIT
    try:
        return kind(found)
    except ValueError:
        return _unknown_member(kind, found)


@functools.lru_cache(maxsize=256)
def _unknown_member(kind: type[enum.Enum], value: str) -> enum.Enum:
    member = object.__new__(kind)
    member._name_, member._value_ = value, value
    return member


def _read_items(item: _Reader, found: Json) -> Any:
    if not isinstance(found, list):
        return _UNFIT
    return tuple(value for value in map(item.read, found) if value is not _UNFIT)


def _read_mapping(key_kind: Any, kind: Any, found: Json) -> Any:
    if not isinstance(found, dict):
        return _UNFIT
    pairs = ((_read_key(key_kind, key), _reader(kind).read(value)) for key, value in found.items())
    return {key: value for key, value in pairs if _UNFIT not in (key, value)}


def _read_key(kind: Any, found: str) -> Any:
    """A key, or several joined by `/`; only the first may contain a `/` itself."""
    kinds = typing.get_args(kind)
    if not kinds:
        return _reader(kind).read(found)
    parts = found.rsplit("/", len(kinds) - 1)
    if len(parts) < len(kinds):
        return _UNFIT
    return tuple(_reader(each).read(part) for each, part in zip(kinds, parts, strict=True))


def _read_object(kind: type[Any], fields: Mapping[str, _Reader], found: Json) -> Any:
    if not isinstance(found, dict):
        return _UNFIT
    values = {}
    for name, (read, empty) in fields.items():
        value = read(found.get(name, _UNFIT))
        values[name] = empty if value is _UNFIT else value
    # The dataclass supplies its default for fields that are still `_UNFIT`.
    return kind(**{name: value for name, value in values.items() if value is not _UNFIT})
