"""What the arguments mean that name a warehouse without a configuration."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from compactord.config.load import LoadedConfig, config_of_warehouse
from compactord.errors import UsageError
from compactord.redaction import redact_text
from compactord.references import ReferenceMissing, resolve

# The name of the catalog of a warehouse that is given without a configuration.
NAMELESS = "warehouse"


def warehouse_config(args: argparse.Namespace) -> LoadedConfig:
    """The defaults for the one catalog that the arguments name. Raises `UsageError`."""
    if not args.warehouse:
        raise UsageError("--warehouse is empty")
    options = pairs(args.catalog_option, "--catalog-option")
    for key, value in options.items():
        # Catalogs resolve what stands in their options when they are opened.
        resolved(value, f"--catalog-option {key}")
    metastore = args.metastore or "filesystem"
    return config_of_warehouse(
        NAMELESS,
        args.warehouse,
        metastore=metastore,
        options=options,
        unlocked_writers=args.unlocked_writers,
    )


def refuse_catalog_arguments(args: argparse.Namespace) -> None:
    """Raises `UsageError` where they are given without --warehouse."""
    if args.metastore is not None or args.catalog_option or args.unlocked_writers is not None:
        raise UsageError("--metastore, --catalog-option and --unlocked-writers need --warehouse")


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
