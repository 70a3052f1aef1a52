"""What the arguments mean that name a warehouse without a configuration."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence

from compactord.config.load import LoadedConfig, config_of_warehouse
from compactord.config.problems import COMMAND_LINE, Problem
from compactord.config.source import Node, References
from compactord.errors import UsageError
from compactord.redaction import redact_text

# The name of the catalog of a warehouse that is given without a configuration.
NAMELESS = "warehouse"


def warehouse_config(args: argparse.Namespace) -> LoadedConfig:
    """The defaults for the one catalog that the arguments name. Raises `UsageError`."""
    if not args.warehouse:
        raise UsageError("--warehouse is empty")
    options = {
        key: resolved(value, f"--catalog-option {key}")
        for key, value in pairs(args.catalog_option, "--catalog-option").items()
    }
    metastore = args.metastore or "filesystem"
    return config_of_warehouse(NAMELESS, args.warehouse, metastore=metastore, options=options)


def refuse_catalog_arguments(args: argparse.Namespace) -> None:
    """Raises `UsageError` where they are given without --warehouse."""
    if args.metastore is not None or args.catalog_option:
        raise UsageError("--metastore and --catalog-option need --warehouse")


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
    """Resolves references to secrets as `serve` does: all users of a machine can see arguments."""
    problems: list[Problem] = []
    node = Node(content=text, origin=COMMAND_LINE)
    References(os.environ, problems).resolve(node)
    for problem in problems:
        raise UsageError(f"{argument} has {problem.value}: expected {problem.expected}")
    return str(node.content)
