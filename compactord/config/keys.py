"""Keys and paths: those of the model, those of a configuration, and texts that name them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from compactord.config.model import ServiceConfig
from compactord.config.problems import Path
from compactord.config.section import Section


def keys_of(section: type[Section]) -> dict[str, object]:
    """Key → annotation, in the order of the model."""
    return {field.alias or name: field.annotation for name, field in section.model_fields.items()}


def known_keys(path: Sequence[str | int]) -> tuple[str, ...]:
    """The keys that may stand directly under `path`; empty where any may, or none."""
    place: object = ServiceConfig
    for part in path:
        place = _step(place, part)
    section = _section(place)
    return () if section is None else tuple(keys_of(section))


def nearest(word: str, words: Iterable[str]) -> str | None:
    """A hint, if one of the words is close to what was written."""
    near = difflib.get_close_matches(word.lower(), list(words), n=1)
    return f"did you mean {near[0]}?" if near else None


def elsewhere(word: str) -> str | None:
    """A hint, if a key of this name is in one section alone."""
    sections = [name for name in keys_of(ServiceConfig) if word in known_keys((name,))]
    return f"did you mean {sections[0]}.{word}?" if len(sections) == 1 else None


def path_of(parts: Sequence[str], *, any_case: bool = False) -> Path:
    """A path from its parts as text: list items become numbers, the rest of a free key one part.

    With `any_case` fixed keys are lower-cased, as they come from names of environment variables.
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
    """The path with keys in the place of attribute names."""
    keys: list[str | int] = []
    place: object = ServiceConfig
    for part in path:
        section = _section(place)
        field = section.model_fields.get(str(part)) if section is not None else None
        keys.append(part if field is None or field.alias is None else field.alias)
        place = _step(place, keys[-1])
    return tuple(keys)


def plain(config: ServiceConfig) -> dict[str, Any]:
    """The configuration as a file could hold it, secrets included; of rules only what they set."""
    found = config.model_dump(mode="json", by_alias=True)
    found["rules"] = [
        rule.model_dump(mode="json", by_alias=True, exclude_unset=True) for rule in config.rules
    ]
    return found


def leaves(config: ServiceConfig) -> Iterator[tuple[Path, object]]:
    """Every value with its path; empty mappings and lists count as values. Secrets included."""
    yield from _leaves(plain(config), ())


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
    """The annotation under a key or index of `place`; None if there is none."""
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
