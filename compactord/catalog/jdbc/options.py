"""Options of a JDBC catalog. A module of its own, because both lock and catalog import it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compactord.catalog.kinds import read_option
from compactord.errors import CatalogOptionInvalid
from compactord.paimon.options.values import boolean, duration_ms, integer_within

_PROPERTY = "jdbc."
# Lock rows hold whole seconds: with less than one a lock would expire at once.
_LEAST_LOCK_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JdbcOptions:
    """Parsed options of a JDBC catalog. `properties` are the driver's, and may hold a password.

    `lock_key_max` is the maximum length of a lock's name when the table of locks is created.
    """

    uri: str = field(repr=False)
    catalog_key: str
    properties: Mapping[str, str] = field(repr=False)
    pool_size: int
    is_locked: bool
    lock_sleep_max_ms: int
    lock_timeout_ms: int
    lock_key_max: int


def jdbc_options(options: Mapping[str, str], *, is_locked: bool = False) -> JdbcOptions:
    """The options of a JDBC catalog. `is_locked` is the default for its lock.

    Raises `CatalogOptionInvalid`.
    """
    if "uri" not in options:
        raise CatalogOptionInvalid("uri", "jdbc:sqlite:…, jdbc:postgresql://… or jdbc:mysql://…")
    if options.get("lock.type", "jdbc") != "jdbc":
        raise CatalogOptionInvalid("lock.type", "jdbc, the only lock that is supported so far")
    timeout_ms = read_option(options, "lock-acquire-timeout", duration_ms, 8 * 60_000)
    if timeout_ms < _LEAST_LOCK_MS:
        raise CatalogOptionInvalid("lock-acquire-timeout", "1 s or more")
    return JdbcOptions(
        uri=options["uri"],
        catalog_key=options.get("catalog-key", "jdbc"),
        properties={
            key.removeprefix(_PROPERTY): value
            for key, value in options.items()
            if key.startswith(_PROPERTY)
        },
        pool_size=read_option(options, "client-pool-size", integer_within(1, 1000), 2),
        is_locked=read_option(options, "lock.enabled", boolean, is_locked),
        lock_sleep_max_ms=read_option(options, "lock-check-max-sleep", duration_ms, 8_000),
        lock_timeout_ms=timeout_ms,
        lock_key_max=read_option(options, "lock-key-max-length", integer_within(1, 1 << 16), 255),
    )
