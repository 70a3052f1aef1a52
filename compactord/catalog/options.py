"""The options of a catalog, under Paimon's names (options/CatalogOptions.java).

All that Paimon knows are accepted, so that those of the writers can be used as they are; those that
say nothing about compaction have no effect. Others are refused by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from compactord.errors import CatalogOptionInvalid
from compactord.paimon.options.values import boolean, duration_ms, integer_within

_T = TypeVar("_T")

_JDBC_PROPERTY = "jdbc."
_LOCK = ("lock.enabled", "lock.type", "lock-check-max-sleep", "lock-acquire-timeout")
_OF_JDBC = ("uri", "catalog-key", "client-pool-size", "lock-key-max-length")
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
# Lock rows hold whole seconds: with less than one a lock would expire at once.
_LEAST_LOCK_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JdbcOptions:
    """What a JDBC catalog is told. `properties` are the driver's, which may hold a password.

    `lock_key_max` is the length of the names of locks, where their table is made.
    """

    uri: str = field(repr=False)
    catalog_key: str
    properties: Mapping[str, str] = field(repr=False)
    pool_size: int
    is_locked: bool
    lock_sleep_max_ms: int
    lock_timeout_ms: int
    lock_key_max: int


def check_filesystem_options(options: Mapping[str, str]) -> None:
    """Raises `CatalogOptionInvalid`; a filesystem catalog has no lock that we could take."""
    _check_names(options, _LOCK)
    if _read(options, "lock.enabled", boolean, False):
        raise CatalogOptionInvalid(
            "lock.enabled",
            "false: a filesystem catalog has no lock of its own, and those of other systems are "
            "not supported; metastore jdbc has one",
        )


def jdbc_options(options: Mapping[str, str], *, is_locked: bool = False) -> JdbcOptions:
    """The options of a JDBC catalog, where `is_locked` holds unless they say otherwise.

    Raises `CatalogOptionInvalid`.
    """
    _check_names(options, (*_OF_JDBC, *_LOCK), prefixes=(_JDBC_PROPERTY,))
    if "uri" not in options:
        raise CatalogOptionInvalid("uri", "jdbc:sqlite:…, jdbc:postgresql://… or jdbc:mysql://…")
    if options.get("lock.type", "jdbc") != "jdbc":
        raise CatalogOptionInvalid("lock.type", "jdbc, the only lock that is supported so far")
    timeout_ms = _read(options, "lock-acquire-timeout", duration_ms, 8 * 60_000)
    if timeout_ms < _LEAST_LOCK_MS:
        raise CatalogOptionInvalid("lock-acquire-timeout", "1 s or more")
    return JdbcOptions(
        uri=options["uri"],
        catalog_key=options.get("catalog-key", "jdbc"),
        properties={
            key.removeprefix(_JDBC_PROPERTY): value
            for key, value in options.items()
            if key.startswith(_JDBC_PROPERTY)
        },
        pool_size=_read(options, "client-pool-size", integer_within(1, 1000), 2),
        is_locked=_read(options, "lock.enabled", boolean, is_locked),
        lock_sleep_max_ms=_read(options, "lock-check-max-sleep", duration_ms, 8_000),
        lock_timeout_ms=timeout_ms,
        lock_key_max=_read(options, "lock-key-max-length", integer_within(1, 1 << 16), 255),
    )


def _check_names(
    options: Mapping[str, str], names: tuple[str, ...], *, prefixes: tuple[str, ...] = ()
) -> None:
    known = (*names, *_WITHOUT_EFFECT)
    for key in options:
        if key in known or key.startswith((*prefixes, *_PREFIXES_WITHOUT_EFFECT)):
            continue
        if key in (*_OF_JDBC, *_LOCK) or key.startswith(_JDBC_PROPERTY):
            expected = "no such option, unless metastore is jdbc"
        else:
            near = difflib.get_close_matches(key, known, n=1)
            expected = "a catalog option of Paimon" + (f"; did you mean {near[0]}?" if near else "")
        raise CatalogOptionInvalid(key, expected)


def _read(options: Mapping[str, str], key: str, parse: Callable[[str], _T], default: _T) -> _T:
    if key not in options:
        return default
    try:
        return parse(options[key])
    except ValueError as error:
        raise CatalogOptionInvalid(key, str(error)) from None
