"""Static descriptions of catalog types and their options. Cheap to import, for `--help`.

All options of Paimon's catalogs are accepted, so writers' options can be reused unchanged; options
unrelated to compaction have no effect. Unknown options are refused by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from compactord.errors import CatalogOptionInvalid
from compactord.text import did_you_mean

# Slow to import, and needed only to open a catalog.
if TYPE_CHECKING:
    from compactord.catalog.base import Catalog, CatalogPlace
    from compactord.storage.open import Stores


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogKind:
    """A kind of catalog; `name` is its `metastore` in a configuration.

    `options` are the names of its options, and `prefixes` the start of further ones. Options in
    `credentials` are read again after a refusal, the rest only when the catalog is opened.
    `opener` is `module:function`, imported only when a catalog is opened. It raises `UsageError`,
    and ImportError if the packages that `install` fetches are missing.
    `names_warehouse`: the warehouse is a name known to the catalog's service, not a location.
    `locates_tables`: each table has its own location. If no store opens the warehouse, the catalog
    still works, but tables in it are refused.
    `has_lock`: its writers can exclude each other with the catalog's lock.
    `shown_options` represent all options in descriptions, `example_option` is one with a value, and
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
        """The catalog at this place; sends no request. Raises the errors of `opener`."""
        module, _, name = self.opener.partition(":")
        open_: Callable[[CatalogPlace], Catalog] = getattr(importlib.import_module(module), name)
        return open_(place)

    def location_of(self, warehouse: str, stores: Stores) -> str | None:
        """The warehouse's location; None if it has none, or needs no store.

        Raises as `Stores.knows`.
        """
        if self.names_warehouse or (self.locates_tables and not stores.knows(warehouse)):
            return None
        return warehouse

    def knows(self, option: str) -> bool:
        return option in self.options or option.startswith(self.prefixes)

    def is_read_once(self, option: str) -> bool:
        """Whether a changed value takes effect only when the catalog is opened again."""
        return self.knows(option) and option not in self.credentials


T = TypeVar("T")

# Paimon defines these for every catalog, with or without a lock.
_LOCK = ("lock.enabled", "lock.type", "lock-check-max-sleep", "lock-acquire-timeout")
# Caches of engines, allowed names and permissions to create.
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
    """Raises `CatalogOptionInvalid` for an option that this kind of catalog does not have.

    The error names the kinds in `others` that have it.
    """
    known = (*kind.options, *_LOCK, *_WITHOUT_EFFECT)
    for key in options:
        if kind.knows(key) or key in known or key.startswith(_PREFIXES_WITHOUT_EFFECT):
            continue
        owners = " or ".join(each.name for each in others if each.knows(key))
        if owners:
            expected = f"no such option, unless metastore is {owners}"
        else:
            expected = f"a catalog option of Paimon{did_you_mean(key, known)}"
        raise CatalogOptionInvalid(key, expected)


def read_option(options: Mapping[str, str], key: str, parse: Callable[[str], T], default: T) -> T:
    """The option's value, read by `parse`, whose ValueError becomes `CatalogOptionInvalid`."""
    if key not in options:
        return default
    try:
        return parse(options[key])
    except ValueError as error:
        raise CatalogOptionInvalid(key, str(error)) from None
