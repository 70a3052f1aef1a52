"""The catalog of --warehouse, and values `key=value`, as arguments give them. Quick to import."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from compactord.errors import UsageError
from compactord.text import redact_text


def catalog_keys(args: argparse.Namespace) -> dict[str, Any]:
    """The keys of the catalog's section that the arguments of --warehouse set."""
    options = pairs(args.catalog_option, "--catalog-option")
    given = {
        "metastore": args.metastore,
        "unlocked_writers": args.unlocked_writers,
        "allow_http": args.allow_http or None,
        "allow_schemes": args.allow_scheme or None,
    }
    return {"options": options} | {key: value for key, value in given.items() if value is not None}


def refuse_catalog_arguments(args: argparse.Namespace) -> None:
    """Raises `UsageError` for catalog arguments without --warehouse."""
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
