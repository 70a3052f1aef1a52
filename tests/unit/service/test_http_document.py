"""docs/http.md has every object under `/v1` with the fields that it has."""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from compactord.model import TableName
from compactord.service.view import ServiceView, TableDetail, TableView
from compactord.table.status import BucketView

_PAGE = Path(__file__).parents[3] / "docs" / "http.md"
_START = "<!-- objects: generated, see tests/unit/service/test_http_document.py -->\n"
_END = "<!-- end of objects -->"
_ROOTS = (ServiceView, TableView, TableDetail, BucketView)
# Left out of answers.
_INTERNAL = {"steady_ms", "queued_by_table"}


def test_the_page_has_the_fields_of_every_object() -> None:
    """`REWRITE=1 pytest tests/unit/service/test_http_document.py` writes them anew."""
    text = _PAGE.read_text()
    head, rest = text.split(_START)
    found, tail = rest.split(_END)
    expected = _objects()
    if os.environ.get("REWRITE"):
        _PAGE.write_text(head + _START + expected + _END + tail)
        found = expected
    assert found == expected


def _objects() -> str:
    lines = ["| object | fields |", "|---|---|"]
    for kind in _reachable():
        fields = ", ".join(f"`{name}` {shown}" for name, shown in _fields(kind))
        lines.append(f"| `{kind.__name__}` | {fields} |")
    return "\n".join(lines) + "\n"


def _fields(kind: type[Any]) -> Iterator[tuple[str, str]]:
    hints = typing.get_type_hints(kind)
    for name in _names(kind):
        if name not in _INTERNAL:
            yield name, _shown(hints[name])


def _names(kind: type[Any]) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return tuple(kind._fields)


def _is_object(kind: object) -> bool:
    is_named_tuple = isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")
    return (dataclasses.is_dataclass(kind) or is_named_tuple) and kind is not TableName


def _shown(hint: Any) -> str:
    """A type for people: `number`, `text or null`, `[TableView]`, a map, or values of an enum."""
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is tuple:
        return f"[{_shown(arguments[0])}]"
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return f"map of {_shown(arguments[1])}"
    if arguments:
        return " or ".join(_shown(argument) for argument in arguments)
    if hint is type(None):
        return "null"
    if hint in (int, float):
        return "number"
    if hint is bool:
        return "true/false"
    if hint is TableName:
        return "name"
    return hint.__name__ if _is_object(hint) else "text"


def _reachable() -> list[type[Any]]:
    """The objects, those that hold others first."""
    found: list[type[Any]] = []
    waiting: list[Any] = list(_ROOTS)
    while waiting:
        hint = waiting.pop(0)
        if _is_object(hint) and hint not in found:
            found.append(hint)
            waiting += typing.get_type_hints(hint).values()
        waiting += [argument for argument in typing.get_args(hint) if argument is not ...]
    return found


def test_the_paths_of_the_page_are_those_that_are_served() -> None:
    told = set(re.findall(r"`(/[a-z0-9/{}]*)", _PAGE.read_text().split("## Objects")[0]))
    for path in ("/metrics", "/livez", "/readyz", "/startupz", "/healthz", "/config"):
        assert path in told
    site = (Path(__file__).parents[3] / "compactord" / "service" / "site.py").read_text()
    served = set(re.findall(r"^(/v1/\S+?)(?:\?\S+)? ", site, re.MULTILINE))
    shown = {re.sub(r"\{(\w)\w*\}", r"{\1}", path) for path in told if path.startswith("/v1/")}
    assert served == shown
