"""The registries that commands use, as one value. A module of its own: all commands import it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import TypeAlias

from compactord import ids
from compactord.config.model import Recovery, Spark
from compactord.config.registries import ConfigRegistries
from compactord.engine.base import Engine
from compactord.engine.kinds import ENGINES, EngineKinds, check_engine
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
    of `serve` and `compact`. `engines` are by name; workers of Spark look formats and functions up
    in the product's own registries.
    """

    stores: Stores = STORES
    maintenance: Callable[[Recovery], tuple[AnyKind, ...]] = maintenance_kinds
    engines: EngineKinds = field(default_factory=lambda: ENGINES)
    observers: tuple[Observer, ...] = ()

    def start_engine(self, master: str | None, settings: Mapping[str, str]) -> Engine:
        """The engine of a checked master, started. Raises as `EngineKind.start` does."""
        return check_engine(master, settings, self.engines).start(master, settings)

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
