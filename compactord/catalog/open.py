"""Opens the catalog of a warehouse: the only module that lists the kinds of catalogs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import tzinfo
from types import MappingProxyType
from typing import TYPE_CHECKING

from compactord.catalog.base import Catalog
from compactord.catalog.filesystem import FilesystemCatalog
from compactord.catalog.options import check_filesystem_options, jdbc_options
from compactord.catalog.refused import RefusedCatalog
from compactord.clock import SystemClock
from compactord.errors import CatalogOptionInvalid, UsageError
from compactord.references import LateValues, ReferenceMissing, resolve
from compactord.storage.open import STORES, Stores

# Databases need packages that are not always installed.
if TYPE_CHECKING:
    from compactord.catalog.jdbc.registration import Registration

# How long a snapshot of ours stands before we build on it, where nothing excludes writers.
SETTLE_MS = 10_000
_NONE: Mapping[str, str] = MappingProxyType({})


def open_catalog(
    warehouse: str,
    stores: Stores = STORES,
    *,
    metastore: str = "filesystem",
    options: Mapping[str, str] = _NONE,
    zone: tzinfo | None = None,
    is_guarded: bool = False,
    settle_ms: int = SETTLE_MS,
) -> Catalog:
    """The catalog of a warehouse; opens no connection.

    `options` are Paimon's for catalogs; references in them are resolved where they are needed.
    `zone` is that of the writers, None the machine's. Where nothing excludes Java's writers, every
    use of the catalog is refused unless `is_guarded`; then snapshots stand for `settle_ms`.

    Raises what `Stores.open` does, `UsageError` for a metastore whose packages are not installed,
    `CatalogOptionInvalid` for an option that cannot be used.
    """
    try:
        storage, path = stores.open(warehouse, options)
    except CatalogOptionInvalid:
        raise
    except UsageError as error:
        raise UsageError(f"warehouse {error}") from error
    is_jdbc = metastore == "jdbc"
    own = _own(options, stores)
    values = _resolved(own)
    is_exposed = not storage.capabilities.excludes_java_writers
    settle_ms = settle_ms if is_exposed and is_guarded else 0
    if not is_jdbc:
        check_filesystem_options(values)
        if is_exposed and not is_guarded:
            return RefusedCatalog(storage, path)
        return FilesystemCatalog(storage, path, settle_ms=settle_ms)
    try:
        from compactord.catalog.jdbc.catalog import open_jdbc
    except ImportError as error:
        raise _no_packages(error) from None
    late = LateValues(own)
    catalog = open_jdbc(storage, path, late, clock=SystemClock(), zone=zone, settle_ms=settle_ms)
    if is_exposed and not is_guarded and not catalog.has_lock:
        return RefusedCatalog(storage, path)
    return catalog


def open_registration(
    warehouse: str,
    stores: Stores = STORES,
    *,
    options: Mapping[str, str],
    zone: tzinfo | None = None,
) -> Registration:
    """What registers a warehouse's tables in the JDBC catalog of the options, as `open_catalog`.

    It publishes nothing, so whatever lock the catalog has or lacks is no matter.
    """
    storage, path = stores.open(warehouse, options)
    own = _own(options, stores)
    try:
        from compactord.catalog.jdbc.catalog import open_database
        from compactord.catalog.jdbc.registration import Registration
    except ImportError as error:
        raise _no_packages(error) from None
    given = jdbc_options(_resolved(own), is_locked=not storage.capabilities.has_folders)
    return Registration(
        FilesystemCatalog(storage, path),
        open_database(given, zone=zone),
        warehouse=warehouse,
        given=given,
    )


def _no_packages(error: ImportError) -> UsageError:
    return UsageError(
        f"metastore jdbc needs packages that are not installed ({error.name}): "
        "pip install 'psycopg[binary]>=3.2,<4' 'pymysql[rsa]>=1.1,<2' 'sqlalchemy>=2.0,<3'"
    )


def _own(options: Mapping[str, str], stores: Stores) -> dict[str, str]:
    """The options of the catalog itself; those of stores have been looked at."""
    return {key: text for key, text in options.items() if not stores.has_option(key)}


def _resolved(options: Mapping[str, str]) -> dict[str, str]:
    """The options without references. Raises `CatalogOptionInvalid`."""
    found = {}
    for key, text in options.items():
        try:
            found[key] = resolve(text)
        except ReferenceMissing as error:
            raise CatalogOptionInvalid(key, error.expected) from None
    return found
