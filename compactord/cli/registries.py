"""All that can be added to the product, as one value that `main` hands to every command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import TypeAlias

from compactord import ids
from compactord.catalog.access import TableAccess
from compactord.config.model import Recovery, Spark
from compactord.config.registries import ConfigRegistries
from compactord.engine.base import Engine
from compactord.engine.spark import start_spark
from compactord.kernels.functions.registry import MERGE_FUNCTIONS, MergeFunctions
from compactord.maintenance.kind import AnyKind
from compactord.maintenance.registry import maintenance_kinds
from compactord.paimon.schema import TableSchema
from compactord.storage.open import STORES, Stores
from compactord.table.opening import OpenTable, describe_table, open_table
from compactord.table.subcompactions import WorkerSpec

# By the master, and Spark settings.
StartEngine: TypeAlias = Callable[[str | None, Mapping[str, str]], Engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registries(ConfigRegistries):
    """Stores, kinds of catalogs, formats of data files, merge engines, kinds of maintenance.

    `maintenance` makes those that the service runs. `start_engine` starts what runs
    subcompactions; workers of Spark look formats and functions up in the product's own registries.
    """

    stores: Stores = STORES
    functions: MergeFunctions = field(default_factory=lambda: MERGE_FUNCTIONS)
    maintenance: Callable[[Recovery], tuple[AnyKind, ...]] = maintenance_kinds
    start_engine: StartEngine = start_spark

    def describe(
        self, access: TableAccess, schema: TableSchema, overrides: Mapping[str, str]
    ) -> OpenTable:
        """See `describe_table`."""
        formats, functions = self.formats, self.functions
        return describe_table(access, schema, overrides, formats=formats, functions=functions)

    def open_table(self, access: TableAccess, overrides: Mapping[str, str]) -> OpenTable:
        """See the function of this name."""
        return open_table(access, overrides, formats=self.formats, functions=self.functions)

    def worker(self, spark: Spark, zone: tzinfo) -> WorkerSpec:
        """What merges are told by this process; `zone` is that of the writers."""
        return WorkerSpec(
            owner=ids.this_process(),
            memory_bytes=spark.task_memory_bytes,
            zone=zone,
            formats=self.formats,
            functions=self.functions,
        )


def registries_of(args: argparse.Namespace) -> Registries:
    """Those that `main` got with the arguments; the product's own without."""
    given: Registries | None = args.registries
    return given or Registries()
