"""The configuration as loaded: merges file, environment and command line, and prints the result.

Sources in descending precedence: `--set key=value`, variables `COMPACTORD__SECTION__KEY` (two
underscores for each level, list items by index, values as YAML), the file, defaults. A mapping or
list given as a whole replaces the one of a weaker source. All errors are reported at once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import ValidationError

from compactord.catalog.registry import CATALOGS, CatalogKinds
from compactord.config.model import ServiceConfig
from compactord.config.problems import (
    COMMAND_LINE,
    DEFAULT,
    ConfigInvalid,
    Origin,
    OriginKind,
    Path,
    Problem,
    dotted,
)
from compactord.config.registries import OWN, ConfigRegistries
from compactord.config.section import Section
from compactord.config.source import Node, YamlReader, put, resolve_references, scalar_yaml
from compactord.text import redact_text, redacted, suggestion


def keys_of(section: type[Section]) -> dict[str, object]:
    """The keys of a section with their annotations, in the order of the model."""
    return {field.alias or name: field.annotation for name, field in section.model_fields.items()}


def known_keys(path: Sequence[str | int]) -> tuple[str, ...]:
    """The keys allowed directly under `path`; empty if any key is allowed, or none."""
    place: object = ServiceConfig
    for part in path:
        place = _step(place, part)
    section = _section(place)
    return () if section is None else tuple(keys_of(section))


def elsewhere(word: str) -> str | None:
    """A hint, if exactly one section has a key of this name."""
    sections = [name for name in keys_of(ServiceConfig) if word in known_keys((name,))]
    return f"did you mean {sections[0]}.{word}?" if len(sections) == 1 else None


def path_of(parts: Sequence[str], *, any_case: bool = False) -> Path:
    """The path of textual parts: list items become numbers, the rest of a free key one part.

    `any_case` lower-cases fixed keys, for names of environment variables.
    """
    path: list[str | int] = []
    place: object = ServiceConfig
    for index, part in enumerate(parts):
        kind = get_origin(place)
        if kind is dict and _section(get_args(place)[1]) is None:
            return (*path, ".".join(parts[index:]))
        if kind is tuple and re.fullmatch(r"[0-9]{1,9}", part):
            path.append(int(part))
        else:
            path.append(part.lower() if any_case else part)
        place = _step(place, path[-1])
    return tuple(path)


def written(path: Sequence[str | int]) -> Path:
    """The path with keys instead of attribute names."""
    keys: list[str | int] = []
    place: object = ServiceConfig
    for part in path:
        section = _section(place)
        field = section.model_fields.get(str(part)) if section is not None else None
        keys.append(part if field is None or field.alias is None else field.alias)
        place = _step(place, keys[-1])
    return tuple(keys)


def plain_config(config: ServiceConfig) -> dict[str, Any]:
    """The configuration as a file could hold it, with secrets; rules only with keys they set."""
    found = config.model_dump(mode="json", by_alias=True)
    found["rules"] = [
        rule.model_dump(mode="json", by_alias=True, exclude_unset=True) for rule in config.rules
    ]
    return found


def leaves(config: ServiceConfig) -> Iterator[tuple[Path, object]]:
    """Every value with its path, including secrets. Empty mappings and lists count as values."""
    yield from _leaves(plain_config(config), ())


def _leaves(value: object, path: Path) -> Iterator[tuple[Path, object]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path, value


def _step(place: object, part: str | int) -> object:
    """The annotation under a key or index of `place`, or None."""
    section = _section(place)
    if section is not None:
        return _bare(keys_of(section).get(str(part)))
    kind, arguments = get_origin(place), get_args(place)
    if kind is dict:
        return _bare(arguments[1])
    return _bare(arguments[0]) if kind is tuple else None


def _bare(annotation: object) -> object:
    """The annotation without `Annotated` and `| None`."""
    while True:
        kind = get_origin(annotation)
        if kind is Annotated:
            annotation = get_args(annotation)[0]
        elif kind in (Union, UnionType):
            annotation = next(one for one in get_args(annotation) if one is not type(None))
        else:
            return annotation


def _section(place: object) -> type[Section] | None:
    return place if isinstance(place, type) and issubclass(place, Section) else None


NO_FILE = "no file"
ENVIRONMENT_PREFIX = "COMPACTORD__"

_EXPECTED = {
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "int_type": "a whole number",
    "string_type": "a text",
    "bool_type": "true or false",
    "missing": "a value: it has no default",
}
_KIND_ORDER = list(OriginKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A configuration and the origins of its values.

    `origins` has an entry for every effective value, by dotted key. `references` are the texts, as
    written, of values given as `${env:…}` or `${file:…}`; they are shown instead of the values.
    `digest` changes with the file's bytes and with the values of its references. `late` has a
    digest for each catalog option that is resolved only when the catalog is opened. Both digests
    are only for comparison, because they were computed from secrets.
    """

    path: str  # NO_FILE if there is none
    config: ServiceConfig
    origins: Mapping[str, Origin] = field(default_factory=dict, repr=False)
    references: Mapping[str, str] = field(default_factory=dict, repr=False)
    digest: str = field(default="", repr=False)
    late: Mapping[str, str] = field(default_factory=dict, repr=False)

    def origin(self, key: str) -> Origin:
        """The origin of a dotted key's value, or of the first value below it."""
        if key in self.origins:
            return self.origins[key]
        below = (origin for each, origin in self.origins.items() if each.startswith(f"{key}."))
        return next(below, DEFAULT)

    def reference(self, key: str) -> str | None:
        """The text to show for a value that contains references, or None."""
        if key in self.references:
            return self.references[key]
        return "${…}" if any(each.startswith(f"{key}.") for each in self.references) else None


def load_config(
    path: str | None,
    *,
    environ: Mapping[str, str],
    overrides: Sequence[str] = (),
    known: ConfigRegistries = OWN,
) -> LoadedConfig:
    """Read and check the configuration. `overrides` are texts `key=value`; `path` may be None.

    `known` has the kinds of catalogs and the formats; environment variables only come from
    `environ`. Raises `ConfigInvalid` with all problems.
    """
    problems: list[Problem] = []
    content, root = (b"", _no_file()) if path is None else _read_file(path, problems)
    digest = hashlib.sha256(content)
    readable = root is not None
    root = root or _no_file()
    _overlay_environment(root, environ, problems)
    _overlay_command_line(root, overrides, problems)
    resolved, late = resolve_references(root, environ, problems, _is_late)
    for text, value in resolved:
        digest.update(repr((text, value)).encode("utf-8", "surrogatepass"))
    config: ServiceConfig | None = None
    if readable:
        reported = {problem.key for problem in problems}
        try:
            config = ServiceConfig.model_validate(root.plain(), context=known)
        except ValidationError as error:
            found = _problems_of(error, root)
            problems.extend(problem for problem in found if problem.key not in reported)
        problems.extend(_unknown_catalogs(root))
    if problems or config is None:
        raise ConfigInvalid(sorted(problems, key=_order), digest=digest.hexdigest())
    origins: dict[str, Origin] = {}
    referring: dict[str, str] = {}
    for leaf, _ in leaves(config):
        node, found_it = root.at(leaf)
        origins[dotted(leaf)] = node.origin if found_it else DEFAULT
        if found_it and (shown := _reference_at(node)) is not None:
            referring[dotted(leaf)] = shown
    return LoadedConfig(
        path=NO_FILE if path is None else path,
        config=config,
        origins=origins,
        references=referring,
        digest=digest.hexdigest(),
        late={key: each for key, each in late.items() if _is_read_once(config, key)},
    )


def _is_late(path: Path) -> bool:
    """Whether workers resolve the value: options of catalogs, so that no task holds a secret."""
    return len(path) == 4 and path[0] == "catalogs" and path[2] == "options"


def _is_read_once(config: ServiceConfig, key: str) -> bool:
    _, name, _, option = key.split(".", 3)
    return config.catalogs[name].kind.is_read_once(option)


def _no_file() -> Node:
    return Node(content=None, origin=DEFAULT)


def _read_file(path: str, problems: list[Problem]) -> tuple[bytes, Node | None]:
    """The bytes, or the error; and the parsed content, if any."""

    def origin_at(line: int) -> Origin:
        return Origin(kind=OriginKind.FILE, name=path, line=line + 1)

    whole = Origin(kind=OriginKind.FILE, name=path)
    try:
        with open(path, "rb") as file:
            content = file.read()
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n")
        problems.append(Problem(origin=origin_at(line), key="", expected="UTF-8 text"))
        return content, None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        expected = f"a file that can be read ({why})"
        problems.append(Problem(origin=whole, key="", expected=expected))
        return str(why).encode(), None
    root = YamlReader(origin_at, problems).read(text)
    if root is not None and root.content is not None and not isinstance(root.content, dict):
        problems.append(Problem(origin=root.origin, key="", expected="a mapping"))
        return content, None
    return content, root


def _overlay_environment(root: Node, environ: Mapping[str, str], problems: list[Problem]) -> None:
    found = [
        (path_of(name[len(ENVIRONMENT_PREFIX) :].split("__"), any_case=True), name)
        for name in environ
        if name.startswith(ENVIRONMENT_PREFIX)
    ]
    # Mappings and lists before their parts, list items in order.
    found.sort(key=lambda one: [(isinstance(p, str), p) for p in one[0]])
    for path, name in found:
        origin = Origin(kind=OriginKind.ENVIRONMENT, name=name)
        _overlay(root, path, environ[name], origin, problems, any_case=True)


def _overlay_command_line(root: Node, overrides: Sequence[str], problems: list[Problem]) -> None:
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            problems.append(Problem(origin=COMMAND_LINE, key=key.strip(), expected="key=value"))
            continue
        path = path_of(key.strip().split("."))
        _overlay(root, path, text, COMMAND_LINE, problems, any_case=False)


def _overlay(
    root: Node,
    path: Path,
    text: str,
    origin: Origin,
    problems: list[Problem],
    *,
    any_case: bool,
) -> None:
    if "" in path:
        problems.append(
            Problem(origin=origin, key=dotted(path), expected="keys that are not empty")
        )
        return
    value = YamlReader(lambda _: origin, problems, under=path).read(text)
    wrong = None if value is None else put(root, path, value, any_case=any_case)
    if wrong is not None:
        problems.append(Problem(origin=origin, key=dotted(path), expected=wrong))


def _problems_of(error: ValidationError, root: Node) -> Iterator[Problem]:
    for details in error.errors(include_url=False, include_input=False):
        path = written([part for part in details["loc"] if part != "[key]"])
        node, found_it = root.at(path)
        kind, context = details["type"], details.get("ctx", {})
        hint = None
        match kind:
            case "value_error":
                expected = str(context["error"])
            case "enum":
                expected = "one of " + str(context["expected"]).replace("'", "")
            case "option":
                expected, hint = context["expected"], context["hint"]
            case "greater_than_equal":
                expected = f"a whole number, {context['ge']} or more"
            case "less_than_equal":
                expected = f"a whole number, {context['le']} or less"
            case "extra_forbidden":
                known = known_keys(path[:-1])
                hint = suggestion(str(path[-1]), known) or elsewhere(str(path[-1]))
                if hint is None and found_it and node.content is None:
                    # {days: sat,sun} is parsed like this.
                    hint = "a text that holds a comma needs quotes"
                expected = f"a key that exists ({', '.join(known)})"
            case _:
                expected = _EXPECTED.get(kind, details["msg"])
        value = None
        if kind != "missing":
            value = node.shown(path) if found_it else _default_at(path)
        yield node.problem(path, expected, value=value, hint=hint or None)


def _default_at(path: Path) -> str | None:
    """The default that a check against another value refused."""
    place: object = ServiceConfig.model_construct(catalogs={}).model_dump(
        mode="json", by_alias=True
    )
    for part in path:
        if not isinstance(place, dict) or part not in place:
            return None
        place = place[part]
    return None if isinstance(place, dict | list) else f"{scalar_yaml(place)} by default"


def _unknown_catalogs(root: Node) -> Iterator[Problem]:
    """Report rules for catalogs that do not exist: a misspelt name would silently match nothing."""
    catalogs, has_catalogs = root.at(("catalogs",))
    rules, has_rules = root.at(("rules",))
    if not (has_catalogs and has_rules and isinstance(catalogs.content, dict)):
        return
    count = len(rules.content) if isinstance(rules.content, list) else 0
    for index in range(count):
        path: Path = ("rules", index, "match", "catalog")
        node, found_it = root.at(path)
        if found_it and isinstance(node.content, str) and node.content not in catalogs.content:
            expected = f"a catalog that exists ({', '.join(catalogs.content)})"
            hint = suggestion(node.content, catalogs.content) or None
            yield node.problem(path, expected, value=node.shown(path), hint=hint)


def _reference_at(node: Node) -> str | None:
    """The text to show for a value that contains references."""
    if node.reference is not None:
        return node.reference
    if any(below.reference is not None for _, below in node.walk()):
        return "${…}"
    return None


def _order(problem: Problem) -> tuple[int, int, str]:
    origin = problem.origin
    return (_KIND_ORDER.index(origin.kind), origin.line or 0, problem.key)


def show_text(loaded: LoadedConfig) -> list[str]:
    """One line per effective value: `key = value` and its origin."""
    lines = []
    for path, value in leaves(loaded.config):
        key = dotted(path)
        shown = loaded.references.get(key)
        if shown is None:
            hidden = redacted(value, key=key)
            shown = "{}" if hidden == {} else "[]" if hidden == [] else scalar_yaml(hidden)
        lines.append((f"{key} = {shown}", str(loaded.origins[key])))
    width = max(len(left) for left, _ in lines if len(left) <= 60)
    return [f"{left:<{width}}  # {origin}" for left, origin in lines]


def effective_json(loaded: LoadedConfig) -> dict[str, Any]:
    """The effective values in the shape of the file, with references as written."""
    shown = _shown(plain_config(loaded.config), (), loaded.references)
    assert isinstance(shown, dict)
    return shown


def _shown(value: object, path: Path, references: Mapping[str, str]) -> object:
    if isinstance(value, dict) and value:
        return {redact_text(k): _shown(v, (*path, k), references) for k, v in value.items()}
    if isinstance(value, list) and value:
        return [_shown(v, (*path, i), references) for i, v in enumerate(value)]
    key = dotted(path)
    return references[key] if key in references else redacted(value, key=key)


def json_schema(kinds: CatalogKinds = CATALOGS) -> dict[str, Any]:
    """The JSON Schema of the file, for editors; defaults are as in a file.

    `kinds` are the registered kinds of catalogs.
    """
    schema = ServiceConfig.model_json_schema(mode="serialization")
    schema["$defs"]["CatalogSection"]["properties"]["metastore"]["enum"] = list(kinds)
    for section in (schema, *schema["$defs"].values()):
        for key in section.get("properties", {}).values():
            if "description" in key:
                # Without the line breaks of the code.
                key["description"] = " ".join(key["description"].split())
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "compactord"
    return schema
