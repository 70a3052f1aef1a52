"""The log's events are those of `docs/events.md`, with the fields and levels told there."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from compactord.config.model import Recovery
from compactord.maintenance.registry import maintenance_kinds
from compactord.maintenance.rounds import PlannedKind
from tests.events import TABLE, told_events

_ROOT = Path(__file__).parents[2]
_LEVELS = ("debug", "info", "warning", "error")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class _Call:
    """A place of the source that logs."""

    place: str
    name: str
    level: str
    fields: frozenset[str]


class _Module:
    """What a module logs. Fields that come as `**fields` are followed to the literal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text())
        self._functions = [node for node in ast.walk(self.tree) if isinstance(node, _Function)]

    def logging(self) -> Iterator[tuple[_Function, ast.Call, str]]:
        """Calls of the logger with their functions and levels."""
        for function in self._functions:
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    logger = ast.unparse(node.func.value)
                    if logger == "_log":
                        assert node.func.attr in _LEVELS, f"{self._place(node)}: {node.func.attr}"
                        yield function, node, node.func.attr

    def calls(self) -> Iterator[_Call]:
        for function, node, level in self.logging():
            if ast.unparse(node.args[0]) in _OF_KINDS:
                yield from _of_kinds(self._place(node), node, level)
                continue
            fields: set[str] = set()
            for each in node.keywords:
                if each.arg is None:
                    fields |= self._expanded(function, each.value)
                else:
                    fields.add("exception" if each.arg == "exc_info" else each.arg)
            for name in self._texts(function, node.args[0]):
                yield _Call(self._place(node), name, level, frozenset(fields))

    def reasons(self) -> Iterator[tuple[str, str]]:
        """The places of fields `reason` whose values come from an exception, with the values."""
        for function, node, _ in self.logging():
            errors = _errors(function)
            for each in node.keywords:
                if each.arg == "reason" and _speaks_of(each.value, errors):
                    yield self._place(node), ast.unparse(each.value)

    def _place(self, node: ast.Call) -> str:
        return f"{self.path.relative_to(_ROOT)}:{node.lineno}"

    def _texts(self, function: _Function, value: ast.expr) -> set[str]:
        """The words that an event's name may be."""
        match value:
            case ast.Constant(value=str(text)):
                return {text} - {""}
            case ast.IfExp(body=body, orelse=orelse):
                return self._texts(function, body) | self._texts(function, orelse)
            case ast.Name(id=name):
                given = _assigned(function, name)
                return set().union(*(self._texts(function, each) for each in given))
        raise AssertionError(f"{self.path}: an event without a name, {ast.unparse(value)}")

    def _expanded(self, function: _Function, value: ast.expr) -> set[str]:
        """The names of the fields in a mapping."""
        match value:
            case ast.Dict(keys=keys, values=values):
                return set().union(
                    *(
                        self._expanded(function, inner) if key is None else {ast.literal_eval(key)}
                        for key, inner in zip(keys, values, strict=True)
                    )
                )
            case ast.Attribute(attr="log_fields"):
                return set(TABLE)
            case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
                (maker,) = (each for each in self._functions if each.name == name)
                returned = [n.value for n in ast.walk(maker) if isinstance(n, ast.Return)]
                return set().union(*(self._expanded(maker, one) for one in returned if one))
            case ast.Name(id=name):
                (given,) = _assigned(function, name)
                return self._expanded(function, given)
        raise AssertionError(f"{self.path}: unknown fields {ast.unparse(value)}")


# Names of events that the frame of maintenance logs for each kind.
_FAILED = "f'{self.name}_failed'"
_STOPPED = f"self.stopped or {_FAILED}"
_OF_KINDS = ("self.finished", _STOPPED, _FAILED)


def _of_kinds(place: str, node: ast.Call, level: str) -> Iterator[_Call]:
    """A call of the frame, once for each kind that plans and applies."""
    for kind in maintenance_kinds(Recovery()):
        if not isinstance(kind, PlannedKind):
            continue
        if ast.unparse(node.args[0]) == "self.finished":
            if not kind.finished:
                continue
            module = _Module(Path(inspect.getfile(type(kind))))
            (maker,) = (
                each
                for owner in ast.walk(module.tree)
                if isinstance(owner, ast.ClassDef) and owner.name == type(kind).__name__
                for each in owner.body
                if isinstance(each, _Function) and each.name == "fields"
            )
            returned = [n.value for n in ast.walk(maker) if isinstance(n, ast.Return)]
            fields = set().union(*(module._expanded(maker, one) for one in returned if one))
            yield _Call(place, kind.finished, level, frozenset(fields))
        else:
            given = {each.arg for each in node.keywords if each.arg}
            has_own = kind.stopped and ast.unparse(node.args[0]) == _STOPPED
            name = kind.stopped if has_own else f"{kind.name}_failed"
            yield _Call(place, name, level, frozenset(given))


def _assigned(inside: ast.AST, name: str) -> Iterator[ast.expr]:
    """What is assigned to a name or attribute."""
    for node in ast.walk(inside):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if ast.unparse(target) == name:
                yield node.value
            elif isinstance(target, ast.Tuple):
                values = node.value.elts if isinstance(node.value, ast.Tuple) else ()
                for each, value in zip(target.elts, values, strict=False):
                    if ast.unparse(each) == name:
                        yield value


def _errors(function: _Function) -> set[str]:
    """The names in a function that hold an exception, or a text of one."""
    handlers = (node for node in ast.walk(function) if isinstance(node, ast.ExceptHandler))
    found = {each.name for each in handlers if each.name}
    arguments = (*function.args.args, *function.args.kwonlyargs)
    found |= {
        each.arg
        for each in arguments
        if each.annotation is not None and "Error" in ast.unparse(each.annotation)
    }
    names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    while more := {
        name
        for name in names - found
        if any(_speaks_of(value, found) for value in _assigned(function, name))
    }:
        found |= more
    return found


def _speaks_of(value: ast.expr, errors: set[str]) -> bool:
    if isinstance(value, ast.Attribute) and value.attr == "reason":
        # What an exception has to say in a sentence of ours.
        return False
    return any(
        (isinstance(node, ast.Name) and node.id in errors)
        or (isinstance(node, ast.Attribute) and node.attr in ("error", "message", "trouble"))
        for node in ast.walk(value)
    )


@cache
def _modules() -> tuple[_Module, ...]:
    folders = (_ROOT / "compactord", _ROOT / "compactord_demo")
    paths = (path for folder in folders for path in sorted(folder.rglob("*.py")))
    return tuple(_Module(path) for path in paths if "structlog.get_logger" in path.read_text())


@cache
def _calls() -> dict[str, list[_Call]]:
    found: dict[str, list[_Call]] = {}
    for module in _modules():
        for call in module.calls():
            found.setdefault(call.name, []).append(call)
    return found


def test_every_event_is_in_the_document_and_nothing_else() -> None:
    assert set(_calls()) == set(told_events())


def test_every_logger_has_the_name_by_which_its_calls_are_found() -> None:
    for module in _modules():
        calls = [n for n in ast.walk(module.tree) if isinstance(n, ast.Call)]
        made = [call for call in calls if ast.unparse(call.func) == "structlog.get_logger"]
        assert made == list(_assigned(module.tree, "_log")), module.path


@pytest.mark.parametrize("name", sorted(told_events()))
def test_an_event_has_the_fields_and_the_level_of_the_document(name: str) -> None:
    told, calls = told_events()[name], _calls()[name]
    for call in calls:
        # A table may be named by the context of the job, and then as a whole.
        named = {told.owner, frozenset()} if told.owner == TABLE else {told.owner}
        assert call.fields & TABLE in named, call
    given = [call.fields - told.owner for call in calls]
    always = frozenset.intersection(*given)
    levels = {call.level for call in calls}
    assert (always, frozenset.union(*given) - always) == (told.always, told.sometimes), calls
    assert told.level == max(levels, key=_LEVELS.index), calls


def test_no_reason_is_the_text_of_an_error() -> None:
    assert [place for module in _modules() for place in module.reasons()] == []
