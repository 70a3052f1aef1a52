"""Values as written, with their places: YAML, overriding layers, resolved references.

Scalars follow YAML 1.2's core schema: `off`, `no` and `01:00` are texts, as users expect.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import yaml

from compactord.config.problems import Origin, Path, Problem, dotted
from compactord.text import (
    HIDDEN,
    ReferenceMissing,
    filled,
    is_secret_key,
    redact_text,
    redacted,
    value_of,
)

Scalar = str | int | float | bool | None
OriginAt = Callable[[int], Origin]

_QUOTED = re.compile(r"'([^']*)'")
_LONGEST_VALUE = 80


@dataclass(slots=True, kw_only=True, repr=False)
class Node:
    """A value and its place. `reference` is the text as written, if it contains `${…}`."""

    content: Scalar | dict[str, Node] | list[Node]
    origin: Origin
    reference: str | None = None

    def plain(self) -> object:
        """The value as dictionaries, lists and scalars."""
        if isinstance(self.content, dict):
            return {key: node.plain() for key, node in self.content.items()}
        if isinstance(self.content, list):
            return [node.plain() for node in self.content]
        return self.content

    def at(self, path: Path) -> tuple[Node, bool]:
        """The deepest node on the path; False if a mapping lacks the next key."""
        node = self
        for part in path:
            if isinstance(node.content, dict):
                if part not in node.content:
                    return node, False
                node = node.content[str(part)]
            elif isinstance(node.content, list):
                if not isinstance(part, int) or part >= len(node.content):
                    return node, True
                node = node.content[part]
            else:
                return node, node.content is not None
        return node, True

    def walk(self, path: Path = ()) -> Iterator[tuple[Path, Node]]:
        """This node and all nodes below it, parents first."""
        yield path, self
        if isinstance(self.content, dict):
            for key, node in self.content.items():
                yield from node.walk((*path, key))
        elif isinstance(self.content, list):
            for index, node in enumerate(self.content):
                yield from node.walk((*path, index))

    def problem(
        self, path: Path, expected: str, *, value: str | None = None, hint: str | None = None
    ) -> Problem:
        """A problem of the value at `path`, with this node's origin."""
        key = dotted(path)
        return Problem(origin=self.origin, key=key, expected=expected, value=value, hint=hint)

    def shown(self, path: Path) -> str:
        """The value for messages: short, without secrets, references as written."""
        if self.reference is not None:
            return self.reference
        if not isinstance(self.content, str) and is_secret_key(dotted(path)):
            return HIDDEN
        if isinstance(self.content, dict):
            return "a mapping"
        if isinstance(self.content, list):
            return "a list"
        text = scalar_yaml(redacted(self.content, key=dotted(path)))
        return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…"


def scalar_yaml(value: object) -> str:
    """A scalar as YAML on one line, with credentials hidden."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = redact_text(value)
        return repr(text) if not text or text != text.strip() or not text.isprintable() else text
    return str(value)


class _CoreLoader(yaml.SafeLoader):
    """Resolves only the plain scalars of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
):
    _CoreLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first
    )


class YamlReader:
    """Reads one text and adds its errors to `problems`."""

    def __init__(self, origin_at: OriginAt, problems: list[Problem], *, under: Path = ()) -> None:
        self._origin_at = origin_at
        self._problems = problems
        self._under = under

    def read(self, text: str) -> Node | None:
        """The root node, or None if the text is not YAML."""
        try:
            tree = yaml.compose(text, Loader=_CoreLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self._report(mark.line if mark else 0, (), "YAML", _why(error))
            return None
        except yaml.YAMLError as error:
            self._report(0, (), "YAML", str(error).splitlines()[0])
            return None
        except RecursionError:
            self._report(0, (), "YAML", "it is nested too deeply")
            return None
        if tree is None:
            return Node(content=None, origin=self._origin_at(0))
        return self._node(tree, (), frozenset())

    def _node(self, tree: yaml.Node, path: Path, above: frozenset[int]) -> Node:
        line = tree.start_mark.line
        node = Node(content=None, origin=self._origin_at(line))
        if id(tree) in above:
            self._report(line, path, "a value that does not contain itself")
        elif isinstance(tree, yaml.MappingNode):
            node.content = self._mapping(tree, path, above | {id(tree)})
        elif isinstance(tree, yaml.SequenceNode):
            node.content = [
                self._node(item, (*path, index), above | {id(tree)})
                for index, item in enumerate(tree.value)
            ]
        else:
            node.content = self._scalar(tree, path)
        return node

    def _mapping(
        self, tree: yaml.MappingNode, path: Path, above: frozenset[int]
    ) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for key, value in tree.value:
            line = key.start_mark.line
            if not isinstance(key, yaml.ScalarNode):
                self._report(line, path, "keys that are plain texts")
                continue
            if key.tag == "tag:yaml.org,2002:merge":
                self._report(line, path, "keys without <<", "write the entries out")
                continue
            node = self._node(value, (*path, key.value), above)
            # The key's line: its value may start on a later one, or at an anchor elsewhere.
            node.origin = self._origin_at(line)
            if key.value in found:
                first = found[key.value].origin
                where = "" if first.line is None else f"; the first is on line {first.line}"
                self._report(line, (*path, key.value), f"each key once{where}")
            else:
                found[key.value] = node
        return found

    def _scalar(self, tree: yaml.Node, path: Path) -> Scalar:
        text, tag = str(tree.value), tree.tag.removeprefix("tag:yaml.org,2002:")
        match tag:
            case "null":
                return None
            case "bool" if text.lower() in ("true", "false"):
                return text.lower() == "true"
            case "int" | "float":
                return _number(text)
            case "str" | "bool" | "merge":
                return text
            case _:
                self._report(tree.start_mark.line, path, "a value without a tag")
                return text

    def _report(self, line: int, path: Path, expected: str, hint: str | None = None) -> None:
        self._problems.append(
            Problem(
                origin=self._origin_at(line),
                key=dotted((*self._under, *path)),
                expected=expected,
                hint=hint,
            )
        )


def _number(text: str) -> int | float | str:
    """A number only if its text round-trips: Spark settings are passed on verbatim."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            if len(text) <= 20 and str(kind(text)) == text:
                return kind(text)
    return text


def _why(error: yaml.MarkedYAMLError) -> str:
    text = ", ".join(text for text in (error.context, error.problem) if text)
    # An unquoted password may look like an alias or a tag; kinds of tokens are written <so>.
    return _QUOTED.sub(_without_words, text) or "it cannot be read"


def _without_words(quoted: re.Match[str]) -> str:
    word = quoted[1]
    return quoted[0] if len(word) < 3 or word.startswith("<") else f"'{HIDDEN}'"


def put(root: Node, path: Path, value: Node, *, any_case: bool) -> str | None:
    """Set the value at `path`, creating missing mappings. Returns an error in the path, or None.

    `any_case` matches existing keys in any case.
    """
    node = root
    for depth, part in enumerate(path):
        is_last = depth == len(path) - 1
        fresh = value if is_last else Node(content=None, origin=value.origin)
        if isinstance(part, int):
            if not isinstance(node.content, list):
                node.content, node.origin = [], value.origin
            if part > len(node.content):
                return f"an index up to {len(node.content)}"
            if part == len(node.content):
                node.content.append(fresh)
            elif is_last:
                node.content[part] = fresh
            node = node.content[part]
            continue
        if not isinstance(node.content, dict):
            node.content, node.origin = {}, value.origin
        key = part
        if any_case and key not in node.content:
            key = next((k for k in node.content if k.lower() == part.lower()), part)
        if is_last or key not in node.content:
            node.content[key] = fresh
        node = node.content[key]
    return None


def resolve_references(
    root: Node,
    environ: Mapping[str, str],
    problems: list[Problem],
    is_late: Callable[[Path], bool],
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Resolve the references of all texts below `root`, in place (`compactord/text.py`).

    Returns the references in order, each with its text and value. Texts selected by `is_late` are
    only checked and stay as written; the second result has digests of their values, by dotted key.
    Values are not searched for references.
    """
    resolved: list[tuple[str, str]] = []
    late: dict[str, str] = {}

    def value(node: Node, path: Path, reference: str) -> str:
        try:
            found = value_of(reference, environ)
        except ReferenceMissing as error:
            problems.append(node.problem(path, error.expected, value=error.reference))
            return error.reference
        resolved.append((reference, found))
        return found

    for path, node in root.walk():
        if isinstance(node.content, str) and "${" in node.content:
            node.reference, text = node.content, filled(node.content, partial(value, node, path))
            if is_late(path):
                digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
                late[dotted(path)] = digest.hexdigest()
            else:
                node.content = text
    return resolved, late
