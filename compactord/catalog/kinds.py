"""Static descriptions of catalog types and their options. Cheap to import, for `--help`.

All that Paimon knows are accepted, so that those of the writers can be used as they are; those that
say nothing about compaction have no effect. Others are refused by name.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from compactord.errors import CatalogOptionInvalid

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


T = TypeVar("T")

# Paimon has them for every catalog, whether it has a lock or not.
_LOCK = ("lock.enabled", "lock.type", "lock-check-max-sleep", "lock-acquire-timeout")
# What engines keep in memory, which names they allow, what they may create.
_WITHOUT_EFFECT = (
    "allow-upper-case",
    "cache-enabled",
    "cache.deletion-vectors.max-num",
    "cache.expiration-interval",
    "cache.expire-after-access",
    "cache.expire-after-write",
    "cache.manifest.max-memory",
    "cache.manifest.small-file-memory",
    "cache.manifest.small-file-threshold",
    "cache.manifest.soft-values",
    "cache.partition.max-num",
    "cache.snapshot.max-num-per-table",
    "case-sensitive",
    "catalog-options-table.enabled",
    "file-io.allow-cache",
    "format-table.enabled",
    "local-cache.block-size",
    "local-cache.dir",
    "local-cache.enabled",
    "local-cache.max-size",
    "local-cache.whitelist",
    "resolving-file-io.enabled",
    "sync-all-properties",
    "table.type",
)
_PREFIXES_WITHOUT_EFFECT = ("table-default.",)


def check_names(
    options: Iterable[str], kind: CatalogKind, others: Iterable[CatalogKind] = ()
) -> None:
    """Raises `CatalogOptionInvalid` for an option that catalogs of this kind do not have.

    `others` may have it, which is said.
    """
    known = (*kind.options, *_LOCK, *_WITHOUT_EFFECT)
    for key in options:
        if kind.knows(key) or key in known or key.startswith(_PREFIXES_WITHOUT_EFFECT):
            continue
        owners = " or ".join(each.name for each in others if each.knows(key))
        if owners:
            expected = f"no such option, unless metastore is {owners}"
        else:
            near = difflib.get_close_matches(key, known, n=1)
            expected = "a catalog option of Paimon" + (f"; did you mean {near[0]}?" if near else "")
        raise CatalogOptionInvalid(key, expected)


def read_option(options: Mapping[str, str], key: str, parse: Callable[[str], T], default: T) -> T:
    """The option's value, which `parse` reads. Raises `CatalogOptionInvalid` for its ValueError."""
    if key not in options:
        return default
    try:
        return parse(options[key])
    except ValueError as error:
        raise CatalogOptionInvalid(key, str(error)) from None
