"""What a kind of catalog says of itself before one is opened; quick to import, for `--help`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

# Slow to import, and needed only once a catalog is opened.
if TYPE_CHECKING:
    from compactord.catalog.base import Catalog, CatalogPlace
    from compactord.storage.open import Stores


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogKind:
    """A kind of catalog; `name` is its `metastore` in a configuration.

    `options` are those that it takes, and `prefixes` are how others of its begin. Of these
    `credentials` are read again once they are refused, the others when the catalog is opened.
    `opener` is the module, and the name in it, of what opens one; it is imported then. It raises
    `UsageError`, and ImportError where the packages are missing that `install` fetches.
    `names_warehouse`: the warehouse is a name that the catalog's service knows, not a location.
    `locates_tables`: each table has a location of its own; without a store for the warehouse the
    catalog is served, and tables are refused that lie there.
    `has_lock`: whether its writers can exclude each other by a lock of the catalog's.
    `shown_options` stand for all in descriptions, `example_option` is one with a value, and
    `examples` are lines for `--help`, by command.
    """

    name: str
    opener: str
    options: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    names_warehouse: bool = False
    locates_tables: bool = False
    has_lock: bool = False
    install: str = ""
    shown_options: tuple[str, ...] = ()
    example_option: str = ""
    examples: Mapping[str, str] = field(default_factory=dict)

    def open(self, place: CatalogPlace) -> Catalog:
        """The catalog at this place; asks nothing. Raises what `opener` does."""
        module, _, name = self.opener.partition(":")
        open_: Callable[[CatalogPlace], Catalog] = getattr(importlib.import_module(module), name)
        return open_(place)

    def location_of(self, warehouse: str, options: Mapping[str, str], stores: Stores) -> str | None:
        """The warehouse's location; None where it has none, or no store that has to be there.

        Raises as `Stores.knows`.
        """
        if self.names_warehouse or (self.locates_tables and not stores.knows(warehouse, options)):
            return None
        return warehouse

    def knows(self, option: str) -> bool:
        """Whether it is an option of these catalogs."""
        return option in self.options or option.startswith(self.prefixes)

    def is_read_once(self, option: str) -> bool:
        """Whether another value of the option takes effect only when the catalog is opened."""
        return self.knows(option) and option not in self.credentials
