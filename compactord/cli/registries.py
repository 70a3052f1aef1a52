"""All that can be added to the product, as one value that `main` hands to every command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import TypeAlias

from compactord import ids
from compactord.config.model import Recovery, Spark
from compactord.config.registries import ConfigRegistries
from compactord.engine.base import Engine
from compactord.engine.spark import start_spark
from compactord.maintenance.kind import AnyKind
from compactord.maintenance.registry import maintenance_kinds
from compactord.scheduler.events import Observer
from compactord.storage.open import STORES, Stores
from compactord.table.opening import TableRegistries
from compactord.table.subcompactions import WorkerSpec

# By the master, and Spark settings.
StartEngine: TypeAlias = Callable[[str | None, Mapping[str, str]], Engine]


@dataclass(frozen=True, kw_only=True)
class Registries(ConfigRegistries, TableRegistries):
    """Stores, kinds of catalogs, formats of data files, merge engines, triggers, maintenance.

    `maintenance` makes the kinds that the service and commands run. `observers` receive the events
    of `serve` and `compact`. `start_engine` starts what runs subcompactions; workers of Spark look
    formats and functions up in the product's own registries.
    """

    stores: Stores = STORES
    maintenance: Callable[[Recovery], tuple[AnyKind, ...]] = maintenance_kinds
    start_engine: StartEngine = start_spark
    observers: tuple[Observer, ...] = ()

    def worker(self, spark: Spark, zone: tzinfo) -> WorkerSpec:
        """The settings of this process for merges; `zone` is the writers' time zone."""
        return WorkerSpec(
            owner=ids.this_process(),
            memory_bytes=spark.task_memory_bytes,
            zone=zone,
            registries=self,
        )


def registries_of(args: argparse.Namespace) -> Registries:
    """The registries that `main` got with the arguments; the product's own by default."""
    given: Registries | None = args.registries
    return given or Registries()
