"""What the arguments mean that name a warehouse without a configuration."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from compactord.config.load import LoadedConfig
from compactord.config.model import ServiceConfig
from compactord.config.registries import OWN, ConfigRegistries
from compactord.errors import UsageError
from compactord.text import ReferenceMissing, redact_text, resolve

# The name of the catalog of a warehouse that is given without a configuration.
NAMELESS = "warehouse"


def config_of_warehouse(
    warehouse: str, known: ConfigRegistries = OWN, **keys: object
) -> LoadedConfig:
    """The defaults, for a warehouse without a configuration; `keys` are others of its section."""
    section = {"warehouse": warehouse, **keys}
    config = ServiceConfig.model_validate({"catalogs": {NAMELESS: section}}, context=known)
    return LoadedConfig(path="", config=config)


def warehouse_config(args: argparse.Namespace, known: ConfigRegistries = OWN) -> LoadedConfig:
    """The defaults for the one catalog that the arguments name, of a `known` kind.

    Raises `UsageError`.
    """
    if not args.warehouse:
        raise UsageError("--warehouse is empty")
    keys = catalog_keys(args)
    for key, value in keys["options"].items():
        # Catalogs resolve what stands in their options when they are opened.
        resolved(value, f"--catalog-option {key}")
    return config_of_warehouse(args.warehouse, known, **keys)


def catalog_keys(args: argparse.Namespace) -> dict[str, Any]:
    """What the arguments say of the catalog of --warehouse: keys of its section."""
    options = pairs(args.catalog_option, "--catalog-option")
    given = {
        "metastore": args.metastore,
        "unlocked_writers": args.unlocked_writers,
        "allow_http": args.allow_http or None,
        "allow_schemes": args.allow_scheme or None,
    }
    return {"options": options} | {key: value for key, value in given.items() if value is not None}


def refuse_catalog_arguments(args: argparse.Namespace) -> None:
    """Raises `UsageError` where they are given without --warehouse."""
    keys = catalog_keys(args)
    if keys.pop("options") or keys:
        raise UsageError(
            "--metastore, --catalog-option, --unlocked-writers, --allow-http and --allow-scheme "
            "need --warehouse"
        )


def pairs(texts: Sequence[str], argument: str) -> Mapping[str, str]:
    """Texts `key=value`, by key. Raises `UsageError`, without values."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{argument} {redact_text(text)!r} is not of the form key=value")
        if found.setdefault(key.strip(), value) != value:
            raise UsageError(f"{argument} gives {key.strip()} twice, with different values")
    return found


def resolved(text: str, argument: str) -> str:
    """The text without references, which hide secrets from other users of the machine.

    Raises `UsageError`.
    """
    try:
        return resolve(text)
    except ReferenceMissing as error:
        raise UsageError(f"{argument} has {error}") from None
