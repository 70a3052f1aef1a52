"""`compactord compact --config` in this process, with what a test has registered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from compactord.catalog.registry import CATALOGS, CatalogKinds
from compactord.cli.command import _parser
from compactord.cli.compact import compact
from compactord.engine.base import Engine
from compactord.formats.registry import FORMATS, Formats
from compactord.kernels.functions.registry import MERGE_FUNCTIONS, MergeFunctions
from compactord.rewrite.subcompaction import run_subcompaction
from compactord.storage.open import STORES, Stores
from tests.inline_engine import InlineEngine
from tests.unit.cli.warehouses import configuration


def run_compact(
    folder: Path,
    config: str,
    *arguments: str,
    stores: Stores = STORES,
    kinds: CatalogKinds = CATALOGS,
    formats: Formats = FORMATS,
    functions: MergeFunctions = MERGE_FUNCTIONS,
    start_engine: Callable[[], Engine] | None = None,
) -> int:
    """The exit code; the text of the configuration as for `configuration`."""
    args = _parser().parse_args(["compact", "--config", configuration(folder, config), *arguments])
    run = partial(run_subcompaction, formats=formats, functions=functions)
    return compact(
        args,
        stores=stores,
        kinds=kinds,
        formats=formats,
        functions=functions,
        start_engine=lambda *_: start_engine() if start_engine else InlineEngine(run),
    )
