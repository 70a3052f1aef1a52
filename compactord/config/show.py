"""The effective configuration for people and programs, without secrets, and its schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compactord.catalog.registry import CATALOGS, CatalogKinds
from compactord.config.keys import leaves, plain
from compactord.config.load import LoadedConfig
from compactord.config.model import ServiceConfig
from compactord.config.problems import Path, dotted
from compactord.config.source import scalar_yaml
from compactord.text import redact_text, redacted


def show_text(loaded: LoadedConfig) -> list[str]:
    """One line per effective value: `key = value`, and where it came from."""
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
    """The effective values in the shape of the file; references stand as they were written."""
    shown = _shown(plain(loaded.config), (), loaded.references)
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
    """The JSON Schema of the file, for editors; defaults are as they would be written.

    `kinds` are those of catalogs.
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
