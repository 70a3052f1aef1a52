"""The options of all catalogs, under Paimon's names (options/CatalogOptions.java).

All that Paimon knows are accepted, so that those of the writers can be used as they are; those that
say nothing about compaction have no effect. Others are refused by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from compactord.catalog.kind import CatalogKind
from compactord.errors import CatalogOptionInvalid

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
